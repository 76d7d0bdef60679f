"""A body may tell what it does, and cannot flood whoever listens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.tool_calls import ToolContext, ToolInvocation
from phronomy_ray.tools.envelope import run_async, run_sync
from phronomy_ray.tools.progress import BURST, PER_S, ProgressGate


class Timers:
    """Timers that a test lets act."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def __call__(self, after_s: float, act: Any) -> Timers:
        assert 0 < after_s <= 1 / PER_S
        self.waiting.append(act)
        return self

    def cancel(self) -> None:
        self.waiting.clear()


def test_the_last_report_of_a_burst_is_told_while_the_body_goes_on() -> None:
    now, told, timers = [0.0], list[int](), Timers()
    gate = ProgressGate(told.append, clock=lambda: now[0], later=timers)
    for number in range(BURST + 5):
        gate.report(number)
    (act,) = timers.waiting
    timers.waiting.clear()
    now[0] += 1 / PER_S
    act()
    assert told[BURST:] == [BURST + 4]
    gate.report(BURST + 5)
    assert len(timers.waiting) == 1, "there is no room again"
    gate.close()
    assert told[BURST:] == [BURST + 4, BURST + 5]
    assert timers.waiting == []


def test_what_is_within_bounds_is_told_at_once_and_of_the_rest_the_last() -> None:
    now, told = [0.0], list[int]()
    gate = ProgressGate(told.append, clock=lambda: now[0], later=Timers())
    for number in range(1_000):
        gate.report(number)
    assert told == list(range(BURST))
    now[0] += 1 / PER_S
    gate.report(1_000)
    gate.report(1_001)
    assert told[BURST:] == [1_000]
    gate.close()
    gate.close()
    assert told[BURST:] == [1_000, 1_001], "the last one is not lost, and told once"


def test_a_slow_body_has_every_report_told_and_none_twice() -> None:
    now, told = [0.0], list[int]()
    gate = ProgressGate(told.append, clock=lambda: now[0], later=Timers())
    for number in range(200):
        gate.report(number)
        now[0] += 1 / PER_S
    gate.close()
    assert told == list(range(200))


def test_a_way_that_is_gone_costs_no_outcome(caplog: pytest.LogCaptureFixture) -> None:
    def tell(value: int) -> None:
        if value >= BURST:
            raise ConnectionError("no pool")

    gate = ProgressGate(tell, clock=lambda: 0.0, later=Timers())
    for number in range(BURST + 1):
        gate.report(number)
    gate.close()
    assert "cannot be told: ConnectionError" in caplog.text


@pytest.mark.parametrize("mode", ["loop", "thread"])
async def test_a_flood_is_thinned_out_in_every_mode(mode: str) -> None:
    @tool
    def chatty(context: ToolContext) -> str:
        for number in range(5_000):
            context.report_progress(number)
        return "done"

    told: list[Any] = []
    call = ToolInvocation("tc", "chatty", {}, "agent", "ex", 1, None)
    bound = BoundTool(chatty.spec, chatty)
    if mode == "loop":
        outcome = await run_async(bound, call, is_cancelled=lambda: False, on_progress=told.append)
    else:
        outcome = await asyncio.to_thread(
            run_sync, bound, call, is_cancelled=lambda: False, on_progress=told.append
        )
    assert outcome.result == "done"
    assert told[:BURST] == list(range(BURST))
    assert told[-1] == 4_999
    assert len(told) < 500
