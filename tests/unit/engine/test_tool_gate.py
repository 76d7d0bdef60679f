"""The gate: how many calls of one agent are under way, when their clocks start, and what becomes of those that wait."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from phronomy_ray.assembly.assembly import ToolAssembly
from phronomy_ray.assembly.capabilities import CapabilityRegistry, Provider
from phronomy_ray.assembly.registry import ToolRegistry
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import ConfigurationError, OwnershipLostError
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.inputs import Resolve
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import Resolution
from phronomy_ray.tools.local_executor import LocalToolExecutor
from phronomy_ray.tools.outcomes import unknown


class InFlight:
    """Counts bodies that run at once."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.peak = max(self.peak, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def work(flight: InFlight) -> tuple[Any, Any]:
    """An async and a blocking tool that are busy for a moment."""

    @tool(replay="safe")
    async def turns(n: int) -> int:
        with flight:
            await asyncio.sleep(0.003)
        return n

    pause = threading.Event()

    @tool(replay="safe")
    def blocks(n: int) -> int:
        with flight:
            pause.wait(0.003)
        return n

    return turns, blocks


def mixed(count: int) -> Any:
    return calls(*(call("turns" if n % 2 else "blocks", {"n": n}) for n in range(count)))


@pytest.mark.parametrize("limit", [1, 3])
async def test_TA57_no_more_than_the_gate_lets_through_run_at_once(lab: Any, limit: int) -> None:
    flight = InFlight()
    definition = lab.define([mixed(14), final("x")], *work(flight), max_parallel_tools=limit)
    assert (await lab.run(lab.engine(definition))).output == "x"
    assert 0 < flight.peak <= limit
    assert [row.result for row in lab.store.tool_calls("ex1")] == list(range(14))


async def test_TA57_all_places_of_the_gate_are_used(lab: Any) -> None:
    three = asyncio.Barrier(3)

    @tool(replay="safe")
    async def meet() -> str:
        await three.wait()
        return "met"

    batch = calls(*(call("meet", {}) for _ in range(12)))
    assert (
        await lab.run(lab.engine(lab.define([batch, final("x")], meet, max_parallel_tools=3)))
    ).output == "x"


async def test_TA34_without_a_gate_a_batch_is_under_way_as_a_whole(lab: Any) -> None:
    everybody = asyncio.Barrier(14)

    @tool(replay="safe")
    async def meet() -> str:
        await everybody.wait()
        return "met"

    batch = calls(*(call("meet", {}) for _ in range(14)))
    assert (await lab.run(lab.engine(lab.define([batch, final("x")], meet)))).output == "x"


async def test_TA34_a_gate_of_one_runs_the_calls_in_their_order(lab: Any) -> None:
    order: list[int] = []

    @tool(replay="safe")
    async def step(n: int) -> None:
        order.append(n)
        await asyncio.sleep(0)
        order.append(n)

    batch = calls(*(call("step", {"n": n}) for n in range(5)))
    await lab.run(lab.engine(lab.define([batch, final("x")], step, max_parallel_tools=1)))
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_TA33_direct_tools_and_capabilities_go_through_one_gate(lab: Any) -> None:
    flight = InFlight()
    turns, blocks = work(flight)
    tools, capabilities = ToolRegistry(), CapabilityRegistry()
    tools.register("impl", turns)
    capabilities.register(Provider("search", "impl"))
    sources = AssemblySources(tools, capabilities)
    batch = calls(*(call("search" if n % 2 else "blocks", {"n": n}) for n in range(8)))
    definition = lab.define(
        [batch, final("x")],
        blocks,
        capabilities=["search"],
        tools_allow=[],
        tool_sources=lambda: sources,
        max_parallel_tools=2,
    )
    assert (await lab.run(lab.engine(definition))).output == "x"
    assert 0 < flight.peak <= 2


async def test_TA35_a_call_that_waits_for_a_human_holds_no_place(lab: Any) -> None:
    ran: list[int] = []

    @tool(replay="safe")
    async def look(n: int) -> None:
        ran.append(n)

    @tool(requires_approval=True)
    async def write(n: int) -> None:
        ran.append(n)

    batch = calls(*(call("write" if n < 3 else "look", {"n": n}) for n in range(6)))
    engine = lab.engine(lab.define([batch, final("x")], look, write, max_parallel_tools=1))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert len(waiting.approvals) == 3, (
        "all are asked at once: the gate does not make them wait for each other"
    )
    assert ran == []
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "x"
    assert ran == list(range(6))


@pytest.mark.parametrize("blocking", [False, True])
async def test_TA56_the_clock_starts_when_the_gate_lets_the_call_through(lab: Any, blocking: bool) -> None:
    """Four bodies that together take more than the time of one, one after the other: none times out while it waits."""
    pause = threading.Event()

    @tool(name="takes", replay="safe", timeout_s=2)
    def blocks() -> str:
        pause.wait(0.6)
        return "done"

    @tool(name="takes", replay="safe", timeout_s=2)
    async def turns() -> str:
        await asyncio.sleep(0.6)
        return "done"

    batch = calls(*(call("takes", {}) for _ in range(4)))
    definition = lab.define([batch, final("x")], blocks if blocking else turns, max_parallel_tools=1)
    assert (await lab.run(lab.engine(definition))).output == "x"
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.SUCCEEDED] * 4


async def test_a_body_that_outlives_its_timeout_does_not_close_the_gate(lab: Any) -> None:
    @tool(replay="safe", timeout_s=0.05, on_error="suppress")
    def stuck() -> None:
        lab.release.wait(20)

    @tool(replay="safe")
    async def look() -> str:
        return "seen"

    batch = calls(call("stuck", {}), call("look", {}))
    definition = lab.define([batch, final("x")], stuck, look, max_parallel_tools=1, quiescence_timeout_s=0.05)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    assert (await lab.end(engine)).output == "x"
    assert [row.status.value for row in lab.store.tool_calls("ex1")] == ["timed_out", "succeeded"]


async def test_what_waits_at_the_gate_when_its_turn_is_cancelled_is_not_performed(lab: Any) -> None:
    begun = asyncio.Event()
    ran: list[int] = []

    @tool()
    async def write(n: int) -> None:
        ran.append(n)
        begun.set()
        await asyncio.Event().wait()

    batch = calls(*(call("write", {"n": n}) for n in range(200)))
    engine = lab.engine(lab.define([batch, final("x")], write, max_parallel_tools=1))
    await engine.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    rows = lab.store.tool_calls("ex1")
    assert [row.status.value for row in rows] == ["cancelled", *["not_performed"] * 199]
    assert ran == [0]


def held(hold: asyncio.Event, ran: list[int]) -> Any:
    """A tool that must not run twice; every call but the first waits."""

    @tool()
    async def write(n: int) -> str:
        ran.append(n)
        if n:
            await hold.wait()
        return f"wrote {n}"

    return write


def six_writes() -> Any:
    return [calls(*(call("write", {"n": n}) for n in range(6))), final("x")]


async def test_what_waits_at_the_gate_when_a_commit_fails_has_not_begun(lab: Any) -> None:
    """The engine starts nothing more, and after it has read the store again none of the calls is unknown."""
    ran: list[int] = []
    hold = asyncio.Event()
    definition = lab.define(six_writes(), held(hold, ran), max_parallel_tools=2)
    write_plan(lab.faults, "a1", point="before_commit:results", action="fail", occurrence=1)
    engine = lab.engine(definition)
    with pytest.raises(FaultInjectedError):
        await lab.run(engine)
    hold.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert ran == [0, 1], "an engine that has stopped begins nothing"
    await engine.activate()
    result = await lab.end_or_question(engine)
    assert result.output == "x", result
    assert ran == list(range(6)), "each of them once, in order"
    assert [row.result for row in lab.store.tool_calls("ex1")] == [f"wrote {n}" for n in range(6)]


async def test_after_a_crash_only_calls_that_were_let_through_are_unknown(lab: Any) -> None:
    ran: list[int] = []
    hold = asyncio.Event()
    definition = lab.define(six_writes(), held(hold, ran), max_parallel_tools=2)
    first = lab.engine(definition)
    await first.start("ex1", "go")
    async with asyncio.timeout(20):
        while len(ran) < 3:
            await asyncio.sleep(0.002)
    rows = lab.store.tool_calls("ex1")
    assert [row.status.value for row in rows] == ["succeeded", *["dispatched"] * 2, *["intent"] * 3]
    second = lab.engine(definition, tools=LocalToolExecutor())
    await second.activate()
    hold.set()  # what the lost owner ran goes on, and cannot be committed any more
    with pytest.raises(OwnershipLostError):
        await first.wait("ex1", until="terminal", timeout_s=20)
    waiting = await lab.suspension(second)
    assert len(waiting.unresolved) == 2
    statuses = [row.status.value for row in lab.store.tool_calls("ex1")]
    assert statuses == ["succeeded", "unknown", "unknown", "succeeded", "succeeded", "succeeded"]
    for question in waiting.unresolved:
        await second.resolve(Resolve("ex1", question.tool_call_id, Resolution.SUCCEEDED, "as far as we know"))
    assert (await lab.end(second)).output == "x"
    assert sorted(ran) == list(range(6))


async def test_a_call_whose_worker_is_lost_keeps_its_place(lab: Any) -> None:
    """A replayable call is dispatched again at once, and the next one does not take its place meanwhile."""

    class Losing(LocalToolExecutor):
        lost = 0

        def dispatch(self, invocations: Any, tools: Any, sink: Any) -> None:
            assert len(invocations) == 1, "one place"
            (invocation,) = invocations
            if invocation.attempt == 1 and invocation.arguments["n"] == 0:
                self.lost += 1
                sink(unknown(invocation.key, "the worker was lost"))
                return
            super().dispatch(invocations, tools, sink)

    order: list[int] = []

    @tool(replay="safe")
    async def look(n: int) -> None:
        order.append(n)

    executor = Losing()
    batch = calls(*(call("look", {"n": n}) for n in range(3)))
    engine = lab.engine(lab.define([batch, final("x")], look, max_parallel_tools=1), tools=executor)
    assert (await lab.run(engine)).output == "x"
    assert (order, executor.lost) == ([0, 1, 2], 1)


async def test_tools_of_the_framework_need_no_place(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)

    @tool(replay="safe")
    async def look() -> str:
        await both.wait()
        return "seen"

    @tool(replay="safe")
    async def remember() -> str:
        await both.wait()
        return "remembered"

    definition = lab.define(
        [calls(call("look", {}), call("remember", {})), final("x")],
        look,
        tools_allow=[],
        max_parallel_tools=1,
    )
    engine = lab.engine(definition)
    assembly = ToolAssembly(definition, None, framework=[remember])
    monkeypatch.setattr(engine._turn_tools, "_assembly", lambda: assembly)
    assert (await lab.run(engine)).output == "x"


@pytest.mark.parametrize("value", [0, -1, True, "2", 1.5])
def test_a_wrong_gate_is_a_mistake_of_the_class(lab: Any, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_parallel_tools"):
        lab.define([final("x")], max_parallel_tools=value)
