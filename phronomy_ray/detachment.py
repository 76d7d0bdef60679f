"""Letting go of an agent that waits for a human, as values: what is handed on, and why letting go is refused.

Follows Phronomy's hosted execution (2.9 of its contract). There a host needs a claim of its own; here the detach is a commit under
the agent's ownership epoch, so whoever loads the agent next is its only owner, and an answer that is delivered twice is one answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phronomy_ray.canonical_json import check_format
from phronomy_ray.errors import AgentBusyError

WIRE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ApprovalWait:
    """A committed wait for a human's answer, which any worker may go on with."""

    agent_id: str
    execution_id: str
    approval_request_id: str
    #: The execution's revision as it waits.
    execution_revision: int

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "v": WIRE_FORMAT,
            "agent_id": self.agent_id,
            "execution_id": self.execution_id,
            "approval_request_id": self.approval_request_id,
            "execution_revision": self.execution_revision,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ApprovalWait:
        """Inverse of `to_wire`. Raises `SerializationError` for a newer format."""
        check_format(wire, WIRE_FORMAT, "the approval wait")
        return cls(
            wire["agent_id"],
            wire["execution_id"],
            wire["approval_request_id"],
            wire["execution_revision"],
        )


@dataclass(frozen=True, slots=True)
class Detachment:
    """The last detach of an execution: kept with it, so that one whose answer was lost can be repeated."""

    #: The same for every repetition.
    detach_id: str
    approval_request_id: str
    #: The execution's revision after it.
    revision: int


class DetachRefusal(StrEnum):
    """Why an agent is not let go of; ``details["reason"]`` of the `AgentBusyError`."""

    #: The execution works, or has ended: it does not wait for a human.
    NOT_WAITING = "not_waiting"
    #: It does not wait for this answer: the request is unknown, or was answered.
    STALE_APPROVAL = "stale_approval"
    #: Bodies still run although their calls have their outcomes.
    OUTSTANDING_WORK = "outstanding_work"
    #: Somebody else's call is changing the agent.
    CONCURRENT_OPERATION = "concurrent_operation"
    #: An open scope of this driver holds the agent.
    LIVE_SCOPE = "live_scope"
    #: Somebody holds the agent or the execution.
    RETAINED = "retained"
    #: The execution is asked to end.
    CANCELLATION_PENDING = "cancellation_pending"
    #: It is a part of something: a reservation with a correlation, or a child of another agent.
    COORDINATED = "coordinated"


def refused(reason: DetachRefusal, why: str, **details: Any) -> AgentBusyError:
    """The refusal of a detach; the host stays responsible."""
    return AgentBusyError(f"cannot detach: {why}", details={"reason": reason.value, **details})


__all__ = ["ApprovalWait", "DetachRefusal", "Detachment", "refused"]
