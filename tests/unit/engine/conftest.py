"""A laboratory for engines: a real SQLite store, scripted models, tools in this process, and no Ray."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.clock import SystemClock
from phronomy_ray.commits import NewAgent
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool import tool
from phronomy_ray.engine.engine import AgentEngine, EngineParts
from phronomy_ray.events import Event
from phronomy_ray.faults import write_plan
from phronomy_ray.journal import ExecutionStatus, JournalRecord, Lifecycle
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import Script, ScriptedModel, final
from phronomy_ray.results import RunResult
from phronomy_ray.store.port import Store
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.prompts import check_paired
from phronomy_ray.tools.local_executor import LocalToolExecutor

#: How long a test waits for what must happen, in seconds; never how long it sleeps.
GUARD_S = 20.0


class NoModel:
    """The port for definitions that name a model by text."""

    def __init__(self, window: int | None = None) -> None:
        self.window = window

    async def complete(self, request: Any) -> Any:
        raise AssertionError("no model call was expected")

    def stream(self, request: Any) -> Any:
        raise AssertionError("no model call was expected")

    async def info(self, model: str) -> Any:
        from phronomy_ray.models.port import ModelInfo

        return ModelInfo(self.window, None)


class Deletions:
    """A tool that must be asked for, and what it did."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.read: list[int] = []

        @tool(requires_approval=True)
        async def delete(n: int) -> str:
            self.done.append(n)
            return f"deleted {n}"

        @tool(replay="safe")
        async def read(n: int) -> str:
            self.read.append(n)
            return f"read {n}"

        self.delete, self.free = delete, read


class Lab:
    """Makes definitions and engines on one store, ``agents.db`` in a directory, and reads what they left there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory}/agents.db"
        self.store: Store = open_store(self.url, create=True)
        self.prompt_log = directory / "prompts.jsonl"
        self.faults = directory / "faults"
        self.faults.mkdir()
        self.engines: list[AgentEngine] = []
        self.executors: list[Any] = []
        #: Released at the end, so that no body outlives its test.
        self.release = threading.Event()

    def define(self, script: Script | Any, *tools: Any, **attributes: Any) -> AgentDefinition:
        """An agent class with `script` as its model (or any model port)."""
        model = (
            script
            if isinstance(script, str) or hasattr(script, "stream")
            else ScriptedModel(script, log_path=self.prompt_log)
        )
        body = {"model": model, "tools": list(tools), "definition_id": "clerk", **attributes}
        return type("Clerk", (Agent,), body).definition()

    def create(self, definition: AgentDefinition, agent_id: str = "a1") -> None:
        """Store the agent."""
        now = SystemClock().now()
        self.store.create_agent(
            NewAgent(agent_id, definition.definition_id, definition.definition_version, "", {}, (), now)
        )

    def engine(self, definition: AgentDefinition, agent_id: str = "a1", **parts: Any) -> AgentEngine:
        """An engine; the agent is created unless it is stored."""
        known = {root.agent_id for root in self.store.list_agents()}
        if agent_id not in known:
            self.create(definition, agent_id)
        parts.setdefault("store", self.store)
        parts.setdefault("model", NoModel())
        parts.setdefault("tools", LocalToolExecutor(threads=8))
        parts.setdefault("store_retry_s", 0.05)
        parts.setdefault("fault_directory", str(self.faults))
        engine = AgentEngine(agent_id, definition, EngineParts(**parts))
        self.engines.append(engine)
        self.executors.append(parts["tools"])
        return engine

    async def run(
        self, engine: AgentEngine, input: Any = "hello", *, id: str = "ex1", **options: Any
    ) -> RunResult:
        """Start and wait for the end."""
        await engine.start(id, input, **options)
        return await self.end(engine, id)

    async def end(self, engine: AgentEngine, id: str = "ex1") -> RunResult:
        """Wait for the end."""
        result = await engine.wait(id, until="terminal", timeout_s=GUARD_S)
        assert result is not None, f"{id} did not end: {engine.status()}"
        return result

    async def end_or_question(self, engine: AgentEngine, id: str = "ex1") -> RunResult:
        """Wait for the end, or until a human is needed."""
        result = await engine.wait(id, until="suspended", timeout_s=GUARD_S)
        assert result is not None, f"{id} neither ended nor suspended: {engine.status()}"
        return result

    async def suspension(self, engine: AgentEngine, id: str = "ex1") -> RunResult:
        """Wait until a human is needed."""
        result = await self.end_or_question(engine, id)
        assert result.suspended, result
        return result

    async def decide_all(self, engine: AgentEngine, approved: bool = True, *, id: str = "ex1") -> RunResult:
        """Answer every open request."""
        result = await self.suspension(engine, id)
        for request in result.approvals:
            result = await engine.decide(Decide(id, request.approval_request_id, approved, "bob"))
        return result

    async def read_events(self, engine: AgentEngine, id: str = "ex1", *, after: int = 0) -> list[Event]:
        """All events until a terminal one, as a reader's loop gets them."""
        events: list[Event] = []
        cursor: str | None = None
        while not (events and events[-1].is_terminal):
            found, cursor = await engine.events(id, after=after, cursor=cursor, timeout_s=GUARD_S)
            assert found, f"no event within {GUARD_S} s behind {after}: {engine.status()}"
            events += found
            after = max(after, found[-1].seq)
        return events

    async def until_prompted(self, count: int = 1) -> None:
        """Wait until the model was asked `count` times."""
        async with asyncio.timeout(GUARD_S):
            while len(self.prompts()) < count:
                await asyncio.sleep(0.002)

    def pause(self, point: str, occurrence: int = 1) -> Callable[[], Awaitable[Callable[[], None]]]:
        """Arm a pause at `point`; what is returned waits until it acts and gives the function that releases it."""
        reached = write_plan(self.faults, "a1", point=point, action="pause", occurrence=occurrence)

        async def wait() -> Callable[[], None]:
            async with asyncio.timeout(GUARD_S):
                while not reached.exists():
                    await asyncio.sleep(0.005)
            return reached.with_suffix(".release").touch

        return wait

    def prompts(self) -> list[list[dict[str, Any]]]:
        """The messages of every attempt of every model call."""
        if not self.prompt_log.exists():
            return []
        return [json.loads(line)["messages"] for line in self.prompt_log.read_text().splitlines()]

    def journal(self, agent_id: str = "a1") -> list[JournalRecord]:
        """The stored journal."""
        return self.store.read_journal(agent_id, limit=100_000)

    def kinds(self, id: str = "ex1") -> list[str]:
        """Record kinds of one execution."""
        return [record.kind.value for record in self.store.journal_of_execution(id)]

    def facts(self, agent_id: str = "a1") -> list[Any]:
        """The journal without times: equal for equal runs with equal ids."""
        return [
            (r.position, r.kind.value, r.execution_id, r.model_call_id, r.role, r.content, r.causation_id)
            for r in self.journal(agent_id)
        ]

    async def settle(self) -> None:
        """Let bodies end that nobody waits for any more, and what their late ends are written down by."""
        self.release.set()
        for executor in self.executors:
            if executor._blocking:
                await asyncio.wait(list(executor._blocking), timeout=1.0)
            await executor._stragglers.drain(GUARD_S)
        while any(engine._work._flush is not None for engine in self.engines):
            await asyncio.sleep(0.001)
        for _ in range(3):  # the report of a late end, the task that it starts, and the commit of that
            await asyncio.sleep(0)
            changes = [
                task for engine in self.engines for task in engine._tasks if "_apply_locked" in repr(task)
            ]
            if changes:
                await asyncio.wait(changes, timeout=GUARD_S)

    async def restarted(self, definition: AgentDefinition, **parts: Any) -> AgentEngine:
        """A new owner, as after the loss of the process."""
        engine = self.engine(definition, **parts)
        await engine.activate()
        return engine

    @staticmethod
    def first_turn(*steps: Any) -> Any:
        """A script of `steps` that answers ``fine`` in the turn after (`still_usable`)."""
        return lambda request: (
            final("fine") if request.last_user == "hi" else steps[min(request.sequence, len(steps)) - 1]
        )

    async def still_usable(self, engine: AgentEngine) -> None:
        """Another turn of an agent with a script by `first_turn`."""
        again = await self.run(engine, "hi", id="ex-after")
        assert (again.status, again.output) == (ExecutionStatus.COMPLETED, "fine")
        check_paired(self.prompts()[-1])
        assert self.store.load_root("a1").lifecycle is Lifecycle.IDLE

    def tool_texts(self) -> list[str]:
        """What the newest prompt says of calls."""
        return [message["content"] for message in self.prompts()[-1] if message["role"] == "tool"]

    def deletions(self) -> Deletions:
        """A fresh pair of tools."""
        return Deletions()

    def open(self) -> Store:
        """Another handle on the store: what a new process has."""
        return open_store(self.url)

    def sql(self, text: str) -> None:
        """Change the database behind everybody's back."""
        with sqlite3.connect(self.directory / "agents.db") as connection:
            assert connection.execute(text).rowcount > 0

    def close(self) -> None:
        """Let bodies end and close what is open."""
        self.release.set()
        for executor in self.executors:
            executor.close()
        self.store.close()


@pytest.fixture
async def lab(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    laboratory = Lab(tmp_path)
    yield laboratory
    await laboratory.settle()
    laboratory.close()
