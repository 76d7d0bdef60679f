"""``sys.exit`` in a task that a body has started ends this task, and neither the loop nor its siblings."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from phronomy_ray.definition.tool import Tool, ToolCompletion, tool
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import ToolContext, ToolInvocation, ToolOutcome
from phronomy_ray.tools.cooperative import CooperativeRuns
from phronomy_ray.tools.envelope import run_sync
from phronomy_ray.tools.exits import contain_exits

GUARD_S = 20.0


async def leave() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


@tool(name="gathers")
async def gathers() -> str:
    await asyncio.gather(leave())
    return "went on"


@tool(name="waits")
async def waits() -> str:
    await asyncio.wait_for(leave(), GUARD_S)
    return "went on"


@tool(name="forgets")
async def forgets() -> str:
    task = asyncio.create_task(leave())
    await asyncio.wait({task})
    return "went on"


class Outlives(Tool):
    """Its work ends by leaving."""

    name = "outlives"
    parameters: Any = {"type": "object", "properties": {}}

    async def call_async(  # type: ignore[override]
        self, arguments: dict[str, Any], context: ToolContext
    ) -> Awaitable[Any] | ToolCompletion:
        return ToolCompletion(asyncio.sleep(0, "went on"), leave())


def apart(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `main` on a loop of its own: one that ends by ``SystemExit`` fails its test and not the whole session."""
    try:
        return asyncio.run(main())
    except SystemExit:
        pytest.fail("the event loop was ended")


@pytest.mark.parametrize("made", [gathers, waits, forgets, Outlives()])
def test_a_cooperative_body_s_tasks_do_not_end_the_loop(made: Tool) -> None:
    async def main() -> ToolOutcome:
        outcomes: asyncio.Queue[ToolOutcome] = asyncio.Queue()
        runs = CooperativeRuns()
        runs.start(
            ToolInvocation("tc", made.spec.name, {}, "agent", "ex", 1, None),
            BoundTool(made.spec, made),
            lambda item: outcomes.put_nowait(item) if isinstance(item, ToolOutcome) else None,
        )
        found = await asyncio.wait_for(outcomes.get(), GUARD_S)
        await runs.stragglers.drain(GUARD_S)
        return found

    outcome = apart(main)
    if made in (gathers, waits):
        assert outcome.status is ToolCallStatus.FAILED
        assert "SystemExit was raised in a task: 3" in outcome.model_text
    else:
        assert outcome.result == "went on"


def test_work_behind_a_result_on_a_thread_ends_all_the_same() -> None:
    made = Outlives().with_options(execution_mode="blocking_io")
    ended = threading.Event()
    outcome = run_sync(
        BoundTool(made.spec, made),
        ToolInvocation("tc", "outlives", {}, "agent", "ex", 1, None),
        is_cancelled=lambda: False,
        on_finished=ended.set,
    )
    assert outcome.result == "went on"
    assert ended.wait(GUARD_S)


def test_tasks_that_no_body_has_started_are_left_alone() -> None:
    async def main() -> None:
        async def body() -> None:
            contain_exits()
            never = asyncio.create_task(leave())  # cancelled before its first step
            never.cancel()
            with pytest.raises(asyncio.CancelledError):
                await never

        await asyncio.create_task(body())
        plain = asyncio.create_task(asyncio.sleep(0, "plain"), name="mine")
        assert plain.get_coro().__name__ == "sleep"  # type: ignore[union-attr]
        assert (await plain, plain.get_name()) == ("plain", "mine")

    apart(main)
