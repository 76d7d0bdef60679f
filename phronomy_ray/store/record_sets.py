"""Many rows as one parameter: what a large batch costs on PostgreSQL.

A turn with hundreds of tool calls writes thousands of rows, and a group of commits as many. Sent one by one, even in a pipeline, each costs the driver a
message and the server an execution of its own, together more than everything else of the turn. As one JSON text that
the server takes apart (``json_to_recordset``) they cost one statement. The same rows, types and counts; SQLite needs none
of this, since its ``executemany`` never leaves the process.

Statements follow the naming of `statements`: in an update ``the_x`` and ``expected_x`` are compared with column ``x`` and
``new_x`` is written to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Executable, Table
from sqlalchemy.dialects import postgresql

from phronomy_ray.store import statements
from phronomy_ray.store.tables import (
    OPEN_STATUSES,
    approvals,
    contents,
    events,
    executions,
    journal,
    model_calls,
    queued_requests,
    tool_calls,
)

#: Fewer rows than this go one by one: their statement is prepared already.
MIN_ROWS = 4

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_INSERTS: dict[Executable, Table] = {
    statements.INSERT_APPROVAL: approvals,
    statements.INSERT_EVENT: events,
    statements.INSERT_JOURNAL: journal,
    statements.INSERT_MODEL_CALL: model_calls,
    statements.INSERT_TOOL_CALL: tool_calls,
}
#: Inserts that leave rows alone which are there already; by themselves they are few, and contents are large.
_IGNORING: dict[Executable, Table] = {
    statements.INSERT_CONTENT["postgresql"]: contents,
    statements.INSERT_EXECUTION["postgresql"]: executions,
    statements.INSERT_REQUEST["postgresql"]: queued_requests,
}
_UPDATES: dict[Executable, Table] = {
    statements.UPDATE_APPROVAL: approvals,
    statements.UPDATE_EXECUTION: executions,
    statements.UPDATE_MODEL_CALL: model_calls,
    statements.UPDATE_REVISED_TOOL_CALL: tool_calls,
    statements.UPDATE_TOOL_CALL: tool_calls,
}
_DELETES: dict[Executable, Table] = {statements.DELETE_REQUEST: queued_requests}
#: Guards that no parameter belongs to. A condition on the table alone would let a planner that thinks few rows meet it go through
#: all of those; in this form it can only be looked at when the row has been found by its key.
_GUARDS: dict[Executable, str] = {
    statements.UPDATE_EXECUTION: 'CASE WHEN r."the_execution_id" IS NOT NULL THEN executions.status IN ('
    + ", ".join(f"'{status}'" for status in OPEN_STATUSES)
    + ") END"
}


def as_record_set(
    statement: Executable, rows: Sequence[dict[str, Any]]
) -> tuple[bytes, dict[str, Any]] | None:
    """`statement` for all `rows` at once and its one parameter; ``None`` when it has no such form or is not worth it."""
    if len(rows) < MIN_ROWS or not (statement in _INSERTS or statement in _UPDATES):
        return None
    return _text(statement, tuple(rows[0])), {"rows": as_json(rows)}


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` as a parameter."""
    return _ENCODER.encode(rows)


_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)


@cache
def _text(statement: Executable, names: tuple[str, ...]) -> bytes:
    return form_of(statement, names, "rows").encode()


def form_of(statement: Executable, names: Sequence[str], parameter: str, *, behind: str = "") -> str:
    """SQL of `statement` for all rows of the JSON text `parameter`, whose fields are `names`.

    Nothing is done unless the row of the table expression `behind` (if any) has a true ``ok``, which is asked for first.
    """
    others, asked = (f"{behind}, ", f"{behind}.ok") if behind else ("", "")
    table = _INSERTS.get(statement)
    if table is None:
        table = _IGNORING.get(statement)
    if table is not None:
        columns = ", ".join(map(_quoted, names))
        source = _source(table, ((name, name) for name in names), parameter)
        where = f" WHERE {asked}" if asked else ""
        ignoring = " ON CONFLICT DO NOTHING" if statement in _IGNORING else ""
        return f"INSERT INTO {_quoted(table.name)} ({columns}) SELECT {columns} FROM {others}{source}{where}{ignoring}"
    table = _UPDATES.get(statement)
    deleting = table is None
    if table is None:
        table = _DELETES[statement]
    target = _quoted(table.name)
    split = [(name, *name.split("_", 1)) for name in names]
    source = _source(table, ((name, column) for name, _, column in split), parameter)
    changes = ", ".join(
        f"{_quoted(column)} = r.{_quoted(name)}" for name, kind, column in split if kind == "new"
    )
    guards = [
        f"{target}.{_quoted(column)} = r.{_quoted(name)}" for name, kind, column in split if kind != "new"
    ]
    if statement in _GUARDS:
        guards.append(_GUARDS[statement])
    where = " AND ".join([*guards, asked] if asked else guards)
    if deleting:
        return f"DELETE FROM {target} USING {others}{source} WHERE {where}"
    return f"UPDATE {target} SET {changes} FROM {others}{source} WHERE {where}"


def _source(table: Table, fields: Iterable[tuple[str, str]], parameter: str) -> str:
    typed = ", ".join(f"{_quoted(name)} {type_of(table, column)}" for name, column in fields)
    return f"json_to_recordset(%({parameter})s::json) AS r({typed})"


def type_of(table: Table, column: str) -> str:
    """SQL type of a column."""
    return table.c[column].type.compile(_DIALECT).split(" COLLATE ")[0]


def _quoted(name: str) -> str:
    return f'"{name}"'


__all__ = ["MIN_ROWS", "as_json", "as_record_set", "form_of", "type_of"]
