"""The hops of one turn with one blocking tool, without a kernel: what the dedicated path is compared with.

The same commits of the same rows (recorded from a real turn on a store of the same content), the same two model requests
to the same kind of gateway, one tool task, one call from the driver.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from phronomy_ray.clock import SystemClock
from phronomy_ray.commits import Commit, NewAgent
from phronomy_ray.engine.creation import new_agent
from phronomy_ray.engine.engine import AgentEngine, EngineParts
from phronomy_ray.ids import new_execution_id
from phronomy_ray.models.port import ModelAnswer, ModelRequest
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.tools.local_executor import LocalToolExecutor
from support.batch_agents import GatewayBatchAgent
from support.batch_scripts import BatchModel, Work

AGENT_ID = "skeleton"


class Recording:
    """What real turns commit and ask."""

    def __init__(self, work: Work, turns: int) -> None:
        #: Commits of each turn, in order.
        self.commits: list[list[Commit]] = []
        #: Model requests of each turn, in order.
        self.requests: list[list[ModelRequest]] = []
        self.agent: NewAgent = new_agent(AGENT_ID, GatewayBatchAgent.definition(), now=SystemClock().now())
        with tempfile.TemporaryDirectory(prefix="phronomy-skeleton-") as folder:
            store: Any = open_store(f"sqlite:///{Path(folder) / 'store.db'}", create=True)
            store.create_agent(self.agent)
            asyncio.run(self._record(store, work, turns))

    async def _record(self, store: Any, work: Work, turns: int) -> None:
        execute = store.execute

        def recorded(commit: Commit) -> None:
            execute(commit)
            self.commits[-1].append(commit)

        store.execute = recorded
        model = _RecordingModel(self.requests)
        parts = EngineParts(store, model, LocalToolExecutor())
        engine = AgentEngine(AGENT_ID, GatewayBatchAgent.definition(), parts)
        for _ in range(turns):
            self.commits.append([])
            self.requests.append([])
            execution = new_execution_id()
            await engine.start(execution, work.message())
            await engine.wait(execution, until="terminal", timeout_s=60)
        await engine.seal()


class _RecordingModel(BatchModel):
    def __init__(self, requests: list[list[ModelRequest]]) -> None:
        self._requests = requests

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        self._requests[-1].append(request)
        return await super().complete(request)


class SkeletonActor:
    """The hops, in an async actor with one store thread."""

    def __init__(self, store_url: str, agent: NewAgent, gateway: Any) -> None:
        import ray

        self._gateway = gateway
        self._store = open_store(store_url)
        self._store.create_agent(agent)
        self._store.claim(AGENT_ID, owner={}, now=SystemClock().now())
        self._threads = ThreadPoolExecutor(1)
        self._task: Any = ray.remote(num_cpus=0, max_retries=0)(_touch)

    async def ready(self) -> bool:
        """Whether it is up."""
        return True

    async def turn(self, commits: Sequence[Commit], requests: Sequence[ModelRequest]) -> str:
        """admit, model, batch, tool, results, model, terminal."""
        admit, batch, results, terminal = commits
        await self._commit(admit)
        await self._gateway.complete.remote(requests[0], requests[0].call_id)
        await self._commit(batch)
        result: str = await self._task.remote(0)
        await self._commit(results)
        await self._gateway.complete.remote(requests[1], requests[1].call_id)
        await self._commit(terminal)
        return result

    async def _commit(self, commit: Commit) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._store.execute, commit)


def _touch(n: int) -> str:
    return str(n)
