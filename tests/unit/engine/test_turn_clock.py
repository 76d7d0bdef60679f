"""The time limit of a turn outranks whatever runs in it, and counts no human's time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import CancellationError, ConfigurationError, OwnershipLostError, TurnTimeoutError
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.models.scripted import call, calls, final, hang


@pytest.mark.parametrize("blocking", [False, True])
async def test_TA58_the_end_of_the_turn_s_time_is_swallowed_by_no_tool(lab: Any, blocking: bool) -> None:
    """The tool has time left, would be tried again, and would only tell the model: none of it counts any more."""
    entered: list[int] = []

    @tool(name="slow", replay="safe", retries=3, timeout_s=30, on_error="suppress")
    async def turns() -> str:
        entered.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TimeoutError("the remote side took too long") from None
        return "never"

    @tool(name="slow", replay="safe", retries=3, timeout_s=30, on_error="suppress")
    def blocks() -> None:
        entered.append(1)
        lab.release.wait(20)

    definition = lab.define(
        [calls(call("slow", {})), final("x")],
        blocks if blocking else turns,
        turn_timeout_s=0.2,
        quiescence_timeout_s=0.05,
    )
    engine = lab.engine(definition)
    result = await lab.run(engine)
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "turn_timeout")
    with pytest.raises(TurnTimeoutError) as caught:
        result.raise_for_status()
    assert isinstance(caught.value, CancellationError | TimeoutError)
    assert entered == [1]
    assert len(lab.prompts()) == 1, "the model is not asked again"
    assert lab.store.tool_calls("ex1")[0].status is not ToolCallStatus.TIMED_OUT
    assert engine.state.execution is None


async def test_a_model_call_ends_with_the_turn_s_time(lab: Any) -> None:
    result = await lab.run(lab.engine(lab.define([hang(), final("x")], turn_timeout_s=0.1)))
    assert result.terminal_reason == "turn_timeout"


async def test_a_turn_that_ends_in_time_is_not_touched_and_the_next_one_has_its_own_time(lab: Any) -> None:
    engine = lab.engine(lab.define([final("x")], turn_timeout_s=0.5))
    for n in range(3):
        assert (await lab.run(engine, id=f"ex{n}")).output == "x"
        await asyncio.to_thread(threading.Event().wait, 0.2)
    assert engine._turn_clock._timer is None


async def test_a_human_s_time_is_not_the_turn_s(lab: Any) -> None:
    @tool(requires_approval=True)
    async def write() -> str:
        return "wrote"

    engine = lab.engine(lab.define([calls(call("write", {})), final("x")], write, turn_timeout_s=0.3))
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    await asyncio.to_thread(threading.Event().wait, 0.4)
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "x"


async def test_a_resumed_turn_has_its_time_from_its_recovery(lab: Any) -> None:
    begun, hold = asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def stuck() -> None:
        begun.set()
        await hold.wait()

    definition = lab.define([calls(call("stuck", {})), final("x")], stuck, turn_timeout_s=0.3)
    first = lab.engine(lab.define([calls(call("stuck", {})), final("x")], stuck))
    await first.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    second = lab.engine(definition)
    assert (await lab.end(second)).terminal_reason == "turn_timeout"
    hold.set()
    with pytest.raises(OwnershipLostError):
        await first.wait("ex1", until="terminal", timeout_s=20)


@pytest.mark.parametrize("value", [0, -1, "1", True, float("inf")])
@pytest.mark.parametrize("field", ["turn_timeout_s", "tool_timeout_s"])
def test_a_wrong_limit_is_a_mistake_of_the_class(lab: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        lab.define([final("x")], **{field: value})
