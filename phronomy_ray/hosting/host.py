"""`AgentHost`: many agents in one process, on one event loop. Without Ray: an actor or a driver's thread runs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from phronomy_ray.definition.placement import MAX_LIVE_AGENTS
from phronomy_ray.errors import (
    AgentUnloadedError,
    HostClosedError,
    InvalidInputError,
    PhronomyError,
)
from phronomy_ray.hosting.agent_life import AgentLife
from phronomy_ray.hosting.agent_process import AgentProcess
from phronomy_ray.hosting.agent_service import AgentService
from phronomy_ray.hosting.wiring import AgentWiring, NewAgentRequest

T = TypeVar("T")
_LOG = logging.getLogger("phronomy_ray.hosting")
#: How many agents beyond the limit are looked for at once, so that not every wake has to look.
LEAVE_AT_ONCE = 64
#: How often a host looks for agents that nobody uses, at least, in seconds.
MAX_LOOK_S = 5.0
#: Methods of an agent that a host calls for others.
METHODS = frozenset(
    name
    for name, method in vars(AgentService).items()
    if not name.startswith("_") and asyncio.iscoroutinefunction(method)
)


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What became of a host's agents."""

    #: Agents that have left.
    unloaded: int
    #: Agents that still worked when the time was over: they leave when they have done.
    left: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"unloaded": self.unloaded, "left": list(self.left)}


class AgentHost:
    """The agents of one process. Use it on one event loop."""

    def __init__(self, name: str, process: AgentProcess, *, max_live_agents: int = MAX_LIVE_AGENTS) -> None:
        self.name = name
        self._process = process
        self._max_live = max_live_agents
        self._agents: dict[str, AgentService] = {}
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Agents that leave when their work is done.
        self._retiring: dict[AgentService, asyncio.Task[bool]] = {}
        self._thinning: asyncio.Task[int] | None = None
        self._look_every_s = MAX_LOOK_S
        self._look_sooner = asyncio.Event()
        #: Woken agents that have left again by themselves, since the start.
        self._left = 0

    # --- calls -------------------------------------------------------------------------------------------------

    async def activate(self, agent_id: str, wiring: AgentWiring) -> dict[str, Any]:
        """Have the stored agent live here. Returns its `status`.

        Raises:
            HostClosedError: this host takes no more agents; ask another one.
            NotFoundError, ConfigurationError: the agent cannot be served.
        """
        service = self._service(agent_id, wiring)
        try:
            await service.start_up()
            return await service.status()
        except PhronomyError:
            self._forget_useless(service)
            raise

    async def create(self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest) -> dict[str, Any]:
        """Store a new agent and have it live here. Raises `AgentAlreadyExistsError` and as `activate`."""
        service = self._service(agent_id, wiring)
        try:
            return await service.create(request)
        except PhronomyError:
            self._forget_useless(service)
            raise

    async def call(
        self, agent_id: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a method of an agent that lives here.

        Raises:
            AgentUnloadedError: it does not.
            InvalidInputError: there is no such method; else what the method raises.
        """
        if method not in METHODS:
            raise InvalidInputError(f"agents have no method {method!r}")
        service = self._agents.get(agent_id)
        if service is None:
            raise AgentUnloadedError(
                f"agent {agent_id!r} does not live in {self.name}", details={"agent_id": agent_id}
            )
        return await getattr(service, method)(*args, **(kwargs or {}))

    def has(self, agent_id: str) -> bool:
        """Whether the agent lives here."""
        return agent_id in self._agents

    # --- what agents tell their process -------------------------------------------------------------------------

    def left(self, agent: AgentLife) -> None:
        """The agent serves nobody here any more."""
        if self._agents.get(agent.agent_id) is agent:
            del self._agents[agent.agent_id]

    def lost(self, agent: AgentLife) -> None:
        """Another owner has taken the agent: nothing of it runs here any more."""
        _LOG.warning("agent %s was taken by another owner and leaves %s", agent.agent_id, self.name)
        self.left(agent)
        asyncio.get_running_loop().call_soon(agent.abandon)  # its engine is in the middle of stopping

    def agent_of_call(self, tool_call_id: str) -> str | None:
        """Which agent runs this tool call."""
        return next(
            (name for name, service in self._agents.items() if service.holds_call(tool_call_id)), None
        )

    @property
    def bodies_on_loop(self) -> int:
        """Tool bodies that run on the loop."""
        return sum(service.bodies_on_loop for service in list(self._agents.values()))

    @property
    def has_bodies_on_loop(self) -> bool:
        """Whether any does. Cheaper to know: it is asked often."""
        return any(service.bodies_on_loop for service in list(self._agents.values()))

    @property
    def size(self) -> int:
        """Agents that live here."""
        return len(self._agents)

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look for agents that nobody uses."""
        self._spawn(self._look_now_and_then())

    def status(self) -> dict[str, Any]:
        """How many agents live here and what they do, as JSON."""
        services = list(self._agents.values())
        return {
            "host": self.name,
            "agents": len(services),
            "serving": sum(service.is_active for service in services),
            "waiting_calls": self._process.waiters.count,
            "tools_on_loop": self.bodies_on_loop,
            "unloaded": self._left,
            "closed": self._is_closed,
        }

    def serving(self) -> dict[str, int]:
        """The agents that are served here, with their epochs."""
        epochs = ((service.agent_id, service.epoch) for service in self._agents.values())
        return {agent_id: epoch for agent_id, epoch in epochs if epoch is not None}

    async def unload_unused(self) -> int:
        """Have every agent leave that nobody has needed for long enough; how many have left."""
        due = [service for service in self._agents.values() if service.looks_unused()]
        return await self._unload(due)

    def begin_draining(self) -> None:
        """Take no more agents, and begin nothing with those that are here."""
        self.close_admission()
        for service in self._agents.values():
            service.begin_retiring()

    async def drain(self, timeout_s: float) -> DrainReport:
        """Take no more agents and have all leave: idle and suspended ones at once, the others when their work is done.

        Returns after `timeout_s` seconds at the latest; those that still work then leave when they have done. Again is harmless.
        """
        self.begin_draining()
        retiring = {service.agent_id: self._retire(service) for service in list(self._agents.values())}
        if retiring:
            await asyncio.wait(retiring.values(), timeout=max(0.0, timeout_s))
        left = tuple(
            sorted(
                agent_id
                for agent_id, task in retiring.items()
                if not task.done() or self._failed(agent_id, task)
            )
        )
        self._left += len(retiring) - len(left)
        return DrainReport(len(retiring) - len(left), left)

    def close_admission(self) -> None:
        """Take no more agents."""
        self._is_closed = True

    def reopen(self) -> None:
        """Take agents again after a `drain`."""
        self._is_closed = False

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    # --- inside ------------------------------------------------------------------------------------------------

    def _service(self, agent_id: str, wiring: AgentWiring) -> AgentService:
        service = self._agents.get(agent_id)
        if service is not None and not service.is_lost:
            return service
        if self._is_closed:
            raise HostClosedError(f"{self.name} takes no more agents", details={"host": self.name})
        service = self._agents[agent_id] = AgentService(agent_id, wiring, self._process)
        every_s = wiring.unload.look_every_s or MAX_LOOK_S
        if every_s < self._look_every_s:
            self._look_every_s = every_s
            self._look_sooner.set()
        self._keep_bound(service)
        return service

    def _keep_bound(self, newest: AgentService) -> None:
        if len(self._agents) <= self._max_live or (self._thinning is not None and not self._thinning.done()):
            return
        others = [item for item in self._agents.values() if item is not newest and item.can_be_woken]
        oldest = sorted(others, key=lambda item: item.used_at)
        wanted = len(self._agents) - self._max_live + min(LEAVE_AT_ONCE, self._max_live // 16)
        self._thinning = self._spawn(self._unload(oldest[:wanted]))

    async def _unload(self, services: list[AgentService]) -> int:
        gone = 0
        for service in services:
            if await service.leave():
                self.left(service)
                gone += 1
        self._left += gone
        return gone

    def _forget_useless(self, service: AgentService) -> None:
        """One that serves nothing leaves; one that does (another class asked) stays."""
        if not service.is_active:
            self.left(service)

    def _retire(self, service: AgentService) -> asyncio.Task[bool]:
        """The agent's retirement; one that goes on already is joined."""
        running = self._retiring.get(service)
        if running is None or running.done():
            running = self._retiring[service] = self._spawn(service.retire())
            running.add_done_callback(lambda done: self._retired(service, done))
        return running

    def _retired(self, service: AgentService, done: asyncio.Task[bool]) -> None:
        if self._retiring.get(service) is done:
            del self._retiring[service]

    def _failed(self, agent_id: str, retiring: asyncio.Task[bool]) -> bool:
        """Whether an agent could not leave."""
        error = retiring.exception()
        if error is not None:
            _LOG.warning("%s: agent %s could not leave: %s", self.name, agent_id, error)
        return error is not None

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look_now_and_then(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._look_every_s):
                    await self._look_sooner.wait()
                self._look_sooner.clear()
                continue
            except TimeoutError:
                pass
            try:
                await self.unload_unused()
            except Exception:  # noqa: BLE001 - of one agent: the others are looked at again
                _LOG.exception("%s: an unused agent could not leave", self.name)
