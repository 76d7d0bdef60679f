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

from sqlalchemy import ColumnElement, Executable, Table, text
from sqlalchemy.dialects import postgresql

from phronomy_ray.store import statements
from phronomy_ray.store.tables import (
    IS_OPEN,
    agents,
    approvals,
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
#: Inserts that leave rows alone which are there already.
_IGNORING: dict[Executable, Table] = {
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
#: Guards that no parameter belongs to.
_GUARDS: dict[Executable, ColumnElement[bool]] = {statements.UPDATE_EXECUTION: IS_OPEN}


def as_record_set(
    statement: Executable, rows: Sequence[dict[str, Any]]
) -> tuple[bytes, dict[str, Any]] | None:
    """`statement` for all `rows` at once and its one parameter; ``None`` when it has no such form or is not worth it."""
    if len(rows) < MIN_ROWS or not any(
        statement in forms for forms in (_INSERTS, _IGNORING, _UPDATES, _DELETES)
    ):
        return None
    return _text(statement, tuple(rows[0])), as_rows(rows)


def as_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The one parameter that holds `rows`."""
    return {"rows": _ENCODER.encode(rows)}


_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)


@cache
def _text(statement: Executable, names: tuple[str, ...]) -> bytes:
    table = _INSERTS.get(statement)
    if table is None:
        table = _IGNORING.get(statement)
    if table is not None:
        columns = ", ".join(map(_quoted, names))
        source = _source(table, ((name, name) for name in names))
        ignoring = " ON CONFLICT DO NOTHING" if statement in _IGNORING else ""
        return (
            f"INSERT INTO {_quoted(table.name)} ({columns}) SELECT {columns} FROM {source}{ignoring}".encode()
        )
    table = _UPDATES.get(statement)
    deleting = table is None
    if table is None:
        table = _DELETES[statement]
    target = _quoted(table.name)
    split = [(name, *name.split("_", 1)) for name in names]
    source = _source(table, ((name, column) for name, _, column in split))
    changes = ", ".join(
        f"{_quoted(column)} = r.{_quoted(name)}" for name, kind, column in split if kind == "new"
    )
    guards = [
        f"{target}.{_quoted(column)} = r.{_quoted(name)}" for name, kind, column in split if kind != "new"
    ]
    if statement in _GUARDS:
        guards.append(str(_GUARDS[statement].compile(dialect=_DIALECT)))
    where = " AND ".join(guards)
    if deleting:
        return f"DELETE FROM {target} USING {source} WHERE {where}".encode()
    return f"UPDATE {target} SET {changes} FROM {source} WHERE {where}".encode()


def _source(table: Table, fields: Iterable[tuple[str, str]]) -> str:
    typed = ", ".join(f"{_quoted(name)} {_type(table, column)}" for name, column in fields)
    return f"json_to_recordset(%(rows)s::json) AS r({typed})"


def _type(table: Table, column: str) -> str:
    return table.c[column].type.compile(_DIALECT).split(" COLLATE ")[0]


def _quoted(name: str) -> str:
    return f'"{name}"'


def _root_fields() -> str:
    guards = (
        ("the_agent_id", "agent_id"),
        ("the_epoch", "epoch"),
        ("expected_revision", "agent_revision"),
        ("expected_position", "journal_position"),
    )
    fields = (*guards, *((f"new_{column}", column) for column in statements.ADVANCED))
    counts = (("kept_starts", "starts_without_progress"),)
    return ", ".join(f"{name} {_type(agents, column)}" for name, column in (*fields, *counts))


def _root_changes() -> str:
    changes = (f"{column} = r.new_{column}" for column in statements.ADVANCED)
    return ", ".join(
        (*changes, f"starts_without_progress = {agents.name}.starts_without_progress * r.kept_starts")
    )


#: `statements.ADVANCE_ROOT` for many agents, all of them or none: otherwise it is an error, so that what follows in the
#: pipeline is not even tried. A root that another transaction holds is passed over, not waited for: one stopped owner
#: stops nobody else, and two groups cannot wait for each other.
ADVANCE_FREE_ROOTS = text(
    f"""
    WITH r AS MATERIALIZED (
        SELECT * FROM json_to_recordset(CAST(:rows AS json)) AS r({_root_fields()})
    ), free AS MATERIALIZED (
        SELECT agents.agent_id FROM agents JOIN r ON agents.agent_id = r.the_agent_id
        FOR NO KEY UPDATE OF agents SKIP LOCKED
    ), advanced AS (
        UPDATE agents SET {_root_changes()}
        FROM r JOIN free ON free.agent_id = r.the_agent_id
        WHERE agents.agent_id = r.the_agent_id AND agents.epoch = r.the_epoch
            AND agents.agent_revision = r.expected_revision AND agents.journal_position = r.expected_position
        RETURNING 1
    )
    SELECT CASE WHEN a.n = w.n THEN 1
        ELSE CAST('refused: ' || a.n || ' of ' || w.n || ' roots could be advanced' AS integer) END
    FROM (SELECT count(*) AS n FROM advanced) AS a, (SELECT count(*) AS n FROM r) AS w
    """
)

__all__ = ["ADVANCE_FREE_ROOTS", "MIN_ROWS", "as_record_set", "as_rows"]
