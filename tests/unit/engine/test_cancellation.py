"""Cancelling in every phase, and unloading."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.engine.engine import AgentEngine
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnloadedError,
    NotFoundError,
    OwnershipLostError,
    StoreUnavailableError,
)
from phronomy_ray.journal import AgentRoot, ApprovalStatus, ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final, hang
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.tool_calls import ToolContext


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


@tool(requires_approval=True)
async def write(text: str) -> str:
    return f"wrote {text}"


# --- cancellation -------------------------------------------------------------------------------------------


async def test_cancel_while_preparing(lab: Any) -> None:
    begun = threading.Event()

    def slow(given: Any) -> str:
        if given == "go":
            begun.set()
            lab.release.wait(20)
        return "Be brief."

    engine = lab.engine(lab.define([final("fine")], instructions=staticmethod(slow)))
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    result = await engine.cancel("ex1", "enough")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    await lab.still_usable(engine)
    lab.release.set()


async def test_cancel_while_the_model_is_called(lab: Any) -> None:
    engine = lab.engine(lab.define(lab.first_turn(hang())))
    await engine.start("ex1", "go")
    await lab.until_prompted()
    during = await engine.cancel("ex1", "enough")
    assert during.status in (ExecutionStatus.ACTIVE, ExecutionStatus.CANCELLED)
    assert lab.store.load_execution("ex1").cancel_requested_at is not None, "the intent is durable"
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    assert [c.status for c in lab.store.model_calls("ex1")] == ["cancelled"]
    again = await engine.cancel("ex1", "another reason")
    assert again.terminal_reason == "enough"
    await lab.still_usable(engine)


@pytest.mark.parametrize("blocking", [False, True])
async def test_cancel_while_tools_run_waits_for_them_and_closes_every_call(lab: Any, blocking: bool) -> None:
    begun = threading.Event()

    @tool(replay="safe")
    def polls(context: ToolContext) -> str:
        begun.set()
        while not context.is_cancelled():
            if lab.release.wait(0.002):
                break
        return "stopped in time"

    @tool(replay="safe")
    async def waits() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    name = "polls" if blocking else "waits"
    script = lab.first_turn(calls(call("look", {"x": 1}), call(name, {}), call("nope", {})))
    engine = lab.engine(lab.define(script, look, polls, waits))
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    expected = ToolCallStatus.SUCCEEDED if blocking else ToolCallStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [
        ToolCallStatus.SUCCEEDED,
        expected,
        ToolCallStatus.FAILED,
    ]
    await lab.still_usable(engine)


async def test_cancel_does_not_wait_for_ever_for_a_cooperative_tool_that_ignores_it(lab: Any) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def stubborn() -> str:
        begun.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    engine = lab.engine(
        lab.define(lab.first_turn(calls(call("stubborn", {}))), stubborn, quiescence_timeout_s=0.05)
    )
    await engine.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    await engine.cancel("ex1", "enough")
    try:
        result = await asyncio.wait_for(lab.end(engine), 10)
    finally:
        free.set()
    assert result.status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.UNKNOWN]
    await lab.still_usable(engine)


async def test_cancel_while_suspended(lab: Any) -> None:
    engine = lab.engine(
        lab.define(lab.first_turn(calls(call("write", {"text": "a"}), call("write", {"text": "b"}))), write)
    )
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    await engine.decide(Decide("ex1", waiting.approvals[0].approval_request_id, True))
    result = await engine.cancel("ex1", "enough")
    assert result.status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.NOT_PERFORMED] * 2
    assert [item.status for item in lab.store.approvals(execution_id="ex1")] == [
        ApprovalStatus.APPROVED,
        ApprovalStatus.VOID,
    ]
    assert lab.store.approvals(pending_only=True) == []
    await lab.still_usable(engine)


async def test_cancel_that_comes_too_late_leaves_the_end_as_it_is(lab: Any) -> None:
    engine = lab.engine(lab.define([final("x")]))
    wait = lab.pause("before_commit:terminal")
    await engine.start("ex1", "go")
    release = await wait()
    cancelling = asyncio.ensure_future(engine.cancel("ex1", "too late"))
    await asyncio.sleep(0)
    release()
    assert (await cancelling).status is ExecutionStatus.COMPLETED
    assert (await lab.end(engine)).output == "x"
    with pytest.raises(NotFoundError):
        await engine.cancel("ex-unknown", "x")


# --- unloading ----------------------------------------------------------------------------------------------


async def test_a_busy_engine_cannot_be_sealed_and_a_sealed_one_does_nothing(lab: Any) -> None:
    engine = lab.engine(lab.define(lambda r: hang() if r.last_user == "wait" else final("x")))
    await engine.start("ex1", "wait")
    with pytest.raises(AgentBusyError):
        await engine.seal()
    await engine.cancel("ex1", "x")
    await lab.end(engine)
    await engine.seal()
    for operation in (
        engine.start("ex2", "go"),
        engine.view("ex1"),
        engine.cancel("ex1", "x"),
        engine.wait("ex1", until="terminal", timeout_s=1),
        engine.events("ex1", after=0, cursor=None, timeout_s=1),
    ):
        with pytest.raises(AgentUnloadedError):
            await operation
    assert (await lab.run(lab.engine(engine.definition), "go", id="ex2")).output == "x"


async def test_a_start_that_is_being_committed_keeps_the_engine_from_being_sealed(lab: Any) -> None:
    engine = lab.engine(lab.define([final("x")]))
    await engine.activate()
    wait = lab.pause("before_commit:admit")
    starting = asyncio.ensure_future(engine.start("ex1", "go"))
    release = await wait()
    sealing = asyncio.ensure_future(engine.seal())
    await asyncio.sleep(0)
    release()
    with pytest.raises(AgentBusyError):
        await sealing
    await starting
    assert (await lab.end(engine)).output == "x"


async def test_an_owner_that_has_just_begun_finds_out_what_runs_before_it_says_that_nothing_does(
    lab: Any,
) -> None:
    definition = lab.define([hang()])
    first = lab.engine(definition)
    await first.start("ex1", "go")
    wait = lab.pause("before_claim")
    second = lab.engine(definition)
    starting = asyncio.ensure_future(second.activate())
    release = await wait()
    finding_out = asyncio.ensure_future(second.find_out())
    await asyncio.sleep(0)
    release()
    await finding_out
    with pytest.raises(AgentBusyError):
        await second.seal()
    await starting
    with pytest.raises(OwnershipLostError):
        await first.find_out()


async def test_one_that_has_lost_the_agent_while_it_was_asked_does_not_confirm_anything(lab: Any) -> None:
    definition = lab.define([hang()])
    first = lab.engine(definition)
    await first.start("ex1", "go")
    await lab.restarted(definition)
    with pytest.raises(OwnershipLostError):
        await first.cancel("ex1", "x")
    first.abandon()
    for question in (first.find_out(), first.confirm_ownership()):
        with pytest.raises(OwnershipLostError):
            await question
    other = lab.engine(lab.define([final("x")]), "a2")
    await other.activate()
    await other.seal()
    for question in (other.find_out(), other.confirm_ownership()):
        with pytest.raises(AgentUnloadedError):
            await question


async def test_an_owner_that_begins_anew_while_it_looks_is_not_its_own_successor(lab: Any) -> None:
    """The store was away, a commit failed, the engine began anew under another epoch; meanwhile somebody asked who owns it."""
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define([final("x")]), store=store)
    await engine.activate()
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def late(agent_id: str) -> AgentRoot:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(20)
        return lab.store.load_root(agent_id)

    store.load_root = late
    looking = asyncio.ensure_future(engine.confirm_ownership())
    await begun.wait()
    engine._halt_once(StoreUnavailableError("away"))
    await engine.activate()
    store.load_root = lab.store.load_root
    gate.set()
    await looking
    assert engine.is_active
    assert (await lab.run(engine, "go")).output == "x"


async def test_one_that_serves_nobody_has_nothing_to_find_out(lab: Any) -> None:
    engine = AgentEngine("nobody", lab.define([final("x")]), lab.engine(lab.define([final("x")]))._parts)
    await engine.find_out()  # it never began
    with pytest.raises(NotFoundError):
        await engine.activate()
    await engine.find_out()
    await engine.seal()


async def test_unloading_while_suspended_wakes_waiters_and_the_next_engine_goes_on(lab: Any) -> None:
    engine = lab.engine(lab.define([calls(call("write", {"text": "a"})), final("x")], write))
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    waiting = asyncio.ensure_future(engine.wait("ex1", until="terminal", timeout_s=20))
    await asyncio.sleep(0)
    await engine.seal()
    with pytest.raises(AgentUnloadedError):
        await waiting
    second = lab.engine(engine.definition)
    await lab.decide_all(second)
    assert (await lab.end(second)).output == "x"


# --- reported faults ----------------------------------------------------------------------------------------


async def test_L01_a_batch_that_is_stopped_in_the_middle_is_answered_whole(lab: Any) -> None:
    running = asyncio.Event()

    @tool
    async def slow() -> str:
        running.set()
        await asyncio.Event().wait()
        return "never"

    engine = lab.engine(
        lab.define(lab.first_turn(calls(call("look", {"x": 1}), call("slow", {}))), look, slow)
    )
    await engine.start("ex1", "go")
    await running.wait()
    async with asyncio.timeout(20):
        while not any(row.status is ToolCallStatus.SUCCEEDED for row in lab.store.tool_calls("ex1")):
            await asyncio.sleep(0.002)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.CANCELLED,
    ]
    assert lab.kinds().count("tool_message") == 2
    await lab.still_usable(engine)  # the next prompt is well paired, and the turn runs


async def test_L20_what_a_cancellation_leaves_does_not_depend_on_how_a_tool_runs(lab: Any) -> None:
    def make(is_async: bool) -> Any:
        started = threading.Event()

        async def wait_on_the_loop(context: ToolContext) -> str:
            started.set()
            await asyncio.Event().wait()
            return "never"

        def wait_on_a_thread(context: ToolContext) -> str:
            started.set()
            while not context.is_cancelled():
                lab.release.wait(0.002)
            context.raise_if_cancelled()
            return "never"

        return tool(name="work")(wait_on_the_loop if is_async else wait_on_a_thread), started

    left = []
    for number, (is_async, stream) in enumerate([(True, False), (True, True), (False, False), (False, True)]):
        work, started = make(is_async)
        agent_id, execution_id = f"a{number}", f"ex{number}"
        engine = lab.engine(lab.define([calls(call("work", {})), final("never")], work), agent_id)
        await engine.start(execution_id, "go", stream=stream)
        assert await asyncio.to_thread(started.wait, 20)
        await engine.cancel(execution_id, "enough")
        result = await lab.end(engine, execution_id)
        rows = [(row.status, row.model_text) for row in lab.store.tool_calls(execution_id)]
        events = [row.type for row in lab.store.events(execution_id)]
        left.append((result.status, result.terminal_reason, rows, lab.kinds(execution_id), events))
    assert left[0][2] == [(ToolCallStatus.CANCELLED, "Cancelled: this call was stopped.")]
    assert all(item == left[0] for item in left), left
