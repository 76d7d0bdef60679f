"""Logs that survive SIGKILL of their writers: one line per fact, in one ``write`` to a file opened for appending."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

#: Folder of all logs of a run; set for every process.
FOLDER_ENV = "PHRONOMY_CHAOS_FOLDER"
#: What tools did outside.
EFFECTS = "effects"
#: What drivers and humans have said and were told.
HISTORY = "history"


def append(log: str, **facts: Any) -> None:
    """Add one line."""
    line = json.dumps({"at": time.time(), "pid": os.getpid(), **facts}) + "\n"
    handle = os.open(_path(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def entries(log: str) -> list[dict[str, Any]]:
    """All lines, in the order of their writes."""
    try:
        text = _path(log).read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]


def is_marked(name: str) -> bool:
    """Whether somebody has set this mark."""
    return _path(f"{name}.mark").exists()


def mark(name: str) -> None:
    """Set a mark that every process of the run sees."""
    _path(f"{name}.mark").touch()


def take_mark(name: str) -> bool:
    """Remove a mark; whether it was there. Only one of many that try has it."""
    try:
        _path(f"{name}.mark").unlink()
    except FileNotFoundError:
        return False
    return True


def _path(name: str) -> Path:
    return Path(os.environ[FOLDER_ENV]) / name
