"""Letting go of an agent that waits for a human, and what several owners make of it, one after the other."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.commits import NewAgent
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.tool import tool
from phronomy_ray.detachment import ApprovalWait, DetachRefusal
from phronomy_ray.engine.engine import AgentEngine
from phronomy_ray.engine.observing import approval_wait, observe
from phronomy_ray.engine.reserved import ReservedStart
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnloadedError,
    NotFoundError,
    StateConflictError,
    StoreUnavailableError,
)
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.reservations import ObservedState, ReservedExecution
from phronomy_ray.retention import PARENT_KEY, Retention
from phronomy_ray.testing.faulty_store import FaultyStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TWO_QUESTIONS = [calls(call("delete", {"n": 1})), calls(call("delete", {"n": 2})), final("both gone")]


@pytest.fixture
def deletions(lab: Any) -> Any:
    return lab.deletions()


@pytest.fixture
async def waiting(lab: Any, deletions: Any) -> tuple[AgentEngine, str]:
    """An engine whose execution ``ex1`` waits for the first of two answers, and the request's id."""
    engine = lab.engine(lab.define(TWO_QUESTIONS, deletions.delete))
    await engine.start("ex1", "go")
    return engine, (await lab.suspension(engine)).approvals[0].approval_request_id


async def _refusal(engine: AgentEngine, request: str) -> str:
    revision = engine.state.root.agent_revision
    with pytest.raises(AgentBusyError) as caught:
        await engine.detach("ex1", request, "d1")
    assert engine.is_active, "the host stays responsible"
    assert engine.state.root.agent_revision == revision, "nothing was committed"
    return str(caught.value.details["reason"])


async def test_three_owners_play_one_execution_with_two_questions(lab: Any, deletions: Any) -> None:
    definition = lab.define(TWO_QUESTIONS, deletions.delete)
    first = lab.engine(definition)
    await first.start("ex1", "go")
    request = (await lab.suspension(first)).approvals[0].approval_request_id
    one = await first.detach("ex1", request, "d1")
    assert one == approval_wait(lab.store, "a1", "ex1")
    assert (one.execution_id, one.approval_request_id) == ("ex1", request)
    assert one.execution_revision == lab.store.load_execution("ex1").revision
    with pytest.raises(AgentUnloadedError):
        await first.view("ex1")

    second = lab.engine(definition)
    restored = await second.view("ex1")
    assert [item.approval_request_id for item in restored.approvals] == [one.approval_request_id]
    answer = Decide("ex1", one.approval_request_id, True, "bob")
    await second.decide(answer)
    await second.decide(answer)  # delivered twice
    next_request = (await lab.suspension(second)).approvals[0].approval_request_id
    two = await second.detach("ex1", next_request, "d2")
    assert two.approval_request_id != one.approval_request_id
    assert two.execution_revision > one.execution_revision

    third = lab.engine(definition)
    await third.decide(answer)  # a third delivery of the first answer is the answer that is in force
    await third.decide(Decide("ex1", two.approval_request_id, True, "bob"))
    assert (await lab.end(third)).output == "both gone"
    assert deletions.done == [1, 2]
    assert approval_wait(lab.store, "a1", "ex1") is None
    events = [row.type for row in lab.store.events("ex1")]
    assert events.count("detached") == 2
    assert (await third.detach("ex1", two.approval_request_id, "d2")) == two, "its answer was lost"


async def test_the_same_detach_again_is_one(lab: Any, deletions: Any) -> None:
    definition = lab.define(TWO_QUESTIONS, deletions.delete)
    first = lab.engine(definition)
    await first.start("ex1", "go")
    request = (await lab.suspension(first)).approvals[0].approval_request_id
    wait = await first.detach("ex1", request, "d1")
    again = lab.engine(definition)  # whoever asks again has woken the agent for it
    assert await again.detach("ex1", request, "d1") == wait
    assert not again.is_active
    other = lab.engine(definition)
    await other.decide(Decide("ex1", request, True))
    await lab.suspension(other)
    assert await other.detach("ex1", request, "d1") == wait
    assert other.is_active, "it has gone on, and its present owner keeps it"


async def test_a_detach_is_not_made_by_halves(lab: Any, deletions: Any) -> None:
    faulty = FaultyStore(lab.store)
    engine = lab.engine(lab.define(TWO_QUESTIONS, deletions.delete), store=faulty)
    await engine.start("ex1", "go")
    request = (await lab.suspension(engine)).approvals[0].approval_request_id
    faulty.always_fail("detach")
    with pytest.raises(StoreUnavailableError):
        await engine.detach("ex1", request, "d1")
    faulty.heal()
    await engine.decide(Decide("ex1", request, True))  # the host is still responsible, and can go on
    assert (await lab.suspension(engine)).approvals[0].approval_request_id != request


class TestRefusals:
    async def test_of_a_wrong_and_of_a_stale_answer(self, lab: Any, waiting: tuple[AgentEngine, str]) -> None:
        engine, request = waiting
        assert await _refusal(engine, "ap_none") == DetachRefusal.STALE_APPROVAL
        await engine.decide(Decide("ex1", request, True))
        await lab.suspension(engine)
        assert await _refusal(engine, request) == DetachRefusal.STALE_APPROVAL

    async def test_of_another_execution(self, waiting: tuple[AgentEngine, str]) -> None:
        engine, request = waiting
        with pytest.raises(StateConflictError):
            await engine.detach("ex2", request, "d1")
        assert engine.is_active

    async def test_of_an_execution_that_works(self, lab: Any) -> None:
        running, release = asyncio.Event(), asyncio.Event()

        @tool
        async def work() -> str:
            running.set()
            await release.wait()
            return "done"

        engine = lab.engine(lab.define([calls(call("work", {})), final("ok")], work))
        await engine.start("ex1", "go")
        await running.wait()
        assert await _refusal(engine, "ap_none") == DetachRefusal.NOT_WAITING
        release.set()
        await lab.end(engine)

    async def test_while_a_body_still_runs(self, lab: Any, deletions: Any) -> None:
        release = threading.Event()

        @tool(timeout_s=0.05, on_error="suppress")
        def slow() -> str:
            release.wait(20)
            return "late"

        script = [calls(call("slow", {})), calls(call("delete", {"n": 1})), final("ok")]
        engine = lab.engine(lab.define(script, slow, deletions.delete))
        await engine.start("ex1", "go")
        request = (await lab.suspension(engine)).approvals[0].approval_request_id
        assert await _refusal(engine, request) == DetachRefusal.OUTSTANDING_WORK
        release.set()

    async def test_while_another_call_changes_the_agent(
        self, lab: Any, waiting: tuple[AgentEngine, str]
    ) -> None:
        engine, request = waiting
        engine.operations += 1
        assert await _refusal(engine, request) == DetachRefusal.CONCURRENT_OPERATION
        engine.operations -= 1
        await engine.detach("ex1", request, "d1")

    @pytest.mark.parametrize("execution_id", [None, "ex1"])
    async def test_while_somebody_holds_it(
        self, lab: Any, waiting: tuple[AgentEngine, str], execution_id: str | None
    ) -> None:
        engine, request = waiting
        lab.store.retain(Retention("report", "a1", execution_id, NOW))
        assert await _refusal(engine, request) == DetachRefusal.RETAINED
        lab.store.release("report", agent_id="a1", execution_id=execution_id)
        await engine.detach("ex1", request, "d1")

    async def test_of_an_execution_that_is_part_of_something(self, lab: Any, deletions: Any) -> None:
        engine = lab.engine(lab.define(TWO_QUESTIONS, deletions.delete))
        await engine.start("ex1", "go", reserved=ReservedStart(correlation={"team": 1}))
        request = (await lab.suspension(engine)).approvals[0].approval_request_id
        assert await _refusal(engine, request) == DetachRefusal.COORDINATED
        assert approval_wait(lab.store, "a1", "ex1") is None

    async def test_of_a_child_of_another_agent(self, lab: Any, deletions: Any) -> None:
        definition = lab.define(TWO_QUESTIONS, deletions.delete)
        parent = {PARENT_KEY: {"agent_id": "p1"}}
        lab.store.create_agent(NewAgent("a1", "clerk", definition.definition_version, "", parent, (), NOW))
        engine = lab.engine(definition)
        await engine.start("ex1", "go")
        request = (await lab.suspension(engine)).approvals[0].approval_request_id
        assert await _refusal(engine, request) == DetachRefusal.COORDINATED
        assert approval_wait(lab.store, "a1", "ex1") is None

    async def test_while_its_cancellation_is_under_way(self, lab: Any, deletions: Any) -> None:
        release = threading.Event()

        @tool(timeout_s=0.05, on_error="suppress")
        def slow() -> str:
            release.wait(20)
            return "late"

        script = [calls(call("slow", {})), calls(call("delete", {"n": 1})), final("ok")]
        engine = lab.engine(lab.define(script, slow, deletions.delete, quiescence_timeout_s=20.0))
        await engine.start("ex1", "go")
        request = (await lab.suspension(engine)).approvals[0].approval_request_id
        ending = asyncio.create_task(engine.cancel("ex1", "enough"))
        async with asyncio.timeout(20):
            while lab.store.find_cancellation("ex1") is None:
                await asyncio.sleep(0.002)
        assert await _refusal(engine, request) == DetachRefusal.CANCELLATION_PENDING
        release.set()
        assert (await ending).status is ExecutionStatus.CANCELLED


class TestObserving:
    async def test_every_state(self, lab: Any, waiting: tuple[AgentEngine, str]) -> None:
        engine, request = waiting
        absent = observe(lab.store, "nobody")
        assert (absent.is_absent, absent.agent_id) == (True, None)
        with pytest.raises(NotFoundError):
            absent.value()
        suspended = observe(lab.store, "ex1")
        assert (suspended.state, suspended.is_continuable) == (ObservedState.SUSPENDED, True)
        assert suspended.reservation == ReservedExecution("a1", "ex1")
        with pytest.raises(StateConflictError):
            suspended.value()
        await engine.start("ex2", "later", on_busy=BusyRule.QUEUE)
        assert observe(lab.store, "ex2").is_queued
        await engine.decide(Decide("ex1", request, True))
        await lab.decide_all(engine)
        await lab.end(engine)
        ended = observe(lab.store, "ex1")
        assert (ended.is_terminal, ended.is_continuable, ended.cancellation_requested) == (True, False, False)
        assert ended.value().output == "both gone"

    def test_a_failed_read_is_no_absence(self, lab: Any) -> None:
        faulty = FaultyStore(lab.store)
        faulty.always_fail()
        with pytest.raises(StoreUnavailableError):
            observe(faulty, "ex1")
        with pytest.raises(StoreUnavailableError):
            approval_wait(faulty, "a1", "ex1")

    async def test_the_wait_of_another_agent_is_a_conflict(
        self, lab: Any, waiting: tuple[AgentEngine, str]
    ) -> None:
        assert approval_wait(lab.store, "a1", "nobody") is None
        with pytest.raises(StateConflictError):
            approval_wait(lab.store, "a2", "ex1")

    async def test_a_wish_is_seen_before_an_owner_takes_it_up(
        self, lab: Any, waiting: tuple[AgentEngine, str]
    ) -> None:
        engine, _ = waiting
        await engine.seal()
        lab.store.request_cancellation(CancellationIntent("ex1", "a1", "enough", NOW))
        seen = observe(lab.store, "ex1")
        assert (seen.is_suspended, seen.cancellation_requested, seen.is_continuable) == (True, True, False)
        assert seen.cancellation_reason == "enough"
        assert approval_wait(lab.store, "a1", "ex1") is None


def test_values_travel_as_json() -> None:
    wait = ApprovalWait("a1", "ex1", "ap1", 4)
    assert ApprovalWait.from_wire(wait.to_wire()) == wait
    reserved = ReservedExecution("a1", "ex1", {"team": "t"})
    assert ReservedExecution.from_wire(reserved.to_wire()) == reserved
