"""Collection of contents beside writers, with every schedule that a writer can have, and with keys."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from phronomy_ray.errors import ContentIntegrityError, NotFoundError, StoreUnavailableError
from phronomy_ray.retention import RetentionPolicy
from phronomy_ray.store import sql_contents
from phronomy_ray.store.commit_writer import PreparedCommit
from phronomy_ray.store.content_codec import ContentCodec
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.locations import parse_location
from phronomy_ray.store.reencryption import Reencryption
from phronomy_ray.store.transactions import Transactions
from phronomy_ray.supervision.collecting import collect as collect_by_policy
from phronomy_ray.testing.store_contents_conformance import AGE, LATER, collect, purge
from phronomy_ray.testing.store_samples import owned

KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
VALUE = {"text": "v" * 9_000}


def test_a_commit_that_saw_the_content_in_the_moment_in_which_it_was_condemned(
    postgres_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two connections: the commit finds the content there, so it writes nothing and refers to it; meanwhile it is condemned."""
    store = postgres_database.open()
    gone, bob = owned(store, "alice"), owned(store, "bob")
    gone.append(VALUE)
    purge(gone)
    commit = bob.commit(VALUE)
    written, finish = threading.Event(), threading.Event()
    transactions = Transactions(parse_location(postgres_database.url), StoreOptions())

    def work(connection: Connection) -> None:
        PreparedCommit(commit, ContentCodec()).write(connection)
        written.set()
        assert finish.wait(timeout=30)

    collector = postgres_database.open()
    monkeypatch.setattr(
        collector, "_let_writers_end", lambda: None
    )  # the moment after it: the commit comes now
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(transactions.write, work)
        assert written.wait(timeout=15)
        assert collector.collect_contents(now=LATER, older_than=AGE).condemned == 1
        assert store.read_journal("bob") == []
        finish.set()
        attempt.result(timeout=30)
    transactions.close()
    assert postgres_database.sql("SELECT count(*) FROM contents") == [(0,)], (
        "its reference leads to nothing but the condemned one"
    )
    assert [record.content for record in store.read_journal("bob")] == [VALUE]
    done = collect(postgres_database.open(), LATER + AGE)
    assert (done.restored, done.deleted) == (1, 0)
    assert [record.content for record in store.read_journal("bob")] == [VALUE]
    assert postgres_database.sql("SELECT count(*) FROM condemned_contents") == [(0,)]


def test_a_collection_waits_for_commits_that_are_under_way(postgres_database: Any) -> None:
    store = postgres_database.open()
    bob = owned(store, "bob")
    commit = bob.commit(VALUE)
    written, finish = threading.Event(), threading.Event()
    transactions = Transactions(parse_location(postgres_database.url), StoreOptions())

    def work(connection: Connection) -> None:
        PreparedCommit(commit, ContentCodec()).write(connection)
        written.set()
        assert finish.wait(timeout=30)

    collector = postgres_database.open()
    with ThreadPoolExecutor(2) as pool:
        attempt = pool.submit(transactions.write, work)
        assert written.wait(timeout=15)
        collecting = pool.submit(collector.collect_contents, now=LATER, older_than=AGE)
        with pytest.raises(TimeoutError):
            collecting.result(timeout=0.3)
        finish.set()
        attempt.result(timeout=30)
        assert collecting.result(timeout=30).condemned == 0
    transactions.close()


def test_a_collection_gives_up_before_it_holds_up_those_who_write(
    postgres_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that does not end: others commit meanwhile, and whoever collects is told."""
    monkeypatch.setattr(sql_contents, "LOCK_TRIES", 3)
    monkeypatch.setattr(sql_contents, "LOCK_PAUSE_S", 0.01)
    store = postgres_database.open()
    bob, carol = owned(store, "bob"), owned(store, "carol")
    commit = bob.commit(VALUE)
    written, finish = threading.Event(), threading.Event()
    transactions = Transactions(parse_location(postgres_database.url), StoreOptions())

    def work(connection: Connection) -> None:
        PreparedCommit(commit, ContentCodec()).write(connection)
        written.set()
        assert finish.wait(timeout=60)

    collector = postgres_database.open()
    with ThreadPoolExecutor(2) as pool:
        attempt = pool.submit(transactions.write, work)
        try:
            assert written.wait(timeout=15)
            collecting = pool.submit(collector.collect_contents, now=LATER, older_than=AGE)
            longest_s = 0.0
            while not collecting.done():
                begun_s = time.monotonic()
                carol.append({"text": str(begun_s) * 1_000})
                longest_s = max(longest_s, time.monotonic() - begun_s)
            with pytest.raises(StoreUnavailableError, match="did not end in 3 looks") as caught:
                collecting.result()
        finally:
            finish.set()
        attempt.result(timeout=30)
    assert caught.value.retryable
    assert longest_s < 8.0, "not the fifteen seconds for which a lock is waited for otherwise"
    assert collector.collect_contents(now=LATER, older_than=AGE).condemned == 0
    transactions.close()


def test_a_run_reads_what_refers_to_contents_once(
    sqlite_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_database.open()
    owned(store, "alice").append(VALUE)
    sqlite_database.sql(
        "INSERT INTO contents WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
        "SELECT 'sha256:' || printf('%064d', i), '\"x\"' FROM n"
    )
    looks: list[int] = []
    look = store._unreferenced
    monkeypatch.setattr(store, "_unreferenced", lambda ids: looks.append(len(ids)) or look(ids))
    policy = RetentionPolicy(contents=AGE)
    done = collect_by_policy(store, policy, now=LATER, dry_run=True)
    assert (looks, done.condemned) == ([20_001], 20_000)


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_whatever_agents_say_and_whenever_they_go_what_is_referred_to_stays(
    database: Any, key: str | None
) -> None:
    """Random agents, purges and collections against a dict."""
    store = database.open(content_key=key)
    names = itertools.count()
    texts = ["a" * 5_000, "b" * 5_000, "c" * 5_000, "short"]
    steps = st.lists(
        st.one_of(
            st.tuples(st.just("say"), st.integers(0, 2), st.sampled_from(texts)),
            st.tuples(st.just("purge"), st.integers(0, 2), st.just("")),
            st.tuples(st.just("collect"), st.sampled_from([1, 2, 100]), st.just("")),
        ),
        max_size=14,
    )
    moment = itertools.count(1)

    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(steps=steps)
    def run(steps: list[tuple[str, int, str]]) -> None:
        agents: dict[int, tuple[Any, list[str]]] = {}
        for what, number, text in steps:
            if what == "say":
                if number not in agents:
                    agents[number] = (owned(store, f"agent-{next(names)}"), [])
                agents[number][0].append(text)
                agents[number][1].append(text)
            elif what == "purge" and number in agents:
                purge(agents.pop(number)[0])
            elif what == "collect":
                collect(store, LATER + next(moment) * timedelta(hours=2), limit=number)
            for owner, said in agents.values():
                assert [record.content for record in store.read_journal(owner.agent_id)] == said
        for _ in range(2):
            collect(store, LATER + next(moment) * AGE)
        left = {text for _, said in agents.values() for text in said if len(text) > 100}
        assert database.sql("SELECT count(*) FROM contents") == [(len(left),)]
        assert database.sql("SELECT count(*) FROM condemned_contents") == [(0,)]
        for owner, _ in agents.values():
            purge(owner)

    run()


def test_without_the_key_nothing_is_deleted(database: Any) -> None:
    owner = owned(database.open(content_key=KEY))
    row = owner.start("ex1", state={"instructions": "sha256:" + "0" * 64})
    owner.append(VALUE)
    del row
    with pytest.raises(ContentIntegrityError):
        collect(database.open(), LATER)
    assert database.sql("SELECT count(*) FROM condemned_contents") == [(0,)]


def test_a_new_key_finds_what_is_condemned(database: Any) -> None:
    old, new = f"old:{KEY}", "new:" + KEY.replace("M", "N", 1)
    store = database.open(content_key=old)
    owner = owned(store)
    owner.append(VALUE)
    # as if a collection had overlooked the reference
    database.sql("INSERT INTO condemned_contents SELECT content_id, body, '2026' FROM contents")
    database.sql("DELETE FROM contents")
    assert [record.content for record in store.read_journal("alice")] == [VALUE]
    run = Reencryption(database.url, content_key=f"{new},{old}")
    assert run.run().left == 0
    run.close()
    store.close()
    assert [record.content for record in database.open(content_key=new).read_journal("alice")] == [VALUE]


def test_the_schema_goes_back_with_what_was_condemned(sqlite_database: Any) -> None:
    from alembic import command

    from phronomy_ray.store.migrate import alembic_config

    gone = owned(sqlite_database.open())
    gone.append(VALUE)
    purge(gone)
    collect(gone.store, LATER)
    with pytest.raises(NotFoundError):
        gone.store.load_root("alice")
    gone.store.close()
    config = alembic_config()
    with sqlite_database.engine().begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0009")
    assert sqlite_database.sql("SELECT count(*) FROM contents") == [(1,)]
