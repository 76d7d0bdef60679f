"""Durable wishes that executions end, and deadlines: stored before the signal, seen by every later owner, told apart."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.tool import tool
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


async def test_a_new_owner_counts_the_time_again(lab: Any) -> None:
    definition = lab.define(hang_always)
    first = lab.engine(definition)
    await first.start("ex1", "go", reserved=ReservedStart(budget_s=0.3))
    await lab.until_prompted()
    second = lab.engine(definition)  # the first one was cut off
    await second.activate()
    assert second.waits_for_time
    result = await lab.end(second)
    assert result.terminal_reason == "deadline_exceeded"


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
