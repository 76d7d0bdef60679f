"""`AgentActor`: the named Ray actor that owns one agent. A shell: it decodes, calls the engine, encodes.

Its remote methods are the raw-handle API (`docs/guide/actor-handles.md`): stable, plain JSON in and out, and our typed
errors. Every start of the process takes a new ownership epoch and recovers before it admits anything.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

import ray

from phronomy_ray.actors.environment import environment_of
from phronomy_ray.actors.idle_unload import IdleUnload
from phronomy_ray.actors.loop_watchdog import LoopWatchdog, Offence, log_offence
from phronomy_ray.actors.mcp_client import GatewayAccess
from phronomy_ray.actors.ray_calls import kill, node_id
from phronomy_ray.actors.ray_metrics import AgentGauges
from phronomy_ray.actors.signals import die_at_sigterm
from phronomy_ray.actors.tool_executor import RayToolExecutor
from phronomy_ray.actors.wiring import AgentWiring, NewAgentRequest
from phronomy_ray.clock import SystemClock
from phronomy_ray.definition.busy import busy_rule
from phronomy_ray.engine.creation import new_agent
from phronomy_ray.engine.engine import AgentEngine, EngineParts
from phronomy_ray.errors import (
    AgentBusyError,
    BackpressureError,
    CommitOutcomeUnknownError,
    ConfigurationError,
    InvalidInputError,
    NotFoundError,
    PhronomyError,
)
from phronomy_ray.ids import new_execution_id
from phronomy_ray.journal import JournalRecord
from phronomy_ray.kernel.inputs import Decide, EditKind, Resolve
from phronomy_ray.mcp import access
from phronomy_ray.models.port import ModelPort
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.tool_calls import Resolution
from phronomy_ray.tool_environment import ChildAgents

_LOG = logging.getLogger("phronomy_ray.actors")
#: Longest slice of one waiting call, in seconds.
MAX_WAIT_S = 30.0
#: Calls that may wait at once.
MAX_WAITERS = 500
#: How long an actor that cannot serve stays to say why, in seconds.
LINGER_S = 20.0
#: How long after `unload` the process ends by itself, in seconds.
UNLOAD_LINGER_S = 1.0


class AgentActor:
    """Owner of one agent."""

    def __init__(self, agent_id: str, wiring: AgentWiring) -> None:
        die_at_sigterm()
        self._agent_id = agent_id
        self._wiring = wiring
        self._waiters = 0
        self._engine_made: AgentEngine | None = None
        self._tools: RayToolExecutor | None = None
        self._children: ChildAgents | None = None
        self._gauges = AgentGauges(agent_id)
        self._watchdog = LoopWatchdog(
            on_offence=self._blocked,
            on_look=lambda late_s: self._gauges.looked(late_s, self._waiters),
            on_end=self._die,
            is_busy=self._tools_running,
        )
        self._watchdog.start()
        loop = asyncio.get_running_loop()
        self._idle = IdleUnload(wiring.unload, loop.time)
        self._boot = loop.create_task(self._start())
        self._sweep = loop.create_task(self._unload_when_unused())

    async def _start(self) -> None:
        """Recover without waiting for a caller, so that a restarted actor goes on by itself."""
        try:
            await self._engine().activate()
            if self._children is not None:
                self._children.reap()
        except Exception as error:  # noqa: BLE001 - whoever calls next starts it again, and is told what is wrong
            known = isinstance(error, PhronomyError)
            level = logging.INFO if known else logging.ERROR
            _LOG.log(
                level, "agent %s not started: %s", self._agent_id, error, exc_info=None if known else error
            )
            if isinstance(error, NotFoundError | ConfigurationError):
                asyncio.get_running_loop().call_later(LINGER_S, self._exit_unless_active)
        # Code and definitions stay as long as the process does. Looking through all of it again takes the collector some
        # 80 ms, and a turn with hundreds of calls would pay for that every few times.
        gc.freeze()

    async def _unload_when_unused(self) -> None:
        """Let the process go when nothing needs it; whoever calls next wakes the agent."""
        every_s = self._wiring.unload.look_every_s
        await self._boot
        if every_s is None or self._wiring.options.names():
            return
        while True:
            await asyncio.sleep(every_s)
            engine = self._engine_made
            if engine is None or not engine.is_active or not engine.definition.class_path:
                continue
            running = engine.state.execution
            is_needed = bool(self._waiters or engine.waits_for_time or self._tools_running())
            if not self._idle.is_due(running.row.status if running else None, is_needed=is_needed):
                continue
            try:
                await engine.seal()
            except AgentBusyError:  # somebody has just come
                continue
            _LOG.info("agent %s is unloaded: nobody has used it for a while", self._agent_id)
            asyncio.get_running_loop().call_later(UNLOAD_LINGER_S, self._exit)
            return

    def _tools_running(self) -> bool:
        return self._tools is not None and self._tools.cooperative > 0

    def _engine(self) -> AgentEngine:
        self._idle.used()
        if self._engine_made is None:
            wiring = self._wiring
            definition = wiring.definition.load().definition()
            store = open_store(wiring.store.url, content_key=wiring.store.content_key)
            environment = environment_of(self._agent_id, wiring, store, self._engine)
            self._children = environment.children
            tools = RayToolExecutor(wiring.definition, wiring.namespace, wiring.pools, environment)
            tools.prepare(definition.tools.values())
            tools.on_loop_work = self._watchdog.wake
            self._tools = tools
            access.install(GatewayAccess(namespace=wiring.namespace))
            self._engine_made = AgentEngine(
                self._agent_id,
                definition,
                EngineParts(
                    store=store,
                    model=_model_port(definition.model, wiring),
                    tools=tools,
                    owner={"node": node_id(), "pid": os.getpid(), "host": socket.gethostname()},
                    on_ownership_lost=self._exit,
                    fault_directory=wiring.fault_directory,
                    registry=wiring.definition.registry,
                    options=wiring.options,
                    defaults=wiring.defaults,
                ),
            )
        return self._engine_made

    def _blocked(self, offence: Offence) -> None:
        log_offence(offence)
        self._gauges.blocked(offence.tool_name)

    def _die(self) -> None:
        """The event loop has ended, so nothing here can work: Ray starts the actor anew, which recovers."""
        _LOG.critical("agent %s: its event loop has ended (sys.exit in a callback?)", self._agent_id)
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self) -> None:
        kill(ray.get_runtime_context().current_actor)

    def _exit_unless_active(self) -> None:
        if self._engine_made is None or not self._engine_made.is_active:
            self._exit()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._waiters >= MAX_WAITERS:
            raise BackpressureError(
                f"agent {self._agent_id!r} already has {self._waiters} waiting calls; wait less or watch fewer times",
                details={"agent_id": self._agent_id, "waiters": self._waiters},
            )
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1

    # --- life --------------------------------------------------------------------------------------------------

    async def activate(self) -> dict[str, Any]:
        """Be live: own the agent, recover it. Returns `status`."""
        await self._boot
        await self._engine().activate()
        return self._engine().status()

    async def create(self, request: NewAgentRequest) -> dict[str, Any]:
        """Store a new agent of this id, then be live; the same request again is one creation, also after a crash.

        Raises `AgentAlreadyExistsError`.
        """
        await self._boot
        engine = self._engine()
        store = engine.store
        new = new_agent(
            self._agent_id,
            engine.definition,
            context=request.context,
            knowledge=request.knowledge,
            metadata=request.metadata,
            now=SystemClock().now(),
            request_id=request.request_id,
        )
        try:
            await store.run(store.store.create_agent, new)
        except CommitOutcomeUnknownError:
            if not request.request_id:
                raise
            await store.run(store.store.create_agent, new)  # creating the same again tells
        await engine.activate()
        return engine.status()

    async def status(self) -> dict[str, Any]:
        """What the agent is doing, from memory; never reads the store."""
        return self._engine().status()

    async def metrics(self) -> dict[str, Any]:
        """How late the agent's event loop was, and how much waits on it."""
        return {
            "pid": os.getpid(),
            "loop_lag": self._watchdog.to_wire(),
            "waiting_calls": self._waiters,
            "tasks": len(asyncio.all_tasks()),
            "tools_on_loop": self._tools.cooperative if self._tools is not None else 0,
        }

    async def unload(self) -> dict[str, Any]:
        """Free this process and keep everything. Raises `AgentBusyError` while work runs."""
        engine = self._engine()
        await engine.seal()
        asyncio.get_running_loop().call_later(UNLOAD_LINGER_S, self._exit)
        return {"agent_id": self._agent_id, "unloaded": True}

    async def add_knowledge(self, knowledge: Any, edit_id: str | None = None) -> dict[str, int]:
        """Add knowledge to the idle agent; see `EditableAgent.edit`, also for the methods that follow."""
        return await self._engine().edit(EditKind.ADD_KNOWLEDGE, knowledge=knowledge, edit_id=edit_id)

    async def clear_transcript(self, edit_id: str | None = None) -> dict[str, int]:
        """Let the model see no earlier message any more."""
        return await self._engine().edit(EditKind.CLEAR_TRANSCRIPT, edit_id=edit_id)

    async def clear_knowledge(self, edit_id: str | None = None) -> dict[str, int]:
        """Let the model see no earlier knowledge any more."""
        return await self._engine().edit(EditKind.CLEAR_KNOWLEDGE, edit_id=edit_id)

    async def reset_context(self, edit_id: str | None = None) -> dict[str, int]:
        """`clear_transcript` and `clear_knowledge` in one."""
        return await self._engine().edit(EditKind.RESET_CONTEXT, edit_id=edit_id)

    async def close(self, edit_id: str | None = None) -> dict[str, int]:
        """Take no more work, for ever."""
        return await self._engine().edit(EditKind.CLOSE, edit_id=edit_id)

    async def purge(self, created_at: str | None = None) -> bool:
        """Delete the idle agent and everything that belongs to it, and free this process; whether it was there. With `created_at`
        (ISO 8601), an agent that was created at another time is left alone.
        """
        try:
            meant = datetime.fromisoformat(created_at) if created_at is not None else None
        except ValueError:
            raise InvalidInputError(f"created_at must be an ISO 8601 time, not {created_at!r}") from None
        engine = self._engine()
        was_there = await engine.purge(meant)
        if not engine.is_active:
            asyncio.get_running_loop().call_later(UNLOAD_LINGER_S, self._exit)
        return was_there

    # --- executions --------------------------------------------------------------------------------------------

    async def start(
        self,
        execution_id: str,
        input: Any,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        on_busy: str | None = None,
    ) -> dict[str, Any]:
        """Admit an execution, or let it wait, and return at once; see `AgentEngine.start`."""
        result = await self._engine().start(
            execution_id,
            input,
            durable_context=durable_context,
            stream=stream,
            on_busy=busy_rule(on_busy),
        )
        return result.to_wire()

    async def invoke(
        self,
        input: Any,
        execution_id: str | None = None,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        wait_s: float = MAX_WAIT_S,
        on_busy: str | None = None,
    ) -> dict[str, Any]:
        """Start, and wait up to `wait_s` seconds for the end or a suspension; else the execution as it is then."""
        execution = execution_id or new_execution_id()
        engine = self._engine()
        await engine.start(
            execution,
            input,
            durable_context=durable_context,
            stream=stream,
            on_busy=busy_rule(on_busy),
        )
        with self._waiting():
            result = await engine.wait(execution, until="suspended", timeout_s=min(wait_s, MAX_WAIT_S))
        return (result or await engine.view(execution)).to_wire()

    async def result(
        self, execution_id: str, until: str = "terminal", wait_s: float = MAX_WAIT_S
    ) -> dict[str, Any] | None:
        """The result, or ``None`` when it is not there after `wait_s` seconds (at most 30): ask again."""
        with self._waiting():
            result = await self._engine().wait(execution_id, until=until, timeout_s=min(wait_s, MAX_WAIT_S))
        return result.to_wire() if result is not None else None

    async def resume(self, execution_id: str) -> dict[str, Any]:
        """The execution as it is; activation has already continued whatever could be continued."""
        return (await self._engine().view(execution_id)).to_wire()

    async def events(
        self, execution_id: str, after: int = 0, cursor: str | None = None, wait_s: float = 10.0
    ) -> dict[str, Any]:
        """Events behind `cursor` or the durable seq `after`: ``{"events", "cursor", "ended"}``; waits for the first."""
        engine = self._engine()
        with self._waiting():
            events, cursor = await engine.events(
                execution_id, after=after, cursor=cursor, timeout_s=min(wait_s, MAX_WAIT_S)
            )
        ended = any(event.is_terminal for event in events) or not (events or engine.runs(execution_id))
        return {"events": [event.to_wire() for event in events], "cursor": cursor, "ended": ended}

    async def approve(
        self,
        execution_id: str,
        approval_request_id: str,
        approved: bool = True,
        decided_by: str | None = None,
        reason: str | None = None,
        edited_arguments: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Answer one approval request; the same answer again is harmless and gives the decision in force."""
        decision = Decide(execution_id, approval_request_id, approved, decided_by, reason, edited_arguments)
        return (await self._engine().decide(decision)).to_wire()

    async def resolve(
        self,
        execution_id: str,
        tool_call_id: str,
        outcome: str,
        result: Any = None,
        error: str = "",
        expected_revision: int | None = None,
        decided_by: str | None = None,
        expected_attempt: int | None = None,
    ) -> dict[str, Any]:
        """Say what became of a call whose outcome is unknown: ``succeeded``, ``failed`` or ``not_performed``."""
        word = Resolve(
            execution_id,
            tool_call_id,
            Resolution.of(outcome),
            result,
            "",
            error,
            expected_revision,
            decided_by,
            expected_attempt,
        )
        return (await self._engine().resolve(word)).to_wire()

    async def cancel(self, execution_id: str, reason: str = "cancelled") -> dict[str, Any]:
        """Cancel: the intent is durable when this returns, the end follows when nothing of it runs any more."""
        return (await self._engine().cancel(execution_id, reason)).to_wire()

    async def transcript(self, after: int = 0, limit: int = 500) -> list[dict[str, Any]]:
        """Journal records behind position `after`, as JSON."""
        engine = self._engine()
        await engine.activate()
        records = await engine.store.run(
            engine.store.store.read_journal, self._agent_id, after=after, limit=limit
        )
        return [record_wire(record) for record in records]

    async def is_cancelled(self, execution_id: str) -> bool:
        """Whether tool bodies of this execution should stop (asked by the tasks that run them)."""
        return self._engine().is_cancelled(execution_id)


def _model_port(model: Any, wiring: AgentWiring) -> ModelPort:
    """The gateways for a model name; a port object in the definition is called in this process."""
    if not isinstance(model, str):
        return cast("ModelPort", model)
    from phronomy_ray.actors.gateway_client import GatewayModel

    return GatewayModel(namespace=wiring.namespace, gateways=wiring.gateways)


def record_wire(record: JournalRecord) -> dict[str, Any]:
    """A journal record as JSON."""
    return {
        "position": record.position,
        "kind": record.kind.value,
        "channel": record.channel.value,
        "occurred_at": record.occurred_at.isoformat(),
        "execution_id": record.execution_id,
        "model_call_id": record.model_call_id,
        "role": record.role,
        "content": record.content,
        "causation_id": record.causation_id,
        "metadata": record.metadata,
    }
