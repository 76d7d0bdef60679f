"""Transactions on a database that may be away: one lazily opened pool per process, one retry, one error table.

A unit of work is a function of a connection that can be called twice: when the connection turns out to be dead (the
server closes idle ones during a long model call) and ``COMMIT`` had not been sent, nothing was written, so the work runs
once more on a fresh connection. Once ``COMMIT`` has been sent there is no second try here: the caller settles it. What
the database undid in favour of another transaction is repeated after a pause of random length: without one, two units
that lock the same rows in opposite order can undo each other again and again.

An engine never crosses a fork or a pickle; the child process makes its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from enum import Enum
from typing import TypeVar

import tenacity
from sqlalchemy import Connection, Engine

from phronomy_ray.errors import CommitOutcomeUnknownError, PhronomyError
from phronomy_ray.store.batches import check_connected, end_batches
from phronomy_ray.store.driver_errors import Stage, is_contended, is_locked, translate
from phronomy_ray.store.engines import StoreOptions, make_engine, reading, writing
from phronomy_ray.store.locations import Location

T = TypeVar("T")

#: Times that a unit of work is run when the database undoes it in favour of others.
_CONTENDED_TRIES = 6


class Transactions:
    """Runs units of work on one database; thread-safe, for one process and its threads."""

    def __init__(self, location: Location, options: StoreOptions, *, may_create: bool = False) -> None:
        self.location = location
        self.options = options
        self._may_create = may_create
        self._start_process()
        _LIVE.add(self)

    def _start_process(self) -> None:
        self._engine: Engine | None = None
        #: The engine as each kind of work uses it; made once, since making one costs as much as a small commit.
        self._facets: dict[bool, Engine] = {}
        self._engine_lock = threading.Lock()
        # SQLite has one writer at a time; waiting for it here is fair and needs no polling
        sqlite = self.location.backend == "sqlite"
        self._one_writer: AbstractContextManager[object] = threading.Lock() if sqlite else nullcontext()

    def write(self, work: Callable[[Connection], T], *, repeat_unknown: bool = False) -> T:
        """Run `work` in a transaction and commit it.

        `repeat_unknown` also repeats after a commit of unknown outcome: only for work that may happen twice.

        Raises:
            PhronomyError: what `work` raised (rolled back), or the meaning of a driver error.
        """
        with self._one_writer:
            return self._run(work, kind=_Kind.WRITE, repeat_unknown=repeat_unknown)

    def write_statement(self, work: Callable[[Connection], T]) -> T:
        """Run `work` whose one writing statement is a transaction of its own, where the database has such: it saves the round trips
        around it. Elsewhere as `write`. A connection that is lost meanwhile leaves the outcome unknown; raises as `write`.
        """
        if self.location.backend == "sqlite":
            return self.write(work)
        return self._run(work, kind=_Kind.STATEMENT)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads; raises as `write`."""
        return self._run(work, kind=_Kind.READ)

    def close(self) -> None:
        """Close all idle connections; the next unit of work opens a new one."""
        with self._engine_lock:
            engine, self._engine = self._engine, None
            self._facets = {}
        if engine is not None:
            engine.dispose()

    def _run(self, work: Callable[[Connection], T], *, kind: _Kind, repeat_unknown: bool = False) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_contended),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
            stop=tenacity.stop_after_attempt(_CONTENDED_TRIES),
            reraise=True,
        )
        return _repeat(
            retrying,
            lambda: self._on_living_connection(work, kind=kind, repeat_unknown=repeat_unknown),
        )

    def _on_living_connection(
        self, work: Callable[[Connection], T], *, kind: _Kind, repeat_unknown: bool
    ) -> T:
        may_repeat = True
        while True:
            attempt = _Attempt()
            try:
                return self._once(work, attempt, kind)
            except PhronomyError:
                raise
            except Exception as error:
                failure = translate(error, stage=attempt.stage, identity=self.location.identity)
                if failure is None:
                    raise
                unknown = isinstance(failure.error, CommitOutcomeUnknownError)
                if not may_repeat or not (failure.repeat or (unknown and repeat_unknown)):
                    raise failure.error from error
                may_repeat = False

    def _once(self, work: Callable[[Connection], T], attempt: _Attempt, kind: _Kind) -> T:
        connection = self._get_engine(for_writing=kind is _Kind.WRITE).connect()
        try:
            attempt.stage = Stage.WORK
            if kind is _Kind.STATEMENT:
                check_connected(connection)
                attempt.stage = Stage.COMMIT
                return work(connection)
            self._begin(connection)
            result = work(connection)
            if kind is _Kind.WRITE:
                attempt.stage = Stage.COMMIT
                connection.commit()
            return result
        finally:
            _give_back(connection)

    def _begin(self, connection: Connection) -> None:
        if self.location.backend != "sqlite":
            connection.begin()
            return
        # SQLite can say "locked" without waiting for its busy timeout (recovery; last close of a WAL file)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_locked),
            wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.25),
            stop=tenacity.stop_after_delay(self.options.busy_timeout_s),
            reraise=True,
        )
        _repeat(retrying, connection.begin)

    def _get_engine(self, *, for_writing: bool = True) -> Engine:
        with self._engine_lock:
            if self._engine is None:
                self._engine = make_engine(self.location, self.options, may_create=self._may_create)
                self._facets = {True: writing(self._engine), False: reading(self._engine)}
            return self._facets[for_writing]

    def _after_fork_in_child(self) -> None:
        if self._engine is not None:
            _INHERITED.append(self._engine)
        self._start_process()


def _repeat(retrying: tenacity.Retrying, function: Callable[[], T]) -> T:
    """`function`, repeated as `retrying` says, which is asked only after a failure: it costs a tenth of a small commit."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - handed on: whether it is tried again is for `retrying` to say
        failed: list[Exception] = [error]

    def again() -> T:
        if failed:
            raise failed.pop()
        return function()

    return retrying(again)


def _give_back(connection: Connection) -> None:
    """Roll back what is not committed and return the connection to its pool; never raises."""
    try:
        end_batches(connection)
    except Exception as error:  # noqa: BLE001  the outcome is decided; only this connection is in doubt
        with suppress(Exception):
            connection.invalidate(error)
    with suppress(Exception):  # a dead connection cannot roll back; the pool replaces it
        connection.close()


class _Kind(Enum):
    """What becomes of a unit of work."""

    READ = "read"
    #: Committed when it is done.
    WRITE = "write"
    #: It has committed itself.
    STATEMENT = "statement"


class _Attempt:
    """How far one try of a unit of work came."""

    stage = Stage.CONNECT


_LIVE: weakref.WeakSet[Transactions] = weakref.WeakSet()
#: Engines of a parent process, kept referenced and untouched: closing one would talk on the parent's socket.
_INHERITED: list[Engine] = []


def _after_fork_in_child() -> None:
    for transactions in list(_LIVE):
        transactions._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["Transactions"]
