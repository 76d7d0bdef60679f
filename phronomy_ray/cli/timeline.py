"""The story of one execution, put together from the store: pure values, ordered by time.

Arguments and results are taken from the events, where they were redacted; the ledger's raw values are never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from phronomy_ray.cli.listings import approval_wire, execution_wire
from phronomy_ray.cli.output import between, iso
from phronomy_ray.errors import NotFoundError
from phronomy_ray.events import EventType
from phronomy_ray.journal import ApprovalRow, EventRow, ExecutionRow, ModelCallRow, ToolCallRow

if TYPE_CHECKING:
    from phronomy_ray.store.port import Store

PAGE = 1_000
#: Events that are moments of their own; the others are told with the call or the request that they belong to.
_SHOWN_EVENTS = frozenset(
    {
        EventType.RECOVERED,
        EventType.RESOLUTION_REQUIRED,
        EventType.RESOLVED,
        EventType.CAPABILITY_RESOLVED,
        EventType.CAPABILITY_SHADOWED,
        EventType.CAPABILITY_SKIPPED,
        EventType.CAPABILITY_FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened."""

    at: datetime
    #: ``started`` | ``model_call`` | ``tool_call`` | ``approval_required`` | ``approval_decided`` | ``recovered`` |
    #: ``resolution_required`` | ``resolved`` | ``ended``
    kind: str
    facts: dict[str, Any]
    #: Place among moments of the same time: what the model asked for stands in its order.
    order: int = 0

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {"at": iso(self.at), "kind": self.kind, **self.facts}


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that the store knows of an execution."""

    execution: ExecutionRow
    model_calls: list[ModelCallRow]
    tool_calls: list[ToolCallRow]
    approvals: list[ApprovalRow]
    events: list[EventRow]
    #: Journal records of this execution.
    journal_records: int
    moments: list[Moment] = field(default_factory=list)

    @property
    def recoveries(self) -> list[EventRow]:
        """Each time a new owner took it over."""
        return [event for event in self.events if event.type == EventType.RECOVERED.value]

    def to_wire(self) -> dict[str, Any]:
        """The JSON document of ``inspect --json``."""
        return {
            "execution": execution_wire(self.execution),
            "journal_records": self.journal_records,
            "model_calls": [model_call_facts(row) for row in self.model_calls],
            "tool_calls": [tool_call_facts(row, self.events) for row in self.tool_calls],
            "approvals": [approval_wire(row) for row in self.approvals],
            "recoveries": [{"at": iso(event.created_at), **event.payload} for event in self.recoveries],
            "timeline": [moment.to_wire() for moment in self.moments],
        }


def read_story(store: Store, execution_id: str) -> Story:
    """Read an execution. Raises `NotFoundError`."""
    waiting = store.find_request(execution_id)
    if waiting is not None:
        ahead = [item.execution_id for item in store.queued_requests(waiting.agent_id)].index(execution_id)
        raise NotFoundError(
            f"execution {execution_id} has not begun: it waits for agent {waiting.agent_id!r} with {ahead} requests before it",
            code="queued",
            details={"execution_id": execution_id, "agent_id": waiting.agent_id},
        )
    execution = store.load_execution(execution_id)
    events: list[EventRow] = []
    while page := store.events(execution_id, after=events[-1].seq if events else 0, limit=PAGE):
        events += page
        if len(page) < PAGE:
            break
    story = Story(
        execution,
        store.model_calls(execution_id),
        store.tool_calls(execution_id),
        store.approvals(execution_id=execution_id),
        events,
        len(store.journal_of_execution(execution_id)),
    )
    story.moments.extend(moments_of(story))
    return story


def moments_of(story: Story) -> list[Moment]:
    """What happened, in order."""
    execution = story.execution
    found = [Moment(execution.created_at, "started", {"input": execution.input})]
    for model_call in story.model_calls:
        found.append(Moment(model_call.started_at, "model_call", model_call_facts(model_call), 1))
    for tool_call in story.tool_calls:
        # A call is told where it was asked for, a gated one where it ran; when its body ran is among its facts.
        ran = tool_call.started_at if tool_call.requires_approval else None
        found.append(
            Moment(
                ran or tool_call.created_at,
                "tool_call",
                tool_call_facts(tool_call, story.events),
                2 + tool_call.position,
            )
        )
    for approval in story.approvals:
        facts = approval_wire(approval)
        found.append(Moment(approval.created_at, "approval_required", facts, 1_000))
        if approval.decided_at is not None:
            found.append(Moment(approval.decided_at, "approval_decided", facts, 1_001))
    for event in story.events:
        if event.type in _SHOWN_EVENTS:
            found.append(Moment(event.created_at, event.type, dict(event.payload), 2_000 + event.seq))
    if execution.ended_at is not None:
        facts = {
            "status": execution.status.value,
            "output": execution.output,
            "error": execution.error,
            "terminal_reason": execution.terminal_reason,
        }
        found.append(Moment(execution.ended_at, "ended", facts, 1_000_000))
    return sorted(found, key=lambda moment: (moment.at, moment.order))


def model_call_facts(row: ModelCallRow) -> dict[str, Any]:
    """A model call as JSON."""
    return {
        "model_call_id": row.model_call_id,
        "sequence": row.sequence,
        "status": row.status,
        "started_at": iso(row.started_at),
        "ended_at": iso(row.ended_at),
        "seconds": between(row.started_at, row.ended_at),
        "usage": row.usage,
        "attempts": row.attempts,
        "error": row.error,
    }


def tool_call_facts(row: ToolCallRow, events: Sequence[EventRow]) -> dict[str, Any]:
    """A tool call as JSON, its arguments and result as they may be shown."""
    asked = _payload(events, EventType.TOOL_CALL, row.tool_call_id)
    answered = _payload(events, EventType.TOOL_RESULT, row.tool_call_id)
    edited = _payload(events, EventType.APPROVAL_DECIDED, row.tool_call_id).get("edited_arguments")
    return {
        "tool_call_id": row.tool_call_id,
        "model_call_id": row.model_call_id,
        "position": row.position,
        "tool_name": row.tool_name,
        "arguments": asked.get("arguments") if edited is None else edited,
        "status": row.status.value,
        "replay": row.replay,
        "requires_approval": row.requires_approval,
        "authorization": {  # without the facts, which are redacted in the request only
            key: value
            for key, value in (row.authorization or {}).items()
            if key in ("verdict", "source", "rule", "edited_by")
        },
        "attempt": row.attempt,
        "attempts": row.attempts,
        "started_at": iso(row.started_at),
        "ended_at": iso(row.ended_at),
        "seconds": between(row.started_at, row.ended_at),
        "result_preview": answered.get("preview"),
        "result_characters": answered.get("characters"),
        "traceback": (row.error or {}).get("traceback", ""),  # code, no values
    }


def _payload(events: Sequence[EventRow], kind: EventType, tool_call_id: str) -> dict[str, Any]:
    """Payload of the last event of that kind for a call."""
    for event in reversed(events):
        if event.type == kind.value and event.payload.get("tool_call_id") == tool_call_id:
            return event.payload
    return {}


__all__ = ["Moment", "Story", "model_call_facts", "moments_of", "read_story", "tool_call_facts"]
