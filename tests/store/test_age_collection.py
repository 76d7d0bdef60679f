"""Age-based deletion on both engines: what is old goes, what somebody needs stays, and it can be stopped anywhere."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from phronomy_ray.errors import InvalidInputError, NotFoundError
from phronomy_ray.journal import ExecutionRow, ExecutionStatus, Lifecycle, Phase
from phronomy_ray.retention import PARENT_KEY, Collectable, Retention, RetentionPolicy
from phronomy_ray.store.commit_writer import PreparedCommit
from phronomy_ray.store.content_codec import ContentCodec
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.locations import parse_location
from phronomy_ray.store.transactions import Transactions
from phronomy_ray.supervision.collecting import collect
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, owned

NOW = START + timedelta(days=100)
MONTH = RetentionPolicy.keep_for(timedelta(days=30))


def finish(owner: Owner, execution_id: str, *, days: int = 0, pending: bool = False) -> ExecutionRow:
    """An execution that ended `days` after the start of time."""
    row = owner.start(execution_id)
    call = samples.tool_call(execution_id, owner.agent_id)
    owner.append(
        "said",
        new_model_calls=(samples.model_call(execution_id),),
        new_tool_calls=(call,),
        new_approvals=(samples.approval(call),) if pending else (),
        events=(
            samples.event(execution_id, owner.agent_id, 1),
            samples.event(execution_id, owner.agent_id, 2),
        ),
    )
    ended = START + timedelta(days=days)
    return owner.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED, ended_at=ended)


def left(store: Any) -> set[str]:
    return {row.execution_id for row in store.list_executions()}


def test_what_is_old_goes_and_what_is_needed_stays(database: Any) -> None:
    store = database.open()
    alice = owned(store, "alice")
    finish(alice, "old")
    finish(alice, "held")
    finish(alice, "asks", pending=True)
    finish(alice, "young", days=90)
    alice.start("runs")
    alice.append(
        "m", new_model_calls=(samples.model_call("runs"),), events=(samples.event("runs", "alice", 1),)
    )
    store.retain(Retention("audit", "alice", "held", START))
    dry = collect(store, MONTH, now=NOW, dry_run=True)
    assert (dry.rows[Collectable.EVENTS], dry.rows[Collectable.EXECUTIONS]) == (2, 1)
    assert left(store) == {"old", "held", "asks", "young", "runs"}
    done = collect(store, MONTH, now=NOW)
    assert done.is_whole
    assert done.rows == {Collectable.EVENTS: 2, Collectable.EXECUTIONS: 1, Collectable.CLOSED_AGENTS: 0}
    assert left(store) == {"held", "asks", "young", "runs"}
    assert store.tool_calls("old") == store.model_calls("old") == store.events("old") == []
    assert [len(store.events(id_)) for id_ in ("held", "asks", "young", "runs")] == [2, 2, 2, 1]
    assert len(store.read_journal("alice")) == 5, "the journal stays"
    alice.append("goes on")
    store.release("audit", agent_id="alice", execution_id="held")
    assert collect(store, MONTH, now=NOW).rows[Collectable.EXECUTIONS] == 1


def test_events_may_go_before_their_executions(database: Any) -> None:
    store = database.open()
    finish(owned(store, "alice"), "ex1")
    done = collect(store, RetentionPolicy(events=timedelta(days=30)), now=NOW)
    assert done.rows == {Collectable.EVENTS: 2}
    assert store.events("ex1") == []
    assert left(store) == {"ex1"}


def test_closed_agents_go_whole(database: Any) -> None:
    store = database.open()
    for name, lifecycle in (
        ("closed", Lifecycle.CLOSED),
        ("idle", Lifecycle.IDLE),
        ("held", Lifecycle.CLOSED),
    ):
        owner = owned(store, name)
        finish(owner, f"ex_{name}")
        owner.append("last words", lifecycle=lifecycle)
    store.retain(Retention("audit", "held", None, START))
    policy = RetentionPolicy(closed_agents=timedelta(days=30))
    assert collect(store, policy, now=START + timedelta(days=1)).rows[Collectable.CLOSED_AGENTS] == 0
    epoch = store.load_root("closed").epoch
    assert collect(store, policy, now=NOW).rows[Collectable.CLOSED_AGENTS] == 1
    assert [root.agent_id for root in store.list_agents()] == ["held", "idle"]
    with pytest.raises(NotFoundError):
        store.load_execution("ex_closed")
    store.create_agent(samples.new_agent("closed", now=NOW))
    again = Owner(store, "closed")
    again.claim()
    assert again.epoch > epoch, "an owner of the deleted agent passes for none of the next one"


def test_what_a_running_parent_may_ask_for_stays(database: Any) -> None:
    store = database.open()
    parent = owned(store, "parent")
    row = parent.start("pe")
    store.create_agent(samples.new_agent("child", metadata={PARENT_KEY: {"execution_id": "pe"}}))
    child = Owner(store, "child")
    child.claim()
    finish(child, "ce")
    assert collect(store, MONTH, now=NOW).rows[Collectable.EXECUTIONS] == 0
    parent.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED, ended_at=NOW)
    assert collect(store, MONTH, now=NOW).rows[Collectable.EXECUTIONS] == 1
    assert left(store) == {"pe"}


def test_an_agent_that_is_being_written_is_passed_over(postgres_database: Any) -> None:
    store = postgres_database.open()
    alice, bob = owned(store, "alice"), owned(store, "bob")
    finish(alice, "a1")
    finish(bob, "b1")
    commit = bob.commit("busy")
    written, go_on = threading.Event(), threading.Event()
    transactions = Transactions(parse_location(postgres_database.url), StoreOptions())

    def work(connection: Connection) -> None:
        PreparedCommit(commit, ContentCodec()).write(connection)
        written.set()
        assert go_on.wait(timeout=30)

    policy = RetentionPolicy(executions=timedelta(days=30), contents=None)
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(transactions.write, work)
        assert written.wait(timeout=15)
        assert collect(postgres_database.open(), policy, now=NOW).rows[Collectable.EXECUTIONS] == 1
        assert left(store) == {"b1"}
        go_on.set()
        attempt.result(timeout=30)
    transactions.close()
    assert collect(store, policy, now=NOW).rows[Collectable.EXECUTIONS] == 1


def test_it_goes_in_steps_and_can_be_stopped(database: Any) -> None:
    store = database.open()
    alice = owned(store, "alice")
    for number in range(7):
        finish(alice, f"ex{number}")
    step = store.collect_rows(Collectable.EXECUTIONS, before=NOW, limit=3)
    assert (step.looked_at, step.deleted, step.next) == (3, 3, "ex2")
    stopped = collect(store, MONTH, now=NOW, should_stop=lambda: True)
    assert not stopped.is_whole
    assert len(left(store)) == 4
    assert collect(store, MONTH, now=NOW).rows[Collectable.EXECUTIONS] == 4
    with pytest.raises(InvalidInputError):
        store.collect_rows(Collectable.EVENTS, before=NOW, limit=0)
    with pytest.raises(InvalidInputError):
        RetentionPolicy(events=timedelta(seconds=-1))


def test_S08_storage_grows_with_the_conversation_and_goes_with_it(database: Any) -> None:
    """Bytes per turn do not depend on how long the conversation is, and purge and collection free all of them."""
    store = database.open()
    owner = owned(store, "alice")

    def stored() -> int:
        tables = (
            ("journal", "content"),
            ("contents", "body"),
            ("condemned_contents", "body"),
            ("events", "payload"),
        )
        sums = (f"SELECT COALESCE(SUM(LENGTH({column})), 0) FROM {table}" for table, column in tables)
        return sum(int(database.sql(query)[0][0]) for query in sums)

    def turns(first: int, count: int) -> int:
        before = stored()
        for number in range(first, first + count):
            row = finish(owner, f"ex{number:05}")
            owner.append({"text": f"{number:05}" * 200}, {"text": f"{number:05}" * 1_200})
            assert row.status is ExecutionStatus.COMPLETED
        return stored() - before

    early, _, late = turns(0, 20), turns(20, 60), turns(80, 20)
    assert late == pytest.approx(early, rel=0.02)
    purged = store.load_root("alice")
    assert purged.created_at is not None
    store.purge_agent("alice", epoch=owner.epoch, created_at=purged.created_at)
    for days in (0, 1, 2):
        collect(store, MONTH, now=NOW + timedelta(days=days))
    assert stored() == 0
    assert replace(purged, metadata={}).agent_id == "alice"
