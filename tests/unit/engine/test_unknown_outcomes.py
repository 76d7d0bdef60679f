"""Calls whose outcome nobody knows: run again, asked about, resolved."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    AgentBusyError,
    InvalidInputError,
    NotFoundError,
    PhronomyError,
    StateConflictError,
)
from phronomy_ray.events import EventType
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.inputs import Resolve
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import Resolution, ToolInvocation
from phronomy_ray.tools.local_executor import LocalToolExecutor
from phronomy_ray.tools.outcomes import unknown

Paired = Callable[[Any], None]


class LosingExecutor(LocalToolExecutor):
    """Loses the worker of the first `losses` dispatches of each call of the named tools, after their body has run."""

    def __init__(self, losses: Mapping[str, int]) -> None:
        super().__init__(threads=4)
        self.losses = dict(losses)
        self.dispatched: Counter[str] = Counter()

    def dispatch(self, invocations: Sequence[ToolInvocation], tools: Mapping[str, Any], sink: Any) -> None:
        rest = []
        for invocation in invocations:
            self.dispatched[invocation.tool_name] += 1
            if self.dispatched[invocation.tool_name] <= self.losses.get(invocation.tool_name, 0):
                sink(unknown(invocation.key, "the worker was lost"))
            else:
                rest.append(invocation)
        super().dispatch(rest, tools, sink)


@tool(replay="safe", on_error="suppress")
async def safe_one() -> str:
    return "safe"


@tool(on_error="suppress")
async def pay(x: int = 0) -> str:
    return f"paid {x}"


@tool()
async def pay_or_fail() -> str:
    return "paid"


async def test_a_replayable_call_whose_worker_was_lost_runs_again(lab: Any) -> None:
    executor = LosingExecutor({"safe_one": 2})
    engine = lab.engine(lab.define([calls(call("safe_one", {})), final("x")], safe_one), tools=executor)
    result = await lab.run(engine)
    assert result.output == "x"
    (row,) = lab.store.tool_calls("ex1")
    assert (row.status, row.attempt, row.result) == (ToolCallStatus.SUCCEEDED, 3, "safe")
    assert [attempt["status"] for attempt in row.attempts] == ["lost", "lost", "succeeded"]
    assert [attempt.get("reason") for attempt in row.attempts] == ["the worker was lost"] * 2 + [None]


async def test_a_call_that_loses_every_worker_fails_in_the_end(lab: Any) -> None:
    executor = LosingExecutor({"safe_one": 100})
    engine = lab.engine(lab.define([calls(call("safe_one", {})), final("x")], safe_one), tools=executor)
    result = await lab.run(engine)
    assert result.output == "x", "suppressed: the model was told"
    assert executor.dispatched["safe_one"] == 3
    assert "worker_died" in lab.prompts()[-1][-1]["content"]


async def test_a_never_call_whose_worker_was_lost_asks(lab: Any) -> None:
    script = [calls(call("pay", {"x": 1}), call("safe_one", {})), final("x")]
    engine = lab.engine(lab.define(script, pay, safe_one), tools=LosingExecutor({"pay": 1}))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert [item.tool_name for item in waiting.unresolved] == ["pay"]
    assert waiting.approvals == ()
    rows = lab.store.tool_calls("ex1")
    assert [row.status for row in rows] == [ToolCallStatus.UNKNOWN, ToolCallStatus.SUCCEEDED]
    asked = [e for e in await events_so_far(engine) if e.type is EventType.RESOLUTION_REQUIRED]
    assert [e.payload["tool_name"] for e in asked] == ["pay"]
    assert asked[0].payload["execution_revision"] == waiting.unresolved[0].execution_revision
    # restarted while it waits: nothing runs, the question stands
    second = lab.engine(engine.definition)
    again = await lab.suspension(second)
    assert again.unresolved == waiting.unresolved
    await second.resolve(
        Resolve("ex1", waiting.unresolved[0].tool_call_id, Resolution.SUCCEEDED, {"receipt": 7})
    )
    assert (await lab.end(second)).output == "x"
    tools = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
    assert tools == ['{"receipt":7}', "safe"]


async def events_so_far(engine: Any, id: str = "ex1") -> list[Any]:
    return (await engine.events(id, after=0, cursor=None, timeout_s=20))[0]


async def unresolved_engine(lab: Any, *tools: Any, names: Sequence[str], losses: Mapping[str, int]) -> Any:
    script = [calls(*(call(name, {}) for name in names)), final("x")]
    engine = lab.engine(lab.define(script, *tools), tools=LosingExecutor(losses))
    await engine.start("ex1", "go")
    return engine, await lab.suspension(engine)


async def test_a_call_that_was_not_performed_runs_again(lab: Any) -> None:
    engine, waiting = await unresolved_engine(lab, pay, names=["pay"], losses={"pay": 1})
    await engine.resolve(
        Resolve("ex1", waiting.unresolved[0].tool_call_id, Resolution.NOT_PERFORMED, decided_by="bob")
    )
    assert (await lab.end(engine)).output == "x"
    (row,) = lab.store.tool_calls("ex1")
    assert (row.status, row.attempt, row.result) == (ToolCallStatus.SUCCEEDED, 2, "paid 0")


async def test_a_call_that_failed_is_told_or_ends_the_execution_as_its_tool_says(
    lab: Any, paired: Paired
) -> None:
    engine, waiting = await unresolved_engine(lab, pay, names=["pay"], losses={"pay": 1})
    await engine.resolve(
        Resolve("ex1", waiting.unresolved[0].tool_call_id, Resolution.FAILED, error="declined")
    )
    assert (await lab.end(engine)).output == "x"
    assert "declined" in lab.prompts()[-1][-1]["content"]
    paired(lab.prompts()[-1])


async def test_a_resolved_failure_of_a_raising_tool_ends_the_execution(lab: Any) -> None:
    engine, waiting = await unresolved_engine(
        lab, pay_or_fail, names=["pay_or_fail"], losses={"pay_or_fail": 1}
    )
    await engine.resolve(
        Resolve("ex1", waiting.unresolved[0].tool_call_id, Resolution.FAILED, error="declined")
    )
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.FAILED
    assert result.error is not None
    assert "declined" in result.error.message


async def test_several_unknown_calls_are_resolved_one_by_one(lab: Any) -> None:
    engine, waiting = await unresolved_engine(lab, pay, names=["pay"] * 3, losses={"pay": 3})
    ids = [item.tool_call_id for item in waiting.unresolved]
    assert len(ids) == 3
    after = await engine.resolve(Resolve("ex1", ids[2], Resolution.SUCCEEDED, "three"))
    assert after.suspended
    await engine.resolve(Resolve("ex1", ids[0], Resolution.NOT_PERFORMED))
    # the first one runs again while the second one is still open
    await engine.resolve(Resolve("ex1", ids[1], Resolution.SUCCEEDED, "two"))
    assert (await lab.end(engine)).output == "x"
    assert [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"] == ["paid 0", "two", "three"]


@pytest.mark.parametrize("word", ["perhaps", "", "SUCCEEDED", None])
def test_a_word_that_is_no_resolution_is_refused(word: Any) -> None:
    with pytest.raises(InvalidInputError, match="one of succeeded, failed, not_performed"):
        Resolution.of(word)
    assert [Resolution.of(good.value) for good in Resolution] == list(Resolution)


async def test_wrong_resolutions_are_refused_and_change_nothing(lab: Any) -> None:
    engine, waiting = await unresolved_engine(lab, pay, names=["pay"], losses={"pay": 1})
    (open_,) = waiting.unresolved
    call_id, revision = open_.tool_call_id, open_.execution_revision
    for wrong, error in [
        (Resolve("ex1", "tc_other", Resolution.SUCCEEDED, 1), NotFoundError),
        (Resolve("ex2", call_id, Resolution.SUCCEEDED, 1), StateConflictError),
        (Resolve("ex1", call_id, Resolution.FAILED), InvalidInputError),
        (Resolve("ex1", call_id, Resolution.SUCCEEDED, 1, error="and yet"), InvalidInputError),
        (Resolve("ex1", call_id, Resolution.FAILED, 1, error="x"), InvalidInputError),
        (Resolve("ex1", call_id, Resolution.NOT_PERFORMED, error="x"), InvalidInputError),
        (
            Resolve("ex1", call_id, Resolution.SUCCEEDED, 1, expected_revision=revision - 1),
            StateConflictError,
        ),
        (Resolve("ex1", call_id, Resolution.SUCCEEDED, object()), PhronomyError),
    ]:
        with pytest.raises(error):
            await engine.resolve(wrong)
    assert lab.store.load_execution("ex1").revision == revision
    with pytest.raises(AgentBusyError):
        await engine.start("ex2", "go")
    await engine.resolve(Resolve("ex1", call_id, Resolution.SUCCEEDED, 1, expected_revision=revision))
    assert (await lab.end(engine)).output == "x"
    with pytest.raises((NotFoundError, StateConflictError)):
        await engine.resolve(Resolve("ex1", call_id, Resolution.SUCCEEDED, 1))


async def test_an_execution_with_an_unknown_call_can_be_cancelled(lab: Any, paired: Paired) -> None:
    script = lambda r: final("fine") if r.last_user == "hi" else calls(call("pay", {}))  # noqa: E731
    engine = lab.engine(lab.define(script, pay), tools=LosingExecutor({"pay": 1}))
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    result = await engine.cancel("ex1", "enough")
    assert result.status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.UNKNOWN]
    assert result.unresolved == ()
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    paired(lab.prompts()[-1])


async def test_a_crash_while_a_cancellation_is_carried_out_ends_in_the_cancellation(lab: Any) -> None:
    begun = threading.Event()

    @tool()
    def holds() -> str:
        begun.set()
        lab.release.wait(20)
        return ""

    engine = lab.engine(lab.define([calls(call("holds", {})), final("x")], holds))
    write_plan(lab.faults, "a1", point="after_commit:cancel_intent", action="fail")
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    with pytest.raises(FaultInjectedError):
        await engine.cancel("ex1", "enough")
    second = lab.engine(engine.definition)
    await second.activate()
    result = await lab.end(second)
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.UNKNOWN]
