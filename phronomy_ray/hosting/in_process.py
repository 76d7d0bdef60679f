"""Agents in the driver's own process: a host on an event loop of the driver, and the way to it. No Ray."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import socket
import uuid
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tenacity import retry_if_exception_type, stop_after_delay, wait_exponential, wait_random
from tenacity.asyncio import AsyncRetrying

from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.placement import InProcess
from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.errors import AgentUnloadedError, OwnershipLostError, PhronomyError
from phronomy_ray.hosting.agent_life import AgentLife
from phronomy_ray.hosting.agent_port import WAKE_TIMEOUT_S, AgentDirectory, LiveAgent, NoAnswer
from phronomy_ray.hosting.agent_process import Waiters
from phronomy_ray.hosting.host import AgentHost, DrainReport
from phronomy_ray.hosting.loop_watchdog import LoopWatchdog
from phronomy_ray.hosting.stores import HOST_THREADS, OpenStore, ProcessStores
from phronomy_ray.hosting.wiring import AgentWiring, NewAgentRequest, StoreConfig
from phronomy_ray.models.port import ModelPort
from phronomy_ray.tool_environment import ToolEnvironment
from phronomy_ray.tools.executor import ToolExecutor
from phronomy_ray.tools.local_executor import LocalToolExecutor
from phronomy_ray.worker_inputs import WorkerInputRestricted

T = TypeVar("T")
_LOG = logging.getLogger("phronomy_ray.hosting")
#: Name of the host in a driver.
NAME = "in-process"
#: Calls that may wait at once.
MAX_WAITERS = 4_000


class LocalProcess(WorkerInputRestricted):
    """`AgentProcess` without a cluster: tools on threads, litellm in this process when a model is first called."""

    def __init__(self, placement: InProcess, open_store: OpenStore) -> None:
        self._stores = ProcessStores(open_store, threads=HOST_THREADS, connections=HOST_THREADS + 1)
        self._threads = ThreadPoolExecutor(placement.threads, thread_name_prefix="phronomy-tool")
        self._model: ModelPort | None = None
        self._embeddings: EmbeddingPort | None = None
        self.host = AgentHost(NAME, self, max_live_agents=placement.max_live_agents)
        #: Who serves child agents: whoever serves these.
        self.way: InProcessDirectory | None = None
        self.waiters = Waiters(MAX_WAITERS)
        self.owner: Mapping[str, Any] = {
            "actor": NAME,
            # nobody else can ask this process
            "cluster": f"driver:{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
            "node": "local",
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self._watchdog: LoopWatchdog | None = None

    def start(self) -> None:
        """Begin, on the loop on which the agents will live."""
        self._watchdog = LoopWatchdog(is_busy=lambda: self.host.bodies_on_loop > 0)
        self._watchdog.start()
        self.host.start()

    def close(self) -> None:
        """Release what the agents have shared; call it on their loop when they have left."""
        self.host.close()
        if self._watchdog is not None:
            self._watchdog.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stores.close()

    def store(self, config: StoreConfig) -> SharedStore:
        """As `AgentProcess.store`."""
        return self._stores.get(config)

    def model(self, wiring: AgentWiring) -> ModelPort:
        """As `AgentProcess.model`."""
        if self._model is None:
            from phronomy_ray.models.litellm_model import LitellmModel

            self._model = LitellmModel()
        return self._model

    def embeddings(self, wiring: AgentWiring) -> EmbeddingPort:
        """As `AgentProcess.embeddings`."""
        if self._embeddings is None:
            from phronomy_ray.models.litellm_embeddings import LitellmEmbeddingPort

            self._embeddings = LitellmEmbeddingPort()
        return self._embeddings

    def tools(
        self, agent_id: str, wiring: AgentWiring, definition: AgentDefinition, environment: ToolEnvironment
    ) -> ToolExecutor:
        """As `AgentProcess.tools`."""
        watchdog = self._watchdog
        return LocalToolExecutor(
            threads=self._threads,
            environment=environment,
            on_loop_work=watchdog.wake if watchdog is not None else lambda: None,
        )

    def directory(self, wiring: AgentWiring) -> AgentDirectory:
        """As `AgentProcess.directory`."""
        assert self.way is not None
        return self.way

    def left(self, agent: AgentLife) -> None:
        """As `AgentProcess.left`."""
        self.host.left(agent)

    def lost(self, agent: AgentLife) -> None:
        """As `AgentProcess.lost`."""
        self.host.lost(agent)


class InProcessDirectory(WorkerInputRestricted):
    """`AgentDirectory` for agents on a loop of this process; usable on any loop."""

    def __init__(self, process: LocalProcess, loop: asyncio.AbstractEventLoop) -> None:
        self._host = process.host
        self._loop = loop
        process.way = self

    async def find(self, agent_id: str) -> LiveAgent | None:
        """As `AgentDirectory.find`."""
        return LocalAgent(self, agent_id) if self._host.has(agent_id) else None

    async def wake(self, agent_id: str, wiring: AgentWiring) -> LiveAgent:
        """As `AgentDirectory.wake`."""
        return await self._served(agent_id, lambda: self._host.activate(agent_id, wiring))

    async def create(self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest) -> LiveAgent:
        """As `AgentDirectory.create`."""
        return await self._served(agent_id, lambda: self._host.create(agent_id, wiring, request))

    async def _served(self, agent_id: str, serve: Callable[[], Coroutine[Any, Any, Any]]) -> LiveAgent:
        """The agent once it lives here; another driver may take it, or it may leave, in the same moment."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type((OwnershipLostError, AgentUnloadedError)),
            stop=stop_after_delay(WAKE_TIMEOUT_S),
            wait=wait_exponential(multiplier=0.01, max=1.0) + wait_random(0, 0.05),
            reraise=True,
        ):
            with attempt:
                await self.run(serve())
        return LocalAgent(self, agent_id)

    async def drain(self, timeout_s: float) -> DrainReport:
        """As `AgentHost.drain`."""
        return await self.run(self._host.drain(timeout_s))

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the agents' loop; cancelling the awaiting task cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """The same, as a future of threads."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def call(
        self, agent_id: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a method of an agent that lives here; its answer belongs to the caller. Raises as `AgentHost.call`."""
        return copy.deepcopy(await self.run(self._host.call(agent_id, method, args, kwargs)))


class LocalAgent(WorkerInputRestricted):
    """`LiveAgent` in this process."""

    def __init__(self, directory: InProcessDirectory, agent_id: str) -> None:
        self._directory = directory
        self._agent_id = agent_id

    async def ask(self, method: str, *args: Any, timeout_s: float) -> Any | NoAnswer:
        """As `LiveAgent.ask`."""
        try:
            return await asyncio.wait_for(self._directory.call(self._agent_id, method, args), timeout_s)
        except (AgentUnloadedError, OwnershipLostError):
            return NoAnswer.GONE
        except TimeoutError as error:
            if isinstance(error, PhronomyError):
                raise
            return NoAnswer.SILENT

    def release(self) -> None:
        """As `LiveAgent.release`; its process is the driver's."""

    @property
    def raw(self) -> LocalHandle:
        """As `LiveAgent.raw`."""
        return LocalHandle(self._directory, self._agent_id)


class LocalHandle(WorkerInputRestricted):
    """Looks like a Ray handle: ``await handle.method.remote(...)``, or ``handle.method.remote(...).result()`` in a thread."""

    def __init__(self, directory: InProcessDirectory, agent_id: str) -> None:
        self._directory = directory
        self._agent_id = agent_id

    def __getattr__(self, method: str) -> LocalMethod:
        if method.startswith("_"):
            raise AttributeError(method)
        return LocalMethod(self._directory, self._agent_id, method)


class LocalMethod:
    """One method of an agent in this process."""

    def __init__(self, directory: InProcessDirectory, agent_id: str, method: str) -> None:
        self._directory = directory
        self._agent_id = agent_id
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> LocalCall:
        """Call it."""
        return LocalCall(
            self._directory.submit(self._directory.call(self._agent_id, self._method, args, kwargs))
        )


class LocalCall:
    """A call that was begun: await it, or ask for its `result` in a thread."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self._future).__await__()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer, at most `timeout` seconds. Raises what the method raises."""
        return self._future.result(timeout)
