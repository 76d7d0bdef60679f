"""Many rows as one parameter: what a large batch costs on PostgreSQL.

A turn with hundreds of tool calls writes thousands of rows. Sent one by one, even in a pipeline, each costs the driver a
message and the server an execution of its own, together more than everything else of the turn. As one JSON text that
the server takes apart (``json_to_recordset``) they cost one statement. The same rows, types and counts; SQLite needs none
of this, since its ``executemany`` never leaves the process.

Statements follow the naming of `statements`: in an update ``the_x`` and ``expected_x`` are compared with column ``x`` and
``new_x`` is written to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Executable, Table
from sqlalchemy.dialects import postgresql

from phronomy_ray.store import statements
from phronomy_ray.store.tables import approvals, events, journal, tool_calls

#: Fewer rows than this go one by one: their statement is prepared already.
MIN_ROWS = 4

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_INSERTS: dict[Executable, Table] = {
    statements.INSERT_APPROVAL: approvals,
    statements.INSERT_EVENT: events,
    statements.INSERT_JOURNAL: journal,
    statements.INSERT_TOOL_CALL: tool_calls,
}
_UPDATES: dict[Executable, Table] = {
    statements.UPDATE_APPROVAL: approvals,
    statements.UPDATE_REVISED_TOOL_CALL: tool_calls,
    statements.UPDATE_TOOL_CALL: tool_calls,
}


def as_record_set(
    statement: Executable, rows: Sequence[dict[str, Any]]
) -> tuple[bytes, dict[str, Any]] | None:
    """`statement` for all `rows` at once and its one parameter; ``None`` when it has no such form or is not worth it."""
    if len(rows) < MIN_ROWS or not (statement in _INSERTS or statement in _UPDATES):
        return None
    return _text(statement, tuple(rows[0])), {"rows": json.dumps(rows, ensure_ascii=False)}


@cache
def _text(statement: Executable, names: tuple[str, ...]) -> bytes:
    table = _INSERTS.get(statement)
    if table is not None:
        columns = ", ".join(map(_quoted, names))
        source = _source(table, ((name, name) for name in names))
        return f"INSERT INTO {_quoted(table.name)} ({columns}) SELECT {columns} FROM {source}".encode()
    table = _UPDATES[statement]
    split = [(name, *name.split("_", 1)) for name in names]
    source = _source(table, ((name, column) for name, _, column in split))
    changes = ", ".join(
        f"{_quoted(column)} = r.{_quoted(name)}" for name, kind, column in split if kind == "new"
    )
    guards = " AND ".join(
        f"t.{_quoted(column)} = r.{_quoted(name)}" for name, kind, column in split if kind != "new"
    )
    return f"UPDATE {_quoted(table.name)} AS t SET {changes} FROM {source} WHERE {guards}".encode()


def _source(table: Table, fields: Iterable[tuple[str, str]]) -> str:
    typed = ", ".join(
        f"{_quoted(name)} {table.c[column].type.compile(_DIALECT).split(' COLLATE ')[0]}"
        for name, column in fields
    )
    return f"json_to_recordset(%(rows)s::json) AS r({typed})"


def _quoted(name: str) -> str:
    return f'"{name}"'


__all__ = ["MIN_ROWS", "as_record_set"]
