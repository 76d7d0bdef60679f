"""Holds on finished work, as values: who needs what is stored of an agent, so that nobody deletes it meanwhile.

The owner key and the rule that only its owner releases a hold follow Phronomy's retentions (4.6 of its contract); unlike there, a
hold never keeps a process: it blocks deletion, not unloading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from phronomy_ray.errors import InvalidInputError

#: Key of an agent's metadata that says whose child it is (``agent_id``, ``execution_id``, ``tool_call_id``, ``lineage``).
PARENT_KEY = "phronomy_parent"


@dataclass(frozen=True, slots=True)
class Retention:
    """One hold."""

    #: Who holds, in its own words; whoever knows it can release the hold.
    owner_key: str
    agent_id: str
    #: The execution that is held; ``None`` for all that the agent has.
    execution_id: str | None
    created_at: datetime

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "owner_key": self.owner_key,
            "agent_id": self.agent_id,
            "execution_id": self.execution_id,
            "created_at": self.created_at.isoformat(),
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Retention:
        """The inverse of `to_wire`."""
        return cls(**(wire | {"created_at": datetime.fromisoformat(wire["created_at"])}))


@dataclass(frozen=True, slots=True)
class CollectedContents:
    """What one step of a collection has found and done; with ``dry_run`` what it would have done."""

    #: Contents that were looked at.
    looked_at: int
    #: Those that nothing refers to: they are deleted by a later step, unless somebody refers to them by then.
    condemned: int
    #: Condemned ones that somebody refers to after all.
    restored: int
    #: Condemned ones that were deleted.
    deleted: int
    #: Where the next step begins; empty when all were looked at.
    next: str = ""


class Collectable(StrEnum):
    """What goes by its age."""

    #: Durable events of executions that have ended; the executions stay.
    EVENTS = "events"
    #: Executions that have ended, with their ledger, approvals and events; the journal stays.
    EXECUTIONS = "executions"
    #: Closed agents, with everything that belongs to them.
    CLOSED_AGENTS = "closed_agents"


@dataclass(frozen=True, slots=True)
class CollectedRows:
    """What one step of a collection has found and done; with ``dry_run`` what it would have done."""

    #: Executions or agents that were looked at.
    looked_at: int
    #: Events, executions or agents that were deleted.
    deleted: int
    #: Where the next step begins; empty when all were looked at.
    next: str = ""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long things are kept; ``None`` keeps them for ever."""

    #: Durable events, after the end of their execution.
    events: timedelta | None = None
    #: Executions, after their end.
    executions: timedelta | None = None
    #: Closed agents, after they were last used.
    closed_agents: timedelta | None = None
    #: Contents, after they were found to have no reference; at least two hours.
    contents: timedelta | None = timedelta(days=1)

    def __post_init__(self) -> None:
        for name in ("events", "executions", "closed_agents", "contents"):
            age: object = getattr(self, name)
            if age is not None and not (isinstance(age, timedelta) and age >= timedelta(0)):
                raise InvalidInputError(f"{name} must be an age of 0 or more, not {age!r}")

    @classmethod
    def keep_for(cls, age: timedelta) -> RetentionPolicy:
        """One age for everything but contents."""
        return cls(events=age, executions=age, closed_agents=age)


@dataclass(slots=True)
class Collected:
    """What a collection has done so far; with ``dry_run`` what it would have done."""

    dry_run: bool = False
    rows: dict[Collectable, int] = field(default_factory=dict)
    #: Contents that were condemned, brought back, and deleted.
    condemned: int = 0
    restored: int = 0
    contents: int = 0
    #: Whether everything was looked at.
    is_whole: bool = False

    @property
    def summary(self) -> str:
        """For people."""
        parts = [f"{self.rows.get(kind, 0)} {kind.value.replace('_', ' ')}" for kind in Collectable]
        return (
            f"{', '.join(parts)}, {self.contents} contents ({self.condemned} more are without reference now)"
        )

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "dry_run": self.dry_run,
            **{kind.value: self.rows.get(kind, 0) for kind in Collectable},
            "contents": self.contents,
            "contents_condemned": self.condemned,
            "contents_restored": self.restored,
            "is_whole": self.is_whole,
        }


__all__ = [
    "PARENT_KEY",
    "Collectable",
    "Collected",
    "CollectedContents",
    "CollectedRows",
    "Retention",
    "RetentionPolicy",
]
