"""Durable wishes that executions end, and deadlines: stored before the signal, seen by every later owner, told apart."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.tool import tool
from phronomy_ray.engine.deadlines import Deadlines
from phronomy_ray.engine.observing import observe
from phronomy_ray.engine.reserved import ReservedStart
from phronomy_ray.errors import (
    CancellationError,
    DeadlineExceededError,
    InvalidInputError,
    PhronomyError,
    StateConflictError,
    StoreUnavailableError,
)
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.models.scripted import call, calls, final, hang
from phronomy_ray.reservations import ReservedExecution
from phronomy_ray.testing.clock import ManualClock
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.tool_calls import ToolContext

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def wish(execution_id: str = "ex1", reason: str = "enough") -> CancellationIntent:
    return CancellationIntent(execution_id, "a1", reason, NOW)


# --- wishes -------------------------------------------------------------------------------------------------------


async def test_a_body_is_told_to_stop_only_when_the_wish_is_stored(lab: Any) -> None:
    running, seen = asyncio.Event(), []

    @tool
    async def work(context: ToolContext) -> str:
        running.set()
        while not context.is_cancelled():
            await asyncio.sleep(0.001)
        seen.append(lab.store.find_cancellation("ex1"))
        raise CancellationError("told to stop")

    engine = lab.engine(lab.define([calls(call("work", {})), final("never")], work))
    await engine.start("ex1", "go")
    await running.wait()
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    assert all(item is not None and item.reason == "enough" for item in seen)


async def test_without_a_stored_wish_nothing_is_told_to_stop(lab: Any) -> None:
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define(lab.first_turn(hang())), store=store)
    await engine.start("ex1", "go")
    await lab.until_prompted()
    store.always_fail("request_cancellation")
    with pytest.raises(StoreUnavailableError):
        await engine.cancel("ex1", "enough")
    assert not engine.is_cancelled("ex1")
    store.heal()
    await engine.cancel("ex1", "again")
    assert (await lab.end(engine)).terminal_reason == "again"


async def test_the_first_reason_counts(lab: Any) -> None:
    engine = lab.engine(lab.define(lab.first_turn(hang())))
    await engine.start("ex1", "go")
    await lab.until_prompted()
    lab.store.request_cancellation(wish(reason="first"))
    await engine.cancel("ex1", "second")
    assert (await lab.end(engine)).terminal_reason == "first"


async def test_a_later_owner_ends_what_was_wished_to_end_while_nobody_owned_it(lab: Any) -> None:
    made, stop = 0, asyncio.Event()

    @tool(replay="safe")
    async def work() -> str:
        nonlocal made
        made += 1
        await stop.wait()
        return "never"

    definition = lab.define([calls(call("work", {})), final("never")], work)
    first = lab.engine(definition)
    await first.start("ex1", "go")
    async with asyncio.timeout(20):
        while not made:
            await asyncio.sleep(0.002)
    lab.store.request_cancellation(wish())  # any process can; the first owner is cut off and hears nothing
    second = lab.engine(definition)
    await second.activate()
    result = await lab.end(second)
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    assert made == 1, "nothing of it was run again"
    stop.set()
    assert "execution_cancelled" in lab.kinds()


async def test_a_suspended_one_is_ended_by_its_next_owner(lab: Any) -> None:
    deletions = lab.deletions()
    definition = lab.define(lab.first_turn(calls(call("delete", {"n": 1}))), deletions.delete)
    first = lab.engine(definition)
    await first.start("ex1", "go")
    await lab.suspension(first)
    await first.seal()
    lab.store.request_cancellation(wish())
    second = lab.engine(definition)
    await second.activate()
    assert (await second.view("ex1")).status is ExecutionStatus.CANCELLED
    assert deletions.done == []
    await lab.still_usable(second)


async def test_a_queued_request_that_was_wished_away_never_begins(lab: Any) -> None:
    definition = lab.define(lambda request: hang() if request.last_user == "m1" else final("ran"))
    engine = lab.engine(definition)
    await engine.start("ex1", "m1")
    await lab.until_prompted()
    await engine.start("ex2", "m2", on_busy=BusyRule.QUEUE)
    lab.store.request_cancellation(wish("ex2"))
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine, "ex2")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    assert len(lab.prompts()) == 1


async def test_a_cancellation_whose_commit_failed_is_not_forgotten(lab: Any) -> None:
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define(lab.first_turn(hang())), store=store)
    await engine.start("ex1", "go")
    await lab.until_prompted()
    store.fail_before("cancel_intent", error=PhronomyError("out of order"))
    with pytest.raises(PhronomyError, match="out of order"):
        await engine.cancel("ex1", "enough")
    await engine.activate()
    assert (await lab.end(engine)).terminal_reason == "enough"


async def test_the_end_of_a_suspended_one_waits_until_nothing_of_it_runs(lab: Any) -> None:
    deletions, ended = lab.deletions(), []

    @tool(timeout_s=0.05, on_error="suppress")
    def slow() -> str:
        lab.release.wait(20)
        ended.append(lab.store.load_execution("ex1").status)
        return "late"

    script = [calls(call("slow", {})), calls(call("delete", {"n": 1})), final("ok")]
    engine = lab.engine(lab.define(script, slow, deletions.delete, quiescence_timeout_s=20.0))
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    cancelling = asyncio.create_task(engine.cancel("ex1", "enough"))
    async with asyncio.timeout(20):
        while not engine.is_cancelled("ex1"):
            await asyncio.sleep(0.002)
    lab.release.set()
    assert (await cancelling).status is ExecutionStatus.CANCELLED
    assert ended == [ExecutionStatus.SUSPENDED], "the body was over before the end was committed"


# --- deadlines ----------------------------------------------------------------------------------------------------


async def test_a_deadline_ends_the_execution_and_is_told_apart_from_a_cancellation(lab: Any) -> None:
    engine = lab.engine(lab.define(lab.first_turn(hang())))
    await engine.start("ex1", "go", reserved=ReservedStart(budget_s=0.05))
    result = await lab.end(engine)
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "deadline_exceeded")
    with pytest.raises(DeadlineExceededError) as caught:
        result.raise_for_status()
    assert isinstance(caught.value, TimeoutError)
    assert observe(lab.store, "ex1").cancellation_reason == "deadline_exceeded"
    await lab.still_usable(engine)


async def test_a_tool_sees_what_is_left_of_the_callers_time(lab: Any) -> None:
    seen: list[float | None] = []

    @tool(timeout_s=60.0)
    async def work(context: ToolContext) -> str:
        seen.append(context.remaining_s)
        return "done"

    script = [calls(call("work", {})), final("ok")]
    engine = lab.engine(lab.define([script, script], work))
    await lab.run(engine, reserved=ReservedStart(budget_s=30.0))
    await lab.run(engine, id="ex2")
    assert 0 < (seen[0] or 0) <= 30.0
    assert 30.0 < (seen[1] or 0) <= 60.0


async def test_a_deadline_counts_while_a_request_waits(lab: Any) -> None:
    engine = lab.engine(lab.define(hang_always))
    await engine.start("ex1", "m1")
    await engine.start("ex2", "m2", on_busy=BusyRule.QUEUE, reserved=ReservedStart(budget_s=0.05))
    result = await lab.end(engine, "ex2")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "deadline_exceeded")
    with pytest.raises(DeadlineExceededError):
        result.raise_for_status()
    assert (await engine.view("ex1")).status is ExecutionStatus.ACTIVE


def hang_always(request: Any) -> Any:
    return hang()


async def test_a_new_owner_counts_what_is_left(lab: Any) -> None:
    definition, clock = lab.define(hang_always), ManualClock()
    first = lab.engine(definition, clock=clock)
    await first.start("ex1", "go", reserved=ReservedStart(budget_s=3_600.0))
    await lab.until_prompted()
    assert lab.store.load_execution("ex1").deadline_at == clock.now() + timedelta(hours=1)
    clock.advance(3_599.7)
    second = lab.engine(definition, clock=clock)  # the first one was cut off
    await second.activate()
    assert second.waits_for_time
    result = await lab.end(second)
    assert result.terminal_reason == "deadline_exceeded"


async def test_a_row_without_the_moment_is_counted_anew(lab: Any) -> None:
    definition, clock = lab.define(hang_always), ManualClock()
    first = lab.engine(definition, clock=clock)
    await first.start("ex1", "go", reserved=ReservedStart(budget_s=600.0))
    await lab.until_prompted()
    with sqlite3.connect(lab.directory / "agents.db") as connection:
        connection.execute("UPDATE executions SET deadline_at = NULL")
    connection.close()
    clock.advance(3_600.0)
    second = lab.engine(definition, clock=clock)
    await second.activate()
    assert second.state.execution is not None, "it is not over at once"
    assert second.waits_for_time


async def test_what_is_overdue_is_ended_instead_of_gone_on_with(lab: Any) -> None:
    deletions = lab.deletions()
    script = {"ask": calls(call("delete", {"n": 1})), "work": hang()}
    definition = lab.define(lambda request: script[request.last_user], deletions.delete)
    clock = ManualClock()
    for agent_id, text in (("a1", "ask"), ("a2", "work")):
        first = lab.engine(definition, agent_id, clock=clock)
        await first.start(f"ex-{agent_id}", text, reserved=ReservedStart(budget_s=60.0))
        if text == "ask":
            await lab.end_or_question(first, "ex-a1")
            await first.seal()
        else:
            await lab.until_prompted(2)
    clock.advance(60.0)
    for agent_id in ("a1", "a2"):
        second = lab.engine(definition, agent_id, clock=clock)
        await second.activate()
        result = await lab.end(second, f"ex-{agent_id}")
        assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "deadline_exceeded")
        wished = lab.store.find_cancellation(f"ex-{agent_id}")
        assert wished is not None
        assert wished.reason == "deadline_exceeded"
    assert len(lab.prompts()) == 2, "nothing was asked again"
    assert deletions.done == []


async def test_a_request_keeps_its_deadline_while_it_waits_and_when_it_begins(lab: Any) -> None:
    definition, clock = lab.define(hang_always), ManualClock()
    first = lab.engine(definition, clock=clock)
    await first.start("ex1", "m1")
    await lab.until_prompted()
    for name, budget_s in (("ex2", 60.0), ("ex3", 120.0)):
        await first.start(name, name, on_busy=BusyRule.QUEUE, reserved=ReservedStart(budget_s=budget_s))
    due = clock.now() + timedelta(seconds=120)
    assert lab.store.queued_requests("a1")[1].deadline_at == due
    clock.advance(61.0)
    second = lab.engine(definition, clock=clock)
    await second.activate()
    await second.cancel("ex1", "enough")
    result = await lab.end(second, "ex2")
    assert result.terminal_reason == "deadline_exceeded"
    await lab.until_prompted(3)
    assert lab.store.load_execution("ex3").deadline_at == due, "it counts from the start"
    assert "ex2" not in [messages[-1]["content"] for messages in lab.prompts()]


async def test_no_deadline_is_too_far_to_be_kept(lab: Any) -> None:
    engine = lab.engine(lab.define([final("done")]))
    assert (await lab.run(engine, reserved=ReservedStart(budget_s=1e300))).output == "done"
    assert lab.store.load_execution("ex1").deadline_at is None


async def test_a_long_time_is_looked_at_again_before_it_counts_as_over(monkeypatch: Any) -> None:
    monkeypatch.setattr("phronomy_ray.engine.deadlines.MAX_DELAY_S", 0.01)
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    deadlines = Deadlines(lambda id_: over.set())
    deadlines.arm("forgotten", 0.02)
    deadlines.forget("forgotten")
    begun_s = loop.time()
    deadlines.arm("ex1", 0.1)
    left_s = deadlines.remaining_s("ex1")
    assert left_s is not None
    assert 0.05 < left_s <= 0.1
    async with asyncio.timeout(20):
        await over.wait()
    assert loop.time() - begun_s >= 0.1
    assert deadlines.remaining_s("ex1") == 0.0


# --- which start it was -------------------------------------------------------------------------------------------


async def test_one_start_is_told_apart_from_another_of_the_same_id(lab: Any) -> None:
    engine = lab.engine(lab.define([final("done")]))
    mine, other = ReservedStart(start_id="st1"), ReservedStart(start_id="st2")
    await engine.start("ex1", "go", reserved=mine)
    await engine.start("ex1", "go", reserved=mine)  # its answer was lost
    with pytest.raises(StateConflictError, match="spent"):
        await engine.start("ex1", "go", reserved=other)
    await lab.end(engine)
    with pytest.raises(StateConflictError, match="spent"):
        await engine.start("ex1", "go", reserved=other)
    await engine.start("ex1", "go", reserved=mine)
    assert len(lab.prompts()) == 1


async def test_another_correlation_is_another_execution(lab: Any) -> None:
    engine = lab.engine(lab.define([final("done")]))
    await lab.run(engine, reserved=ReservedStart(correlation={"slot": 1}))
    await engine.start("ex1", "hello", reserved=ReservedStart(correlation={"slot": 1}))
    for correlation in ({"slot": 2}, None):
        with pytest.raises(StateConflictError, match="correlation"):
            await engine.start("ex1", "hello", reserved=ReservedStart(correlation=correlation))
    assert observe(lab.store, "ex1").reservation == ReservedExecution("a1", "ex1", {"slot": 1})


@pytest.mark.parametrize("wrong", [{"budget_s": "1"}, {"budget_s": True}, {"correlation": [1]}])
def test_what_a_start_is_given_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        ReservedStart(**wrong)
