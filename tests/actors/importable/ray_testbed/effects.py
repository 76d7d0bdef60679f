"""What tools leave behind, outside of the processes that run them: a log of effects, and gates that tests open.

A log line is written with one ``write`` to a file opened for appending, so it survives the SIGKILL of its writer and two
processes never mix theirs. Gates are files: a wait for one ends when the test has made it, whatever processes died.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Folder of logs and gates; set for every process of the session.
FOLDER_ENV = "RAY_TESTBED_FOLDER"
#: No wait of these tests is longer; one that is has found a fault.
PATIENCE_S = 90.0
_POLL_S = 0.01


def folder() -> Path:
    return Path(os.environ[FOLDER_ENV])


def record(agent_id: str, effect: str, **facts: Any) -> None:
    """Append one effect of an agent."""
    line = json.dumps({"effect": effect, "pid": os.getpid(), "at": time.time(), **facts}) + "\n"
    handle = os.open(folder() / f"{agent_id}.effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def recorded(agent_id: str, effect: str | None = None, **facts: Any) -> list[dict[str, Any]]:
    """Effects of an agent in the order of their writes; of one kind, with these facts."""
    try:
        lines = (folder() / f"{agent_id}.effects").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = [json.loads(line) for line in lines]
    return [
        item
        for item in found
        if (effect is None or item["effect"] == effect)
        and all(item.get(key) == value for key, value in facts.items())
    ]


def told(event: Any) -> None:
    """A subscriber to events of agents."""
    record(event.agent_id, "told", type=event.type.value, event_id=event.event_id, attempt=event.attempt)


def open_gate(name: str) -> None:
    """Let everybody through who waits, or will wait, for this gate."""
    (folder() / f"{name}.gate").touch()


def is_open(name: str) -> bool:
    return (folder() / f"{name}.gate").exists()


def pass_gate(name: str) -> None:
    """Wait until the gate is open."""
    until(lambda: is_open(name), f"gate {name} to be opened")


def until(condition: Callable[[], Any], awaited: str, *, timeout_s: float = PATIENCE_S) -> Any:
    """The first true value of `condition`; `AssertionError` that says what was awaited after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {awaited}")
        time.sleep(_POLL_S)


def until_recorded(agent_id: str, effect: str, count: int = 1, **facts: Any) -> list[dict[str, Any]]:
    """Wait until an agent's tools have left `count` such effects."""
    what = f"{count} effects {effect!r} {facts or ''} of agent {agent_id}"
    found: list[dict[str, Any]] = until(
        lambda: len(seen := recorded(agent_id, effect, **facts)) >= count and seen, what
    )
    return found
