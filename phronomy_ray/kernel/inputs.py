"""What a step is given: the inputs that may change an agent, and what they may be judged by. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from phronomy_ray.approvals import CallAuthorization, StandingRule
from phronomy_ray.assembly.binding import Binding
from phronomy_ray.assembly.capabilities import CapabilityEvent
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.tool_set import ToolSet
from phronomy_ray.errors import ErrorRecord
from phronomy_ray.models.port import ModelAnswer
from phronomy_ray.tool_calls import Attachment, Resolution, ToolLate, ToolOutcome


@dataclass(frozen=True, slots=True)
class Env:
    """What a step may read besides state and input."""

    definition: AgentDefinition
    now: datetime
    #: Tokens that a model's input may have; ``None`` for no limit.
    input_budget: int | None = None
    #: Who the owner is, for people (node, pid); goes into the ``recovered`` event.
    owner: dict[str, Any] = field(default_factory=dict)
    #: Whether hooks look at each model call before it is made.
    builds_input: bool = False
    #: Whether filters look at the output.
    filters_output: bool = False


@dataclass(frozen=True, slots=True)
class InputPatch:
    """What hooks add to one model call: plain JSON."""

    settings: dict[str, Any] = field(default_factory=dict)
    #: System and user messages in chat-completions form.
    messages: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """Instructions, message and tools that the model will see, after all user code has run on the input."""

    instructions: str
    message: str
    #: The tools that were assembled, with their binding; ``None`` for those of the definition.
    tools: ToolSet | None = None
    binding: Binding | None = None
    #: Texts that the binding names by their hash.
    tool_contents: tuple[str, ...] = ()
    #: What happened to the agent's capabilities meanwhile.
    events: tuple[CapabilityEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Admit an execution."""

    execution_id: str
    input: Any
    input_hash: str
    durable_context: dict[str, Any] | None = None
    stream: bool = False
    #: Given when no user code has to run first: admission and first call then share a commit.
    prepared: Prepared | None = None
    #: Names of what is set for the agent's instance.
    options: Mapping[str, list[str]] = field(default_factory=dict)
    on_busy: BusyRule = BusyRule.REJECT
    #: Requests that may wait.
    queue_limit: int = 0
    #: Whether it is a queued request whose turn it is.
    from_queue: bool = False
    #: As in `Progress`.
    start_id: str = ""
    correlation: dict[str, Any] | None = None
    budget_s: float | None = None
    #: As in `QueuedRequest`, of one whose turn it is; the others have what `budget_s` gives.
    deadline_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PreparationDone:
    """User code has prepared the input."""

    execution_id: str
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """User code failed on the input, a filter blocked it, or the agent cannot have its tools."""

    execution_id: str
    error: ErrorRecord
    #: What happened to the agent's capabilities until then.
    events: tuple[CapabilityEvent, ...] = ()
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class InputBuilt:
    """The hooks have looked at the next model call."""

    execution_id: str
    sequence: int
    patch: InputPatch


@dataclass(frozen=True, slots=True)
class InputBuildFailed:
    """A hook failed."""

    execution_id: str
    sequence: int
    error: ErrorRecord


@dataclass(frozen=True, slots=True)
class OutputFiltered:
    """The filters have let the output pass as `text`."""

    execution_id: str
    text: str


@dataclass(frozen=True, slots=True)
class OutputFilterFailed:
    """A filter blocked the output, or failed."""

    execution_id: str
    error: ErrorRecord
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """The pending model call was answered."""

    model_call_id: str
    answer: ModelAnswer
    #: Standing rules in force when the answer arrived, if it holds tool calls.
    rules: tuple[StandingRule, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The pending model call failed for good."""

    model_call_id: str
    error: ErrorRecord
    attempts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelStopped:
    """The pending model call was stopped because the execution is cancelled."""

    model_call_id: str


@dataclass(frozen=True, slots=True)
class Authorized:
    """User code has said which calls of a batch may run."""

    execution_id: str
    model_call_id: str
    verdicts: tuple[CallAuthorization, ...]


@dataclass(frozen=True, slots=True)
class ToolOutcomes:
    """Outcomes of dispatched calls, in any order."""

    outcomes: tuple[ToolOutcome, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """A human answers one approval request."""

    execution_id: str
    approval_request_id: str
    approved: bool
    decided_by: str | None = None
    reason: str | None = None
    #: With an approval: run the call with these arguments instead of the model's.
    edited_arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Resolve:
    """A human says what became of a call whose outcome is unknown."""

    execution_id: str
    tool_call_id: str
    #: `SUCCEEDED` comes with `result`, `FAILED` with `error`.
    outcome: Resolution
    result: Any = None
    result_text: str = ""
    error: str = ""
    expected_revision: int | None = None
    decided_by: str | None = None
    #: The attempt that the word is about; a word is never taken for another one.
    expected_attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the execution."""

    execution_id: str
    reason: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Detach:
    """The owner is to let go of the agent, which waits for this answer."""

    execution_id: str
    approval_request_id: str
    #: The same for every repetition.
    detach_id: str
    #: Whether bodies run that have their outcomes already.
    runs: bool = False
    #: Whether another call is changing the agent.
    is_disputed: bool = False
    #: Whether its cancellation is under way.
    is_stopping: bool = False
    #: Who holds the agent or the execution.
    retained_by: tuple[str, ...] = ()


class EditKind(StrEnum):
    """What an idle agent's conversation can undergo."""

    ADD_KNOWLEDGE = "add_knowledge"
    #: The model sees no earlier message any more; nothing is deleted.
    CLEAR_TRANSCRIPT = "clear_transcript"
    CLEAR_KNOWLEDGE = "clear_knowledge"
    #: Both.
    RESET_CONTEXT = "reset_context"
    #: The agent takes no more work.
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Edit:
    """Change the conversation of an idle agent, or close it."""

    kind: EditKind
    #: With `ADD_KNOWLEDGE`: ``{"content": text, "metadata": {...}}``.
    knowledge: dict[str, Any] | None = None
    #: The same for every repetition of one edit, whose first answer may have been lost; kept as the record's cause.
    edit_id: str | None = None


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Forget a queued request whose id is another execution's."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class ToolsLate:
    """Bodies have ended, or were given up, after their calls had their outcomes."""

    reports: tuple[ToolLate, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """The time of an approval request may be over."""


@dataclass(frozen=True, slots=True)
class Recover:
    """A new owner has taken the agent."""

    #: What the executor knows of the calls that the former owner dispatched.
    attachment: Attachment = field(default_factory=Attachment)
    #: Why the execution is wished to end, if nobody has taken that up yet.
    cancel_reason: str | None = None


Input: TypeAlias = (
    Start
    | PreparationDone
    | PreparationFailed
    | InputBuilt
    | InputBuildFailed
    | OutputFiltered
    | OutputFilterFailed
    | ModelAnswered
    | ModelFailed
    | ModelStopped
    | Authorized
    | ToolOutcomes
    | ToolsLate
    | Edit
    | DropRequest
    | Decide
    | Resolve
    | Cancel
    | Detach
    | Expire
    | Recover
)
