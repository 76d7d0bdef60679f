"""Results: what a caller gets of an execution, at its end or while it waits for a human."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from phronomy_ray.canonical_json import check_format
from phronomy_ray.errors import CancellationError, ErrorRecord, PhronomyError
from phronomy_ray.journal import (
    ApprovalRow,
    ApprovalStatus,
    ExecutionRow,
    ExecutionStatus,
    QueuedRequest,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.messages import Message, Usage

#: 2: approval requests say more, and a decision can come with the result. 1 is read.
WIRE_FORMAT = 2


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A gated call that waits for a human."""

    approval_request_id: str
    execution_id: str
    tool_call_id: str
    tool_name: str
    #: Arguments for display: fields named in the tool's ``redact_params`` are hidden.
    arguments: Any
    #: The same for all requests of one batch; the execution waits for all of them.
    batch_id: str = ""
    #: Who asks: ``tool`` or ``policy``.
    asked_by: str = "tool"
    #: Where the tool comes from: ``local``, ``mcp`` or ``agent``.
    tool_origin: str = "local"
    #: The tool's ``approval_metadata``.
    metadata: dict[str, Any] = field(default_factory=dict)
    #: What the tool's ``approval_facts`` said about this call, redacted like the arguments.
    facts: dict[str, Any] | None = None
    created_at: datetime | None = None
    #: From this moment on it counts as rejected; ``None`` for never.
    expires_at: datetime | None = None
    #: Whose call it is: an agent as a tool asks under its own id, not under its parent's.
    agent_id: str = ""

    @classmethod
    def from_row(cls, row: ApprovalRow) -> ApprovalRequest:
        """A stored request."""
        return cls(
            row.approval_request_id,
            row.execution_id,
            row.tool_call_id,
            row.tool_name,
            row.arguments,
            row.batch_id,
            row.asked_by,
            row.tool_origin,
            row.metadata,
            row.facts,
            row.created_at,
            row.expires_at,
            row.agent_id,
        )

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "approval_request_id": self.approval_request_id,
            "execution_id": self.execution_id,
            "tool_call_id": self.tool_call_id,
            "tool_name": self.tool_name,
            "arguments": self.arguments,
            "batch_id": self.batch_id,
            "asked_by": self.asked_by,
            "tool_origin": self.tool_origin,
            "metadata": self.metadata,
            "facts": self.facts,
            "created_at": _iso(self.created_at),
            "expires_at": _iso(self.expires_at),
            "agent_id": self.agent_id,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ApprovalRequest:
        """Inverse of `to_wire`."""
        times = {name: _time(wire.get(name)) for name in ("created_at", "expires_at")}
        return cls(**{**wire, **times})


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """How a request was answered, by whoever came first."""

    approval_request_id: str
    status: ApprovalStatus
    decided_by: str | None = None
    decided_at: datetime | None = None
    reason: str | None = None
    #: The arguments that a human put in the model's place, redacted for display.
    edited_arguments: Any = None

    @classmethod
    def from_row(cls, row: ApprovalRow) -> ApprovalDecision:
        """The stored decision."""
        return cls(
            row.approval_request_id,
            row.status,
            row.decided_by,
            row.decided_at,
            row.reason,
            row.edited_arguments,
        )

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "approval_request_id": self.approval_request_id,
            "status": self.status.value,
            "decided_by": self.decided_by,
            "decided_at": _iso(self.decided_at),
            "reason": self.reason,
            "edited_arguments": self.edited_arguments,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ApprovalDecision:
        """Inverse of `to_wire`."""
        known = {"status": ApprovalStatus(wire["status"]), "decided_at": _time(wire["decided_at"])}
        return cls(**{**wire, **known})


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


@dataclass(frozen=True, slots=True)
class UnresolvedCall:
    """A call whose outcome is unknown and that waits for ``resolve``."""

    tool_call_id: str
    execution_id: str
    tool_name: str
    #: Revision to give to ``resolve`` as ``expected_revision``.
    execution_revision: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """The state of an execution that has ended or is suspended.

    After a crash a result is read back from the store and then has no `agent_revision`, `context_revision` and
    `journal_position` (they are the agent's, and it may have moved on).
    """

    agent_id: str
    execution_id: str
    status: ExecutionStatus
    #: Final text; the partial text of an answer that was cut; else ``None``.
    output: str | None
    usage: Usage
    execution_revision: int
    agent_revision: int | None = None
    context_revision: int | None = None
    journal_position: int | None = None
    #: Messages of this execution that the model saw or wrote.
    messages: tuple[Message, ...] = ()
    approvals: tuple[ApprovalRequest, ...] = ()
    unresolved: tuple[UnresolvedCall, ...] = ()
    #: Why it failed or was cancelled.
    error: ErrorRecord | None = None
    terminal_reason: str | None = None
    #: In the answer to ``approve`` only: the decision in force, which an earlier answer may have made.
    decision: ApprovalDecision | None = None

    @property
    def suspended(self) -> bool:
        """Whether it waits for a human."""
        return self.status is ExecutionStatus.SUSPENDED

    @property
    def rejected(self) -> bool:
        """Whether refusals ended it: of a batch, every gated call was rejected."""
        return self.status is ExecutionStatus.REJECTED

    @property
    def approval(self) -> ApprovalRequest | None:
        """The first request that waits for an answer."""
        return self.approvals[0] if self.approvals else None

    def raise_for_status(self) -> RunResult:
        """This result, or the stored error of a failed, cancelled or blocked execution, with its class and code."""
        if self.error is not None:
            error = self.error.to_exception()
            error.details.setdefault("execution_id", self.execution_id)
            raise error
        if self.status is ExecutionStatus.CANCELLED:
            raise CancellationError(f"execution {self.execution_id} was cancelled")
        if self.status in (ExecutionStatus.FAILED, ExecutionStatus.BLOCKED):
            raise PhronomyError(f"execution {self.execution_id} {self.status.value}")
        return self

    def to_wire(self) -> dict[str, Any]:
        """JSON form, what the actor's remote methods return."""
        return {
            "v": WIRE_FORMAT,
            "agent_id": self.agent_id,
            "execution_id": self.execution_id,
            "status": self.status.value,
            "output": self.output,
            "usage": self.usage.to_wire(),
            "execution_revision": self.execution_revision,
            "agent_revision": self.agent_revision,
            "context_revision": self.context_revision,
            "journal_position": self.journal_position,
            "messages": [message.to_wire() for message in self.messages],
            "approvals": [item.to_wire() for item in self.approvals],
            "unresolved": [
                {
                    "tool_call_id": item.tool_call_id,
                    "execution_id": item.execution_id,
                    "tool_name": item.tool_name,
                    "execution_revision": item.execution_revision,
                }
                for item in self.unresolved
            ],
            "error": self.error.to_wire() if self.error else None,
            "terminal_reason": self.terminal_reason,
            "decision": self.decision.to_wire() if self.decision else None,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> RunResult:
        """Inverse of `to_wire`. Raises `SerializationError` for a newer format."""
        check_format(wire, WIRE_FORMAT, "the execution's state")
        return cls(
            agent_id=wire["agent_id"],
            execution_id=wire["execution_id"],
            status=ExecutionStatus(wire["status"]),
            output=wire["output"],
            usage=Usage.from_wire(wire["usage"]),
            execution_revision=wire["execution_revision"],
            agent_revision=wire["agent_revision"],
            context_revision=wire["context_revision"],
            journal_position=wire["journal_position"],
            messages=tuple(Message.from_wire(item) for item in wire["messages"]),
            approvals=tuple(ApprovalRequest.from_wire(item) for item in wire["approvals"]),
            unresolved=tuple(UnresolvedCall(**item) for item in wire["unresolved"]),
            error=ErrorRecord.from_wire(wire["error"]) if wire["error"] else None,
            terminal_reason=wire["terminal_reason"],
            decision=ApprovalDecision.from_wire(wire["decision"]) if wire.get("decision") else None,
        )


@dataclass(frozen=True, slots=True)
class ResultParts:
    """What a `RunResult` is made of besides the execution's row."""

    approvals: tuple[ApprovalRow, ...] = ()
    tool_calls: tuple[ToolCallRow, ...] = ()
    messages: tuple[Message, ...] = ()
    revisions: dict[str, int] = field(default_factory=dict)


def result_of_request(request: QueuedRequest) -> RunResult:
    """The state of a request that waits for its turn."""
    return RunResult(
        agent_id=request.agent_id,
        execution_id=request.execution_id,
        status=ExecutionStatus.QUEUED,
        output=None,
        usage=Usage(),
        execution_revision=0,
    )


def result_of(row: ExecutionRow, parts: ResultParts) -> RunResult:
    """Build the result of an execution as stored."""
    return RunResult(
        agent_id=row.agent_id,
        execution_id=row.execution_id,
        status=row.status,
        output=row.output,
        usage=Usage.from_wire(row.state.get("usage")),
        execution_revision=row.revision,
        agent_revision=parts.revisions.get("agent_revision"),
        context_revision=parts.revisions.get("context_revision"),
        journal_position=parts.revisions.get("journal_position"),
        messages=parts.messages,
        approvals=tuple(
            ApprovalRequest.from_row(item)
            for item in parts.approvals
            if item.status is ApprovalStatus.PENDING
        ),
        unresolved=tuple(
            UnresolvedCall(item.tool_call_id, item.execution_id, item.tool_name, row.revision)
            for item in parts.tool_calls
            if item.status is ToolCallStatus.UNKNOWN and not row.status.is_terminal
        ),
        error=ErrorRecord.from_wire(row.error) if row.error else None,
        terminal_reason=row.terminal_reason,
    )
