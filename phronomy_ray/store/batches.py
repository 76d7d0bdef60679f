"""Several statements at once: on PostgreSQL one round trip, elsewhere one after the other.

A round trip costs more than the statement that it carries (a commit of an agent's turn writes up to nine of them), so a
batch is sent through psycopg's pipeline mode and its answers are read together. Statements of one batch must not
depend on each other's row counts; the caller looks at all counts afterwards and rolls back if one is wrong.

The connection stays in pipeline mode until the transaction is over, for a reason that cannot be seen from here: leaving
it, psycopg sends a Flush after the last Sync, and on that message PostgreSQL stops the clock of
``idle_in_transaction_session_timeout``. An owner that was stopped right then would hold its agent's row for ever.
``executemany`` outside a pipeline has the same fault, so rows of a writing transaction go through here.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from sqlalchemy import Connection, Executable, exc
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

from phronomy_ray.store.record_sets import as_record_set

#: A statement and the rows to execute it with; no rows, no execution.
Step = tuple[Executable, Sequence[dict[str, Any]]]

_COUNTED = {"preserve_rowcount": True}
#: Where a connection keeps its open pipeline.
_PIPELINE = "phronomy_pipeline"
#: SQL text of each statement with named parameters, and its constant ones; statements are module constants and few.
_COMPILED: dict[tuple[str, Executable], tuple[str, dict[str, Any]]] = {}


def run_batch(connection: Connection, steps: Sequence[Step]) -> list[int]:
    """Execute `steps` in order inside the connection's transaction; the number of rows that each touched.

    Raises SQLAlchemy's errors, whichever way the statements travel.
    """
    if connection.dialect.name == "postgresql" and _can_pipeline():
        return _run_pipelined(connection, steps)
    return [_execute(connection, statement, rows) for statement, rows in steps]


def end_batches(connection: Connection) -> None:
    """Back to statement by statement: before a query whose rows are read, and when the transaction is over."""
    if connection.dialect.name != "postgresql" or connection.invalidated:
        return
    context = connection.info.pop(_PIPELINE, None)
    if context is not None:
        context[0].__exit__(None, None, None)


def check_connected(connection: Connection) -> None:
    """See, without asking the server, whether it has closed this connection while nobody used it. Raises SQLAlchemy's error."""
    if connection.dialect.name != "postgresql":
        return
    driver: Any = connection.connection.driver_connection
    errors = cast("Any", connection.dialect.loaded_dbapi).Error
    try:
        readable = select.poll()
        readable.register(driver.pgconn.socket, select.POLLIN)
        while readable.poll(0):  # its last words, and then its end
            driver.pgconn.consume_input()
    except errors as error:
        raise wrapped(connection, driver, error, errors) from error


def _execute(connection: Connection, statement: Executable, rows: Sequence[dict[str, Any]]) -> int:
    """With the driver's own named parameters: SQLAlchemy's handling of each row costs more than SQLite's."""
    if not rows:
        return 0
    text, constants = _compiled(connection, statement)
    given = [constants | row for row in rows] if constants else list(rows)
    result = connection.exec_driver_sql(
        text, given if len(given) > 1 else given[0], execution_options=_COUNTED
    )
    return result.rowcount


def _run_pipelined(connection: Connection, steps: Sequence[Step]) -> list[int]:
    driver: Any = connection.connection.driver_connection
    errors = cast("Any", connection.dialect.loaded_dbapi).Error
    try:
        pipeline = _pipeline_of(connection, driver)
        cursors = [_send(connection, driver, statement, rows) for statement, rows in steps]
        _flush(driver.pgconn)
        pipeline.sync()
    except errors as error:
        with suppress(Exception):  # the first error is the one to report
            end_batches(connection)
        raise wrapped(connection, driver, error, errors) from error
    return [0 if cursor is None else cursor.rowcount for cursor in cursors]


def _pipeline_of(connection: Connection, driver: Any) -> Any:
    found = connection.info.get(_PIPELINE)
    if found is None:
        context = driver.pipeline()
        found = connection.info[_PIPELINE] = (context, context.__enter__())
    return found[1]


def _flush(pgconn: Any) -> None:
    """Send all that is queued. `Pipeline.sync` sends only what the socket takes at once and then waits for the answers
    to the rest: with large rows for ever.
    """
    while pgconn.flush():
        waiting = select.poll()
        waiting.register(pgconn.socket, select.POLLIN | select.POLLOUT)
        waiting.poll()
        pgconn.consume_input()


def _send(connection: Connection, driver: Any, statement: Executable, rows: Sequence[dict[str, Any]]) -> Any:
    if not rows:
        return None
    cursor = driver.cursor()
    record_set = as_record_set(statement, rows)
    if record_set is not None:
        cursor.execute(*record_set)
        return cursor
    text, constants = _compiled(connection, statement)
    if constants:
        rows = [constants | row for row in rows]
    if len(rows) == 1:
        cursor.execute(text.encode(), rows[0])
    else:
        cursor.executemany(text.encode(), rows)
    return cursor


def _compiled(connection: Connection, statement: Executable) -> tuple[str, dict[str, Any]]:
    name = connection.dialect.name
    found = _COMPILED.get((name, statement))
    if found is None:
        dialect = sqlite.dialect(paramstyle="named") if name == "sqlite" else connection.dialect
        compiled = cast(ClauseElement, statement).compile(dialect=dialect)
        constants = {key: value for key, value in compiled.params.items() if value is not None}
        found = _COMPILED[name, statement] = (str(compiled), constants)
    return found


def wrapped(connection: Connection, driver: Any, error: Any, errors: Any) -> Exception:
    """`error` as SQLAlchemy would raise it; a dead connection, and its pool's others, are not used again."""
    lost = connection.dialect.is_disconnect(error, driver, None)
    if lost:
        connection.invalidate(error)
        connection.engine.dispose()
    return cast(
        Exception,
        exc.DBAPIError.instance(
            None,
            None,
            error,
            errors,
            hide_parameters=True,
            connection_invalidated=lost,
            dialect=connection.dialect,
        ),
    )


def _can_pipeline() -> bool:
    from psycopg import Pipeline

    return Pipeline.is_supported()


__all__ = ["Step", "check_connected", "end_batches", "run_batch", "wrapped"]
