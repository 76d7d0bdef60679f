"""What an owner knows of its agent: the state that a step starts from, and how it is read back from the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from phronomy_ray.canonical_json import loads
from phronomy_ray.commits import Hydration
from phronomy_ray.definition.tool_set import ToolSet
from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    ApprovalStatus,
    ExecutionRow,
    ModelCallRow,
    ModelCallStatus,
    Phase,
    QueuedRequest,
)
from phronomy_ray.kernel.context import Conversation
from phronomy_ray.kernel.inputs import InputPatch
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.kernel.tool_call import ToolCall


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
    #: Hashes of texts that this owner has kept, and when: for a while it refers to them without giving them again.
    stored: Mapping[str, datetime] = field(default_factory=dict)
    #: Requests that wait for their turn, the next one first.
    queue: tuple[QueuedRequest, ...] = ()

    @property
    def held_by(self) -> str | None:
        """What keeps the agent from being idle: the non-terminal execution, else the request that is next."""
        if self.execution is not None:
            return self.execution.row.execution_id
        return self.queue[0].execution_id if self.queue else None

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
            return cls(hydration.root, conversation, queue=hydration.queue)
        pending = [call for call in hydration.model_calls if call.status is ModelCallStatus.PENDING]
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
            queue=hydration.queue,
        )


def queue_after(
    queue: tuple[QueuedRequest, ...], new: Collection[QueuedRequest], ended: Collection[str]
) -> tuple[QueuedRequest, ...]:
    """The queue with changes; the same object without any."""
    if not new and not ended:
        return queue
    left = [item for item in (*queue, *new) if item.execution_id not in ended]
    return tuple(sorted(left, key=lambda item: item.order))


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
        if call.status is ModelCallStatus.PENDING:
            found.add(call.manifest.get("patch", {}).get("messages", ""))
    return frozenset(found - {""})


def _stored_patch(call: ModelCallRow, contents: Mapping[str, str]) -> InputPatch | None:
    kept = call.manifest.get("patch")
    if kept is None:
        return None
    messages = tuple(loads(contents[kept["messages"]])) if kept.get("messages") else ()
    return InputPatch(kept["settings"], messages)


def pending_approvals(execution: Execution) -> tuple[ApprovalRow, ...]:
    """Requests that wait for an answer."""
    return tuple(item for item in execution.approvals if item.status is ApprovalStatus.PENDING)
