"""The error table: each kind of driver failure, at each moment of a transaction."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest
from sqlalchemy import exc

from phronomy_ray.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    ConflictError,
    SchemaVersionError,
    SerializationError,
    StateConflictError,
    StoreError,
    StoreUnavailableError,
)
from phronomy_ray.store.driver_errors import Stage, is_contended, is_locked, translate


def postgres(sqlstate: str | None, *, cls: Any = exc.OperationalError, lost: bool = False) -> exc.DBAPIError:
    original = psycopg.OperationalError("the server's words")
    if sqlstate is not None:
        original = psycopg.errors.lookup(sqlstate)("the server's words")
    error: exc.DBAPIError = cls("COMMIT", {}, original, connection_invalidated=lost)
    return error


def sqlite(code: int) -> exc.DBAPIError:
    original = sqlite3.OperationalError("the library's words")
    original.sqlite_errorcode = code
    return exc.OperationalError("COMMIT", {}, original)


def meaning(error: BaseException, stage: Stage) -> tuple[type[Exception], bool]:
    failure = translate(error, stage=stage, identity="postgresql://host/db")
    assert failure is not None
    return type(failure.error), failure.repeat


@pytest.mark.parametrize(
    ("sqlstate", "expected", "repeat"),
    [
        (None, StoreUnavailableError, True),
        ("57P01", StoreUnavailableError, True),
        ("08006", StoreUnavailableError, True),
        ("25P03", StoreUnavailableError, True),
        ("40P01", StoreUnavailableError, False),
        ("40001", StoreUnavailableError, False),
        ("55P03", StoreUnavailableError, False),
        ("57014", StoreUnavailableError, False),
        ("53300", StoreUnavailableError, False),
        ("53100", StoreUnavailableError, False),
        ("23505", ConflictError, False),
        ("23503", StateConflictError, False),
        ("22P05", SerializationError, False),
        ("42P01", SchemaVersionError, False),
        ("42501", ConfigurationError, False),
        ("0A000", StoreError, False),
    ],
)
def test_postgresql_before_commit(sqlstate: str | None, expected: type[Exception], repeat: bool) -> None:
    assert meaning(postgres(sqlstate), Stage.WORK) == (expected, repeat)


@pytest.mark.parametrize(
    "sqlstate", [None, "57P01", "57014", "08006", "08007", "25P03", "40003", "58030", "XX000"]
)
def test_postgresql_at_commit_is_unknown(sqlstate: str | None) -> None:
    assert meaning(postgres(sqlstate), Stage.COMMIT) == (CommitOutcomeUnknownError, False)


@pytest.mark.parametrize(
    ("sqlstate", "expected", "repeat"),
    [
        ("40001", StoreUnavailableError, False),
        ("23505", ConflictError, False),
        ("53100", StoreUnavailableError, False),
    ],
)
def test_postgresql_that_answered_no_at_commit_is_known(
    sqlstate: str, expected: type[Exception], repeat: bool
) -> None:
    assert meaning(postgres(sqlstate), Stage.COMMIT) == (expected, repeat)


def test_broken_connection_at_commit_is_unknown_whatever_the_code() -> None:
    assert meaning(postgres("40001", lost=True), Stage.COMMIT) == (CommitOutcomeUnknownError, False)


@pytest.mark.parametrize(
    ("error", "stage", "contended"),
    [
        (postgres("40P01"), Stage.WORK, True),
        (postgres("40001"), Stage.COMMIT, True),
        (postgres("40003"), Stage.WORK, False),
        (postgres("40001", lost=True), Stage.COMMIT, False),
        (postgres("57P01"), Stage.WORK, False),
        (postgres(None), Stage.WORK, False),
    ],
)
def test_only_what_was_surely_undone_for_another_is_contended(
    error: exc.DBAPIError, stage: Stage, contended: bool
) -> None:
    failure = translate(error, stage=stage, identity="postgresql://host/db")
    assert failure is not None
    assert is_contended(failure.error) is contended


def test_nothing_is_repeated_while_connecting() -> None:
    assert meaning(postgres(None), Stage.CONNECT) == (StoreUnavailableError, False)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (5, StoreUnavailableError),
        (261, StoreUnavailableError),
        (13, StoreUnavailableError),
        (10, StoreUnavailableError),
        (11, StoreUnavailableError),
        (26, ConfigurationError),
        (1555, ConflictError),
        (2067, ConflictError),
        (787, StateConflictError),
        (1, StoreError),
    ],
)
def test_sqlite_before_commit(code: int, expected: type[Exception]) -> None:
    assert meaning(sqlite(code), Stage.WORK) == (expected, False)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(10, CommitOutcomeUnknownError), (1034, CommitOutcomeUnknownError), (13, StoreUnavailableError)],
)
def test_sqlite_at_commit(code: int, expected: type[Exception]) -> None:
    assert meaning(sqlite(code), Stage.COMMIT) == (expected, False)


def test_locked_is_recognised_by_code() -> None:
    assert is_locked(sqlite(5))
    assert is_locked(sqlite(517))
    assert not is_locked(sqlite(13))
    assert not is_locked(ValueError("database is locked"))


def test_what_is_not_the_databases_stays_itself() -> None:
    assert translate(ValueError("ours"), stage=Stage.WORK, identity="x") is None
    assert meaning(OverflowError("int too big"), Stage.WORK) == (SerializationError, False)
    assert meaning(exc.TimeoutError("pool"), Stage.CONNECT) == (StoreUnavailableError, False)
