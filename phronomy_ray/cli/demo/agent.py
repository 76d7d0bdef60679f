"""The demo's agent, written as a user would write one: three tools and a class.

It surveys a folder: asks for work packages of about equal size, counts all of them side by side, and writes a report
once a human has agreed. What belongs to the folder: regular files, no symbolic links, nothing below a name that begins
with a dot, no ``__pycache__`` or ``node_modules``, not the demo's own output.

Two things are here only to be watched. Every counting call notes its start and its end in a file outside of the runtime
(the *effect log*). And most of them hold their result back until a *gate* lets their attempt pass, so that the node
is lost in the middle of the batch, in every run and on every machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import tool
from phronomy_ray.tool_calls import ToolContext

MODEL_ENV = "PHRONOMY_DEMO_MODEL"
API_BASE_ENV = "PHRONOMY_DEMO_API_BASE"
#: Packages that the folder is divided into, which is the size of the batch.
PACKAGES = 16
#: Packages whose first attempt does not wait at the gate: those that are done when the node is lost.
QUICK_PACKAGES = 4
#: Longest wait at the gate, in seconds; the tool's timeout is longer.
GATE_TIMEOUT_S = 150.0
_SPACE = b" \t\n\r\x0b\x0c"
_SKIPPED = {"__pycache__", "node_modules"}

#: Part of a file: path within the folder, first byte, byte behind the last one.
Piece = tuple[str, int, int]


@tool(replay="safe")
def list_packages(context: ToolContext) -> list[dict[str, int]]:
    """List the work packages that the folder is divided into: number, files that begin in it, bytes."""
    return [
        {
            "package": number,
            "files": sum(start == 0 for _, start, _ in pieces),
            "bytes": sum(stop - start for _, start, stop in pieces),
        }
        for number, pieces in enumerate(_divide(_settings(context)), start=1)
    ]


@tool(replay="safe", timeout_s=GATE_TIMEOUT_S + 30, max_result_chars=200_000)
def count_package(package: int, context: ToolContext) -> dict[str, Any]:
    """Read one work package and count it.

    Args:
        package: its number, as listed.

    Returns files, lines, words and bytes for each group, which is a folder at the top; "(top)" are files outside of any.
    """
    settings = _settings(context)
    packages = _divide(settings)
    if not 1 <= package <= len(packages):
        raise ValueError(f"there is no package {package}, only 1 to {len(packages)}")
    with _noted(settings, context, package):
        groups: dict[str, dict[str, int]] = {}
        for piece in packages[package - 1]:
            counted = _count(Path(settings["folder"]), piece)
            sums = groups.setdefault(_group(piece[0]), dict.fromkeys(counted, 0))
            for name, number in counted.items():
                sums[name] += number
        if package > QUICK_PACKAGES or context.attempt > 1:
            _wait_at_gate(Path(settings["gate"]), context)
        return {"package": package, "groups": groups}


@tool(requires_approval=True, replay="idempotent")
async def write_report(markdown: str, context: ToolContext) -> str:
    """Write the report as REPORT.md into the output folder.

    Args:
        markdown: the whole text.
    """
    settings = _settings(context)
    with _noted(settings, context, 0):
        _replace_file(
            Path(settings["output"]), "REPORT.md", markdown, new_name=f".{context.tool_call_id}.new"
        )
    return f"REPORT.md has {len(markdown)} characters"


def _replace_file(folder: Path, name: str, text: str, *, new_name: str) -> None:
    """Write a file: all of it or nothing, also if this process is killed here."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / new_name
    new.write_text(text, encoding="utf-8")
    new.replace(folder / name)


class Surveyor(Agent):
    """Surveys a folder and writes a report about it."""

    model = os.environ.get(MODEL_ENV) or "openai/demo"
    model_settings: ClassVar[dict[str, Any]] = (
        {"api_base": os.environ[API_BASE_ENV]} if os.environ.get(API_BASE_ENV) else {}
    )
    instructions = (
        "You survey a folder. First call list_packages. Then call count_package for every package, all of them in one "
        "answer, side by side. Then add the numbers up, group by group, and call write_report once, with a Markdown text "
        "that holds exactly one table: a header `| group | files | lines | words | bytes |`, one row for each group with "
        "plain numbers, and a last row named `total`. Then say in one sentence that the report is written. If a tool "
        "fails, say so and stop."
    )
    tools = (list_packages, count_package, write_report)


# --- reading ---------------------------------------------------------------------------------------------------


def _settings(context: ToolContext) -> dict[str, Any]:
    """Folders and files of this run, from the durable context, which a recovered agent still has."""
    assert context.durable_context is not None, "the demo's agent is started with a durable context"
    return context.durable_context


def _files(folder: str, output: str) -> Iterator[tuple[str, int]]:
    """Path within the folder and size of every file, in a fixed order."""
    avoided = os.path.realpath(output)
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and os.path.realpath(os.path.join(where, name)) != avoided
        )
        for name in sorted(names):
            path = os.path.join(where, name)
            if not name.startswith(".") and os.path.isfile(path) and not os.path.islink(path):
                yield os.path.relpath(path, folder), os.path.getsize(path)


def _divide(settings: dict[str, Any]) -> list[list[Piece]]:
    """`PACKAGES` packages of about the same number of bytes; a large file is cut."""
    files = list(_files(settings["folder"], settings["output"]))
    limit = max(1, -(-sum(size for _, size in files) // PACKAGES))
    packages: list[list[Piece]] = [[]]
    room = limit
    for path, size in files:
        start = 0
        while True:
            stop = min(size, start + room)
            packages[-1].append((path, start, stop))
            room -= stop - start
            if room == 0 and len(packages) < PACKAGES:
                packages.append([])
                room = limit
            if stop == size:
                break
            start = stop
    return packages + [[] for _ in range(PACKAGES - len(packages))]


def _count(folder: Path, piece: Piece) -> dict[str, int]:
    """Count a piece so that the pieces of a file add up to the file: a word belongs to where it begins."""
    path, start, stop = piece
    with open(folder / path, "rb") as file:
        file.seek(max(0, start - 1))
        before = file.read(1) if start else b""
        data = file.read(stop - start)
    words = len(data.split())
    if before and before not in _SPACE and data and data[:1] not in _SPACE:
        words -= 1
    return {"files": int(start == 0), "lines": data.count(b"\n"), "words": words, "bytes": len(data)}


def _group(path: str) -> str:
    """The folder at the top, made fit for a table."""
    head, separator, _ = path.partition(os.sep)
    if not separator:
        return "(top)"
    text = os.fsencode(head).decode("utf-8", errors="replace")
    return "".join("?" if sign in "|`*" or not sign.isprintable() else sign for sign in text)


# --- to be watched ---------------------------------------------------------------------------------------------


@contextmanager
def _noted(settings: dict[str, Any], context: ToolContext, package: int) -> Iterator[None]:
    """Note start and end of a call in the effect log; a process that is killed leaves a start without an end."""

    def note(event: str) -> None:
        line = {
            "event": event,
            "at": time.time(),
            "pid": os.getpid(),
            "call": context.tool_call_id,
            "attempt": context.attempt,
            "package": package,
        }
        with open(settings["effects"], "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    note("start")
    yield
    note("end")


def _wait_at_gate(gate: Path, context: ToolContext) -> None:
    """Wait until the gate lets attempts of this number pass."""
    deadline = time.monotonic() + GATE_TIMEOUT_S
    while not (gate.exists() and context.attempt >= int(gate.read_text() or "1000")):
        if context.is_cancelled():
            raise InterruptedError("the execution was cancelled")
        if time.monotonic() > deadline:
            raise TimeoutError("the gate was not opened")
        time.sleep(0.02)


__all__ = ["API_BASE_ENV", "MODEL_ENV", "PACKAGES", "QUICK_PACKAGES", "Surveyor"]
