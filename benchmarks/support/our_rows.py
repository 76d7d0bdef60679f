"""One turn of ours, ready to be timed: the engine in this process, or a dedicated actor that a driver calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.batch_scripts import FINAL_TEXT, Work
from support.stores import FreshStore

TURN_TIMEOUT_S = 600.0
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class OurTurn:
    """A turn, and what its owner has spent on commits."""

    turn: Callable[[], object]
    #: ``(commits, seconds)`` so far.
    commits: Callable[[], tuple[int, float]]


@contextmanager
def in_process(
    agent_class: Any, store: FreshStore, work: Work, *, keep: bool = True, threads: int = 256
) -> Iterator[OurTurn]:
    """The engine on a loop of this process; `keep` false: commits are made and thrown away instead of stored."""
    from phronomy_ray.clock import SystemClock
    from phronomy_ray.engine.creation import new_agent
    from phronomy_ray.engine.engine import AgentEngine, EngineParts
    from phronomy_ray.ids import new_execution_id
    from phronomy_ray.store.sql_store import open_store
    from phronomy_ray.tools.local_executor import LocalToolExecutor

    definition = agent_class.definition()
    agent_id = f"engine-{next(_NUMBERS)}"
    opened: Any = open_store(store.url)
    opened.create_agent(new_agent(agent_id, definition, now=SystemClock().now()))
    if not keep:
        opened.execute = lambda commit: None
    loop = asyncio.new_event_loop()

    async def make() -> AgentEngine:
        parts = EngineParts(opened, agent_class.model, LocalToolExecutor(threads=threads))
        return AgentEngine(agent_id, definition, parts)

    engine = loop.run_until_complete(make())

    async def one() -> None:
        execution = new_execution_id()
        await engine.start(execution, work.message())
        result = await engine.wait(execution, until="terminal", timeout_s=TURN_TIMEOUT_S)
        assert result is not None
        assert result.output == FINAL_TEXT, result

    def commits() -> tuple[int, float]:
        timing = engine.status()["timing"]
        return timing["commits"], timing["commit_s"]

    yield OurTurn(lambda: loop.run_until_complete(one()), commits)
    loop.run_until_complete(engine.seal())
    loop.close()


@contextmanager
def dedicated(runtime: Any, agent_class: Any, work: Work) -> Iterator[OurTurn]:
    """A dedicated actor of its own; the time is what the driver sees."""
    agent = runtime.create(agent_class, f"dedicated-{next(_NUMBERS)}")

    def turn() -> None:
        result = agent.invoke(work.message(), timeout=TURN_TIMEOUT_S)
        assert result.output == FINAL_TEXT, result

    def commits() -> tuple[int, float]:
        timing = agent.status()["timing"]
        return timing["commits"], timing["commit_s"]

    yield OurTurn(turn, commits)
    agent.unload()
