"""Where a runtime's agents live: on a Ray cluster, or in the driver's own process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from phronomy_ray.clock import SystemClock
from phronomy_ray.definition.placement import InProcess
from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import NotFoundError
from phronomy_ray.hosting.agent_port import AgentDirectory
from phronomy_ray.hosting.host import AgentHost
from phronomy_ray.hosting.in_process import InProcessDirectory, LocalProcess
from phronomy_ray.hosting.shutdown import Shutdown
from phronomy_ray.hosting.wiring import AgentWiring, StoreConfig
from phronomy_ray.runtime.bridge import Bridge
from phronomy_ray.runtime.config import RuntimeConfig
from phronomy_ray.runtime.hosts import HostReport, NodeReport
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.supervision.local_population import LocalPopulation
from phronomy_ray.supervision.supervisor import Supervisor, deliverer_for
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: How long a driver that leaves waits for agents in its process to leave, in seconds; those that work go on from the store.
LEAVE_S = 1.0


class Home(Protocol):
    """What a runtime needs of the place where its agents live."""

    @property
    def directory(self) -> AgentDirectory:
        """How agents are found and woken."""
        ...

    @property
    def pickles(self) -> Callable[[Any], bytes] | None:
        """How what travels to agents by value is pickled; ``None`` where nothing travels."""
        ...

    def embeddings(self) -> EmbeddingPort:
        """The way to embeddings."""
        ...

    async def metrics(self) -> dict[str, Any]:
        """What pools, hosts and live agents say of themselves."""
        ...

    async def supervise(self, like: AgentWiring, limits: SupervisionLimits) -> None:
        """Have the agents of this runtime's store looked after; `like` is how they are started, but for their class, `limits` are
        for a supervisor that is started now.

        Raises what the place raises when that cannot be had.
        """
        ...

    async def supervisor_report(self) -> list[dict[str, Any]] | None:
        """What the supervisor sees and does, for each store; ``None`` when there is none."""
        ...

    def take_part(self, shutdown: Shutdown) -> None:
        """Register what has to be shut down here."""
        ...

    async def drain_node(self, node: str, timeout_s: float) -> NodeReport:
        """Have all agents leave a node. Raises `NotFoundError`."""
        ...

    async def drain_host(self, host: str, timeout_s: float) -> HostReport:
        """Empty a host that is closed in the store already. Raises `NotFoundError`."""
        ...

    async def reopen_host(self, host: str) -> None:
        """Tell a host that it may take agents again. Raises `NotFoundError`."""
        ...

    def close(self) -> None:
        """Leave. Idempotent."""
        ...


def open_home(config: RuntimeConfig, store: Store) -> Home:
    """The home that the placement wants. Raises `ConfigurationError` when there is no way to it."""
    if isinstance(config.placement, InProcess):
        return LocalHome(config.placement)
    from phronomy_ray.runtime.ray_home import RayHome

    return RayHome(config, store)


class LocalHome(WorkerInputRestricted):
    """Agents on an event loop in a thread of this process."""

    def __init__(self, placement: InProcess) -> None:
        self._bridge = Bridge("phronomy-agents")
        self._process = LocalProcess(placement, _open_store)
        self.directory = InProcessDirectory(self._process, self._bridge.loop)
        self.pickles = None
        self._is_open = True
        self._supervisor: Supervisor | None = None
        self._bridge.loop.call_soon_threadsafe(self._process.start)

    def embeddings(self) -> EmbeddingPort:
        """As `Home.embeddings`."""
        from phronomy_ray.models.litellm_embeddings import LitellmEmbeddingPort

        return LitellmEmbeddingPort()

    async def metrics(self) -> dict[str, Any]:
        """As `Home.metrics`."""
        host = self._process.host
        return {"pools": {}, "agents": {}, "hosts": {host.name: host.status()}}

    async def supervise(self, like: AgentWiring, limits: SupervisionLimits) -> None:
        """As `Home.supervise`: on the agents' own loop."""
        await self.directory.run(self._supervise(like, limits))

    async def _supervise(self, like: AgentWiring, limits: SupervisionLimits) -> None:
        if self._supervisor is not None or not self._is_open:
            return
        store = self._process.store(like.store)
        owner = self._process.owner
        population = LocalPopulation(self._process.host, owner["cluster"], like, store.store)
        info = {"namespace": "", **{name: owner[name] for name in ("node", "pid", "host")}}
        client = StoreClient(store)
        self._supervisor = Supervisor(
            client,
            population,
            clock=SystemClock(),
            limits=limits,
            info=info,
            deliverer=deliverer_for(client, limits, info),
        )
        self._supervisor.start()

    async def supervisor_report(self) -> list[dict[str, Any]] | None:
        """As `Home.supervisor_report`."""
        if self._supervisor is None:
            return None
        return [await self.directory.run(self._supervisor.report())]

    def take_part(self, shutdown: Shutdown) -> None:
        """As `Home.take_part`."""
        shutdown.register("agents", LocalAgents(self.directory, self._process.host))

    async def drain_node(self, node: str, timeout_s: float) -> NodeReport:
        """As `Home.drain_node`: there is none."""
        raise _no_host(node)

    async def drain_host(self, host: str, timeout_s: float) -> HostReport:
        """As `Home.drain_host`: there is none."""
        raise _no_host(host)

    async def reopen_host(self, host: str) -> None:
        """As `Home.reopen_host`: there is none."""
        raise _no_host(host)

    def close(self) -> None:
        """As `Home.close`: idle and suspended agents leave, what works goes on with the next owner."""
        if not self._is_open:
            return
        self._is_open = False
        self._bridge.run(self._leave())
        self._bridge.close()

    async def _leave(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.close()  # it would wake what leaves
        await self._process.host.drain(LEAVE_S)
        if supervisor is not None:
            await supervisor.say_goodbye()
        self._process.close()


def _no_host(host: str) -> NotFoundError:
    return NotFoundError(f"there is no {host!r}: agents of this runtime live in the driver's own process")


class LocalAgents:
    """The agents of this process, as a participant of a shutdown."""

    def __init__(self, directory: InProcessDirectory, host: AgentHost) -> None:
        self._directory = directory
        self._host = host

    async def begin_draining(self) -> None:
        """As `Participant.begin_draining`."""
        await self._directory.run(self._begin())

    async def wait_until_idle(self, remaining_s: Callable[[], float]) -> Sequence[str]:
        """As `Participant.wait_until_idle`."""
        report = await self._directory.run(self._host.drain(remaining_s()))
        return [f"agent {agent_id}" for agent_id in report.left]

    async def _begin(self) -> None:
        self._host.begin_draining()


def _open_store(config: StoreConfig, connections: int) -> Store:
    from phronomy_ray.store.sql_store import StoreOptions, open_store

    options = StoreOptions(pool_size=connections)
    return open_store(config.url, content_key=config.content_key, options=options)
