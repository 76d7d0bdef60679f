"""Why an agent was taken out of service, as a value; and the error that its callers get.

An agent is parked when its starts make no progress: going on would crash the next process too. Nothing of it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from phronomy_ray.errors import AgentParkedError


@dataclass(frozen=True, slots=True)
class ParkReason:
    """What is known about the failed starts."""

    #: For programs: ``no_progress``, or what whoever parked it says.
    code: str
    #: For people.
    message: str
    at: datetime
    #: How many owners in a row committed nothing that counts.
    starts: int = 0
    #: What they were to go on with; empty when only requests waited.
    execution_id: str = ""
    phase: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "code": self.code,
            "message": self.message,
            "at": self.at.isoformat(),
            "starts": self.starts,
            "execution_id": self.execution_id,
            "phase": self.phase,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ParkReason:
        """The inverse of `to_wire`."""
        return cls(**(wire | {"at": datetime.fromisoformat(wire["at"])}))


def parked_error(agent_id: str, reason: ParkReason | None) -> AgentParkedError:
    """The refusal that says why, and how the agent gets back into service."""
    why = f"{reason.message} (since {reason.at.isoformat()})" if reason is not None else "no reason is kept"
    return AgentParkedError(
        f"agent {agent_id!r} is parked: {why}; when the cause is gone: phronomy unpark {agent_id}",
        details={"agent_id": agent_id, "reason": reason.to_wire() if reason is not None else None},
    )


__all__ = ["ParkReason", "parked_error"]
