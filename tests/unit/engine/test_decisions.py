"""Answers to approval requests: what starts when, what a repeated one does, and a batch that is refused whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus, Lifecycle, ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final


@tool(requires_approval=True)
async def write(text: str) -> str:
    return f"wrote {text}"


async def test_a_batch_with_gated_calls_starts_nothing_until_all_are_decided(lab: Any) -> None:
    ran: list[str] = []

    @tool(replay="safe")
    async def free(x: int) -> str:
        ran.append(f"free {x}")
        return "f"

    @tool(requires_approval=True)
    async def gated(x: int) -> str:
        ran.append(f"gated {x}")
        return "g"

    script = [
        calls(call("gated", {"x": 1}), call("free", {"x": 2}), call("nope", {}), call("gated", {"x": 3})),
        final("x"),
    ]
    engine = lab.engine(lab.define(script, free, gated))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert [request.arguments for request in waiting.approvals] == [{"x": 1}, {"x": 3}]
    assert ran == []
    assert lab.store.load_root("a1").lifecycle is Lifecycle.SUSPENDED
    first, second = waiting.approvals
    still = await engine.decide(Decide("ex1", second.approval_request_id, True))
    assert still.suspended
    assert [request.approval_request_id for request in still.approvals] == [first.approval_request_id]
    assert ran == []
    await engine.decide(Decide("ex1", first.approval_request_id, True, "bob"))
    assert (await lab.end(engine)).output == "x"
    assert sorted(ran) == ["free 2", "gated 1", "gated 3"]
    assert [m["content"][:5] for m in lab.prompts()[-1] if m["role"] == "tool"] == ["g", "f", "Error", "g"]


async def test_repeated_and_contradictory_decisions(lab: Any) -> None:
    held = asyncio.Event()

    @tool(requires_approval=True)
    async def slow() -> str:
        await held.wait()
        return "s"

    engine = lab.engine(
        lab.define([calls(call("slow", {})), calls(call("write", {"text": "t"})), final("x")], slow, write)
    )
    await engine.start("ex1", "go")
    request = (await lab.suspension(engine)).approvals[0].approval_request_id
    yes, no = Decide("ex1", request, True), Decide("ex1", request, False)
    await engine.decide(yes)
    for _ in range(2):
        assert (await engine.decide(yes)).status is ExecutionStatus.ACTIVE
    with pytest.raises(StateConflictError, match="already approved"):
        await engine.decide(no)
    held.set()
    later = await lab.suspension(engine)
    assert later.approvals[0].approval_request_id != request
    # its batch is over, and the execution is not: the same answer again is still harmless, the other still refused
    assert (await engine.decide(yes)).suspended
    with pytest.raises(StateConflictError, match="already approved"):
        await engine.decide(no)
    with pytest.raises(NotFoundError):
        await engine.decide(Decide("ex1", "ap_unknown", True))
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "x"
    assert (await engine.decide(yes)).output == "x"
    with pytest.raises(StateConflictError):
        await engine.decide(no)
    with pytest.raises((StateConflictError, NotFoundError)):
        await engine.decide(Decide("ex1", "ap_unknown", True))
    with pytest.raises((StateConflictError, NotFoundError)):
        await engine.decide(Decide("ex-unknown", request, True))


async def test_a_batch_that_is_rejected_whole_ends_the_execution_and_the_next_prompt_has_no_open_call(
    lab: Any,
) -> None:
    ran: list[int] = []

    @tool(replay="safe")
    async def free() -> str:
        ran.append(1)
        return "f"

    script = lab.first_turn(
        calls(call("free", {}), call("write", {"text": "a"}), call("write", {"text": "b"}))
    )
    engine = lab.engine(lab.define(script, free, write))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    first, second = (request.approval_request_id for request in waiting.approvals)
    still = await engine.decide(Decide("ex1", first, False, "ann", "too early"))
    assert still.suspended, "every gated call is decided first"
    result = await engine.decide(Decide("ex1", second, False, "bob", "not today"))
    assert result.status is ExecutionStatus.REJECTED
    assert result.rejected
    assert result.raise_for_status() is result
    assert ran == []
    statuses = [row.status for row in lab.store.tool_calls("ex1")]
    assert statuses == [ToolCallStatus.NOT_PERFORMED, ToolCallStatus.REJECTED, ToolCallStatus.REJECTED]
    approvals = {item.approval_request_id: item for item in lab.store.approvals(execution_id="ex1")}
    assert approvals[second].status is ApprovalStatus.REJECTED
    assert (approvals[second].decided_by, approvals[second].reason) == ("bob", "not today")
    assert (approvals[first].status, approvals[first].decided_by) == (ApprovalStatus.REJECTED, "ann")
    assert lab.store.approvals(pending_only=True) == [], "nothing of an ended execution waits for an answer"
    await lab.still_usable(engine)
    assert [m["role"] for m in lab.prompts()[-1]] == ["user", "user"]
    public = [message.role.value for message in result.messages]
    assert public == ["user", "assistant", "tool", "tool", "tool"], "the public transcript keeps it"
