"""Events: what observers of an execution see.

Durable events have a `seq` (from 1, without gaps within the execution), are committed with the step that caused them and
can be read again at any time. Live events (tokens, the start of a tool body) carry the seq of the durable event before
them and are lost when nobody watches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from phronomy_ray.canonical_json import check_format
from phronomy_ray.journal import EventRow

WIRE_FORMAT = 1


class EventType(StrEnum):
    """Types of events."""

    STARTED = "started"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    AUTHORIZATION_DECIDED = "authorization_decided"
    #: The same calls ran several times in a row, and the model was warned.
    TOOL_REPEATED = "tool_repeated"
    APPROVAL_REQUIRED = "approval_required"
    APPROVAL_DECIDED = "approval_decided"
    RESOLUTION_REQUIRED = "resolution_required"
    RESOLVED = "resolved"
    RECOVERED = "recovered"
    #: Its owner has let go of the agent while a human is waited for.
    DETACHED = "detached"
    CAPABILITY_RESOLVED = "capability_resolved"
    CAPABILITY_SHADOWED = "capability_shadowed"
    CAPABILITY_SKIPPED = "capability_skipped"
    CAPABILITY_FAILED = "capability_failed"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    BLOCKED = "blocked"
    # live only
    TOKEN = "token"
    STREAM_RESET = "stream_reset"
    TOOL_STARTED = "tool_started"
    TOOL_PROGRESS = "tool_progress"
    TOOL_LATE = "tool_late"
    LOST = "lost"
    ERROR = "error"


TERMINAL_EVENTS = frozenset(
    {EventType.COMPLETED, EventType.FAILED, EventType.CANCELLED, EventType.REJECTED, EventType.BLOCKED}
)
#: Types of events that are never stored.
LIVE_EVENTS = frozenset(
    {
        EventType.TOKEN,
        EventType.STREAM_RESET,
        EventType.TOOL_STARTED,
        EventType.TOOL_PROGRESS,
        EventType.TOOL_LATE,
        EventType.LOST,
        EventType.ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of an execution."""

    execution_id: str
    #: Own seq of a durable event; for a live one, the seq of the last durable event before it.
    seq: int
    type: EventType
    payload: dict[str, Any] = field(default_factory=dict)
    #: Whether it can be read again.
    durable: bool = True

    @property
    def is_terminal(self) -> bool:
        """Whether it is the last event: the execution has ended, or (`ERROR`) its owner stopped with an error."""
        return self.type in TERMINAL_EVENTS or self.type is EventType.ERROR

    @classmethod
    def from_row(cls, row: EventRow) -> Event:
        """A stored event."""
        return cls(row.execution_id, row.seq, EventType(row.type), row.payload)

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "v": WIRE_FORMAT,
            "execution_id": self.execution_id,
            "seq": self.seq,
            "type": self.type.value,
            "payload": self.payload,
            "durable": self.durable,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Event:
        """Inverse of `to_wire`. Raises `SerializationError` for a newer format."""
        check_format(wire, WIRE_FORMAT, "the event")
        return cls(
            wire["execution_id"], wire["seq"], EventType(wire["type"]), wire["payload"], wire["durable"]
        )
