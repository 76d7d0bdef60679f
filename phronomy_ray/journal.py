"""Journal values: the append-only log of one agent, its record kinds, and the durable rows around it.

Positions of an agent's journal start at 1 and have no gaps. A record is never changed or deleted by a turn; what the
model sees later is decided by a view over the records (`kernel.context`), never by editing them. Record kinds and
channels follow Phronomy's journal (0.27 to 0.32).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from phronomy_ray.parking import ParkReason


class RecordKind(StrEnum):
    """What a journal record states."""

    INPUT_RECEIVED = "input_received"
    EXTERNAL_MESSAGE = "external_message"
    MODEL_CALL_RECORDED = "llm_call_recorded"
    ASSISTANT_MESSAGE = "assistant_message"
    TOOL_RESULT = "tool_result"
    TOOL_MESSAGE = "tool_message"
    #: A body ended, or was given up, after its call had its outcome.
    TOOL_LATE = "tool_late"
    APPROVAL_REQUIRED = "approval_required"
    AUTHORIZATION_DECIDED = "authorization_decided"
    APPROVAL_DECIDED = "approval_decided"
    FINAL_OUTPUT = "final_output"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_REJECTED = "execution_rejected"
    EXECUTION_HANDED_OFF = "execution_handed_off"
    EXECUTION_FAILED = "execution_failed"
    EXECUTION_CANCELLED = "execution_cancelled"
    EXECUTION_BLOCKED = "execution_blocked"
    KNOWLEDGE = "knowledge"
    TRANSCRIPT_CLEARED = "transcript_cleared"
    KNOWLEDGE_CLEARED = "knowledge_cleared"
    CONTEXT_RESET = "context_reset"
    AGENT_CLOSED = "agent_closed"
    #: It goes on under a later definition.
    DEFINITION_MIGRATED = "definition_migrated"


#: Records that hold a message of the conversation.
MESSAGE_KINDS = frozenset(
    {RecordKind.EXTERNAL_MESSAGE, RecordKind.ASSISTANT_MESSAGE, RecordKind.TOOL_MESSAGE}
)
#: Records that end an execution.
TERMINAL_KINDS = frozenset(
    {
        RecordKind.EXECUTION_COMPLETED,
        RecordKind.EXECUTION_REJECTED,
        RecordKind.EXECUTION_HANDED_OFF,
        RecordKind.EXECUTION_FAILED,
        RecordKind.EXECUTION_CANCELLED,
        RecordKind.EXECUTION_BLOCKED,
    }
)
#: Records that decide what a model sees; all others are facts about what was done.
VIEW_KINDS = (
    MESSAGE_KINDS
    | TERMINAL_KINDS
    | {
        RecordKind.KNOWLEDGE,
        RecordKind.TRANSCRIPT_CLEARED,
        RecordKind.KNOWLEDGE_CLEARED,
        RecordKind.CONTEXT_RESET,
    }
)


class Channel(StrEnum):
    """Where a record came from."""

    EXTERNAL = "external"
    MODEL = "llm"
    TOOL = "tool"
    APPROVAL = "approval"
    AUDIT = "audit"
    CONTEXT = "context"
    STATE = "state"


class ExecutionStatus(StrEnum):
    """Status of an execution; the last six are terminal."""

    #: A request that waits for its turn: no execution yet, so no stored row has it.
    QUEUED = "queued"
    PREPARING = "preparing"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    HANDED_OFF = "handed_off"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    BLOCKED = "blocked"

    @property
    def is_terminal(self) -> bool:
        """Whether no further change is legal."""
        return self is not ExecutionStatus.QUEUED and self not in NON_TERMINAL


#: Statuses of an execution that occupies its agent.
NON_TERMINAL = frozenset({ExecutionStatus.PREPARING, ExecutionStatus.ACTIVE, ExecutionStatus.SUSPENDED})


class Phase(StrEnum):
    """Durable point that a non-terminal execution has reached; a terminal one has phase ``ended``."""

    PREPARING = "preparing"
    #: Hooks look at the next model call.
    BUILDING_INPUT = "building_input"
    CALLING_MODEL = "calling_model"
    #: A batch is committed and user code says which of its calls may run; nothing of it has.
    AUTHORIZING = "authorizing"
    DISPATCHING_TOOLS = "dispatching_tools"
    APPROVAL = "approval"
    RECOVERY_TOOLS = "recovery_tools"
    #: Filters look at the output.
    FILTERING_OUTPUT = "filtering_output"
    ENDED = "ended"


class ModelCallStatus(StrEnum):
    """Durable status of one model call."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    #: Stopped because its execution was cancelled.
    CANCELLED = "cancelled"


class ToolCallStatus(StrEnum):
    """Durable status of one tool call in the effect ledger."""

    #: User code is asked whether it may run.
    AUTHORIZING = "authorizing"
    #: Committed with its batch; its body has not been started.
    INTENT = "intent"
    #: Waits for a human.
    AWAITING_APPROVAL = "awaiting_approval"
    #: Its body may have been started; without an outcome after a crash it is unknown.
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    #: A human or policy refused it; its body never ran.
    REJECTED = "rejected"
    #: The call was closed without its body having run.
    NOT_PERFORMED = "not_performed"
    #: Nobody knows whether its effect happened.
    UNKNOWN = "unknown"

    @property
    def is_settled(self) -> bool:
        """Whether the call has an outcome that the model may see (`UNKNOWN` has none until it is resolved)."""
        return self in SETTLED_TOOL_STATUSES


class ResultStatus(StrEnum):
    """What a result is, for code: in the metadata of its journal record and in its event, apart from the model's text."""

    OK = "ok"
    ERROR = "error"
    #: A human, a policy or a rule refused the call.
    DENIED = "denied"
    TIMEOUT = "timeout"
    #: Stopped, or never started because the turn ended.
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    #: It succeeded, and the model is shown a part of it.
    TRUNCATED = "truncated"


SETTLED_TOOL_STATUSES = frozenset(
    {
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
        ToolCallStatus.TIMED_OUT,
        ToolCallStatus.CANCELLED,
        ToolCallStatus.REJECTED,
        ToolCallStatus.NOT_PERFORMED,
    }
)


class Lifecycle(StrEnum):
    """Durable life-cycle status of an agent's root."""

    IDLE = "idle"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    CLOSED = "closed"
    PARKED = "parked"


class ApprovalStatus(StrEnum):
    """Status of an approval request; all but `PENDING` are final."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    #: Nobody answered in time; counts as rejected.
    EXPIRED = "expired"
    #: The execution ended before anybody answered.
    VOID = "void"


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One append-only fact."""

    position: int
    kind: RecordKind
    channel: Channel
    occurred_at: datetime
    #: Execution that wrote it; ``None`` for imports and state records.
    execution_id: str | None = None
    model_call_id: str | None = None
    role: str | None = None
    #: Plain JSON. Large values are moved to the content table by the store and come back whole.
    content: Any = None
    #: Our tool call id for tool records, else what caused the record.
    causation_id: str | None = None
    #: Whether the record can become part of what a model sees.
    context_candidate: bool = False
    #: Transcript generation that the record belongs to.
    generation: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentRoot:
    """The root row of one agent: what every commit guards on."""

    agent_id: str
    definition_id: str
    definition_version: str
    #: Import path ``module:Class`` of the definition; empty when it cannot be imported (``__main__``).
    class_path: str
    #: +1 with every commit.
    agent_revision: int = 0
    #: +1 whenever what a model may see changed.
    context_revision: int = 0
    transcript_generation: int = 0
    #: Position of the last journal record, 0 for none.
    journal_position: int = 0
    lifecycle: Lifecycle = Lifecycle.IDLE
    #: Ownership epoch; a commit with an older one is refused.
    epoch: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    #: Who holds `epoch`: node, pid, host and the like, for people.
    owner: dict[str, Any] = field(default_factory=dict)
    #: Owners since the last commit that was progress; a high number is a crash loop.
    starts_without_progress: int = 0
    #: Why it is out of service; with `Lifecycle.PARKED` only.
    parked: ParkReason | None = None


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request that waits until its agent is free: what its execution will start from."""

    execution_id: str
    agent_id: str
    #: Its place: those that interrupt come first, then the lower position.
    position: int
    #: Whether the execution that ran when it came was cancelled for it.
    interrupts: bool
    input_hash: str
    #: Canonical JSON input (text or mapping).
    input: Any
    durable_context: dict[str, Any] | None
    #: Whether tokens are sent to observers.
    stream: bool
    #: Names of what was set for the agent's instance when it came; an owner without them does not begin it.
    options: dict[str, list[str]]
    queued_at: datetime
    #: As in `ExecutionRow`; it counts while the request waits.
    deadline_at: datetime | None = None

    @property
    def order(self) -> tuple[bool, int]:
        """Sort key: who is next."""
        return not self.interrupts, self.position


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One execution as stored."""

    execution_id: str
    agent_id: str
    status: ExecutionStatus
    phase: Phase
    #: +1 with every change.
    revision: int
    #: Hash of the canonical input and durable context: tells a repeated start from another one.
    input_hash: str
    #: Canonical JSON input (text or mapping).
    input: Any
    durable_context: dict[str, Any] | None
    #: Journal position at admission; the execution's records come after it.
    base_position: int
    #: Wire form of `kernel.progress.Progress`: counters, usage, options; versioned JSON.
    state: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    #: Output text of a completed execution.
    output: str | None = None
    #: `ErrorRecord` wire form of a failed one.
    error: dict[str, Any] | None = None
    terminal_reason: str | None = None
    cancel_requested_at: datetime | None = None
    #: When its caller's time is over, fixed at the start; ``None`` for no limit (and in rows of before migration 0012).
    deadline_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ModelCallRow:
    """One model call as stored; one row for all its attempts."""

    model_call_id: str
    execution_id: str
    sequence: int
    status: ModelCallStatus
    #: What exactly the model was shown, by journal range and content hash.
    manifest: dict[str, Any]
    started_at: datetime
    ended_at: datetime | None = None
    usage: dict[str, int] | None = None
    #: Wire forms of `models.port.ModelAttempt`.
    attempts: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCallRow:
    """One tool call in the effect ledger."""

    tool_call_id: str
    execution_id: str
    agent_id: str
    model_call_id: str
    #: Position within the batch, from 0: the order that the model asked for.
    position: int
    provider_call_id: str
    tool_name: str
    #: Arguments after decoding and validation, as they will run; ``None`` when they were refused.
    arguments: Any
    status: ToolCallStatus
    #: ``safe`` | ``idempotent`` | ``never``
    replay: str
    requires_approval: bool
    #: Hash of the tool's definition exactly as the model was shown it: name, description, schema, provider options.
    schema_hash: str
    created_at: datetime
    #: Number of times that the body was dispatched.
    attempt: int = 0
    #: What the model is told, as text (already cut to the result limit).
    model_text: str | None = None
    #: The full raw result as JSON; large ones are moved to the content table by the store.
    result: Any = None
    #: `ErrorRecord` wire form.
    error: dict[str, Any] | None = None
    #: One entry for each dispatch: number, status, started_at, ended_at, node, pid; of a lost one number and status only.
    #: A call that got the outcome of an equal one has one entry, with number 0 and ``answered_by``.
    attempts: list[dict[str, Any]] = field(default_factory=list)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    #: How it was settled before it ran, where that was more than the tool's plain default: who decided what by which
    #: rule, the facts, edited arguments (`kernel.authorization`); versioned JSON.
    authorization: dict[str, Any] | None = None
    #: The tool's version when the call was made, unless it was the first; versioned JSON.
    contract: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One approval request; each gated call has its own, and those of one batch share `batch_id`."""

    approval_request_id: str
    execution_id: str
    agent_id: str
    tool_call_id: str
    tool_name: str
    #: Arguments for display, redacted.
    arguments: Any
    status: ApprovalStatus
    created_at: datetime
    decided_at: datetime | None = None
    decided_by: str | None = None
    reason: str | None = None
    #: Id of the model call whose answer asked for the batch.
    batch_id: str = ""
    #: Who asks: ``tool`` or ``policy``.
    asked_by: str = "tool"
    #: ``local``, ``mcp`` or ``agent``.
    tool_origin: str = "local"
    #: The tool's ``approval_metadata``.
    metadata: dict[str, Any] = field(default_factory=dict)
    #: What the tool's ``approval_facts`` said, redacted.
    facts: dict[str, Any] | None = None
    #: From this moment on it counts as rejected; ``None`` for never.
    expires_at: datetime | None = None
    #: What exactly is approved by an approval (`kernel.fingerprint`): versioned JSON.
    fingerprint: dict[str, Any] = field(default_factory=dict)
    #: The arguments that a human put in the model's place, redacted for display.
    edited_arguments: Any = None


@dataclass(frozen=True, slots=True)
class EventRow:
    """One durable event of an execution."""

    execution_id: str
    #: From 1, without gaps, within the execution.
    seq: int
    agent_id: str
    type: str
    payload: dict[str, Any]
    created_at: datetime
