"""`AgentLife`: one agent in whatever process it lives, from its start to its leaving. `AgentService` adds what others call.

Every start takes a new ownership epoch and recovers before it admits anything. What differs between processes is behind
`AgentProcess`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from phronomy_ray.engine.engine import AgentEngine, EngineParts
from phronomy_ray.errors import AgentBusyError, BackpressureError
from phronomy_ray.hosting.agent_process import AgentProcess
from phronomy_ray.hosting.environment import environment_of
from phronomy_ray.hosting.idle_unload import IdleUnload
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.tool_environment import ChildAgents
from phronomy_ray.tools.executor import ToolExecutor

#: Calls that may wait at one agent at once.
MAX_WAITERS = 500


class AgentLife:
    """One agent in this process: who owns it, what it needs, when it may leave. Use it on one event loop."""

    def __init__(self, agent_id: str, wiring: AgentWiring, process: AgentProcess) -> None:
        self.agent_id = agent_id
        self.wiring = wiring
        self._process = process
        self._waiters = 0
        self._engine_made: AgentEngine | None = None
        self._tools: ToolExecutor | None = None
        self._children: ChildAgents | None = None
        self._idle = IdleUnload(wiring.unload, asyncio.get_running_loop().time)

    # --- for the process ---------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether it owns the agent and serves it."""
        return self._engine_made is not None and self._engine_made.is_active

    @property
    def epoch(self) -> int | None:
        """Under which epoch it serves the agent; ``None`` when it does not."""
        engine = self._engine_made
        return engine.state.root.epoch if engine is not None and engine.is_active else None

    @property
    def is_lost(self) -> bool:
        """Whether it serves nobody any more: it was unloaded, or another owner has taken the agent."""
        return self._engine_made is not None and self._engine_made.is_over

    @property
    def waiters(self) -> int:
        """Calls that wait here."""
        return self._waiters

    @property
    def bodies_on_loop(self) -> int:
        """Tool bodies that run on the event loop."""
        return self._tools.on_loop if self._tools is not None else 0

    @property
    def used_at(self) -> float:
        """When the agent was last needed, in seconds of the loop's clock."""
        return self._idle.used_at

    def holds_call(self, tool_call_id: str) -> bool:
        """Whether it runs this tool call."""
        engine = self._engine_made
        running = engine.state.execution if engine is not None and engine.is_active else None
        return running is not None and any(call.row.tool_call_id == tool_call_id for call in running.batch)

    def looks_unused(self) -> bool:
        """Whether nobody has needed it for so long that it may leave by itself; call it now and then (see `IdleUnload`).

        An agent that could not be woken as it is never may.
        """
        engine = self._engine_made
        if engine is None or not engine.is_active or not self.can_be_woken:
            return False
        running = engine.state.execution
        is_needed = bool(self._waiters or self._waits_for_time(engine) or self.bodies_on_loop)
        return self._idle.is_due(running.row.status if running else None, is_needed=is_needed)

    @property
    def may_leave(self) -> bool:
        """Whether nothing runs or waits here and the agent can be woken as it is, whenever it was needed last."""
        engine = self._engine_made
        if engine is None or not engine.is_active or not self.can_be_woken:
            return False
        running = engine.state.execution
        is_needed = bool(self._waiters or self._waits_for_time(engine) or self.bodies_on_loop)
        return not is_needed and (running is None or running.row.status is ExecutionStatus.SUSPENDED)

    @property
    def can_be_woken(self) -> bool:
        """Whether the agent, once it has left, can be woken as it is: from its class's name, without instance options."""
        engine = self._engine_made
        return engine is not None and bool(engine.definition.class_path) and not self.wiring.options.names()

    def _waits_for_time(self, engine: AgentEngine) -> bool:
        """Whether something of a waiting agent happens by itself here and nowhere else: expiries are also the supervisor's."""
        return engine.waits_for_time and not (self.wiring.supervised and engine.state.execution is not None)

    async def leave(self) -> bool:
        """Unload the agent unless it works; whether it has left."""
        if self._engine_made is not None:
            try:
                await self._engine_made.seal()
            except AgentBusyError:  # somebody has just come
                return False
        return True

    def begin_retiring(self) -> None:
        """Begin nothing any more; see `retire`."""
        if self._engine_made is not None:
            self._engine_made.begin_retiring()

    async def retire(self, timeout_s: float | None = None) -> bool:
        """Leave as soon as nothing of the agent runs; whether it has within `timeout_s` seconds (``None``: however long it takes).

        What waits for its turn is left to the next owner; meanwhile nothing is begun any more.
        """
        if self._engine_made is not None and not await self._engine_made.retire(timeout_s):
            return False
        self._process.left(self)
        return True

    def abandon(self) -> None:
        """Release what is left here of an agent that another owner has taken."""
        if self._engine_made is not None:
            self._engine_made.abandon()

    async def start_up(self) -> None:
        """Own the agent, recover it, and end children that an earlier owner has left behind. Raises as `activate`."""
        if self.is_active:
            await self._engine().take_up_wish()
            return
        await self._engine().activate()
        if self._children is not None:
            self._children.reap()

    def _engine(self) -> AgentEngine:
        self._idle.used()
        if self._engine_made is None:
            wiring, process = self.wiring, self._process
            definition = wiring.definition.load().definition()
            store = process.store(wiring.store)
            environment = environment_of(
                self.agent_id,
                wiring,
                store.store,
                directory=process.directory(wiring),
                embeddings=lambda: process.embeddings(wiring),
                engine=self._engine,
            )
            self._children = environment.children
            self._tools = process.tools(self.agent_id, wiring, definition, environment)
            self._engine_made = AgentEngine(
                self.agent_id,
                definition,
                EngineParts(
                    store=store,
                    model=process.model(wiring) if isinstance(definition.model, str) else definition.model,
                    tools=self._tools,
                    owner=dict(process.owner),
                    on_ownership_lost=lambda: process.lost(self),
                    fault_directory=wiring.fault_directory,
                    registry=wiring.definition.registry,
                    options=wiring.options,
                    defaults=wiring.defaults,
                ),
            )
        return self._engine_made

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        here = self._process.waiters
        if self._waiters >= MAX_WAITERS or here.count >= here.limit:
            raise BackpressureError(
                f"agent {self.agent_id!r} already has {self._waiters} waiting calls, its process {here.count}; wait less or "
                "watch fewer times",
                details={"agent_id": self.agent_id, "waiters": self._waiters, "in_process": here.count},
            )
        self._waiters += 1
        here.count += 1
        try:
            yield
        finally:
            self._waiters -= 1
            here.count -= 1
