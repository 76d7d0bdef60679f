"""What only PostgreSQL can show: fencing between statements, lost connections, limits, and settings."""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from phronomy_ray.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    OwnershipLostError,
    StoreUnavailableError,
)
from phronomy_ray.store import commit_writer, statements
from phronomy_ray.store.batches import run_batch
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import Owner, owned

STALE_UPDATE = (
    "UPDATE agents SET agent_revision = agent_revision + 1, last_commit_id = 'stale' "
    "WHERE agent_id = 'alice' AND epoch = 1 AND agent_revision = 0 AND journal_position = 0"
)
INSERT_RECORD = (
    "INSERT INTO journal (agent_id, position, kind, channel, occurred_at, content, context_candidate, generation) "
    "VALUES ('alice', {position}, 'external_message', 'external', '2026-01-02T03:04:05.000006+00:00', '\"stale\"', true, 0)"
)


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        time.sleep(0.01)


def waiting_for_a_lock(database: Any) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(database.sql(query)[0][0])


def kill_backends(database: Any, application_name: str = "phronomy-ray") -> int:
    """End the server's side of our connections, and wait until it has: before that a client cannot know."""
    return len(
        database.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = :name",
            name=application_name,
        )
    )


def until_gone(database: Any, user: str) -> None:
    """Wait until the server has noticed that a user's connections are closed."""
    deadline = time.monotonic() + 30
    while database.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = :name", name=user) != [(0,)]:
        assert time.monotonic() < deadline, f"connections of {user} are still there"
        time.sleep(0.01)


class TestFencingBetweenStatements:
    """An owner is stopped inside its transaction and another one claims meanwhile."""

    def test_a_select_of_the_epoch_does_not_fence(self, postgres_database: Any) -> None:
        # why the first statement is an UPDATE: with a SELECT both owners commit
        new = Owner(postgres_database.open(), "alice")
        owned(postgres_database.open())
        with postgres_database.engine().begin() as stale:
            assert (
                stale.exec_driver_sql("SELECT epoch FROM agents WHERE agent_id = 'alice'").scalar_one() == 1
            )
            assert new.claim().root.epoch == 2
            new.append("from the new owner")
            stale.exec_driver_sql(INSERT_RECORD.format(position=2))
        contents = [record.content for record in new.store.read_journal("alice")]
        assert contents == ["from the new owner", "stale"]

    def test_the_update_holds_the_new_owner_back_until_it_is_over(self, postgres_database: Any) -> None:
        new = Owner(postgres_database.open(), "alice")
        owned(postgres_database.open())
        with ThreadPoolExecutor(1) as pool:
            with postgres_database.engine().begin() as old:
                assert old.exec_driver_sql(STALE_UPDATE).rowcount == 1
                claim = pool.submit(new.claim)
                eventually(lambda: waiting_for_a_lock(postgres_database), "the claim waits for the row")
                old.exec_driver_sql(INSERT_RECORD.format(position=1))
                assert not claim.done()
            root = claim.result(timeout=15).root
        assert (root.epoch, root.agent_revision) == (2, 1)

    def test_the_update_is_refused_once_the_new_owner_holds_the_row(self, postgres_database: Any) -> None:
        owned(postgres_database.open())
        engine = postgres_database.engine()
        with ThreadPoolExecutor(1) as pool:
            with engine.begin() as new:
                new.exec_driver_sql("UPDATE agents SET epoch = epoch + 1 WHERE agent_id = 'alice'")

                def stale() -> int:
                    with engine.begin() as connection:
                        return connection.exec_driver_sql(STALE_UPDATE).rowcount

                pending = pool.submit(stale)
                eventually(
                    lambda: waiting_for_a_lock(postgres_database), "the stale update waits for the row"
                )
                assert not pending.done()
            assert pending.result(timeout=15) == 0

    @pytest.mark.parametrize("records", [1, 3])
    def test_a_stopped_owner_cannot_hold_its_successor_back_for_ever(
        self, postgres_database: Any, records: int
    ) -> None:
        options = StoreOptions(idle_in_transaction_timeout_s=0.3, lock_timeout_s=10)
        old = owned(postgres_database.open(options=options))
        new = Owner(postgres_database.open(options=options), "alice")
        stopped, resume = threading.Event(), threading.Event()

        def stop_inside(*_: Any) -> None:
            stopped.set()
            assert resume.wait(timeout=30)

        engine = old.store._transactions._get_engine()  # type: ignore[attr-defined]
        with ThreadPoolExecutor(1) as pool:
            event.listen(engine, "commit", stop_inside)
            stale = pool.submit(old.append, *["from the stopped one"] * records)
            assert stopped.wait(timeout=15)
            assert new.claim().root.epoch == 2
            new.append("from the new one")
            resume.set()
            with pytest.raises(CommitOutcomeUnknownError):
                stale.result(timeout=15)
            event.remove(engine, "commit", stop_inside)
        with pytest.raises(OwnershipLostError):
            old.store.settle("alice", epoch=1, commit_id="alice:1:1")
        assert [record.content for record in new.store.read_journal("alice")] == ["from the new one"]


class TestLostConnections:
    """The server goes away at every moment of a commit."""

    def test_S05_connections_killed_while_idle_lose_no_turn(self, postgres_database: Any) -> None:
        owner = owned(postgres_database.open())
        for number in range(3):
            assert kill_backends(postgres_database) == 1
            owner.append(number)
            assert kill_backends(postgres_database) == 1
            assert len(owner.store.read_journal("alice")) == number + 1

    def test_S05_connection_killed_between_statements_is_repeated_once(
        self, postgres_database: Any, monkeypatch: Any
    ) -> None:
        owner = owned(postgres_database.open())
        kills = []

        def kill_after_update(connection: Any, steps: Any) -> list[int]:
            counts = run_batch(connection, steps)
            if steps[0][0] is statements.ADVANCE_ROOT and len(kills) < limit:
                kills.append(kill_backends(postgres_database))
            return counts

        monkeypatch.setattr(commit_writer, "run_batch", kill_after_update)
        limit = 1
        owner.append("survives one")
        limit = 3
        with pytest.raises(StoreUnavailableError) as caught:
            owner.append("does not survive two")
        assert caught.value.__cause__ is not None
        assert kills == [1, 1, 1]
        assert [record.content for record in owner.store.read_journal("alice")] == ["survives one"]

    def test_S05_connection_killed_before_commit_is_unknown_and_settles_to_no(
        self, postgres_database: Any
    ) -> None:
        owner = owned(postgres_database.open())
        engine = owner.store._transactions._get_engine()  # type: ignore[attr-defined]
        event.listen(engine, "commit", lambda _: kill_backends(postgres_database), once=True)
        commit = owner.commit("unsure")
        with pytest.raises(CommitOutcomeUnknownError):
            owner.execute(commit)
        assert owner.store.settle("alice", epoch=owner.epoch, commit_id=commit.commit_id) is False
        owner.execute(commit)

    @pytest.mark.parametrize("lost", ["request", "reply"])
    def test_group_lost_on_the_wire_is_unknown_for_each_and_settles(
        self, postgres_database: Any, lost: str
    ) -> None:
        owners = [owned(postgres_database.open(), f"agent-{number}") for number in range(5)]
        with LossyProxy(postgres_database.url) as proxy:
            store = open_store(proxy.url)
            Owner(store, "agent-3").claim()  # one that is refused must not hide what is unknown
            for owner in owners[:3]:
                owner.append("fine")
            proxy.lose = lost
            group = [owner.commit("unsure") for owner in owners]
            outcomes = store.execute_group([group[index] for index in (0, 1, 2, 4)])
            assert [type(outcome) for outcome in outcomes] == [CommitOutcomeUnknownError] * 4
            assert len({id(outcome) for outcome in outcomes}) == 4
            for index in (0, 1, 2, 4):
                owner, commit = owners[index], group[index]
                happened = store.settle(owner.agent_id, epoch=owner.epoch, commit_id=commit.commit_id)
                assert happened is (lost == "reply")
            assert [type(outcome) for outcome in store.execute_group(group)] == [
                type(None), type(None), type(None), OwnershipLostError, type(None),
            ]  # fmt: skip
            for owner in owners[:3]:
                assert [record.content for record in store.read_journal(owner.agent_id)] == ["fine", "unsure"]
            store.close()

    def test_connection_killed_in_a_group_is_repeated_once(self, postgres_database: Any) -> None:
        owners = [owned(postgres_database.open(), f"agent-{number}") for number in range(5)]
        store = owners[0].store
        kill_backends(postgres_database)
        assert store.execute_group([owner.commit("x") for owner in owners]) == [None] * 5

    @pytest.mark.parametrize("lost", ["request", "reply"])
    def test_commit_lost_on_the_wire_is_unknown_and_settles(self, postgres_database: Any, lost: str) -> None:
        owner = owned(postgres_database.open())
        with LossyProxy(postgres_database.url) as proxy:
            owner.store = open_store(proxy.url)
            owner.append("fine")
            proxy.lose = lost
            commit = owner.commit("unsure")
            with pytest.raises(CommitOutcomeUnknownError):
                owner.execute(commit)
            happened = owner.store.settle("alice", epoch=owner.epoch, commit_id=commit.commit_id)
            assert happened is (lost == "reply")
            owner.execute(commit)
            assert [record.content for record in owner.store.read_journal("alice")] == ["fine", "unsure"]
            owner.store.close()

    def test_server_that_is_away_is_a_typed_error(self, tmp_path: Any) -> None:
        store = open_store(f"postgresql://me:secret@/db?host={tmp_path}")
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
            store.load_root("alice")
        assert "secret" not in str(caught.value) + store.identity + repr(store)

    def test_no_free_connection_names_the_remedy(self, postgres: Any, postgres_database: Any) -> None:
        name = make_url(postgres_database.url).database
        owned(postgres_database.open())
        postgres.admin(f"CREATE ROLE narrow_{name} LOGIN CONNECTION LIMIT 1")
        narrow = make_url(postgres_database.url).set(username=f"narrow_{name}").render_as_string(False)
        postgres_database.sql(f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "narrow_{name}"')
        stores = [open_store(narrow) for _ in range(2)]
        try:
            stores[0].load_root("alice")
            with pytest.raises(StoreUnavailableError, match="max_connections"):
                stores[1].load_root("alice")
            stores[0].close()
            until_gone(postgres_database, f"narrow_{name}")
            stores[1].load_root("alice")
        finally:
            for store in stores:
                store.close()
            postgres_database.sql(f'REVOKE ALL ON ALL TABLES IN SCHEMA public FROM "narrow_{name}"')
            postgres.admin(f"DROP ROLE narrow_{name}")


class TestLimits:
    """Settings of each connection, and what happens when a limit is met."""

    def test_every_connection_has_the_limits(self, postgres_database: Any) -> None:
        store = postgres_database.open(application_name="limits")
        owned(store)
        names = (
            "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
            "default_transaction_isolation", "application_name",
        )  # fmt: skip
        found = store._transactions.read(
            lambda c: [c.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
        )
        assert found == ["30s", "15s", "5s", "read committed", "limits"]

    def test_one_lazy_connection_per_store_given_back_by_close(self, postgres_database: Any) -> None:
        store = postgres_database.open(application_name="counted")

        def count() -> int:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
            return int(postgres_database.sql(query)[0][0])

        assert count() == 0
        owned(store)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: store.load_root("alice"), range(30)))
        assert count() == 1
        store.close()
        eventually(lambda: count() == 0, "the connection is closed")

    def test_lock_held_too_long_is_a_typed_error_and_nothing_is_written(self, postgres_database: Any) -> None:
        owner = owned(postgres_database.open(options=StoreOptions(lock_timeout_s=0.2)))
        with postgres_database.engine().begin() as holder:
            holder.exec_driver_sql("UPDATE agents SET owner = owner WHERE agent_id = 'alice'")
            with pytest.raises(StoreUnavailableError, match="lock timeout"):
                owner.append("blocked")
        owner.append("free again")

    def test_slow_statement_is_a_typed_error(self, postgres_database: Any) -> None:
        store = postgres_database.open(options=StoreOptions(statement_timeout_s=0.1))
        owned(store)
        with pytest.raises(StoreUnavailableError, match="statement timeout"):
            store._transactions.read(lambda c: c.exec_driver_sql("SELECT pg_sleep(5)").all())

    def test_pool_that_stays_empty_is_a_typed_error(self, postgres_database: Any) -> None:
        store = postgres_database.open(options=StoreOptions(pool_timeout_s=0.1))
        owned(store)
        entered, leave = threading.Event(), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store._transactions.read, lambda _: (entered.set(), leave.wait(20)))
            assert entered.wait(timeout=10)
            with pytest.raises(StoreUnavailableError, match="in use"):
                store.load_root("alice")
            leave.set()

    def test_deadlock_is_repeated(self, postgres_database: Any) -> None:
        store = postgres_database.open(options=StoreOptions(pool_size=2))
        for name in ("a", "b"):
            store.create_agent(samples.new_agent(name))
        tries = itertools.count()
        barrier = threading.Barrier(2)

        def lock(first: str, second: str) -> None:
            def work(connection: Any) -> None:
                connection.exec_driver_sql(
                    "UPDATE agents SET epoch = epoch + 1 WHERE agent_id = %s", (first,)
                )
                if next(tries) < 2:
                    barrier.wait(timeout=10)
                connection.exec_driver_sql(
                    "UPDATE agents SET epoch = epoch + 1 WHERE agent_id = %s", (second,)
                )

            store._transactions.write(work)

        with ThreadPoolExecutor(2) as pool:
            pending = [pool.submit(lock, "a", "b"), pool.submit(lock, "b", "a")]
            for future in pending:
                future.result(timeout=30)
        assert [root.epoch for root in store.list_agents()] == [2, 2]

    @pytest.mark.parametrize("state", ["40P01", "40001"])
    def test_what_the_server_undid_for_others_is_repeated_some_times(
        self, postgres_database: Any, state: str
    ) -> None:
        store = postgres_database.open()
        runs = itertools.count(1)

        def undone(times: int) -> Any:
            def work(connection: Any) -> int:
                run = next(runs)
                if run <= times:
                    connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION SQLSTATE '{state}'; END $$")
                return run

            return work

        assert store._transactions.write(undone(4)) == 5
        runs = itertools.count(1)
        with pytest.raises(StoreUnavailableError, match="rolled the transaction back"):
            store._transactions.write(undone(1_000))
        assert next(runs) == 7

    def test_unique_position_is_the_last_line_of_defence(self, postgres_database: Any) -> None:
        owner = owned(postgres_database.open())
        postgres_database.sql(INSERT_RECORD.format(position=1))
        with pytest.raises(ConflictError):
            owner.append("same position")


#: What a commit looks like on the wire, and a group of commits.
COMMITTING = (b"COMMIT\x00", b"roots AS MATERIALIZED")


class LossyProxy:
    """A relay to the server that drops a connection when a commit passes: before it (`lose` = ``request``) or
    after the server has done it (``reply``)."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        host = str(parsed.query.get("host") or parsed.host or "localhost")
        port = parsed.port or 5432
        self._target: Any = (host, port)
        if host.startswith("/"):
            self._target = os.path.join(host, f".s.PGSQL.{port}")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.lose: str | None = None
        place = {"host": "127.0.0.1", "port": self._listener.getsockname()[1]}
        query = {key: value for key, value in parsed.query.items() if key != "host"}
        self.url = parsed.set(**place, query=query).render_as_string(hide_password=False)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._relay, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _relay(self, client: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
        with client, socket.socket(family, socket.SOCK_STREAM) as server:
            server.connect(self._target)
            for source, data in self._chunks(client, server):
                if source is server:
                    client.sendall(data)
                    continue
                if self.lose and any(mark in data for mark in COMMITTING):
                    lose, self.lose = self.lose, None
                    if lose == "reply":
                        server.sendall(data)
                        assert server.recv(65536)
                    return
                server.sendall(data)

    @staticmethod
    def _chunks(*sockets: socket.socket) -> Iterator[tuple[socket.socket, bytes]]:
        while True:
            for source in select.select(sockets, [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                yield source, data

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)
