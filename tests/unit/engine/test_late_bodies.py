"""Bodies that go on after their call has its outcome: the end waits for them, and what they do is written down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, RecordKind, ToolCallStatus
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import Attachment, CallKey, ToolInvocation, ToolOutcome
from phronomy_ray.tools.executor import Sink
from phronomy_ray.tools.local_executor import LocalToolExecutor


def late_records(lab: Any) -> list[dict[str, Any]]:
    records = lab.store.read_journal("a1")
    return [record.content for record in records if record.kind is RecordKind.TOOL_LATE]


def stuck_tool(release: threading.Event) -> Any:
    @tool(timeout_s=0.05, on_error="suppress")
    def stuck() -> str:
        assert release.wait(20)
        return "too late"

    return stuck


async def test_the_end_waits_for_a_body_that_outlives_its_timeout(lab: Any) -> None:
    """A second execution must not begin while the first may still have effects."""
    asked = threading.Event()

    def answer(request: Any) -> Any:
        if len(lab.prompts()) == 1:
            return calls(call("stuck", {}))
        asked.set()
        return final("done")

    engine = lab.engine(lab.define(answer, stuck_tool(lab.release), quiescence_timeout_s=20.0))
    await engine.start("ex1", "go")
    assert await engine.wait("ex1", until="terminal", timeout_s=0.5) is None
    assert asked.is_set(), "the model's answer is there, only the end waits"
    lab.release.set()
    result = await lab.end(engine)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "done")
    assert [call.status for call in lab.store.tool_calls("ex1")] == [ToolCallStatus.TIMED_OUT]
    await lab.settle()
    [late] = late_records(lab)
    assert (late["attempt"], late["status"]) == (1, "succeeded")


async def test_a_body_that_never_ends_is_abandoned_after_the_quiescence_time(lab: Any) -> None:
    script = [calls(call("stuck", {})), final("done")]
    engine = lab.engine(lab.define(script, stuck_tool(lab.release), quiescence_timeout_s=0.1))
    result = await lab.run(engine)
    assert result.output == "done"
    assert [late["status"] for late in late_records(lab)] == ["abandoned"]


async def test_cancelling_while_the_end_waits_cancels(lab: Any) -> None:
    script = [calls(call("stuck", {})), final("done")]
    engine = lab.engine(lab.define(script, stuck_tool(lab.release), quiescence_timeout_s=5.0))
    await engine.start("ex1", "go")
    assert await engine.wait("ex1", until="terminal", timeout_s=0.3) is None
    await engine.cancel("ex1", "enough")
    lab.release.set()
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED


async def crash(lab: Any, engine: Any) -> None:
    """Run it into the fault that was planned for it."""

    async def work() -> None:
        await engine.start("ex1", "go")
        await lab.end(engine)

    with pytest.raises(FaultInjectedError):
        await work()


class KeepingExecutor(LocalToolExecutor):
    """Bodies outlive the engine that dispatched them, as they do in a pool: a second engine attaches to them."""

    def __init__(self) -> None:
        super().__init__(threads=8)
        self.sinks: dict[CallKey, Sink] = {}
        self.kept: dict[CallKey, ToolOutcome] = {}
        self.swallow: set[str] = set()
        self.ran: list[str] = []
        self.acknowledged: list[CallKey] = []

    def dispatch(self, invocations: Sequence[ToolInvocation], tools: Mapping[str, Any], sink: Sink) -> None:
        begun = [item for item in invocations if item.tool_name not in self.swallow]
        for item in begun:
            self.sinks[item.key] = sink
            self.ran.append(item.tool_name)

        def route(report: Any) -> None:
            if isinstance(report, ToolOutcome):
                self.kept[report.tool_call_id, report.attempt] = report
            self.sinks[report.tool_call_id, report.attempt](report)

        super().dispatch(begun, tools, route)

    async def attach(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, Any], sink: Sink
    ) -> Attachment:
        attached = set()
        for item in invocations:
            if item.key in self.sinks:
                attached.add(item.key)
                self.sinks[item.key] = sink
                if item.key in self.kept:
                    sink(self.kept[item.key])
        never_seen = {item.key for item in invocations} - attached
        return Attachment(frozenset(attached), frozenset(never_seen))

    def acknowledge(self, keys: Sequence[CallKey]) -> None:
        self.acknowledged.extend(keys)


@pytest.mark.parametrize("finished", [False, True])
async def test_a_new_owner_attaches_to_calls_that_still_run(lab: Any, finished: bool) -> None:
    """A `never` tool that goes on in a pool is neither run again nor asked about."""

    @tool(replay="never")
    def pay() -> str:
        assert lab.release.wait(20)
        return "paid"

    executor = KeepingExecutor()
    definition = lab.define([calls(call("pay", {})), final("done")], pay)
    write_plan(lab.faults, "a1", point="after_dispatch", action="fail")
    first = lab.engine(definition, tools=executor)
    await crash(lab, first)
    if finished:
        lab.release.set()
    second = lab.engine(definition, tools=executor)
    await second.activate()
    lab.release.set()
    result = await lab.end(second)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "done")
    assert executor.ran == ["pay"]
    [row] = lab.store.tool_calls("ex1")
    assert (row.status, row.attempt, row.result) == (ToolCallStatus.SUCCEEDED, 1, "paid")
    assert (row.tool_call_id, 1) in executor.acknowledged


async def test_a_call_that_was_never_begun_runs_without_a_question(lab: Any) -> None:
    """The owner died between the commit and the dispatch; the pool knows that it never got the call."""

    @tool(replay="never")
    def pay() -> str:
        return "paid"

    executor = KeepingExecutor()
    executor.swallow.add("pay")
    definition = lab.define([calls(call("pay", {})), final("done")], pay)
    write_plan(lab.faults, "a1", point="after_dispatch", action="fail")
    first = lab.engine(definition, tools=executor)
    await crash(lab, first)
    executor.swallow.clear()
    second = lab.engine(definition, tools=executor)
    await second.activate()
    result = await lab.end(second)
    assert (result.status, executor.ran) == (ExecutionStatus.COMPLETED, ["pay"])


async def test_a_cancelled_execution_waits_for_what_it_attached_to(lab: Any) -> None:
    @tool(replay="never")
    def pay() -> str:
        assert lab.release.wait(20)
        return "paid"

    executor = KeepingExecutor()
    definition = lab.define([calls(call("pay", {})), final("done")], pay, quiescence_timeout_s=20.0)
    first = lab.engine(definition, tools=executor)
    write_plan(lab.faults, "a1", point="after_commit:cancel_intent", action="fail")
    await first.start("ex1", "go")
    while not executor.ran:
        await asyncio.sleep(0.005)
    with pytest.raises(FaultInjectedError):
        await first.cancel("ex1", "enough")
    second = lab.engine(definition, tools=executor)
    await second.activate()
    assert await second.wait("ex1", until="terminal", timeout_s=0.2) is None
    lab.release.set()
    assert (await lab.end(second)).status is ExecutionStatus.CANCELLED
    [row] = lab.store.tool_calls("ex1")
    assert row.status is ToolCallStatus.SUCCEEDED, "what is known stays known"
