"""Stored work that needs a process, as a supervisor sees it: plain values that the store reads in pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class WorkKind(StrEnum):
    """Why an agent needs a process."""

    #: Its execution goes on by itself: it is preparing or active.
    RUNNING = "running"
    #: Requests wait and no execution is open.
    QUEUED = "queued"
    #: It waits for a human, and the time of a request is over.
    EXPIRED = "expired"
    #: Somebody wishes its execution to end, and no owner has taken that up: whoever wished it could not tell.
    WISHED = "wished"
    #: The time that its execution's caller has given it is over, whatever it does or waits for.
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class OpenWork:
    """One agent's work."""

    kind: WorkKind
    agent_id: str
    #: Since when it is to be done: start of the execution, oldest request, expiry, wish, deadline.
    since: datetime
    #: Id that is unique among work of this kind: of the execution, the agent, or the approval request.
    key: str
    #: The agent's ownership epoch and revision: as long as they move, somebody works.
    epoch: int
    revision: int
    #: Cluster (and namespace) of the last owner, empty when it had none.
    cluster: str = ""
    #: Process of the last owner, by the name of its actor; empty when it had none.
    process: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorBeat:
    """A cluster whose supervisor looks after agents of this store; as long as `beats` grows it is there."""

    cluster: str
    beats: int
    info: dict[str, Any] = field(default_factory=dict)
    updated_at: datetime | None = None


__all__ = ["OpenWork", "SupervisorBeat", "WorkKind"]
