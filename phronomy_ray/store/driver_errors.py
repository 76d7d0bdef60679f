"""Driver errors to ours: the one table.

A failure is classified by SQLSTATE (PostgreSQL) or result code (SQLite), by exception class where a driver gives
neither, and by text in a single place: libpq reports a refused connection without any code. The original always
stays as ``__cause__``.

The second thing decided here is whether the transaction is *known not to have happened*. Before ``COMMIT`` is sent it
always is. While it is being committed a lost connection means unknown, and nothing may be repeated blindly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import exc

from phronomy_ray.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    ConflictError,
    PhronomyError,
    SchemaVersionError,
    SerializationError,
    StateConflictError,
    StoreError,
    StoreUnavailableError,
    safe_message,
)


class Stage(Enum):
    """Where in a transaction the driver failed."""

    CONNECT = "connecting"
    WORK = "executing"
    COMMIT = "committing"


@dataclass(frozen=True, slots=True)
class Failure:
    """What a driver error means to us."""

    error: PhronomyError
    #: Nothing was written, and trying again at once on a fresh connection can succeed.
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class _Meaning:
    error: type[PhronomyError]
    text: str
    #: Safe and useful to repeat when the transaction is known not to have happened.
    repeat: bool = False
    #: At ``COMMIT`` this leaves the outcome unknown.
    unknown_at_commit: bool = False


_LOST = _Meaning(StoreUnavailableError, "the connection to the database was lost", True, True)
_FULL = _Meaning(StoreUnavailableError, "the database has no room left (disk or memory)")
_EXHAUSTED = _Meaning(
    StoreUnavailableError,
    "the database has no free connection: raise max_connections on the server, or unload agents that are idle",
)

#: By full SQLSTATE, then by its class (first two characters).
_BY_SQLSTATE: dict[str, _Meaning] = {
    "08": _LOST,
    "22": _Meaning(SerializationError, "the database cannot hold this value"),
    "23": _Meaning(ConflictError, "a row to insert exists, or a rule of the schema is broken"),
    "23503": _Meaning(StateConflictError, "the write refers to a row that is not stored"),
    "25006": _Meaning(StoreUnavailableError, "the database is read-only (a standby?)"),
    "25P03": _LOST,
    "25P04": _LOST,
    "28": _Meaning(ConfigurationError, "the database refused the credentials"),
    "3D": _Meaning(ConfigurationError, "there is no such database"),
    "40": _Meaning(
        StoreUnavailableError, "the database rolled the transaction back (deadlock or serialization)"
    ),
    "40003": _Meaning(
        StoreUnavailableError, "the database does not know how the statement ended", False, True
    ),
    "42501": _Meaning(ConfigurationError, "the database user lacks a privilege"),
    "42703": _Meaning(SchemaVersionError, "the schema lacks a column: run `phronomy db upgrade`"),
    "42P01": _Meaning(SchemaVersionError, "the schema lacks a table: run `phronomy db upgrade`"),
    "53": _FULL,
    "53300": _EXHAUSTED,
    "55P03": _Meaning(StoreUnavailableError, "another transaction held the row longer than the lock timeout"),
    "57": _LOST,
    "57014": _Meaning(
        StoreUnavailableError, "the statement took longer than the statement timeout", False, True
    ),
    "58": _Meaning(StoreUnavailableError, "the database server has a system error", False, True),
    "XX": _Meaning(StoreUnavailableError, "the database server has an internal error", False, True),
}

#: By SQLite's extended result code, then by its primary code (low byte).
_BY_SQLITE_CODE: dict[int, _Meaning] = {
    5: _Meaning(
        StoreUnavailableError, "the SQLite file stayed locked by another writer longer than the busy timeout"
    ),
    6: _Meaning(StoreUnavailableError, "a table of the SQLite file is locked"),
    7: _FULL,
    8: _Meaning(StoreUnavailableError, "the SQLite file is read-only"),
    10: _Meaning(StoreUnavailableError, "reading or writing the SQLite file failed", False, True),
    11: _Meaning(StoreUnavailableError, "the SQLite file is damaged"),
    13: _FULL,
    14: _Meaning(StoreUnavailableError, "the SQLite file cannot be opened"),
    15: _Meaning(StoreUnavailableError, "the SQLite file stayed locked (locking protocol)"),
    18: _Meaning(SerializationError, "the value is too large for SQLite"),
    19: _Meaning(ConflictError, "a row to insert exists, or a rule of the schema is broken"),
    26: _Meaning(ConfigurationError, "the file is not an SQLite database"),
    787: _Meaning(StateConflictError, "the write refers to a row that is not stored"),
}

#: SQLite primary codes that say "try again", whatever the busy timeout did: BUSY, LOCKED, PROTOCOL.
SQLITE_LOCKED_CODES = frozenset({5, 6, 15})

_BY_CLASS: tuple[tuple[type[exc.DBAPIError], _Meaning], ...] = (
    (exc.DataError, _BY_SQLSTATE["22"]),
    (exc.IntegrityError, _BY_SQLSTATE["23"]),
)


def translate(error: BaseException, *, stage: Stage, identity: str) -> Failure | None:
    """What `error` means when it was raised in `stage`; ``None`` when it is not the database's."""
    if isinstance(error, exc.TimeoutError):
        return Failure(
            StoreUnavailableError(
                "all connections of this process were in use for too long", details={"store": identity}
            )
        )
    if isinstance(error, UnicodeEncodeError | OverflowError):
        return Failure(SerializationError(f"a value cannot be stored: {safe_message(error)}"))
    if not isinstance(error, exc.DBAPIError):
        if isinstance(error, exc.SQLAlchemyError):
            return Failure(
                StoreError(f"the database layer failed while {stage.value}: {safe_message(error)}")
            )
        return None
    meaning = _meaning(error, stage)
    lost = error.connection_invalidated or meaning.unknown_at_commit
    text = f"{meaning.text} ({stage.value}, {identity}): {safe_message(error.orig or error)}"
    details: dict[str, Any] = {"store": identity}
    if code := _sqlstate(error.orig):
        details["sqlstate"] = code
    if stage is Stage.COMMIT and lost:
        return Failure(
            CommitOutcomeUnknownError(f"not known whether the commit happened: {text}", details=details)
        )
    return Failure(meaning.error(text, details=details), repeat=meaning.repeat and stage is not Stage.CONNECT)


def is_locked(error: BaseException) -> bool:
    """Whether this is SQLite's "locked", from the driver or wrapped by SQLAlchemy."""
    code = _sqlite_code(error.orig if isinstance(error, exc.DBAPIError) else error)
    return code is not None and code & 0xFF in SQLITE_LOCKED_CODES


def is_contended(error: BaseException) -> bool:
    """Whether the database undid this transaction in favour of another one (deadlock, serialization): `translate`
    made `error`, nothing was written, and a repetition after a pause can succeed.
    """
    if not isinstance(error, StoreUnavailableError):
        return False
    state = str(error.details.get("sqlstate", ""))
    return state.startswith("40") and state != "40003"


def is_lock_timeout(error: BaseException) -> bool:
    """Whether PostgreSQL did not give a lock within the lock timeout: `translate` made `error`, and nothing was written."""
    return isinstance(error, StoreUnavailableError) and error.details.get("sqlstate") == "55P03"


def _meaning(error: exc.DBAPIError, stage: Stage) -> _Meaning:
    state = _sqlstate(error.orig)
    if state:
        found = _BY_SQLSTATE.get(state) or _BY_SQLSTATE.get(state[:2])
        return found or _Meaning(StoreError, f"the database refused a statement (SQLSTATE {state})")
    code = _sqlite_code(error.orig)
    if code is not None:
        by_code = _BY_SQLITE_CODE.get(code) or _BY_SQLITE_CODE.get(code & 0xFF)
        return by_code or _Meaning(StoreError, f"SQLite refused a statement (code {code})")
    for cls, meaning in _BY_CLASS:
        if isinstance(error, cls):
            return meaning
    if stage is Stage.CONNECT:
        return _connect_meaning(error)
    if error.connection_invalidated or isinstance(error, exc.OperationalError | exc.InterfaceError):
        return _LOST
    return _Meaning(StoreError, "the database refused a statement")


def _connect_meaning(error: exc.DBAPIError) -> _Meaning:
    """A refused connection: libpq hands over the server's words without their SQLSTATE, so here text decides."""
    words = safe_message(error.orig or error)
    if (
        "too many clients" in words
        or "connection slots are reserved" in words
        or "too many connections" in words
    ):
        return _EXHAUSTED
    return _Meaning(StoreUnavailableError, "the database cannot be reached")


def _sqlstate(original: BaseException | None) -> str | None:
    state = getattr(original, "sqlstate", None)
    return state if isinstance(state, str) and state else None


def _sqlite_code(original: BaseException | None) -> int | None:
    code = getattr(original, "sqlite_errorcode", None)
    return code if isinstance(code, int) else None


__all__ = ["Failure", "Stage", "is_contended", "is_locked", "translate"]
