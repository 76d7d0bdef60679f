"""Engines: how each database is connected to, and the settings that keep it safe.

SQLite: WAL, ``synchronous=FULL``, foreign keys, a busy timeout, and transactions that *we* begin (``BEGIN IMMEDIATE`` for
everything that writes: a deferred transaction that reads first and writes later is refused at once when somebody wrote
in between, whatever the busy timeout). PostgreSQL: time limits for statements, locks and idle transactions, so that a
stopped owner cannot hold its agent's row for ever, and TCP keepalive, so that a vanished one is noticed.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from typing import Any

import tenacity
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from phronomy_ray.errors import SchemaVersionError
from phronomy_ray.store.driver_errors import is_locked
from phronomy_ray.store.locations import Location

_BEGIN_OPTION = "phronomy_begin"
#: Further connections of an SQLite pool: file handles are cheap, and WAL lets reads go on beside a write.
_SQLITE_READERS = 3


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to connect; travels with a pickled store."""

    #: Shown in ``pg_stat_activity``.
    application_name: str = "phronomy-ray"
    #: Most connections of one process.
    pool_size: int = 1
    #: Longest wait for a connection of the pool.
    pool_timeout_s: float = 30.0
    connect_timeout_s: int = 10
    statement_timeout_s: float = 30.0
    #: Longest wait for a row lock; longer than `idle_in_transaction_timeout_s`, so that a successor outlasts a stopped
    #: owner.
    lock_timeout_s: float = 15.0
    #: A session that does nothing inside a transaction for this long is closed by the server.
    idle_in_transaction_timeout_s: float = 5.0
    #: SQLite's wait for another writer.
    busy_timeout_s: float = 30.0


def make_engine(location: Location, options: StoreOptions, *, may_create: bool) -> Engine:
    """A lazy engine: nothing is connected yet. `may_create` allows SQLite to make the file."""
    if location.backend == "sqlite":
        return _sqlite_engine(location, options, may_create=may_create)
    return _postgresql_engine(location, options)


def writing(engine: Engine) -> Engine:
    """`engine` for transactions that write; shares its pool."""
    return engine.execution_options(**{_BEGIN_OPTION: "BEGIN IMMEDIATE"})


def reading(engine: Engine) -> Engine:
    """`engine` for reads; shares its pool. On PostgreSQL without ``BEGIN``, which saves two round trips."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="AUTOCOMMIT")
    return engine


# --- SQLite ----------------------------------------------------------------------------------------------------


def _sqlite_engine(location: Location, options: StoreOptions, *, may_create: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        return connect_sqlite(location.path, busy_timeout_s=options.busy_timeout_s, may_create=may_create)

    engine = create_engine(
        location.url,
        creator=connect,
        poolclass=QueuePool,
        pool_size=options.pool_size + _SQLITE_READERS,
        max_overflow=0,
        pool_timeout=options.pool_timeout_s,
        hide_parameters=True,
    )
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN_OPTION, "BEGIN"))


def connect_sqlite(
    path: str, *, busy_timeout_s: float = 30.0, may_create: bool = False
) -> sqlite3.Connection:
    """One connection with our settings.

    Switching a file to WAL needs it alone for a moment and SQLite answers "locked" without waiting, whatever the busy
    timeout; so the whole set-up is repeated until that time is over. It is idempotent.

    Raises:
        SchemaVersionError: there is no file and `may_create` is false.
        sqlite3.Error: as SQLite says.
    """
    if not may_create and not os.path.exists(path):
        raise SchemaVersionError(f"there is no store at {path}: run `phronomy db upgrade` to create one")
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_locked),
        wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.25),
        stop=tenacity.stop_after_delay(busy_timeout_s),
        reraise=True,
    )
    connection: sqlite3.Connection = retrying(_open_sqlite, path, busy_timeout_s)
    return connection


def _open_sqlite(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
    except BaseException:
        connection.close()
        raise
    return connection


# --- PostgreSQL ------------------------------------------------------------------------------------------------


def _postgresql_engine(location: Location, options: StoreOptions) -> Engine:
    query = location.url.query
    defaults: dict[str, Any] = {
        "application_name": options.application_name,
        "connect_timeout": options.connect_timeout_s,
        "keepalives": 1,
        "keepalives_idle": 20,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
    }
    arguments = {name: value for name, value in defaults.items() if name not in query}
    settings = {
        "statement_timeout": _milliseconds(options.statement_timeout_s),
        "lock_timeout": _milliseconds(options.lock_timeout_s),
        "idle_in_transaction_session_timeout": _milliseconds(options.idle_in_transaction_timeout_s),
        "default_transaction_isolation": r"read\ committed",
        # Every join of ours is along an index and of few rows. The planner takes a JSON text for a hundred rows, and would rather read
        # all of a table of some thousand rows, which is what a commit must never do.
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "client_encoding": "UTF8",
    }
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    theirs = query.get("options", "")
    arguments["options"] = f"{ours} {theirs if isinstance(theirs, str) else ' '.join(theirs)}".strip()
    return create_engine(
        location.url,
        connect_args=arguments,
        pool_size=options.pool_size,
        max_overflow=0,
        pool_timeout=options.pool_timeout_s,
        pool_use_lifo=True,
        use_native_hstore=False,
        hide_parameters=True,
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


__all__ = ["StoreOptions", "connect_sqlite", "make_engine", "reading", "writing"]
