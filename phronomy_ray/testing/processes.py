"""Processes of this machine seen from outside, by ``/proc``: who is alive, whose child it is, what environment it has.

Used where a claim about processes must not rest on what those processes say of themselves. Linux only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return _state(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    return _state(pid) in ("T", "t")


def parent_of(pid: int) -> int:
    """Pid of the parent, 0 when there is no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def descendants(pid: int) -> set[int]:
    """Children of a process, their children and so on; without `pid`."""
    children: dict[int, list[int]] = {}
    for other in _pids():
        children.setdefault(parent_of(other), []).append(other)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def with_environment(name: str, value: str) -> set[int]:
    """Processes that were started with ``name=value`` in their environment; never this one."""
    wanted = f"{name}={value}".encode()
    return {
        pid
        for pid in _pids()
        if pid != os.getpid() and wanted in _read(pid, "environ").split(b"\0") and is_alive(pid)
    }


def command_line(pid: int) -> str:
    """Command line, for people; empty when the process is gone."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def kill_hard(pids: Iterable[int]) -> None:
    """SIGKILL to each; one that is gone is no error."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait_dead(pids: Iterable[int], *, timeout_s: float) -> set[int]:
    """Wait until none of them runs; returns those that still do after `timeout_s`."""
    left = set(pids)
    deadline = time.monotonic() + timeout_s
    while True:
        left = {pid for pid in left if is_alive(pid)}
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.02)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _stat(pid: int) -> list[str]:
    """State, parent and what follows; the command, which may hold anything, is left out."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


__all__ = [
    "command_line",
    "descendants",
    "is_alive",
    "is_stopped",
    "kill_hard",
    "parent_of",
    "wait_dead",
    "with_environment",
]
