"""Admission: an input becomes an execution, and what user code made of it becomes the first model call."""

from __future__ import annotations

from collections.abc import Iterable

from phronomy_ray.assembly.capabilities import CapabilityEvent
from phronomy_ray.canonical_json import dumps
from phronomy_ray.errors import AgentClosedError, InvalidInputError
from phronomy_ray.events import EventType
from phronomy_ray.frozen import replace
from phronomy_ray.journal import Channel, ExecutionRow, ExecutionStatus, Lifecycle, Phase, RecordKind
from phronomy_ray.kernel.draft import Draft, new_draft
from phronomy_ray.kernel.effects import Prepare, Step, without_change
from phronomy_ray.kernel.ending import blocked, cancelled, failed
from phronomy_ray.kernel.inputs import Env, PreparationDone, PreparationFailed, Prepared, Start
from phronomy_ray.kernel.model_input import next_model_call
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.kernel.queue import deadline_of, is_next, start_while_busy
from phronomy_ray.kernel.state import AgentState, Execution
from phronomy_ray.messages import Message
from phronomy_ray.parking import parked_error


def message_of_input(value: object) -> str:
    """The user message of an input: text, or the ``message``, ``query`` or ``user`` entry of a mapping, else its JSON.

    Raises:
        InvalidInputError: neither text nor a mapping, or no text in it.
    """
    if isinstance(value, str):
        if not value.strip():
            raise InvalidInputError("input is empty text")
        return value
    if not isinstance(value, dict):
        raise InvalidInputError(f"input must be text or a mapping, not {type(value).__name__}")
    for key in ("message", "query", "user"):
        if isinstance(value.get(key), str) and value[key].strip():
            return str(value[key])
    if not value:
        raise InvalidInputError("input is an empty mapping")
    return dumps(value)


def start(state: AgentState, event: Start, env: Env) -> Step:
    """Admit an execution, and prepare its input or begin at once. Raises as `machine.step`."""
    root = state.root
    if event.from_queue and not is_next(state, event.execution_id):
        return without_change(state)
    if not event.from_queue and (state.execution is not None or state.queue):
        return start_while_busy(state, event, env)
    if root.lifecycle is Lifecycle.PARKED:
        raise parked_error(root.agent_id, root.parked)
    if root.lifecycle is Lifecycle.CLOSED:
        raise AgentClosedError(f"agent {root.agent_id!r} is closed", details={"agent_id": root.agent_id})
    row = ExecutionRow(
        execution_id=event.execution_id,
        agent_id=root.agent_id,
        status=ExecutionStatus.PREPARING,
        phase=Phase.PREPARING,
        revision=0,
        input_hash=event.input_hash,
        input=event.input,
        durable_context=event.durable_context,
        base_position=root.journal_position,
        state={},
        created_at=env.now,
        updated_at=env.now,
        deadline_at=deadline_of(event, env),
    )
    progress = Progress(
        stream=event.stream,
        options=event.options,
        start_id=event.start_id,
        correlation=event.correlation,
        budget_s=event.budget_s,
    )
    draft = new_draft(state, env, row, progress)
    if event.from_queue:
        draft.end_request(event.execution_id)
    draft.record(RecordKind.INPUT_RECEIVED, Channel.EXTERNAL, event.input, role="user")
    draft.event(EventType.STARTED, {"agent_id": root.agent_id})
    if event.prepared is not None:
        return _begin(draft, event.prepared, "admit")
    draft.effects.append(Prepare(event.execution_id, event.input, event.durable_context))
    return draft.finish("admit")


def preparation_done(state: AgentState, event: PreparationDone, env: Env) -> Step:
    """Begin with what user code made of the input."""
    execution = _preparing(state, event.execution_id)
    if execution is None:
        return without_change(state)
    draft = Draft(state, env, execution)
    if execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    return _begin(draft, event.prepared, "prepared")


def preparation_failed(state: AgentState, event: PreparationFailed, env: Env) -> Step:
    """End before the first model call."""
    execution = _preparing(state, event.execution_id)
    if execution is None:
        return without_change(state)
    draft = Draft(state, env, execution)
    _announce_capabilities(draft, event.events)
    return blocked(draft, event.error, "blocked") if event.blocked else failed(draft, event.error, "failed")


def _preparing(state: AgentState, execution_id: str) -> Execution | None:
    execution = state.execution
    if execution is None or execution.row.phase is not Phase.PREPARING:
        return None
    return execution if execution.row.execution_id == execution_id else None


def _begin(draft: Draft, prepared: Prepared, name: str) -> Step:
    digest = draft.content(prepared.instructions) if prepared.instructions else ""
    draft.execution = replace(draft.execution, instructions=prepared.instructions, tools=prepared.tools)
    for text in prepared.tool_contents:
        draft.content(text)
    draft.progress(instructions_hash=digest, binding=prepared.binding)
    _announce_capabilities(draft, prepared.events)
    draft.message(RecordKind.EXTERNAL_MESSAGE, Channel.EXTERNAL, Message.user(prepared.message))
    return next_model_call(draft, name)


def _announce_capabilities(draft: Draft, events: Iterable[CapabilityEvent]) -> None:
    for event in events:
        draft.event(EventType(event.kind.value), event.payload())
