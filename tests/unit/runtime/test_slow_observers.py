"""A driver that watches slowly holds up nobody, misses nothing durable, and is told what it did not see."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from phronomy_ray import Agent, EventType, InProcess, Runtime, tool
from phronomy_ray.engine import event_hub
from phronomy_ray.models.scripted import ScriptedModel, call, calls, final

CALLS = 30


@tool(replay="safe")
async def look(n: int) -> str:
    return f"seen {n}"


class Watched(Agent):
    model = ScriptedModel([calls(*(call("look", {"n": n}) for n in range(CALLS))), final("done")])
    tools = (look,)


async def test_R16_a_slow_observer_beside_a_fast_one(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "BUFFER_EVENTS", 16)
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    with Runtime(store=f"sqlite:///{tmp_path}/agents.db", placement=InProcess()) as runtime:
        agent = await runtime.create_async(Watched, "a1")
        execution = await agent.start_async("go", stream=True)

        async def watch() -> list[int]:
            return [event.seq async for event in execution.events() if event.durable]

        fast = asyncio.ensure_future(watch())
        slow = aiter(execution.events())
        seen = [await anext(slow)]
        result = await asyncio.wait_for(execution.result_async(), 20)  # nobody waits for the slow one
        assert result.output == "done"
        durable = list(range(1, 2 * CALLS + 3))
        assert await asyncio.wait_for(fast, 20) == durable
        seen += [event async for event in slow]
        assert [event.seq for event in seen if event.durable] == durable
        lost = [event.payload["events"] for event in seen if event.type is EventType.LOST]
        shown = sum(not event.durable and event.type is not EventType.LOST for event in seen)
        assert len(lost) == 1
        assert lost[0] > 0
        assert shown + lost[0] >= CALLS, "every start of a tool was shown or is among those that are lost"
