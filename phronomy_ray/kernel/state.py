"""The kernel's state, its inputs and its effects: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from phronomy_ray.approvals import ApprovalEvaluationRequest, CallAuthorization, StandingRule
from phronomy_ray.assembly.binding import Binding
from phronomy_ray.assembly.capabilities import CapabilityEvent
from phronomy_ray.canonical_json import loads
from phronomy_ray.commits import Commit, Hydration
from phronomy_ray.definition.agent import AgentDefinition
from phronomy_ray.definition.tool_set import ToolSet
from phronomy_ray.errors import ErrorRecord
from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    ApprovalStatus,
    EventRow,
    ExecutionRow,
    ModelCallRow,
    Phase,
)
from phronomy_ray.kernel.context import Conversation
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.kernel.tool_call import ToolCall
from phronomy_ray.models.port import ModelAnswer, ModelRequest
from phronomy_ray.tool_calls import Attachment, ToolInvocation, ToolLate, ToolOutcome


@dataclass(frozen=True, slots=True)
class InputPatch:
    """What hooks add to one model call: plain JSON."""

    settings: dict[str, Any] = field(default_factory=dict)
    #: System and user messages in chat-completions form.
    messages: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class PendingOutput:
    """An output that filters look at."""

    text: str
    #: The call that said it, whose message is not in the journal yet; empty for a tool's result.
    model_call: str


@dataclass(frozen=True, slots=True)
class Execution:
    """The non-terminal execution of an agent."""

    row: ExecutionRow
    progress: Progress
    #: Text of the instructions, once prepared.
    instructions: str = ""
    #: The tools that were assembled for it; ``None`` when it has those of its definition.
    tools: ToolSet | None = None
    #: The model call that is waited for.
    model_call: ModelCallRow | None = None
    #: Calls of the present batch in request order; empty between batches.
    batch: tuple[ToolCall, ...] = ()
    #: Approval requests of the present batch.
    approvals: tuple[ApprovalRow, ...] = ()
    #: Seq of its last durable event.
    event_seq: int = 0
    #: The patch of the pending model call.
    patch: InputPatch | None = None
    #: The output that filters look at.
    output: PendingOutput | None = None


@dataclass(frozen=True, slots=True)
class AgentState:
    """Everything that an owner knows of its agent; equal to what it has committed."""

    root: AgentRoot
    conversation: Conversation
    execution: Execution | None = None
    #: Commits made under this epoch.
    commits: int = 0
    #: Hashes of texts that this owner knows to be stored.
    stored: frozenset[str] = frozenset()

    @classmethod
    def hydrate(
        cls,
        hydration: Hydration,
        conversation: Conversation,
        contents: Mapping[str, str] | None = None,
        tools: ToolSet | None = None,
    ) -> AgentState:
        """The state that a new owner starts from.

        `contents`: the texts of all `contents_of` the hydration, by hash; `tools` as they stand behind the execution's binding.
        """
        contents = contents or {}
        row = hydration.execution
        if row is None:
            return cls(hydration.root, conversation)
        pending = [call for call in hydration.model_calls if call.status == "pending"]
        latest = max((call.sequence for call in hydration.model_calls), default=0)
        last_call = next((call for call in hydration.model_calls if call.sequence == latest), None)
        progress = Progress.from_wire(row.state)
        batch: tuple[ToolCall, ...] = ()
        approvals: tuple[ApprovalRow, ...] = ()
        # in these phases the last call's batch, if it had one, is over
        between = row.phase in (Phase.BUILDING_INPUT, Phase.FILTERING_OUTPUT)
        if not pending and last_call is not None and not between:
            rows = sorted(
                (item for item in hydration.tool_calls if item.model_call_id == last_call.model_call_id),
                key=lambda item: item.position,
            )
            batch = tuple(ToolCall.restore(item) for item in rows)
            ids = {item.tool_call_id for item in rows}
            approvals = tuple(item for item in hydration.approvals if item.tool_call_id in ids)
        return cls(
            hydration.root,
            conversation,
            Execution(
                row=row,
                progress=progress,
                instructions=contents[progress.instructions_hash] if progress.instructions_hash else "",
                tools=tools,
                model_call=pending[0] if pending else None,
                batch=batch,
                approvals=approvals,
                event_seq=hydration.last_event_seq,
                patch=_stored_patch(pending[0], contents) if pending else None,
                output=PendingOutput(contents[progress.output_hash], progress.output_call)
                if row.phase is Phase.FILTERING_OUTPUT
                else None,
            ),
        )


def contents_of(hydration: Hydration) -> frozenset[str]:
    """Hashes of the texts that a new owner needs to go on with the execution that it found."""
    row = hydration.execution
    if row is None:
        return frozenset()
    progress = Progress.from_wire(row.state)
    found = {progress.instructions_hash}
    if row.phase is Phase.FILTERING_OUTPUT:
        found.add(progress.output_hash)
    for call in hydration.model_calls:
        if call.status == "pending":
            found.add(call.manifest.get("patch", {}).get("messages", ""))
    return frozenset(found - {""})


def _stored_patch(call: ModelCallRow, contents: Mapping[str, str]) -> InputPatch | None:
    kept = call.manifest.get("patch")
    if kept is None:
        return None
    messages = tuple(loads(contents[kept["messages"]])) if kept.get("messages") else ()
    return InputPatch(kept["settings"], messages)


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


# --- inputs ----------------------------------------------------------------------------------------------------


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
    #: ``succeeded`` (with `result`), ``failed`` (with `error`) or ``not_performed``.
    outcome: str
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
    | Decide
    | Resolve
    | Cancel
    | Expire
    | Recover
)


# --- effects ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Run the user's code on the input, then send `PreparationDone` or `PreparationFailed`."""

    execution_id: str
    input: Any
    durable_context: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BuildInput:
    """Run the hooks on what would be sent, then send `InputBuilt` or `InputBuildFailed`."""

    request: ModelRequest
    durable_context: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FilterOutput:
    """Run the output filters, then send `OutputFiltered` or `OutputFilterFailed`."""

    execution_id: str
    text: str
    durable_context: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model, then send `ModelAnswered`, `ModelFailed` or `ModelStopped`."""

    request: ModelRequest
    stream: bool


@dataclass(frozen=True, slots=True)
class Authorize:
    """Ask user code about each of these calls, then send one `Authorized` for all of them."""

    execution_id: str
    model_call_id: str
    requests: tuple[ApprovalEvaluationRequest, ...]


@dataclass(frozen=True, slots=True)
class DispatchTools:
    """Run these bodies side by side, and send each outcome once."""

    invocations: tuple[ToolInvocation, ...]


@dataclass(frozen=True, slots=True)
class StopWork:
    """Stop the model call and the running bodies of the execution."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand durable events to observers."""

    events: tuple[EventRow, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """The execution is terminal."""

    row: ExecutionRow


Effect: TypeAlias = (
    Prepare | BuildInput | FilterOutput | CallModel | Authorize | DispatchTools | StopWork | Publish | Settled
)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step decided: the state after `commit`, and what to do once it is durable."""

    state: AgentState
    #: ``None`` when nothing changes.
    commit: Commit | None = None
    effects: tuple[Effect, ...] = ()


def without_change(state: AgentState, *effects: Effect) -> Step:
    """A step that commits nothing."""
    return Step(state, None, effects)


def pending_approvals(execution: Execution) -> tuple[ApprovalRow, ...]:
    """Requests that wait for an answer."""
    return tuple(item for item in execution.approvals if item.status is ApprovalStatus.PENDING)
