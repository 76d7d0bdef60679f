"""What those who run a cluster do with a runtime: moving agents, emptying hosts and nodes, shutting down, looking at numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from phronomy_ray.clock import utc_now
from phronomy_ray.errors import RuntimeShutdownError
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.hosting.shutdown import Shutdown, ShutdownResult
from phronomy_ray.journal import AgentRoot
from phronomy_ray.retention import Collected, RetentionPolicy
from phronomy_ray.runtime.bridge import Bridge, blocking
from phronomy_ray.runtime.homes import Home
from phronomy_ray.runtime.hosts import HostReport, NodeReport, check_host, move
from phronomy_ray.runtime.parked import parked_agents
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.collecting import collect_on_thread
from phronomy_ray.worker_inputs import WorkerInputRestricted


class Administration(WorkerInputRestricted):
    """The part of a `Runtime` that is about all agents and their places."""

    def __init__(self, store: Store, home: Home) -> None:
        self.store = store
        self._home = home
        self._bridge = Bridge()
        self._shutdown = Shutdown()
        home.take_part(self._shutdown)

    def _agent_client(self, agent_id: str) -> AgentClient:
        """Calls of one agent."""
        raise NotImplementedError

    async def shutdown_async(self, *, drain: float = 30.0) -> ShutdownResult:
        """Shut down all agents of the namespace, not only this driver's side: admission is closed, what runs may end.

        Every participant closes admission before anybody is waited for. Idle agents, and those that wait for a human, leave at
        once; requests that wait for their turn are left to a later runtime, like executions that have not ended after `drain`
        seconds. Pools, gateways and hosts end when all agents have left. Later calls of this runtime are refused
        (`RuntimeShutdownError`), `get` and what is read from the store still work, and `close` is still to be called. Shutting
        down again gives the same result. Other drivers that go on wake agents again: stop them first.

        Returns what still worked at the end of the time, and what went wrong.
        """
        if (known := self._shutdown.result) is not None:
            return known
        # on the runtime's own loop: the caller's may end before, and another thread may ask as well
        return await asyncio.wrap_future(self._bridge.submit(self._shutdown.run(drain)))

    shutdown = blocking(shutdown_async)

    def on_shutdown(self, hook: Callable[[], object]) -> None:
        """Have `hook`, a plain or an async function, run on the runtime's own loop after a shutdown in which everything has ended in
        time.

        Raises:
            ConfigurationError: the shutdown has begun, or it is no function.
        """
        self._shutdown.add_hook(hook)

    @property
    def is_shut_down(self) -> bool:
        """Whether this runtime begins nothing any more."""
        return self._shutdown.has_begun

    async def move_async(self, agent_id: str, place: str | None) -> None:
        """Have an agent live in a process of its own (``dedicated``), in one host (``host:<n>``), or with ``None`` wherever it
        belongs. It leaves where it is and wakes there with its next use; the store remembers.

        Raises:
            NotFoundError: it is not stored.
            AgentBusyError: it works, and stays where it is.
            InvalidInputError: there is no such place.
        """
        await move(self.store, self._agent_client(agent_id), place)

    move = blocking(move_async)

    async def drain_host_async(self, host: str, *, timeout: float = 60.0) -> HostReport:
        """Empty a host: it takes no more agents, also after a restart, and its agents leave when their work is done.

        Returns after `timeout` seconds at the latest and says what still works.

        Raises:
            NotFoundError: there is no such host.
        """
        await asyncio.to_thread(self.store.close_host, check_host(host), closed=True, now=utc_now())
        return await self._home.drain_host(host, timeout)

    drain_host = blocking(drain_host_async)

    async def drain_node_async(self, node: str, *, timeout: float = 60.0) -> NodeReport:
        """Have all agents leave a node that is about to go away: idle and suspended ones at once, others when their work is done.

        They wake elsewhere with their next use. Ray is told to schedule nothing more there.

        Args:
            node: the node's id, or the beginning of it.
            timeout: how long to wait, in seconds; agents that still work then leave when they have done.

        Raises:
            NotFoundError: there is no such node, or more than one.
        """
        return await self._home.drain_node(node, timeout)

    drain_node = blocking(drain_node_async)

    async def reopen_host_async(self, host: str) -> None:
        """Have a host take agents again. Raises as `drain_host_async`."""
        await asyncio.to_thread(self.store.close_host, check_host(host), closed=False, now=utc_now())
        await self._home.reopen_host(host)

    reopen_host = blocking(reopen_host_async)

    async def parked_agents_async(self) -> list[AgentRoot]:
        """Agents that are out of service because their starts made no progress, with the reason (`AgentRoot.parked`)."""
        return await parked_agents(self.store)

    parked_agents = blocking(parked_agents_async)

    async def supervisor_report_async(self) -> list[dict[str, Any]] | None:
        """What the supervisor sees and does, for each store that it looks after; ``None`` when there is none. Starts nothing."""
        return await self._home.supervisor_report()

    supervisor_report = blocking(supervisor_report_async)

    async def metrics_async(self) -> dict[str, Any]:
        """What pools and live agents say of themselves, as plain JSON; see the guide to pools. Wakes nothing."""
        return await self._home.metrics()

    metrics = blocking(metrics_async)

    async def collect_async(self, policy: RetentionPolicy, *, dry_run: bool = False) -> Collected:
        """Delete what `policy` does not keep, and contents that nothing refers to; what runs, waits for a human or is held stays.

        Wakes nothing; agents go on meanwhile. It goes step by step: what was done when it is cancelled stays done.
        """
        return await collect_on_thread(self.store, policy, now=utc_now(), dry_run=dry_run)

    collect = blocking(collect_async)

    def _check_open(self) -> None:
        if self.is_shut_down:
            raise RuntimeShutdownError("the runtime is shut down: nothing is begun any more")
