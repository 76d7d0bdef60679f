"""One pool without Ray: a fleet that does nothing by itself, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from phronomy_ray.actors.pool_core import PoolCore
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import CallKey, ToolOutcome
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_entries import MAX_UNBEGUN_S
from phronomy_ray.tools.pool_news import Subscription
from phronomy_ray.tools.pool_placement import Lane
from phronomy_ray.tools.pool_wire import (
    ItemKind,
    News,
    PoolBatch,
    PoolCall,
    PoolItem,
    StartedCalls,
    WorkerSetup,
    item_of,
    outcome_of,
)

SETUP = WorkerSetup("{}", ("/app",))
NUMBERS = itertools.count(1)


class Fleet:
    """Remembers what it was asked for."""

    def __init__(self, *, nodes: Sequence[str] = ("n1",), max_workers: int = 4, max_tasks: int = 4) -> None:
        self.nodes = nodes
        self.max_workers = max_workers
        self.max_tasks = max_tasks
        self.started: list[str] = []
        self.sent: list[tuple[str, list[CallKey]]] = []
        self.cancelled: list[CallKey] = []
        self.ended: list[str] = []
        self.probed: list[str] = []
        self.tasks: list[CallKey] = []
        self.ended_tasks: list[CallKey] = []

    def start(self, worker_id: str, setup: WorkerSetup, node: str) -> None:
        self.started.append(worker_id)

    def send(self, worker_id: str, calls: Sequence[tuple[PoolBatch, PoolCall]]) -> None:
        self.sent.append((worker_id, [call.key for _, call in calls]))

    def cancel(self, worker_id: str, keys: Sequence[CallKey]) -> None:
        self.cancelled.extend(keys)

    def probe(self, worker_id: str) -> None:
        self.probed.append(worker_id)

    def end(self, worker_id: str) -> None:
        self.ended.append(worker_id)

    def run_task(self, batch: PoolBatch, call: PoolCall) -> None:
        self.tasks.append(call.key)

    def end_task(self, key: CallKey) -> None:
        self.ended_tasks.append(key)


class Pool:
    """A core with its fleet and clock, and the listener of each batch."""

    def __init__(self, config: PoolConfig | None = None, **fleet: object) -> None:
        self.now = 0.0
        self.fleet = Fleet(**fleet)  # type: ignore[arg-type]
        self.core = PoolCore("p", config or PoolConfig(), self.fleet, clock=lambda: self.now)

    def submit(
        self,
        count: int = 1,
        *,
        agent: str = "a",
        execution: str = "",
        lane: Lane = Lane.REPLAYABLE,
        task: bool = False,
        options: Mapping[str, Any] | None = None,
        epoch: int = 1,
        keys: Sequence[CallKey] = (),
    ) -> tuple[list[CallKey], Subscription]:
        made = list(keys) or [(f"tc{next(NUMBERS)}", 1) for _ in range(count)]
        calls = tuple(
            PoolCall(key, "tool", lane, 10.0, b"", options or ({} if task else None)) for key in made
        )
        listener = Subscription()
        batch = PoolBatch(agent, execution or f"ex-{agent}", epoch, SETUP, b"", "k", calls)
        self.core.submit(batch, listener)
        return made, listener

    def ready(self) -> None:
        """All workers that were started are up."""
        for worker_id in self.fleet.started:
            self.core.on_ready(worker_id)

    def begin(self, keys: Iterable[CallKey]) -> None:
        self.core.on_news([StartedCalls(tuple(keys), "n1", 7, "then")])

    def end(self, keys: Iterable[CallKey], kind: ItemKind = ItemKind.OUTCOME) -> None:
        self.core.on_news([item_of(succeeded(key), kind) for key in keys])

    def worker_of(self, key: CallKey) -> str:
        [worker] = [worker_id for worker_id, keys in self.fleet.sent if key in keys]
        return worker


def succeeded(key: CallKey) -> ToolOutcome:
    return ToolOutcome(*key, ToolCallStatus.SUCCEEDED, "ok", "ok")


def told(listener: Subscription) -> list[News]:
    """What the listener has been told and not taken yet."""
    news, listener._news = listener._news, []
    return news


def outcomes(listener: Subscription) -> dict[CallKey, tuple[ItemKind, str]]:
    return {item.key: (item.kind, item.status) for item in told(listener) if isinstance(item, PoolItem)}


# --- the way of a call ------------------------------------------------------------------------------------------


async def test_a_call_waits_for_its_worker_and_ends_with_one_outcome() -> None:
    pool = Pool()
    [key], listener = pool.submit()
    assert pool.fleet.sent == []
    pool.ready()
    assert pool.fleet.sent == [(pool.fleet.started[0], [key])]
    pool.begin([key])
    pool.end([key])
    assert not listener.open
    group = await listener.next()
    assert group.is_over
    assert [type(item).__name__ for item in group.news] == ["StartedCalls", "PoolItem"]
    assert pool.core.running("ex-a") == []


async def test_a_call_that_is_known_is_not_run_again() -> None:
    pool = Pool()
    [key], first = pool.submit()
    pool.ready()
    pool.begin([key])
    _, second = pool.submit(keys=[key])
    assert len(pool.fleet.sent) == 1
    pool.end([key])
    assert outcomes(first) == {}
    assert outcomes(second) == {key: (ItemKind.OUTCOME, "succeeded")}
    _, third = pool.submit(keys=[key])
    assert outcomes(third) == {key: (ItemKind.OUTCOME, "succeeded")}, "it is kept until it is acknowledged"
    pool.core.acknowledge([key])
    assert pool.core.attach("a", 1, [key], Subscription()) == frozenset()


async def test_a_new_owner_attaches_and_shuts_the_former_one_out() -> None:
    pool = Pool()
    keys, _ = pool.submit(2)
    pool.ready()
    pool.end(keys[:1])
    listener = Subscription()
    assert pool.core.attach("a", 2, [*keys, ("other", 1)], listener) == frozenset(keys)
    assert outcomes(listener) == {keys[0]: (ItemKind.OUTCOME, "succeeded")}
    stale = Subscription()
    assert pool.core.attach("a", 1, keys, stale) == frozenset(), "the former owner takes nothing back"
    assert not stale.open
    pool.end(keys[1:])
    assert outcomes(listener) == {keys[1]: (ItemKind.OUTCOME, "succeeded")}
    before = len(pool.fleet.sent)
    [late], stale = pool.submit(epoch=1)
    assert len(pool.fleet.sent) == before
    assert outcomes(stale) == {late: (ItemKind.OUTCOME, "not_performed")}


async def test_a_full_pool_refuses_at_once_and_takes_the_next_batch_that_fits() -> None:
    pool = Pool(PoolConfig(max_running=1, max_queued=1))
    first, _ = pool.submit(2)
    refused, listener = pool.submit(1, agent="b")
    assert outcomes(listener) == {refused[0]: (ItemKind.OUTCOME, "failed")}
    assert not listener.open
    assert pool.core.metrics_of.to_wire()["run"]["count"] == 0, "nothing ran"  # type: ignore[index]
    pool.ready()
    pool.end(first)
    again, listener = pool.submit(1, agent="b")
    pool.end(again)
    assert outcomes(listener) == {again[0]: (ItemKind.OUTCOME, "succeeded")}


async def test_agents_take_turns() -> None:
    pool = Pool(PoolConfig(max_running=2))
    noisy, _ = pool.submit(10, agent="noisy")
    quiet, _ = pool.submit(1, agent="quiet")
    pool.ready()
    sent = [key for _, keys in pool.fleet.sent for key in keys]
    assert sent == noisy[:2]
    pool.end(noisy[:1])
    assert quiet[0] in [key for _, keys in pool.fleet.sent for key in keys]
    pool.end(noisy[1:2])
    assert noisy[2] in [key for _, keys in pool.fleet.sent for key in keys]


# --- deaths -----------------------------------------------------------------------------------------------------


async def test_a_dead_worker_makes_its_own_calls_unknown() -> None:
    pool = Pool()
    lone, listener = pool.submit(2, lane=Lane.NEVER)
    pool.ready()
    victim = pool.worker_of(lone[0])
    assert pool.worker_of(lone[1]) != victim
    pool.begin(lone)
    pool.core.on_gone(victim, "killed", code="out_of_memory")
    items = [item for item in told(listener) if isinstance(item, PoolItem)]
    [outcome] = [outcome_of(item) for item in items]
    assert (outcome.key, outcome.status, outcome.node) == (lone[0], ToolCallStatus.UNKNOWN, "n1")
    assert outcome.error is not None
    assert outcome.error.code == "out_of_memory"
    assert listener.open == {lone[1]}


async def test_calls_whose_worker_cannot_be_started_are_placed_again_and_fail_in_the_end() -> None:
    pool = Pool()
    [key], listener = pool.submit()
    for attempt in range(3):
        assert len(pool.fleet.started) == attempt + 1
        pool.core.on_gone(pool.fleet.started[-1], "no room on the node")
    [outcome] = [outcome_of(item) for item in told(listener) if isinstance(item, PoolItem)]
    assert (outcome.key, outcome.status) == (key, ToolCallStatus.FAILED)
    assert outcome.error is not None
    assert outcome.error.code == "pool_unavailable"


async def test_a_task_that_ends_without_an_outcome_is_unknown() -> None:
    pool = Pool()
    keys, listener = pool.submit(6, task=True)
    assert pool.fleet.tasks == keys[:4], "tasks have a bound of their own"
    pool.core.on_task_over(keys[0], "killed")
    assert pool.fleet.tasks == keys[:5]
    assert outcomes(listener) == {keys[0]: (ItemKind.OUTCOME, "unknown")}


# --- time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [{"num_cpus": 0.0, "resources": {"nowhere": 1}}, {"num_cpus": 512.0}])
async def test_tasks_that_no_node_can_run_hold_up_no_other_agent(wanted: dict[str, Any]) -> None:
    pool = Pool()
    pool.submit(20, options=wanted)
    assert len(pool.fleet.tasks) == 4
    [key], _ = pool.submit(agent="b", options={"num_cpus": 1.0})
    assert pool.fleet.tasks[4:] == [key]


async def test_a_runaway_task_is_killed_at_its_limit_which_starts_with_its_body() -> None:
    pool = Pool()
    [key], listener = pool.submit(task=True)
    pool.now = 100.0
    pool.core.tick()
    assert pool.fleet.ended_tasks == [], "it has waited for a CPU"
    pool.begin([key])
    pool.now = 110.0
    pool.core.tick()
    assert pool.fleet.ended_tasks == [key]
    assert outcomes(listener) == {key: (ItemKind.GIVEN_UP, "timed_out")}
    pool.core.on_task_over(key, "killed")
    assert outcomes(listener) == {key: (ItemKind.ENDED, "")}


async def test_a_given_up_body_keeps_its_share_until_its_worker_is_ended() -> None:
    pool = Pool(PoolConfig(max_running=1, max_workers=1, stuck_grace_s=2), max_workers=1)
    [stuck], listener = pool.submit()
    [waiting], _ = pool.submit(agent="b")
    pool.ready()
    pool.begin([stuck])
    pool.end([stuck], ItemKind.GIVEN_UP)
    assert pool.core.metrics()["abandoned"] == 1
    pool.core.tick()
    assert pool.fleet.ended == []
    pool.now = 2.5
    pool.core.tick()
    [worker] = pool.fleet.ended
    assert waiting not in [key for _, keys in pool.fleet.sent for key in keys]
    pool.core.on_gone(worker, "ended")
    assert outcomes(listener)[stuck][0] is ItemKind.ENDED
    pool.core.on_ready(pool.fleet.started[-1])
    assert pool.worker_of(waiting) != worker


async def test_a_worker_with_live_siblings_is_not_ended_for_one_of_them() -> None:
    pool = Pool()
    keys, _ = pool.submit(2)
    pool.ready()
    pool.begin(keys)
    pool.end(keys[:1], ItemKind.GIVEN_UP)
    pool.now = 9.0
    pool.core.tick()
    assert pool.fleet.ended == []
    later, _ = pool.submit(agent="b")
    pool.ready()
    assert pool.worker_of(later[0]) != pool.worker_of(keys[1]), "it takes no more calls"
    pool.end(keys[1:])
    pool.now = 20.0
    pool.core.tick()
    assert pool.fleet.ended == [pool.worker_of(keys[1])]


async def test_work_that_outlives_its_result_costs_no_worker() -> None:
    pool = Pool(PoolConfig(idle_worker_s=5), nodes=("n1",))
    [key], listener = pool.submit()
    pool.ready()
    pool.end([key], ItemKind.GOES_ON)
    assert listener.open == {key}
    pool.now = 1000.0
    pool.core.tick()
    assert pool.fleet.ended == []
    assert pool.core.running("ex-a") == [key]
    pool.end([key], ItemKind.LATE)
    assert outcomes(listener)[key] == (ItemKind.LATE, "succeeded")


async def test_a_body_that_holds_its_process_is_given_up_by_the_pool() -> None:
    pool = Pool(PoolConfig(stuck_grace_s=2))
    [held], listener = pool.submit(lane=Lane.NEVER)
    pool.ready()
    pool.now = 12.5
    pool.core.tick()
    assert pool.fleet.probed == [pool.worker_of(held)], "it may be importing the agent's module"
    pool.core.on_alive(pool.worker_of(held))
    pool.now = 14.0
    pool.core.tick()
    assert outcomes(listener) == {}
    pool.now = 17.0
    pool.core.tick()
    assert outcomes(listener) == {held: (ItemKind.GIVEN_UP, "timed_out")}


async def test_a_call_that_a_living_worker_never_begins_is_given_up_in_the_end() -> None:
    pool = Pool(PoolConfig(stuck_grace_s=2))
    [lost], listener = pool.submit()
    pool.ready()
    while pool.now < 10 + 2 + MAX_UNBEGUN_S:
        pool.core.tick()
        pool.core.on_alive(pool.worker_of(lost))
        assert outcomes(listener) == {}
        pool.now += 1
    pool.core.tick()
    assert outcomes(listener) == {lost: (ItemKind.GIVEN_UP, "timed_out")}


async def test_idle_workers_go_and_one_per_node_stays() -> None:
    pool = Pool(PoolConfig(idle_worker_s=5))
    keys, _ = pool.submit(3, lane=Lane.NEVER)
    pool.ready()
    pool.end(keys)
    pool.now = 6.0
    pool.core.tick()
    assert len(pool.fleet.ended) == 2
    assert pool.core.metrics()["workers"] == 1


# --- cancelling -------------------------------------------------------------------------------------------------


async def test_what_has_not_begun_is_taken_back_and_bodies_are_told() -> None:
    pool = Pool(PoolConfig(max_running=1))
    keys, listener = pool.submit(2)
    pool.ready()
    pool.core.cancel("ex-a")
    assert pool.fleet.cancelled == keys[:1]
    assert outcomes(listener) == {keys[1]: (ItemKind.OUTCOME, "not_performed")}


async def test_after_the_grace_time_a_worker_is_ended_unless_others_live_in_it() -> None:
    pool = Pool(max_workers=1)
    mine, listener = pool.submit(agent="a")
    other, theirs = pool.submit(agent="b")
    pool.ready()
    await asyncio.wait_for(pool.core.stop("ex-a", 0.01), 10)
    assert pool.fleet.ended == []
    assert outcomes(listener) == {mine[0]: (ItemKind.GIVEN_UP, "unknown")}
    await asyncio.wait_for(pool.core.stop("ex-b", 0.01), 10)
    assert pool.fleet.ended == [pool.fleet.started[0]]
    assert outcomes(theirs) == {other[0]: (ItemKind.GIVEN_UP, "unknown")}
    assert await pool.core.wait_quiet("ex-a", 0.01) == mine
    pool.core.on_gone(pool.fleet.started[0], "ended")
    assert await pool.core.wait_quiet("ex-a", 10) == []
