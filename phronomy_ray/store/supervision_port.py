"""The part of the store port that a supervisor uses: what needs a process, who looks after it, and who is out of service."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from phronomy_ray.journal import AgentRoot
from phronomy_ray.open_work import OpenWork, SupervisorBeat, WorkKind
from phronomy_ray.parking import ParkReason


class SupervisionStore(Protocol):
    """Each method is one transaction, and each read one indexed query; else as `store.port.Store`."""

    def open_work(
        self, kind: WorkKind, *, now: datetime, after: OpenWork | None = None, limit: int = 500
    ) -> list[OpenWork]:
        """Work that needs a process, oldest first (`WorkKind.QUEUED`: by agent id), parked agents left out.

        Args:
            kind: which; an agent with a running or suspended execution has no `WorkKind.QUEUED` work.
            now: with `WorkKind.EXPIRED` and `WorkKind.OVERDUE`: what is due until then.
            after: the last one of the page before.
            limit: how many at most.
        """
        ...

    def park_agent(self, agent_id: str, *, epoch: int, reason: ParkReason) -> bool:
        """Take an agent out of service; whether it was done: not when `epoch` is not the current one, or it is gone.

        Its revision moves, so that a commit that its owner is about to make is refused. Parking again keeps the first reason.
        """
        ...

    def uncount_start(self, agent_id: str, *, epoch: int) -> None:
        """Take back the start that the claim of `epoch` has counted: its owner could not begin for a reason that is no crash.

        Does nothing when another owner has taken the agent since.
        """
        ...

    def unpark_agent(self, agent_id: str, *, now: datetime, cancel_reason: str = "") -> bool:
        """Put a parked agent back into service under a new epoch, its count of starts at 0; whether it was parked.

        Args:
            agent_id: the agent.
            now: the moment.
            cancel_reason: with one, its non-terminal execution gets the intent to cancel in the same transaction, so that
                the next owner ends it instead of going on.

        Raises `NotFoundError`.
        """
        ...

    def parked_agents(self, *, limit: int = 100, after: str = "") -> list[AgentRoot]:
        """Agents that are out of service, by agent id, ids greater than `after`."""
        ...

    def beat(self, cluster: str, *, info: dict[str, Any], now: datetime) -> list[SupervisorBeat]:
        """Count one more sign of life of the supervisor of `cluster`, and read those of all."""
        ...

    def forget_cluster(self, cluster: str, *, beats: int) -> bool:
        """Delete the row of a cluster that is gone, unless it has beaten since; whether it was deleted."""
        ...


__all__ = ["SupervisionStore"]
