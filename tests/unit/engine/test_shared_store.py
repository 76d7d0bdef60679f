"""Many engines on one store: one connection, common commits, and every agent's troubles its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from phronomy_ray.approvals import RuleEffect, RulesAsked, StandingRule
from phronomy_ray.engine import shared_store
from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import (
    AgentUnloadedError,
    CommitOutcomeUnknownError,
    OwnershipLostError,
    StoreUnavailableError,
)
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.testing.store_samples import Owner, owned

AGENTS = 12


def one_tool_turn(request: Any) -> Any:
    if request.messages[-1]["role"] == "user":
        return calls(call("read", {"n": 1}))
    return final("done")


@pytest.fixture
def faulty(lab: Any) -> FaultyStore:
    return FaultyStore(lab.store)


def clients(shared: SharedStore, count: int) -> tuple[list[Owner], list[StoreClient]]:
    owners = [owned(shared.store, f"agent-{number}") for number in range(count)]
    return owners, [StoreClient(shared, retry_s=5) for _ in owners]


async def test_turns_of_many_agents_share_their_commits(lab: Any) -> None:
    definition = lab.define(one_tool_turn, lab.deletions().free)
    shared = SharedStore(lab.store)
    engines = [lab.engine(definition, f"a{number}", store=shared) for number in range(AGENTS)]

    async def turn(engine: Any) -> Any:
        await engine.start(f"e-{engine.agent_id}", "read it")
        return await engine.wait(f"e-{engine.agent_id}", until="terminal", timeout_s=20)

    results = await asyncio.gather(*map(turn, engines))
    assert [result.output for result in results] == ["done"] * AGENTS
    assert shared.commits == 4 * AGENTS
    assert shared.groups < shared.commits / 2
    for engine in engines:
        assert lab.store.load_root(engine.agent_id).agent_revision == 4
        await engine.seal()
    shared.close()


async def test_an_agent_that_has_lost_its_owner_stops_alone(lab: Any) -> None:
    definition = lab.define(lambda _: final("hello"))
    shared = SharedStore(lab.store)
    engines = [lab.engine(definition, f"a{number}", store=shared) for number in range(4)]
    for engine in engines:
        await engine.activate()
    lab.store.claim("a2", owner={}, now=lab.store.load_root("a2").updated_at)

    async def turn(engine: Any) -> Any:
        await engine.start(f"e-{engine.agent_id}", "hi")
        return await engine.wait(f"e-{engine.agent_id}", until="terminal", timeout_s=20)

    found = await asyncio.gather(*map(turn, engines), return_exceptions=True)
    assert [type(item).__name__ for item in found] == [
        "RunResult", "RunResult", "OwnershipLostError", "RunResult",
    ]  # fmt: skip
    shared.close()


async def test_the_end_of_one_view_leaves_the_store_to_the_others(lab: Any) -> None:
    shared = SharedStore(lab.store)
    owners, views = clients(shared, 2)
    views[0].close()
    with pytest.raises(AgentUnloadedError):
        await views[0].run(lab.store.load_root, "agent-0")
    with pytest.raises(AgentUnloadedError):
        await views[0].commit(owners[0].commit("late"))
    await views[1].commit(owners[1].commit("fine"))
    shared.close()
    with pytest.raises(AgentUnloadedError):
        await views[1].commit(owners[1].commit("late"))
    with pytest.raises(AgentUnloadedError):
        await views[1].run(lab.store.load_root, "agent-1")


async def test_a_store_of_its_own_is_closed_with_its_agent(faulty: FaultyStore) -> None:
    closed = threading.Event()
    faulty.close = closed.set  # type: ignore[method-assign]
    view = StoreClient(faulty)
    assert not closed.is_set()
    view.close()
    assert closed.is_set()


async def test_each_agent_settles_its_own_unknown_outcome(faulty: FaultyStore) -> None:
    shared = SharedStore(faulty)
    owners, views = clients(shared, 4)
    faulty.fail_after("batch")
    faulty.fail_before("results", error=CommitOutcomeUnknownError("injected: nothing was sent"))
    steps = ("admit", "batch", "results", "admit")
    commits = [owner.commit("x", step=step) for owner, step in zip(owners, steps, strict=True)]
    await asyncio.gather(*(view.commit(item) for view, item in zip(views, commits, strict=True)))
    for owner in owners:
        assert [record.content for record in faulty.read_journal(owner.agent_id)] == ["x"]
    assert faulty.calls.count("settle") == 2
    shared.close()


async def test_what_has_not_happened_is_tried_again_for_its_agent(faulty: FaultyStore) -> None:
    shared = SharedStore(faulty)
    owners, views = clients(shared, 3)
    faulty.fail_before("batch")
    commits = [
        owner.commit("x", step=step) for owner, step in zip(owners, ("admit", "batch", "admit"), strict=True)
    ]
    Owner(faulty, "agent-2").claim()
    found = await asyncio.gather(
        *(view.commit(item) for view, item in zip(views, commits, strict=True)), return_exceptions=True
    )
    assert found[:2] == [None, None]
    assert isinstance(found[2], OwnershipLostError)
    assert faulty.calls.count("batch") == 2
    shared.close()


async def test_an_unreachable_store_is_told_at_the_end_of_the_retries(faulty: FaultyStore) -> None:
    shared = SharedStore(faulty)
    [owner], _ = clients(shared, 1)
    faulty.always_fail()
    with pytest.raises(StoreUnavailableError):
        await StoreClient(shared, retry_s=0.2).commit(owner.commit("x"))
    assert faulty.calls.count("step") > 1
    shared.close()


async def test_unused_connections_are_given_back(lab: Any, faulty: FaultyStore, monkeypatch: Any) -> None:
    monkeypatch.setattr(shared_store, "IDLE_CLOSE_S", 0.05)
    released = threading.Event()
    faulty.close = released.set  # type: ignore[method-assign]
    shared = SharedStore(faulty)
    [owner], [view] = clients(shared, 1)
    await view.commit(owner.commit("x"))
    assert await asyncio.to_thread(released.wait, 20)
    await view.run(faulty.load_root, owner.agent_id)
    shared.close()


def test_a_view_is_small(lab: Any) -> None:
    shared = SharedStore(lab.store)
    view = StoreClient(shared)
    assert not hasattr(view, "__dict__")
    assert sys.getsizeof(view) < 200
    shared.close()


async def test_rules_that_are_asked_for_at_once_are_read_with_one_query(faulty: FaultyStore) -> None:
    shared = SharedStore(faulty)
    _, views = clients(shared, 5)
    now = faulty.load_root("agent-0").updated_at
    assert now is not None
    rule = StandingRule("r1", RuleEffect.ALLOW, "search", "ann", now, agent_id="agent-3")
    faulty.add_rule(rule)
    asked = [RulesAsked(f"agent-{number}", "sample", now) for number in range(5)]
    found = await asyncio.gather(
        *(view.rules_in_force(item) for view, item in zip(views, asked, strict=True))
    )
    assert found == [[], [], [], [rule], []]
    assert faulty.calls.count("rules_in_force") == 1
    shared.close()
