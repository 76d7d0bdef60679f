"""Who may answer a request, what is shown of it, and for how long it may be answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    ApprovalExpiredError,
    InvalidInputError,
    NotFoundError,
    OwnershipLostError,
    StateConflictError,
)
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.results import RunResult
from phronomy_ray.testing.clock import ManualClock


def ids(result: RunResult) -> list[str]:
    return [request.approval_request_id for request in result.approvals]


# --- who may say what ---------------------------------------------------------------------------------------


async def test_A13_a_second_owner_of_a_suspended_execution_ends_the_first_and_says_so(lab: Any) -> None:
    work = lab.deletions()
    definition = lab.define([calls(call("delete", {"n": 1})), final("x")], work.delete)
    first = lab.engine(definition, owner={"node": "n1", "pid": 1})
    await first.start("ex1", "go")
    (request,) = ids(await lab.suspension(first))
    second = await lab.restarted(definition, owner={"node": "n2", "pid": 2})
    with pytest.raises(OwnershipLostError) as caught:
        await first.decide(Decide("ex1", request, True, "ann"))
    assert caught.value.details["owner"] == {"node": "n2", "pid": 2}
    assert work.done == []
    await second.decide(Decide("ex1", request, True, "ann"))
    assert (await lab.end(second)).output == "x"
    assert work.done == [1]


async def test_A14_cancel_while_suspended_ends_it_and_voids_what_was_asked(lab: Any) -> None:
    work = lab.deletions()
    definition = lab.define(
        [calls(call("delete", {"n": 1}), call("delete", {"n": 2})), final("x")], work.delete
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    first, second = ids(await lab.suspension(engine))
    await engine.decide(Decide("ex1", first, True, "ann"))
    events, _ = await engine.events("ex1", after=0, cursor=None, timeout_s=0)  # a reader that goes away
    assert events
    assert (await engine.view("ex1")).suspended, "reading events, or stopping to, cancels nothing"
    result = await engine.cancel("ex1", "enough")
    assert result.status is ExecutionStatus.CANCELLED
    statuses = {row.approval_request_id: row.status for row in lab.store.approvals()}
    assert statuses == {first: ApprovalStatus.APPROVED, second: ApprovalStatus.VOID}
    for owner in (engine, await lab.restarted(definition)):
        with pytest.raises(StateConflictError, match="its execution ended unanswered"):
            await owner.decide(Decide("ex1", second, True, "ann"))
    assert work.done == []


@pytest.mark.parametrize("answer", ["yes", 1, None, "true", [True]])
async def test_A16_only_true_and_false_are_answers(lab: Any, answer: Any) -> None:
    work = lab.deletions()
    engine = lab.engine(lab.define([calls(call("delete", {"n": 1})), final("x")], work.delete))
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    with pytest.raises(InvalidInputError, match="approved must be True or False"):
        await engine.decide(Decide("ex1", request, answer))
    for wrong in (
        Decide("ex1", request, True, decided_by=7),  # type: ignore[arg-type]
        Decide("ex1", request, True, reason=["x"]),  # type: ignore[arg-type]
        Decide("ex1", 5, True),  # type: ignore[arg-type]
        Decide("ex1", request, True, edited_arguments=[1]),  # type: ignore[arg-type]
        Decide("ex1", request, True, edited_arguments={"n": object()}),
    ):
        with pytest.raises(InvalidInputError):
            await engine.decide(wrong)
    assert (await engine.view("ex1")).suspended
    assert work.done == []


async def test_A16_an_id_of_another_agent_or_execution_is_refused(lab: Any) -> None:
    work = lab.deletions()
    definition = lab.define([calls(call("delete", {"n": 1})), final("x")], work.delete)
    mine, other = lab.engine(definition, "a1"), lab.engine(definition, "a2")
    await mine.start("ex1", "go")
    await other.start("ex2", "go")
    (request,) = ids(await lab.suspension(mine))
    await lab.suspension(other, "ex2")
    for wrong in (Decide("ex2", request, True), Decide("ex1", request, True)):
        with pytest.raises((StateConflictError, NotFoundError)):
            await other.decide(wrong)
    assert work.done == []


async def test_A19_an_answer_reaches_the_addressed_execution_only(lab: Any) -> None:
    work = lab.deletions()
    engine = lab.engine(lab.define(lambda r: calls(call("delete", {"n": 1})), work.delete))
    await engine.start("ex1", "first")
    (old,) = ids(await lab.suspension(engine))
    await engine.cancel("ex1", "no more")
    await engine.start("ex2", "second")
    (new,) = ids(await lab.suspension(engine, "ex2"))
    assert old != new
    for stale in (Decide("ex1", old, True), Decide("ex2", old, True), Decide("ex1", new, True)):
        with pytest.raises((StateConflictError, NotFoundError)):
            await engine.decide(stale)
    assert work.done == []
    await engine.decide(Decide("ex2", new, False))
    events = await lab.read_events(engine, "ex2")
    assert {event.execution_id for event in events} == {"ex2"}
    durable = [event.seq for event in events if event.durable]
    assert durable == list(range(1, len(durable) + 1))


# --- what is shown ------------------------------------------------------------------------------------------


async def test_a_request_says_where_the_tool_comes_from_and_what_is_known_and_hides_what_is_hidden(
    lab: Any,
) -> None:
    @tool(
        requires_approval=True,
        approval_facts=lambda arguments, context: {
            "balance": 10,
            "pin": arguments["pin"],
            "by": context,
            "note": f"the pin is {arguments['pin']}",
        },
        approval_metadata={"risk": "high"},
        tool_origin="mcp",
        redact_params=["pin"],
        approval_expires_s=60,
    )
    async def pay(amount: int, pin: str) -> str:
        return "paid"

    clock = ManualClock()
    engine = lab.engine(
        lab.define([calls(call("pay", {"amount": 5, "pin": "9876"})), final("x")], pay), clock=clock
    )
    await engine.start("ex1", "go", durable_context={"user": "ann"})
    (request,) = (await lab.suspension(engine)).approvals
    assert request.facts == {
        "balance": 10,
        "pin": "[REDACTED]",
        "by": {"user": "ann"},
        "note": "the pin is [REDACTED]",
    }
    assert request.arguments == {"amount": 5, "pin": "[REDACTED]"}
    assert (request.tool_origin, request.metadata, request.asked_by) == ("mcp", {"risk": "high"}, "tool")
    assert request.expires_at == clock.now() + timedelta(seconds=60)
    (row,) = lab.store.approvals()
    assert (row.facts, row.metadata, row.tool_origin) == (request.facts, request.metadata, "mcp")
    required = next(e for e in await engine.stored_events("ex1", 0) if e.type == "approval_required")
    assert "9876" not in str(required.payload)
    assert required.payload["metadata"] == {"risk": "high"}
    result = RunResult.from_wire((await engine.view("ex1")).to_wire())
    assert result.approvals == (request,)
    decided = await engine.decide(
        Decide("ex1", request.approval_request_id, True, "ann", edited_arguments={"amount": 6, "pin": "1234"})
    )
    assert decided.decision is not None
    assert decided.decision.edited_arguments == {"amount": 6, "pin": "[REDACTED]"}
    assert "1234" not in str([e.payload for e in await engine.stored_events("ex1", 0)])
    await lab.end(engine)


@tool(requires_approval=True, approval_expires_s=30)
async def soon(n: int) -> str:
    return f"done {n}"


# --- expiry -------------------------------------------------------------------------------------------------


async def test_a_request_that_nobody_answers_in_time_counts_as_rejected(lab: Any) -> None:
    clock = ManualClock()
    engine = lab.engine(lab.define([calls(call("soon", {"n": 1})), final("x")], soon), clock=clock)
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    clock.advance(31)
    with pytest.raises(ApprovalExpiredError) as caught:
        await engine.decide(Decide("ex1", request, True, "ann"))
    assert caught.value.code == "approval_expired"
    result = await lab.end(engine)
    assert result.rejected
    (row,) = lab.store.approvals()
    assert (row.status, row.decided_by) == (ApprovalStatus.EXPIRED, None)
    assert "nobody approved this call in time" in (lab.store.tool_calls("ex1")[0].model_text or "")
    with pytest.raises(ApprovalExpiredError):
        await engine.decide(Decide("ex1", request, True, "ann"))


async def test_the_live_engine_notices_an_expiry_by_itself(lab: Any) -> None:
    @tool(requires_approval=True, approval_expires_s=0.05)
    async def at_once(n: int) -> str:
        return ""

    work = lab.deletions()
    script = [calls(call("at_once", {"n": 1}), call("delete", {"n": 2})), final("x")]
    engine = lab.engine(lab.define(script, at_once, work.delete))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)  # the first request may be over by now
    other = next(item.approval_request_id for item in waiting.approvals if item.tool_name == "delete")
    await engine.decide(Decide("ex1", other, True, "ann"))
    result = await lab.end(engine)
    assert result.output == "x", "an expired call of a mixed batch is one that was rejected"
    assert work.done == [2]
    texts = lab.tool_texts()
    assert texts[0].startswith("Rejected: nobody approved this call in time")


async def test_an_unloaded_agent_expires_at_its_next_wake(lab: Any) -> None:
    clock = ManualClock()
    definition = lab.define([calls(call("soon", {"n": 1})), final("x")], soon)
    engine = lab.engine(definition, clock=clock)
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    await engine.seal()
    clock.advance(29)
    again = await lab.restarted(definition, clock=clock, store=lab.open())
    assert (await again.view("ex1")).suspended
    await again.seal()
    clock.advance(2)
    again = await lab.restarted(definition, clock=clock, store=lab.open())
    assert (await lab.end(again)).rejected
