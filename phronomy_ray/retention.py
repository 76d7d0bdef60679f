"""Holds on finished work, as values: who needs what is stored of an agent, so that nobody deletes it meanwhile.

The owner key and the rule that only its owner releases a hold follow Phronomy's retentions (4.6 of its contract); unlike there, a
hold never keeps a process: it blocks deletion, not unloading.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

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


__all__ = ["PARENT_KEY", "CollectedContents", "Retention"]
