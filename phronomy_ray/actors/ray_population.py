"""The agents of one namespace, as their supervisor sees them: asks actors, wakes agents, ends what hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ray.util import list_named_actors

from phronomy_ray.actors.directory import RayDirectory
from phronomy_ray.actors.ray_calls import ask, cluster_name, find_actor, kill
from phronomy_ray.definition.placement import Dedicated
from phronomy_ray.errors import PhronomyError
from phronomy_ray.hosting.agent_port import CALL_TIMEOUT_S, STATUS_TIMEOUT_S, NoAnswer
from phronomy_ray.hosting.assignment import agent_actor_name
from phronomy_ray.hosting.waking import wiring_for
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.crowd import LiveOne
from phronomy_ray.supervision.signs import Answer, Presence
from phronomy_ray.worker_inputs import WorkerInputRestricted

_ABSENT, _SILENT = Answer(Presence.ABSENT), Answer(Presence.SILENT)


class RayPopulation(WorkerInputRestricted):
    """`Population` of one namespace and store."""

    def __init__(self, like: AgentWiring, store: Store) -> None:
        """
        Args:
            like: how agents are started, but for their class.
            store: where their classes are named.
        """
        self._like = like
        self._store = store
        self._directory = RayDirectory(like.namespace, like.placement, store)
        #: As `Population.cluster`.
        self.cluster = cluster_name(like.namespace)

    async def ask(self, process: str, *, timeout_s: float) -> Answer:
        """As `Population.ask`."""
        handle = await asyncio.to_thread(find_actor, process, self._like.namespace)
        if handle is None:
            return _ABSENT
        try:
            serves = await ask(handle, "serving", timeout_s=timeout_s)
        except PhronomyError:
            return Answer(Presence.ANSWERS)  # it lives, and serves nobody
        if serves is NoAnswer.GONE:
            return _ABSENT
        if serves is NoAnswer.SILENT:
            return _SILENT
        assert isinstance(serves, Mapping)
        return Answer(Presence.ANSWERS, serves)

    async def wake(self, agent_id: str) -> None:
        """As `Population.wake`, wherever the placement says."""
        root = await asyncio.to_thread(self._store.load_root, agent_id)
        await self._directory.wake(agent_id, wiring_for(root, self._like))

    async def end(self, process: str) -> None:
        """As `Population.end`; Ray is told not to start it again, since its agents are woken elsewhere."""
        handle = await asyncio.to_thread(find_actor, process, self._like.namespace)
        if handle is not None:
            kill(handle)

    @property
    def max_live_agents(self) -> int | None:
        """As `Population.max_live_agents`: of dedicated agents; hosts keep their own bound."""
        placement = self._like.placement
        return placement.max_live_agents if isinstance(placement, Dedicated) else None

    async def crowd(self) -> list[LiveOne] | None:
        """As `Population.crowd`."""
        limit = self.max_live_agents
        entries = await asyncio.to_thread(list_named_actors, all_namespaces=True)
        prefix = agent_actor_name("")
        names = [
            entry["name"]
            for entry in entries
            if entry["namespace"] == self._like.namespace and entry["name"].startswith(prefix)
        ]
        if limit is None or len(names) <= limit:
            return None
        found = await asyncio.gather(*(self._look_at(name, name.removeprefix(prefix)) for name in names))
        return [one for one in found if one is not None]

    async def _look_at(self, name: str, agent_id: str) -> LiveOne | None:
        handle = await asyncio.to_thread(find_actor, name, self._like.namespace)
        if handle is None:
            return None
        try:
            seen: dict[str, Any] | NoAnswer = await ask(handle, "presence", timeout_s=STATUS_TIMEOUT_S)
        except PhronomyError:
            return None
        if isinstance(seen, NoAnswer):
            return None
        return LiveOne(agent_id, seen["node"], seen["idle_s"], seen["may_leave"])

    async def unload(self, agent_id: str) -> bool:
        """As `Population.unload`. Raises `AgentBusyError` when somebody has just come."""
        live = await self._directory.find(agent_id)
        if live is None or await live.ask("unload", timeout_s=CALL_TIMEOUT_S) is NoAnswer.SILENT:
            return False
        live.release()
        return True


__all__ = ["RayPopulation"]
