"""One durable step while it is being made: collects writes, then gives the commit and the state after it.

A draft lives inside a single call of `machine.step`; nothing outside ever sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phronomy_ray.canonical_json import content_hash, dumps
from phronomy_ray.commits import KEPT_CONTENT_IS_KNOWN, Commit, ExecutionUpdate
from phronomy_ray.definition.tool_set import ToolSet
from phronomy_ray.errors import ContextBudgetExceededError
from phronomy_ray.events import EventType
from phronomy_ray.frozen import replace
from phronomy_ray.ids import commit_id, model_call_id
from phronomy_ray.journal import (
    ApprovalRow,
    Channel,
    EventRow,
    ExecutionRow,
    ExecutionStatus,
    JournalRecord,
    Lifecycle,
    ModelCallRow,
    ModelCallStatus,
    Phase,
    QueuedRequest,
    RecordKind,
    ToolCallRow,
)
from phronomy_ray.kernel.context import CHARS_PER_TOKEN, VIEW_RULE, Conversation, select
from phronomy_ray.kernel.effects import CallModel, Effect, Publish, Settled, Step
from phronomy_ray.kernel.inputs import Env, InputPatch
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.kernel.state import AgentState, Execution, queue_after
from phronomy_ray.kernel.tool_call import ToolCall
from phronomy_ray.kernel.transitions import check_execution_move
from phronomy_ray.messages import Message
from phronomy_ray.models.port import ModelRequest
from phronomy_ray.redaction import SECRET_SETTINGS, redact_fields, redact_json

MANIFEST_FORMAT = 1

_LIFECYCLE = {
    ExecutionStatus.PREPARING: Lifecycle.ACTIVE,
    ExecutionStatus.ACTIVE: Lifecycle.ACTIVE,
    ExecutionStatus.SUSPENDED: Lifecycle.SUSPENDED,
}


class Draft:
    """The writes of one step on one execution."""

    def __init__(self, state: AgentState, env: Env, execution: Execution) -> None:
        self.state = state
        self.env = env
        self.execution = execution
        self.is_new = state.execution is None
        self.effects: list[Effect] = []
        self._row_before = execution.row
        self._event_seq_before = execution.event_seq
        self._batch_before = {call.row.tool_call_id: call for call in execution.batch}
        self._approvals_before = {item.approval_request_id: item for item in execution.approvals}
        self._journal: list[JournalRecord] = []
        self._events: list[EventRow] = []
        self._contents: dict[str, str] = {}
        self._new_model_calls: list[ModelCallRow] = []
        self._model_calls: list[ModelCallRow] = []
        self._closed_batches: list[ToolCall] = []
        self._closed_approvals: tuple[ApprovalRow, ...] = ()
        self._new_requests: list[QueuedRequest] = []
        self._ended_requests: list[str] = []
        #: The view after the first `_viewed` records of the journal.
        self._view = state.conversation
        self._viewed = 0

    @property
    def tools(self) -> ToolSet:
        """The tools of this turn: as they were assembled, or the definition's own."""
        return self.execution.tools or self.env.definition.tool_set

    # --- writes ------------------------------------------------------------------------------------------------

    def record(
        self,
        kind: RecordKind,
        channel: Channel,
        content: Any = None,
        *,
        role: str | None = None,
        model_call: str | None = None,
        causation: str | None = None,
        candidate: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Append a journal record."""
        record = JournalRecord(
            position=self.state.root.journal_position + len(self._journal) + 1,
            kind=kind,
            channel=channel,
            occurred_at=self.env.now,
            execution_id=self.execution.row.execution_id,
            model_call_id=model_call,
            role=role,
            content=content,
            causation_id=causation,
            context_candidate=candidate,
            generation=self.state.root.transcript_generation,
            metadata=metadata or {},
        )
        self._journal.append(record)

    def message(self, kind: RecordKind, channel: Channel, message: Message, **options: Any) -> None:
        """Append a message that a model may see."""
        self.record(kind, channel, message.to_wire(), role=message.role.value, candidate=True, **options)

    def event(self, type_: EventType, payload: dict[str, Any]) -> None:
        """Add a durable event."""
        row = self.execution.row
        seq = self._event_seq_before + len(self._events) + 1
        self._events.append(EventRow(row.execution_id, seq, row.agent_id, type_.value, payload, self.env.now))

    def queue(self, request: QueuedRequest) -> None:
        """Let a request wait."""
        self._new_requests.append(request)

    def end_request(self, execution_id: str) -> None:
        """A queued request waits no more."""
        self._ended_requests.append(execution_id)

    def content(self, text: str) -> str:
        """Keep `text` by hash; returns the hash."""
        digest = content_hash(text)
        self._keep(digest, text)
        return digest

    def _keep(self, digest: str, text: str) -> None:
        known = self.state.stored.get(digest)
        if known is None or self.env.now - known >= KEPT_CONTENT_IS_KNOWN:
            self._contents[digest] = text

    def move(self, status: ExecutionStatus, phase: Phase, **changes: Any) -> None:
        """Move the execution. Raises `IllegalTransitionError`."""
        row = self.execution.row
        check_execution_move(row.execution_id, row.status, status)
        self.execution = replace(self.execution, row=replace(row, status=status, phase=phase, **changes))

    def progress(self, **changes: Any) -> None:
        """Change the execution's small state."""
        self.execution = replace(self.execution, progress=replace(self.execution.progress, **changes))

    def end_model_call(self, status: ModelCallStatus, **changes: Any) -> ModelCallRow:
        """Settle the pending model call."""
        pending = self.execution.model_call
        assert pending is not None
        ended = replace(pending, status=status, ended_at=self.env.now, **changes)
        self._model_calls.append(ended)
        self.execution = replace(self.execution, model_call=None, patch=None)
        return ended

    def set_batch(self, batch: Iterable[ToolCall]) -> None:
        """Replace the present batch."""
        self.execution = replace(self.execution, batch=tuple(batch))

    def set_approvals(self, approvals: Iterable[ApprovalRow]) -> None:
        """Replace the present approval requests."""
        self.execution = replace(self.execution, approvals=tuple(approvals))

    def execution_messages(self) -> tuple[tuple[int, dict[str, Any]], ...]:
        """Messages of this execution, with their positions."""
        return self._conversation().current

    def _conversation(self) -> Conversation:
        """The view with all records of this step; a large batch is applied at once."""
        self._view = self._view.apply(self._journal[self._viewed :])
        self._viewed = len(self._journal)
        return self._view

    def close_batch(self) -> None:
        """The present batch is journaled: write its rows, forget it and its approvals."""
        self._closed_batches.extend(self.execution.batch)
        self._closed_approvals = self.execution.approvals
        self.execution = replace(self.execution, batch=(), approvals=())
        if self.execution.progress.direct_calls or self.execution.progress.twins:
            self.progress(direct_calls=(), twins=())

    # --- the model call ----------------------------------------------------------------------------------------

    def preview_request(self) -> ModelRequest:
        """The next model call before hooks have seen it. Raises `ContextBudgetExceededError`."""
        execution = self.execution
        sequence = execution.progress.model_calls + 1
        call_id = model_call_id(execution.row.execution_id, sequence)
        return self._build_request(call_id, sequence, first_position=None)[0]

    def request_model(self, patch: InputPatch | None = None) -> None:
        """Add the next model call: manifest, pending row, effect. Raises `ContextBudgetExceededError`.

        Messages of the patch that do not fit are left out, last first.
        """
        execution = self.execution
        row = execution.row
        sequence = execution.progress.model_calls + 1
        call_id = model_call_id(row.execution_id, sequence)
        if patch is None:
            request, manifest = self._build_request(call_id, sequence, first_position=None)
        else:
            patch, request, manifest = self._build_patched(call_id, sequence, patch)
        pending = ModelCallRow(
            call_id, row.execution_id, sequence, ModelCallStatus.PENDING, manifest, self.env.now
        )
        self._new_model_calls.append(pending)
        self.progress(model_calls=sequence)
        self.execution = replace(self.execution, model_call=pending, patch=patch)
        self.move(ExecutionStatus.ACTIVE, Phase.CALLING_MODEL)
        self.effects.append(CallModel(request, self._streams()))

    def repeat_model_call(self) -> CallModel:
        """The pending model call again, with the input that its manifest names."""
        pending = self.execution.model_call
        assert pending is not None
        request, _ = self._build_request(
            pending.model_call_id,
            pending.sequence,
            first_position=int(pending.manifest["from"]),
            patch=self.execution.patch,
        )
        return CallModel(request, self._streams())

    def _streams(self) -> bool:
        """Tokens of an answer that filters have not seen are shown to nobody."""
        return self.execution.progress.stream and not self.env.filters_output

    def _build_patched(
        self, call_id: str, sequence: int, patch: InputPatch
    ) -> tuple[InputPatch, ModelRequest, dict[str, Any]]:
        asked = len(patch.messages)
        while True:
            try:
                request, manifest = self._build_request(call_id, sequence, first_position=None, patch=patch)
                break
            except ContextBudgetExceededError:
                if not patch.messages:
                    raise
                patch = replace(patch, messages=patch.messages[:-1])
        kept: dict[str, Any] = {"settings": patch.settings}
        if patch.messages:
            kept["messages"] = self.content(dumps(list(patch.messages)))
        if len(patch.messages) < asked:
            kept["left_out"] = asked - len(patch.messages)
        return patch, request, {**manifest, "patch": kept}

    def _build_request(
        self, call_id: str, sequence: int, *, first_position: int | None, patch: InputPatch | None = None
    ) -> tuple[ModelRequest, dict[str, Any]]:
        definition = self.env.definition
        tools = self.tools
        tools_hash, tools_text = tools.content
        row = self.execution.row
        selection = select(
            self._conversation(),
            instructions=self.execution.instructions,
            tool_tokens=len(tools_text) // CHARS_PER_TOKEN if tools.definitions else 0,
            budget=self.env.input_budget,
            first_position=first_position,
            extra=patch.messages if patch is not None else (),
        )
        settings = dict(definition.model_settings)
        if definition.max_output_tokens is not None:
            settings["max_tokens"] = definition.max_output_tokens
        if patch is not None:
            settings.update(patch.settings)
        model = definition.model if isinstance(definition.model, str) else type(definition.model).__name__
        if sequence == 1 and first_position is None:
            self._keep(tools_hash, tools_text)
        request = ModelRequest(
            call_id=call_id,
            sequence=sequence,
            model=model,
            messages=selection.messages,
            tools=tools.definitions,
            settings=settings,
            timeout_s=definition.model_timeout_s,
            max_retries=definition.model_retries,
            cache_instructions=definition.cache_instructions,
            agent_id=row.agent_id,
            execution_id=row.execution_id,
        )
        manifest = {
            "v": MANIFEST_FORMAT,
            "view": VIEW_RULE,
            "generation": self.state.root.transcript_generation,
            "from": selection.first_position,
            "to": self.state.root.journal_position + len(self._journal),
            "messages": len(selection.messages),
            "estimated_tokens": selection.estimated_tokens,
            "instructions": self.execution.progress.instructions_hash,
            "tools": tools_hash,
            "model": model,
            "settings": redact_json(redact_fields(settings, SECRET_SETTINGS)),
        }
        return request, manifest

    # --- result ------------------------------------------------------------------------------------------------

    def finish(self, step: str) -> Step:
        """The step: commit, state after it, effects."""
        root = self.state.root
        row = self._final_row()
        ended = row.status.is_terminal
        conversation = self._conversation()
        view_changed = conversation.exchanges is not self.state.conversation.exchanges
        context_revision = root.context_revision + (1 if ended and view_changed else 0)
        lifecycle = Lifecycle.IDLE if ended else _LIFECYCLE[row.status]
        number = self.state.commits + 1
        changed = self._tool_rows(new=False)
        commit = Commit(
            commit_id=commit_id(root.agent_id, root.epoch, number),
            step=step,
            agent_id=root.agent_id,
            epoch=root.epoch,
            expected_revision=root.agent_revision,
            expected_position=root.journal_position,
            now=self.env.now,
            lifecycle=lifecycle,
            context_revision=context_revision,
            transcript_generation=root.transcript_generation,
            journal=tuple(self._journal),
            new_execution=row if self.is_new else None,
            execution=None if self.is_new else ExecutionUpdate(self._row_before.revision, row),
            new_model_calls=tuple(self._new_model_calls),
            model_calls=tuple(self._model_calls),
            new_tool_calls=self._tool_rows(new=True),
            tool_calls=tuple(row for row in changed if not self._is_revised(row)),
            revised_tool_calls=tuple(row for row in changed if self._is_revised(row)),
            new_approvals=self._approval_rows(new=True),
            approvals=self._approval_rows(new=False),
            events=tuple(self._events),
            new_requests=tuple(self._new_requests),
            ended_requests=tuple(self._ended_requests),
            contents=tuple(self._contents.items()),
        )
        after = replace(
            self.state,
            root=replace(
                root,
                agent_revision=root.agent_revision + 1,
                context_revision=context_revision,
                journal_position=commit.position_after,
                lifecycle=lifecycle,
                updated_at=self.env.now,
                starts_without_progress=0,
            ),
            conversation=conversation,
            execution=None
            if ended
            else replace(self.execution, row=row, event_seq=self._event_seq_before + len(self._events)),
            commits=number,
            stored={**self.state.stored, **dict.fromkeys(self._contents, self.env.now)}
            if self._contents
            else self.state.stored,
            queue=queue_after(self.state.queue, self._new_requests, self._ended_requests),
        )
        effects: list[Effect] = []
        if self._events:
            effects.append(Publish(tuple(self._events)))
        effects.extend(self.effects)
        if ended:
            effects.append(Settled(row))
        return Step(after, commit, tuple(effects))

    def _final_row(self) -> ExecutionRow:
        revision = 1 if self.is_new else self._row_before.revision + 1
        return replace(
            self.execution.row,
            revision=revision,
            updated_at=self.env.now,
            state=self.execution.progress.to_wire(),
        )

    def _tool_rows(self, *, new: bool) -> tuple[ToolCallRow, ...]:
        calls = [*self._closed_batches, *self.execution.batch]
        return tuple(
            call.row
            for call in calls
            if (call.row.tool_call_id not in self._batch_before) is new
            and call is not self._batch_before.get(call.row.tool_call_id)
        )

    def _is_revised(self, row: ToolCallRow) -> bool:
        """Whether more than the outcome of this stored call has changed."""
        before = self._batch_before[row.tool_call_id].row
        return (
            row.arguments is not before.arguments
            or row.authorization is not before.authorization
            or row.requires_approval is not before.requires_approval
        )

    def _approval_rows(self, *, new: bool) -> tuple[ApprovalRow, ...]:
        rows = [*self._closed_approvals, *self.execution.approvals]
        return tuple(
            row
            for row in rows
            if (row.approval_request_id not in self._approvals_before) is new
            and row is not self._approvals_before.get(row.approval_request_id)
        )


def new_draft(state: AgentState, env: Env, row: ExecutionRow, progress: Progress) -> Draft:
    """A draft that admits an execution."""
    return Draft(state, env, Execution(row, progress))
