"""Agents as tools: real engines on one real store, each behind a stand-in for its actor; no Ray is started."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray import Agent, ToolContext, tool
from phronomy_ray.clock import SystemClock
from phronomy_ray.engine.creation import new_agent
from phronomy_ray.engine.engine import AgentEngine, EngineParts
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnloadedError,
    CleanupError,
    ErrorRecord,
    InvalidInputError,
    ModelError,
    OwnershipLostError,
    PhronomyError,
    StoreUnavailableError,
    ToolError,
)
from phronomy_ray.hosting import child_agents
from phronomy_ray.hosting.agent_port import NoAnswer
from phronomy_ray.hosting.child_agents import (
    LINEAGE_KEY,
    HostedChildAgents,
    ParentView,
    child_ids,
)
from phronomy_ray.hosting.wiring import AgentWiring, DefinitionSource, NewAgentRequest, StoreConfig
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.script import call, calls, error, final, hang
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.results import RunResult
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.tool_environment import ToolEnvironment
from phronomy_ray.tools.local_executor import LocalToolExecutor

GUARD_S = 10.0


class Live:
    """A `LiveAgent` around a real engine: the methods that a child's client calls."""

    def __init__(self, engine: AgentEngine, cluster: Cluster) -> None:
        self._engine = engine
        self._cluster = cluster

    async def ask(self, method: str, *args: Any, timeout_s: float) -> Any:
        try:
            return await getattr(self, f"_{method}")(*args)
        except AgentUnloadedError:
            return NoAnswer.GONE

    def release(self) -> None:
        pass

    async def _start(self, execution_id: str, input: Any, context: Any, stream: bool) -> Any:
        if self._cluster.start_errors:
            raise self._cluster.start_errors.pop(0)
        result = await self._engine.start(execution_id, input, durable_context=context, stream=stream)
        self._cluster.starts.append((self._engine.agent_id, execution_id, input, context))
        return result.to_wire()

    async def _result(self, execution_id: str, until: str, wait_s: float) -> Any:
        if self._cluster.result_errors:
            raise self._cluster.result_errors.pop(0)
        result = await self._engine.wait(execution_id, until=until, timeout_s=wait_s)
        return result.to_wire() if result is not None else None

    async def _cancel(self, execution_id: str, reason: str) -> Any:
        return (await self._engine.cancel(execution_id, reason)).to_wire()

    async def _unload(self) -> Any:
        if self._cluster.unload_errors:
            raise self._cluster.unload_errors.pop(0)
        await self._engine.seal()
        self._cluster.actors.pop(self._engine.agent_id, None)
        self._cluster.unloaded.append(self._engine.agent_id)


class Cluster:
    """Agents by name on one store; the `AgentDirectory` of its runners."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/agents.db"
        self.store = open_store(self.url, create=True)
        self.actors: dict[str, Live] = {}
        #: The present engine of each agent, and every one there was.
        self.engines: dict[str, AgentEngine] = {}
        self.made: list[AgentEngine] = []
        self.starts: list[tuple[str, str, Any, Any]] = []
        self.unloaded: list[str] = []
        self.start_errors: list[PhronomyError] = []
        self.result_errors: list[PhronomyError] = []
        self.unload_errors: list[PhronomyError] = []
        self.tools: list[LocalToolExecutor] = []
        self.runners: dict[str, HostedChildAgents] = {}

    # --- what AgentDirectory offers

    async def find(self, agent_id: str) -> Any:
        return self.actors.get(agent_id)

    async def create(self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest) -> Any:
        definition = wiring.definition.load().definition()
        new = new_agent(
            agent_id,
            definition,
            metadata=request.metadata,
            now=SystemClock().now(),
            request_id=request.request_id,
        )
        self.store.create_agent(new)
        return await self.wake(agent_id, wiring)

    async def wake(self, agent_id: str, wiring: AgentWiring) -> Any:
        if agent_id not in self.actors:
            engine = self.engine(agent_id, wiring)
            await engine.activate()
            self.actors[agent_id] = Live(engine, self)
        return self.actors[agent_id]

    # --- for tests

    def engine(self, agent_id: str, wiring: AgentWiring) -> AgentEngine:
        definition = wiring.definition.load().definition()
        parent = ParentView(
            definition_id=lambda: definition.definition_id,
            metadata=lambda: engine.state.root.metadata,
            is_cancelled=lambda execution_id: engine.is_cancelled(execution_id),
            quiescence_timeout_s=lambda: definition.quiescence_timeout_s,
        )
        directory: Any = self
        runner = self.runners[agent_id] = HostedChildAgents(agent_id, wiring, self.store, parent, directory)
        tools = LocalToolExecutor(threads=2, environment=ToolEnvironment(agent_id, children=runner))
        self.tools.append(tools)
        parts = EngineParts(store=self.store, model=definition.model, tools=tools, store_retry_s=0.05)
        engine = self.engines[agent_id] = AgentEngine(agent_id, definition, parts)
        self.made.append(engine)
        return engine

    async def parent(self, agent_class: type[Agent]) -> AgentEngine:
        wiring = AgentWiring(DefinitionSource("", agent_class), StoreConfig(self.url))
        self.store.create_agent(new_agent("p", agent_class.definition(), now=SystemClock().now()))
        engine = self.engine("p", wiring)
        await engine.activate()
        return engine

    async def run(self, engine: AgentEngine, execution_id: str = "ex1", **options: Any) -> RunResult:
        await engine.start(execution_id, "hello", **options)
        return await self.end(engine, execution_id)

    async def end(self, engine: AgentEngine, execution_id: str = "ex1") -> RunResult:
        result = await engine.wait(execution_id, until="terminal", timeout_s=GUARD_S)
        assert result is not None, f"{execution_id} did not end: {engine.status()}"
        return result

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(GUARD_S):
                while not condition():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"did not happen within {GUARD_S} s: {what}") from None

    def call_row(self, execution_id: str = "ex1") -> Any:
        [row] = self.store.tool_calls(execution_id)
        return row

    def child(self, execution_id: str = "ex1") -> tuple[str, str]:
        return child_ids("p", execution_id, self.call_row(execution_id).tool_call_id)

    async def quiet(self) -> None:
        """End what still runs."""
        for engine in self.made:
            if not engine.is_active:
                continue
            running = engine.status()["execution_id"]
            if running is not None and engine is self.engines[engine.agent_id]:
                await engine.cancel(running, "end of test")
                await engine.wait(running, until="terminal", timeout_s=GUARD_S)
            await engine._work.stop()
            if engine._tasks:
                await asyncio.wait(list(engine._tasks), timeout=GUARD_S)

    def close(self) -> None:
        for tools in self.tools:
            tools.close()
        self.store.close()


@pytest.fixture
async def cluster(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Cluster]:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    made = Cluster(tmp_path)
    yield made
    await made.quiet()
    made.close()


def agent(name: str, script: Any, *tools: Any, **attributes: Any) -> type[Agent]:
    body = {"model": ScriptedModel(script), "tools": list(tools), "definition_id": name, **attributes}
    # as if of a driver's own script: it travels by value
    made = {"__module__": "__main__", "__doc__": f"Does {name} work."}
    return type(name.capitalize(), (Agent,), {**made, **body})


def parent_of(child: type[Agent], *then: Any, **options: Any) -> type[Agent]:
    script = [calls(call("helper", {"input": "do it"})), *(then or [final("done")])]
    return agent("boss", script, _helper(child, options))


def _helper(child: type[Agent], options: dict[str, Any]) -> Any:
    own = {key: options.pop(key) for key in ("keep", "timeout_s") if key in options}
    return child.as_tool("helper", **own).with_options(**options)


async def test_a_call_runs_a_child_and_ends_its_life(cluster: Cluster) -> None:
    boss = await cluster.parent(parent_of(agent("writer", [final("a poem")])))
    result = await cluster.run(boss, durable_context={"user": "ann"})
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "done")
    child_id, execution_id = cluster.child()
    assert cluster.starts == [(child_id, execution_id, "do it", {"user": "ann"})]
    assert cluster.call_row().result == "a poem"
    assert cluster.unloaded == [child_id]
    assert child_id.startswith("p.")
    root = cluster.store.load_root(child_id)
    assert root.metadata[LINEAGE_KEY] == {
        "agent_id": "p",
        "execution_id": "ex1",
        "tool_call_id": cluster.call_row().tool_call_id,
        "lineage": ["boss", "writer"],
    }
    assert cluster.store.read_journal(child_id), "its journal is kept"


async def test_keep_leaves_the_child_alive(cluster: Cluster) -> None:
    boss = await cluster.parent(parent_of(agent("writer", [final("x")]), keep=True))
    await cluster.run(boss)
    assert cluster.unloaded == []
    assert list(cluster.actors) == [cluster.child()[0]]


async def test_every_call_has_a_child_of_its_own(cluster: Cluster) -> None:
    writer = agent("writer", [final("x")])
    script = [calls(call("writer", {"input": "1"}), call("writer", {"input": "2"})), final("done")]
    boss = await cluster.parent(agent("boss", script, writer.as_tool()))
    await cluster.run(boss)
    assert len({agent_id for agent_id, *_ in cluster.starts}) == 2
    assert sorted(cluster.unloaded) == sorted({agent_id for agent_id, *_ in cluster.starts})


async def test_children_have_children_and_know_their_lineage(cluster: Cluster) -> None:
    leaf = agent("leaf", [final("leaf text")])
    middle = agent("middle", [calls(call("leaf", {"input": "go"})), final("middle text")], leaf.as_tool())
    boss = await cluster.parent(
        agent("boss", [calls(call("middle", {"input": "go"})), final("done")], middle.as_tool())
    )
    assert (await cluster.run(boss)).output == "done"
    lineages = [
        cluster.store.load_root(agent_id).metadata[LINEAGE_KEY]["lineage"] for agent_id, *_ in cluster.starts
    ]
    assert lineages == [["boss", "middle"], ["boss", "middle", "leaf"]]
    assert len(cluster.unloaded) == 2


async def test_a_definition_cannot_be_called_below_itself(cluster: Cluster) -> None:
    again = agent("boss", [final("never")])
    boss = await cluster.parent(parent_of(again, on_error="suppress"))
    await cluster.run(boss)
    row = cluster.call_row()
    assert (row.status, row.error["code"]) == (ToolCallStatus.FAILED, "agent_cycle")
    assert row.error["details"] == {"lineage": ["boss"], "child": "boss"}
    assert cluster.starts == []


async def test_a_failing_child_fails_the_call_with_its_error_as_cause(cluster: Cluster) -> None:
    child = agent("writer", [error(ModelError("no such model", code="model_gone"))], model_retries=0)
    boss = await cluster.parent(parent_of(child, on_error="suppress"))
    assert (await cluster.run(boss)).output == "done"
    row = cluster.call_row()
    assert (row.status, row.error["type"], row.error["code"]) == (
        ToolCallStatus.FAILED,
        "ToolError",
        "child_failed",
    )
    assert [cause["code"] for cause in row.error["causes"]] == ["model_gone"]
    assert row.error["details"]["child_agent_id"] == cluster.child()[0]
    assert cluster.unloaded == [cluster.child()[0]]


async def test_on_error_raise_ends_the_parent(cluster: Cluster) -> None:
    child = agent("writer", [error(ModelError("broken"))], model_retries=0)
    boss = await cluster.parent(parent_of(child))
    result = await cluster.run(boss)
    assert result.status is ExecutionStatus.FAILED
    assert result.error is not None
    assert result.error.type == "ToolError"


async def test_a_cleanup_error_that_ends_the_parent_still_names_the_child(cluster: Cluster) -> None:
    cluster.unload_errors = [AgentBusyError("busy")] * 3
    boss = await cluster.parent(parent_of(agent("writer", [final("a poem")])))
    result = await cluster.run(boss)
    with pytest.raises(ToolError) as caught:
        result.raise_for_status()
    cause = caught.value.__cause__
    assert isinstance(cause, CleanupError)
    assert (cause.child_agent_id, cause.result["output"]) == (cluster.child()[0], "a poem")


async def test_a_timed_out_call_cancels_its_child(cluster: Cluster) -> None:
    child = agent("writer", [hang()])
    boss = await cluster.parent(parent_of(child, timeout_s=0.2, on_error="suppress"))
    assert (await cluster.run(boss)).output == "done"
    assert cluster.call_row().status is ToolCallStatus.TIMED_OUT
    child_id, execution_id = cluster.child()
    await cluster.until(lambda: child_id in cluster.unloaded, "the child is freed")
    assert cluster.store.load_execution(execution_id).status is ExecutionStatus.CANCELLED


async def test_cancelling_the_parent_cancels_the_child(cluster: Cluster) -> None:
    boss = await cluster.parent(parent_of(agent("writer", [hang()])))
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.starts, "the child starts")
    await boss.cancel("ex1", "enough")
    assert (await cluster.end(boss)).status is ExecutionStatus.CANCELLED
    assert cluster.call_row().status is ToolCallStatus.CANCELLED
    child_id, execution_id = cluster.child()
    await cluster.until(lambda: child_id in cluster.unloaded, "the child is freed")
    assert cluster.store.load_execution(execution_id).status is ExecutionStatus.CANCELLED


async def test_a_child_that_somebody_cancelled_is_a_cancellation(cluster: Cluster) -> None:
    boss = await cluster.parent(parent_of(agent("writer", [hang()]), on_error="suppress"))
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.starts, "the child starts")
    child_id, execution_id, *_ = cluster.starts[0]
    await cluster.engines[child_id].cancel(execution_id, "an operator")
    await cluster.end(boss)
    assert cluster.call_row().error["type"] == "CancellationError"


@tool(requires_approval=True)
async def pay(context: ToolContext) -> str:
    """Pay."""
    return "paid"


async def test_a_child_that_waits_for_a_human_is_waited_for(cluster: Cluster) -> None:
    child = agent("payer", [calls(call("pay")), final("all paid")], pay)
    boss = await cluster.parent(parent_of(child))
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.store.approvals(pending_only=True), "the child asks")
    [request] = cluster.store.approvals(pending_only=True)
    child_id, execution_id = cluster.child()
    assert (request.agent_id, request.execution_id) == (child_id, execution_id)
    assert boss.status()["execution_status"] == "active"
    await cluster.engines[child_id].decide(Decide(execution_id, request.approval_request_id, True, "bob"))
    assert (await cluster.end(boss)).output == "done"
    assert cluster.call_row().result == "all paid"


async def test_a_refused_child_is_a_tool_error(cluster: Cluster) -> None:
    child = agent("payer", [calls(call("pay")), final("all paid")], pay)
    boss = await cluster.parent(parent_of(child, on_error="suppress"))
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.store.approvals(pending_only=True), "the child asks")
    [request] = cluster.store.approvals(pending_only=True)
    with contextlib.suppress(AgentUnloadedError):  # it may have ended and left before its answer is there
        await cluster.engines[cluster.child()[0]].decide(
            Decide(cluster.child()[1], request.approval_request_id, False, "bob")
        )
    await cluster.end(boss)
    assert cluster.call_row().error["code"] == "child_rejected"


async def test_a_child_that_cannot_be_started_fails_the_call_and_leaves_nothing(cluster: Cluster) -> None:
    cluster.start_errors = [InvalidInputError("no")]
    boss = await cluster.parent(parent_of(agent("writer", [final("x")]), on_error="suppress"))
    assert (await cluster.run(boss)).output == "done"
    assert cluster.call_row().error["code"] == "invalid_input"
    assert cluster.unloaded == [cluster.child()[0]]


async def test_a_database_that_is_away_is_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_agents, "STORE_POLL_S", 0.01)
    cluster.result_errors = [StoreUnavailableError("away")] * 3
    boss = await cluster.parent(parent_of(agent("writer", [final("a poem")])))
    assert (await cluster.run(boss)).output == "done"
    assert cluster.result_errors == []
    assert cluster.call_row().result == "a poem"


async def test_a_child_that_nobody_can_speak_for_is_given_up(cluster: Cluster) -> None:
    cluster.result_errors = [OwnershipLostError("taken")]
    boss = await cluster.parent(parent_of(agent("writer", [hang()]), on_error="suppress"))
    assert (await cluster.run(boss)).output == "done"
    assert cluster.call_row().error["code"] == "ownership_lost"
    child_id, execution_id = cluster.child()
    await cluster.until(lambda: child_id in cluster.unloaded, "the child is freed")
    assert cluster.store.load_execution(execution_id).status is ExecutionStatus.CANCELLED


async def test_only_the_unload_is_tried_again(cluster: Cluster) -> None:
    cluster.unload_errors = [AgentBusyError("busy")]
    boss = await cluster.parent(parent_of(agent("writer", [final("x")])))
    assert (await cluster.run(boss)).output == "done"
    assert len(cluster.starts) == 1
    assert cluster.unloaded == [cluster.child()[0]]


async def test_an_unload_that_fails_is_a_cleanup_error_with_the_result(cluster: Cluster) -> None:
    cluster.unload_errors = [AgentBusyError(f"busy {number}") for number in range(3)]
    boss = await cluster.parent(parent_of(agent("writer", [final("a poem")]), on_error="suppress"))
    assert (await cluster.run(boss)).output == "done"
    error = ErrorRecord.from_wire(cluster.call_row().error).to_exception()
    assert isinstance(error, CleanupError)
    assert (error.child_agent_id, error.child_execution_id) == cluster.child()
    assert error.result == {"status": "completed", "output": "a poem"}
    assert [cause.message for cause in error.causes] == ["busy 0", "busy 1", "busy 2"]
    assert len(cluster.starts) == 1


async def test_a_call_that_runs_again_finds_its_child(cluster: Cluster) -> None:
    """The parent's process is lost while the child runs; the next owner's call goes on with the same child."""
    gate = asyncio.Event()

    @tool(replay="never")
    async def wait_here() -> str:
        """Wait."""
        await gate.wait()
        return "waited"

    child = agent("writer", [calls(call("wait_here")), final("a poem")], wait_here)
    boss_class = parent_of(child)
    boss = await cluster.parent(boss_class)
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.starts, "the child starts")
    successor = cluster.engine("p", AgentWiring(DefinitionSource("", boss_class), StoreConfig(cluster.url)))
    await successor.activate()
    await cluster.until(lambda: len(cluster.starts) == 2, "the call runs again")
    gate.set()
    assert (await cluster.end(successor)).output == "done"
    assert cluster.starts[0] == cluster.starts[1], "the same child, the same execution, the same input"
    assert cluster.call_row().attempt == 2
    assert len(cluster.store.list_executions(agent_id=cluster.child()[0])) == 1
    assert cluster.call_row().result == "a poem"


async def test_a_child_that_ended_meanwhile_gives_its_stored_result(cluster: Cluster) -> None:
    child = agent("writer", [final("a poem")])
    boss = await cluster.parent(parent_of(child))
    wiring = AgentWiring(DefinitionSource("", child), StoreConfig(cluster.url))
    assert (await cluster.run(boss)).output == "done"
    child_id, execution_id = cluster.child()
    directory: Any = cluster
    runner = HostedChildAgents(
        "p",
        replace(wiring, namespace="x"),
        cluster.store,
        ParentView(lambda: "boss", dict, lambda _: False, lambda: 5.0),
        directory,
    )
    from phronomy_ray.tool_environment import ChildRequest

    request = ChildRequest(child, "do it", "ex1", cluster.call_row().tool_call_id, lambda: False)
    again = await runner.run(request)
    assert (again.agent_id, again.execution_id, again.output) == (child_id, execution_id, "a poem")
    assert len(cluster.store.list_executions(agent_id=child_id)) == 1
    assert cluster.unloaded == [child_id, child_id]


async def test_an_owner_that_stops_leaves_the_child_alone(cluster: Cluster) -> None:
    boss = await cluster.parent(parent_of(agent("writer", [hang()])))
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.starts, "the child starts")
    child_id, execution_id, *_ = cluster.starts[0]
    await cluster.until(
        lambda: cluster.store.load_execution(execution_id).status is ExecutionStatus.ACTIVE, "it works"
    )
    await boss._work.stop()  # what an engine does before it reads its state again
    assert child_id in cluster.actors
    assert cluster.store.load_execution(execution_id).cancel_requested_at is None


async def test_a_new_owner_ends_children_that_its_dead_predecessor_could_not_tell(cluster: Cluster) -> None:
    boss_class = parent_of(agent("writer", [hang()]))
    boss = await cluster.parent(boss_class)
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.starts, "the child starts")
    child_id, execution_id, *_ = cluster.starts[0]
    # the process dies right behind the commit of the cancellation: nothing that follows it happens
    boss._work.perform = _nothing  # type: ignore[method-assign, assignment]
    await boss.cancel("ex1", "enough")
    successor = cluster.engine("p", AgentWiring(DefinitionSource("", boss_class), StoreConfig(cluster.url)))
    await successor.activate()
    assert (await cluster.end(successor)).status is ExecutionStatus.CANCELLED
    assert not cluster.store.load_execution(execution_id).status.is_terminal
    cluster.runners["p"].reap()
    await cluster.until(lambda: child_id in cluster.unloaded, "the child is freed")
    assert cluster.store.load_execution(execution_id).status is ExecutionStatus.CANCELLED


async def test_a_running_call_is_not_reaped(cluster: Cluster) -> None:
    boss = await cluster.parent(parent_of(agent("writer", [hang()])))
    await boss.start("ex1", "hello")
    await cluster.until(lambda: cluster.starts, "the child starts")
    assert cluster.runners["p"]._left_behind() == []


async def _nothing(effect: Any) -> None:
    """Instead of performing an effect."""
