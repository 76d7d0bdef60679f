"""The agents of a driver's own process, as its supervisor sees them: one host, on the same event loop."""

from __future__ import annotations

import asyncio

from phronomy_ray.hosting.host import AgentHost
from phronomy_ray.hosting.waking import wiring_for
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.crowd import LiveOne
from phronomy_ray.supervision.signs import Answer, Presence
from phronomy_ray.worker_inputs import WorkerInputRestricted


class LocalPopulation(WorkerInputRestricted):
    """`Population` of one process. Use it on the loop on which its agents live."""

    #: As `Population.max_live_agents`: the host keeps its own bound.
    max_live_agents: int | None = None

    def __init__(self, host: AgentHost, cluster: str, like: AgentWiring, store: Store) -> None:
        self._host = host
        self._like = like
        self._store = store
        #: As `Population.cluster`.
        self.cluster = cluster

    async def ask(self, process: str, *, timeout_s: float) -> Answer:
        """As `Population.ask`."""
        if process != self._host.name:
            return Answer(Presence.ABSENT)
        return Answer(Presence.ANSWERS, self._host.serving())

    async def wake(self, agent_id: str) -> None:
        """As `Population.wake`."""
        root = await asyncio.to_thread(self._store.load_root, agent_id)
        await self._host.activate(agent_id, wiring_for(root, self._like))

    async def end(self, process: str) -> None:
        """As `Population.end`; whoever asks here is not hung."""

    async def crowd(self) -> list[LiveOne] | None:
        """As `Population.crowd`."""
        return None

    async def unload(self, agent_id: str) -> bool:
        """As `Population.unload`."""
        return False


__all__ = ["LocalPopulation"]
