"""A commit that is still in flight while its fate is asked for, and write locks that are held: both engines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Connection

from phronomy_ray.commits import Commit
from phronomy_ray.errors import ConflictError, StoreUnavailableError
from phronomy_ray.store.commit_writer import PreparedCommit
from phronomy_ray.store.content_codec import ContentCodec
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.locations import parse_location
from phronomy_ray.store.transactions import Transactions
from phronomy_ray.testing.store_samples import Owner, owned


class Abandoned(Exception):
    """The first attempt never commits."""


@contextmanager
def in_flight(
    database: Any, commit: Commit
) -> Iterator[tuple[threading.Event, Future[None], threading.Event]]:
    """`commit` executed by somebody else up to, but not including, its ``COMMIT``."""
    written, finish, abandon = threading.Event(), threading.Event(), threading.Event()
    transactions = Transactions(parse_location(database.url), StoreOptions())

    def work(connection: Connection) -> None:
        PreparedCommit(commit, ContentCodec()).write(connection)
        written.set()
        assert finish.wait(timeout=30)
        if abandon.is_set():
            raise Abandoned

    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(transactions.write, work)
        try:
            assert written.wait(timeout=15)
            yield finish, attempt, abandon
        finally:
            finish.set()
            attempt.exception(timeout=30)
            transactions.close()


@pytest.mark.parametrize("happens", [True, False])
def test_settle_waits_for_the_attempt_in_flight(database: Any, happens: bool) -> None:
    owner = owned(database.open())
    commit = owner.commit("in flight")
    other = database.open()
    other.load_root("alice")
    with ThreadPoolExecutor(1) as pool, in_flight(database, commit) as (finish, attempt, abandon):
        settled = pool.submit(other.settle, "alice", epoch=owner.epoch, commit_id=commit.commit_id)
        with pytest.raises(TimeoutError):
            settled.result(timeout=0.3)
        if not happens:
            abandon.set()
        finish.set()
        assert settled.result(timeout=30) is happens
        assert (attempt.exception(timeout=30) is None) is happens
    assert len(other.read_journal("alice")) == int(happens)


@pytest.mark.parametrize("happens", [True, False])
def test_same_commit_again_while_the_first_is_in_flight_writes_once(database: Any, happens: bool) -> None:
    owner = owned(database.open())
    commit = owner.commit("once")
    with ThreadPoolExecutor(1) as pool, in_flight(database, commit) as (finish, _, abandon):
        second = pool.submit(owner.store.execute, commit)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.3)
        if not happens:
            abandon.set()
        finish.set()
        second.result(timeout=30)
    assert [record.content for record in owner.store.read_journal("alice")] == ["once"]


def test_claim_waits_and_then_sees_what_was_committed(database: Any) -> None:
    owner = owned(database.open())
    new = Owner(database.open(), "alice")
    commit = owner.commit("last words")
    with ThreadPoolExecutor(1) as pool, in_flight(database, commit) as (finish, _, _abandon):
        claim = pool.submit(new.claim)
        with pytest.raises(TimeoutError):
            claim.result(timeout=0.3)
        finish.set()
        assert claim.result(timeout=30).root.journal_position == 1


def test_other_commit_of_the_same_guards_conflicts_after_the_wait(database: Any) -> None:
    owner = owned(database.open())
    first, second = owner.commit("first"), owner.commit("second")
    with ThreadPoolExecutor(1) as pool, in_flight(database, first) as (finish, _, _abandon):
        pending = pool.submit(owner.store.execute, second)
        finish.set()
        with pytest.raises(ConflictError):
            pending.result(timeout=30)


def test_reads_do_not_wait_for_a_writer(database: Any) -> None:
    owner = owned(database.open())
    with in_flight(database, owner.commit("in flight")):
        assert owner.store.load_root("alice").journal_position == 0
        assert owner.store.read_journal("alice") == []


def test_writer_that_waits_too_long_gets_a_typed_error(database: Any) -> None:
    short = StoreOptions(busy_timeout_s=0.2, lock_timeout_s=0.2)
    owner = owned(database.open(options=short))
    commit = owner.commit("blocked")
    with in_flight(database, owner.commit("in flight")) as (_, _attempt, abandon):
        abandon.set()
        with pytest.raises(StoreUnavailableError) as caught:
            owner.execute(commit)
        assert caught.value.__cause__ is not None
    owner.execute(commit)


def test_a_held_root_delays_no_other_commit_of_its_group(postgres_database: Any) -> None:
    """SQLite has one writer, and whoever waits, waits for all of it."""
    owners = [owned(postgres_database.open(), name) for name in ("a", "b", "c", "d", "e")]
    group = [owner.commit("in the group") for owner in owners]
    store = owners[0].store
    with in_flight(postgres_database, owners[2].commit("in flight")) as (_, _attempt, abandon):
        abandon.set()
        begun = monotonic()
        outcomes = store.execute_group(group)
        assert monotonic() - begun < 2, "a stopped transaction is cut off after 5 s"
        assert [type(outcome) for outcome in outcomes if outcome] == [StoreUnavailableError]
        assert outcomes[2] is not None
        assert outcomes[2].details["agent_id"] == "c"
        for owner in owners:
            assert len(store.read_journal(owner.agent_id)) == (owner.agent_id != "c")
    assert store.execute_group([group[2]]) == [None]


def test_a_group_waits_for_the_writer_of_the_file(sqlite_database: Any) -> None:
    owners = [owned(sqlite_database.open(), name) for name in ("a", "b")]
    first = owners[0].commit("first")
    with ThreadPoolExecutor(1) as pool, in_flight(sqlite_database, first) as (finish, *_):
        group = pool.submit(owners[1].store.execute_group, [first, owners[1].commit("second")])
        with pytest.raises(TimeoutError):
            group.result(timeout=0.3)
        finish.set()
        outcomes = group.result(timeout=30)
    assert outcomes == [None, None]  # the first has happened
    assert [record.content for record in owners[0].store.read_journal("a")] == ["first"]
