"""The port between a supervisor and the place where agents live: a Ray cluster, a driver, a fake."""

from __future__ import annotations

from typing import Protocol

from phronomy_ray.supervision.crowd import LiveOne
from phronomy_ray.supervision.signs import Answer


class Population(Protocol):
    """The agents of one cluster (and namespace). Use it on one event loop."""

    @property
    def cluster(self) -> str:
        """Name of the cluster: what owners that live here write into the store."""
        ...

    async def ask(self, process: str, *, timeout_s: float) -> Answer:
        """Ask the process of that name whom it serves; never raises for what became of it."""
        ...

    async def wake(self, agent_id: str) -> None:
        """Have the stored agent live somewhere, which recovers it; one that is live already is left as it is.

        Raises the error that its caller would get; `ConfigurationError` and `NotFoundError` for what another try cannot mend.
        """
        ...

    async def end(self, process: str) -> None:
        """End a process that hangs, for good; one that is gone already is as good."""
        ...

    async def crowd(self) -> list[LiveOne] | None:
        """The agents that have processes to themselves; ``None`` when there cannot be too many."""
        ...

    @property
    def max_live_agents(self) -> int | None:
        """How many of them one node may keep; ``None`` for no limit."""
        ...

    async def unload(self, agent_id: str) -> bool:
        """Free an agent's process; whether it went."""
        ...


__all__ = ["Population"]
