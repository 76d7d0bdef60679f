"""`HostActor`: the named Ray actor in which many agents live. A shell around `AgentHost`."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import pickle
import signal
from collections import OrderedDict
from typing import Any

import ray

from phronomy_ray.actors.collector import settle_collector
from phronomy_ray.actors.ray_calls import end_this_actor
from phronomy_ray.actors.ray_metrics import HostGauges
from phronomy_ray.actors.ray_process import RayProcess, host_stores
from phronomy_ray.actors.signals import die_at_sigterm, die_with_parent
from phronomy_ray.definition.placement import Packed
from phronomy_ray.hosting.host import AgentHost
from phronomy_ray.hosting.loop_watchdog import LoopWatchdog, Offence
from phronomy_ray.hosting.memory_watch import MemoryWatch, resident_bytes
from phronomy_ray.hosting.wiring import NAMESPACE, AgentWiring, NewAgentRequest, StoreConfig

_LOG = logging.getLogger("phronomy_ray.actors")
#: Calls that may wait at all agents of one host at once; each costs some 50 KB.
MAX_WAITERS = 4_000
#: Calls that a host takes at once: room is left beside those that wait.
MAX_CONCURRENCY = 6_000
#: Wirings that are kept unpickled: drivers come and go, and each version of a class by value is one more.
MAX_WIRINGS = 256
#: For how long a host that is to end waits for its agents before it has those retire again that could not, in seconds.
RETIRE_AGAIN_S = 5.0
#: How soon it looks again whether it is empty, in seconds.
EMPTY_LOOK_S = 0.5
#: How long it stays after its last agent has left, for the answers that are on their way, in seconds.
END_LINGER_S = 1.0


class HostActor:
    """Owner of many agents."""

    def __init__(self, name: str, placement: Packed, store: StoreConfig, namespace: str = NAMESPACE) -> None:
        die_at_sigterm()
        if ray.is_initialized():
            die_with_parent()
        self._name = name
        self._gauges = HostGauges(name)
        self._memory = MemoryWatch()
        self._watchdog = LoopWatchdog(
            on_offence=self._blocked,
            on_look=self._looked,
            on_end=self._die,
            is_busy=lambda: self._host.has_bodies_on_loop,
        )
        self._process = RayProcess(
            name,
            namespace,
            max_waiters=MAX_WAITERS,
            stores=host_stores(),
            on_left=lambda agent: self._host.left(agent),
            on_lost=lambda agent: self._host.lost(agent),
            on_loop_work=self._body_begins,
        )
        self._host = AgentHost(name, self._process, max_live_agents=placement.max_live_agents)
        self._wirings: OrderedDict[bytes, AgentWiring] = OrderedDict()
        self._store = self._process.store(store).store
        #: Whether it is known if this host takes agents; and who asks, or says so.
        self._knows_admission = False
        self._admission = asyncio.Lock()
        #: Waits for the last agent to leave, once the host was drained for its node.
        self._ending: asyncio.Task[None] | None = None
        self._host.start()
        self._watchdog.start()
        settle_collector()

    async def _learn_admission(self) -> None:
        """Ask the store whether this host takes agents, once. A store that is away is asked again by whoever comes next."""
        async with self._admission:
            if not self._knows_admission:
                if await asyncio.to_thread(self._store.is_host_closed, self._name):
                    self._host.close_admission()
                self._knows_admission = True

    # --- agents ------------------------------------------------------------------------------------------------

    async def activate(self, agent_id: str, wiring: bytes) -> dict[str, Any]:
        """See `AgentHost.activate`; the wiring is pickled."""
        await self._learn_admission()
        return await self._host.activate(agent_id, self._wiring(wiring))

    async def create(self, agent_id: str, wiring: bytes, request: NewAgentRequest) -> dict[str, Any]:
        """See `AgentHost.create`; the wiring is pickled."""
        await self._learn_admission()
        return await self._host.create(agent_id, self._wiring(wiring), request)

    async def call(
        self, agent_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See `AgentHost.call`."""
        return await self._host.call(agent_id, method, args, kwargs)

    async def has(self, agent_id: str) -> bool:
        """Whether the agent lives here."""
        return self._host.has(agent_id)

    # --- the host ----------------------------------------------------------------------------------------------

    async def ping(self) -> bool:
        """Whether this process answers."""
        return True

    async def serving(self) -> dict[str, int]:
        """Whom this process serves, with their epochs: the supervisor's question whether it lives."""
        return self._host.serving()

    async def status(self) -> dict[str, Any]:
        """How many agents live here and what they do."""
        return {**self._host.status(), **self._process.owner}

    async def metrics(self) -> dict[str, Any]:
        """How late the event loop was, how much lives and waits on it, and who was busy while the process grew."""
        return {
            **self._host.status(),
            "pid": os.getpid(),
            "loop_lag": self._watchdog.to_wire(),
            "resident_bytes": resident_bytes(),
            "last_growth": self._memory.last.to_wire() if self._memory.last is not None else None,
            "tasks": len(asyncio.all_tasks()),
        }

    async def begin_draining(self) -> None:
        """See `AgentHost.begin_draining`."""
        self._host.begin_draining()

    async def drain(self, timeout_s: float) -> dict[str, Any]:
        """See `AgentHost.drain`."""
        return (await self._host.drain(timeout_s)).to_wire()

    async def drain_and_end(self, timeout_s: float) -> dict[str, Any]:
        """`drain`, and end this process for good when the last agent has left, however late: the next wake starts the host anew,
        where Ray still schedules something. `reopen` takes it back.
        """
        if self._ending is None or self._ending.done():
            self._ending = asyncio.get_running_loop().create_task(self._end_when_empty())
        return await self.drain(timeout_s)

    async def _end_when_empty(self) -> None:
        self._host.begin_draining()
        while self._host.size:
            await self._host.drain(RETIRE_AGAIN_S)
            await asyncio.sleep(EMPTY_LOOK_S)
        _LOG.info("%s ends: it was drained for its node, and its last agent has left", self._name)
        await asyncio.sleep(END_LINGER_S)
        end_this_actor()

    async def reopen(self) -> None:
        """Take agents again."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        async with self._admission:
            self._knows_admission = True
            self._host.reopen()

    # --- inside ------------------------------------------------------------------------------------------------

    def _wiring(self, data: bytes) -> AgentWiring:
        """Unpickled once for many agents: a class that travels by value is one class for all of them."""
        key = hashlib.sha256(data).digest()
        found = self._wirings.get(key)
        if found is None:
            loaded = pickle.loads(data)  # noqa: S301 - from a driver of this cluster
            assert isinstance(loaded, AgentWiring)
            found = self._wirings[key] = loaded
        self._wirings.move_to_end(key)
        if len(self._wirings) > MAX_WIRINGS:  # agents that live here keep theirs
            self._wirings.popitem(last=False)
        return found

    def _body_begins(self, agent_id: str) -> None:
        self._memory.began(agent_id)
        self._watchdog.wake()

    def _looked(self, late_s: float) -> None:
        self._gauges.looked(late_s, self._process.waiters.count, self._host.size)
        growth = self._memory.look(resident_bytes())
        if growth is not None:
            _LOG.warning(
                "%s has grown by %d MiB to %d MiB; cooperative tools that ran meanwhile, by agent: %s. One that leaks can be moved to a "
                "process of its own (phronomy move AGENT dedicated)",
                self._name,
                growth.grown_bytes >> 20,
                growth.resident_bytes >> 20,
                ", ".join(f"{agent_id} ({count})" for agent_id, count in growth.suspects) or "none",
            )

    def _blocked(self, offence: Offence) -> None:
        agent_id = self._host.agent_of_call(offence.tool_call_id)
        _LOG.warning(
            "%s: tool %r of agent %r has held the event loop of %d agents for %.2f s; make it await, declare it blocking_io or "
            "cpu_bound, or move the agent to a process of its own\n%s",
            self._name,
            offence.tool_name,
            agent_id,
            self._host.size,
            offence.blocked_s,
            offence.stack,
        )
        self._gauges.blocked(agent_id or "", offence.tool_name)

    def _die(self) -> None:
        """As in `AgentActor`."""
        _LOG.critical("%s: its event loop has ended (sys.exit in a callback?)", self._name)
        os.kill(os.getpid(), signal.SIGKILL)
