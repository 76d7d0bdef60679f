"""How values are shown: times, durations, ids, tables, and the one JSON document of ``--json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Colours of the statuses that people look for.
STATUS_STYLES = {
    "completed": "green",
    "succeeded": "green",
    "approved": "green",
    "ok": "green",
    "active": "cyan",
    "authorizing": "cyan",
    "dispatched": "cyan",
    "pending": "yellow",
    "suspended": "yellow",
    "awaiting_approval": "yellow",
    "unknown": "magenta",
    "lost": "magenta",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "red",
    "rejected": "red",
    "expired": "red",
    "blocked": "red",
    "parked": "red",
    "wrong": "red",
}


def print_json(value: Any) -> None:
    """One JSON document on standard output, keys as they stand."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def iso(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC, for JSON."""
    return moment.astimezone(UTC).isoformat() if moment is not None else None


def local_time(moment: datetime | None, *, with_date: bool = True) -> str:
    """A moment in the reader's time zone, empty for none."""
    if moment is None:
        return ""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S.%f")[
        : 19 if with_date else 12
    ]


def duration(seconds: float | None) -> str:
    """``12 ms``, ``3.4 s``, ``2 min 5 s``; empty for none."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds from one moment to another."""
    return (end - start).total_seconds() if start is not None and end is not None else None


def status_text(status: str) -> Text:
    """A status in its colour."""
    return Text(status, style=STATUS_STYLES.get(status, ""))


def short(value: Any, limit: int = 80) -> str:
    """JSON or text on one line, cut to `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def print_table(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, empty: str
) -> None:
    """A table, or the text `empty` when there are no rows. Without a terminal nothing is cut: ids must survive a pipe."""
    shown = list(rows)
    if not shown:
        console.print(empty, markup=False)
        return
    if not console.is_terminal:
        _print_plain([tuple(columns), *([str(cell) for cell in row] for row in shown)])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in shown:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    console.print(table)


def _print_plain(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


__all__ = [
    "STATUS_STYLES",
    "between",
    "duration",
    "iso",
    "local_time",
    "print_json",
    "print_table",
    "short",
    "status_text",
]
