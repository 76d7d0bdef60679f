"""A group of commits as one PostgreSQL statement, which is a transaction of its own: one round trip with fence, rows and flush.

Every table's rows are a JSON text that the server takes apart (`record_sets`), in one common table expression each. All of
them stand behind the fence: it advances every root or is an error, and none of them begins before it has spoken. At the end the
rows that were touched are counted, and a wrong number is an error too. So the statement happens whole or not at all, with nothing
for the client to decide in between, and a client that is stopped holds no lock.

A root that another transaction holds is passed over (and refuses the group), not waited for: one stopped owner stops nobody
else, and two groups cannot wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, Executable

from phronomy_ray.store import statements
from phronomy_ray.store.batches import wrapped
from phronomy_ray.store.record_sets import as_json, form_of, type_of
from phronomy_ray.store.tables import agents

Rows = Sequence[Mapping[str, Any]]


def run_statement(
    connection: Connection,
    roots: Rows,
    counted: Sequence[tuple[Executable, Rows]],
    others: Sequence[tuple[Executable, Rows]],
) -> None:
    """Advance `roots` and write the rows, on a connection in autocommit mode; durable when this returns.

    Args:
        connection: of PostgreSQL.
        roots: parameters of `statements.ADVANCE_ROOT`.
        counted: statements that must touch as many rows as they are given.
        others: statements that may touch fewer.

    Raises SQLAlchemy's errors; a group that is refused is a `DataError`.
    """
    steps = [(*step, True) for step in counted if step[1]] + [(*step, False) for step in others if step[1]]
    text = _text(tuple((statement, tuple(rows[0]), must_touch) for statement, rows, must_touch in steps))
    parameters: dict[str, Any] = {"roots": as_json(roots)}
    for index, (_, rows, must_touch) in enumerate(steps):
        parameters[f"p{index}"] = as_json(rows)
        if must_touch:
            parameters[f"n{index}"] = len(rows)
    driver: Any = connection.connection.driver_connection
    errors = cast("Any", connection.dialect.loaded_dbapi).Error
    try:
        driver.execute(text, parameters)
    except errors as error:
        raise wrapped(connection, driver, error, errors) from error


@cache
def _text(shape: tuple[tuple[Executable, tuple[str, ...], bool], ...]) -> bytes:
    parts = [_FENCE]
    wrong = []
    for index, (statement, names, must_touch) in enumerate(shape):
        form = form_of(statement, names, f"p{index}", behind="fence")
        parts.append(f"s{index} AS ({form} RETURNING 1)")
        if must_touch:
            wrong.append(f"(SELECT count(*) FROM s{index}) <> %(n{index})s")
    verdict = "SELECT ok FROM fence"
    if wrong:
        verdict = (
            f"SELECT CASE WHEN {' OR '.join(wrong)} THEN CAST('refused: a row to change or to add ' || "
            "(SELECT count(*) FROM roots) AS boolean) ELSE ok END FROM fence"
        )
    return f"WITH {', '.join(parts)} {verdict}".encode()


def _root_fields() -> str:
    guards = (
        ("the_agent_id", "agent_id"),
        ("the_epoch", "epoch"),
        ("expected_revision", "agent_revision"),
        ("expected_position", "journal_position"),
    )
    fields = (*guards, *((f"new_{column}", column) for column in statements.ADVANCED))
    counts = (("kept_starts", "starts_without_progress"),)
    return ", ".join(f"{name} {type_of(agents, column)}" for name, column in (*fields, *counts))


def _root_changes() -> str:
    changes = (f"{column} = roots.new_{column}" for column in statements.ADVANCED)
    starts = "starts_without_progress = agents.starts_without_progress * roots.kept_starts"
    return ", ".join((*changes, starts))


_FENCE = f"""
roots AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(roots)s::json) AS r({_root_fields()})
), free AS MATERIALIZED (
    SELECT agents.agent_id FROM agents JOIN roots ON agents.agent_id = roots.the_agent_id
    FOR NO KEY UPDATE OF agents SKIP LOCKED
), advanced AS (
    UPDATE agents SET {_root_changes()}
    FROM roots JOIN free ON free.agent_id = roots.the_agent_id
    WHERE agents.agent_id = roots.the_agent_id AND agents.epoch = roots.the_epoch
        AND agents.agent_revision = roots.expected_revision AND agents.journal_position = roots.expected_position
    RETURNING 1
), fence AS MATERIALIZED (
    SELECT CASE WHEN a.n = w.n THEN true
        ELSE CAST('refused: ' || a.n || ' of ' || w.n || ' roots could be advanced' AS boolean) END AS ok
    FROM (SELECT count(*) AS n FROM advanced) AS a, (SELECT count(*) AS n FROM roots) AS w
)"""

__all__ = ["run_statement"]
