"""The execution machine: `step` takes state and input and gives the next state, its commit and the effects.

Pure: no Ray, SQL, HTTP or clock. The shell executes the commit, installs the state only when it is durable, and then
performs the effects. An input that belongs to an older call or attempt is consumed without a change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from phronomy_ray.assembly.capabilities import CapabilityEvent
from phronomy_ray.canonical_json import dumps
from phronomy_ray.errors import (
    AgentBusyError,
    AgentParkedError,
    ConfigurationError,
    EmptyResponseError,
    ErrorRecord,
    FilterBlockError,
    IllegalTransitionError,
    InvalidInputError,
    ModelError,
    OutputTruncatedError,
)
from phronomy_ray.events import EventType
from phronomy_ray.journal import (
    Channel,
    ExecutionRow,
    ExecutionStatus,
    Lifecycle,
    Phase,
    RecordKind,
)
from phronomy_ray.kernel import humans, tools_step
from phronomy_ray.kernel.approvals import settle_batch
from phronomy_ray.kernel.authorization import announce_decisions, apply_verdicts, is_awaited, wait_for_code
from phronomy_ray.kernel.batch import prepare_batch
from phronomy_ray.kernel.direct import direct_output, remember_direct
from phronomy_ray.kernel.draft import Draft, new_draft
from phronomy_ray.kernel.ending import blocked, cancelled, failed
from phronomy_ray.kernel.late import record_late
from phronomy_ray.kernel.model_input import build_input, input_build_failed, input_built, next_model_call
from phronomy_ray.kernel.output import deliver, filter_output, output_filter_failed, output_filtered
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.kernel.repeats import count_repeats, refuse_repeat
from phronomy_ray.kernel.resolution import ask_for_resolution
from phronomy_ray.kernel.state import (
    AgentState,
    Authorized,
    Cancel,
    Decide,
    Env,
    Execution,
    Expire,
    Input,
    InputBuildFailed,
    InputBuilt,
    ModelAnswered,
    ModelFailed,
    ModelStopped,
    OutputFiltered,
    OutputFilterFailed,
    PreparationDone,
    PreparationFailed,
    Prepare,
    Prepared,
    Recover,
    Resolve,
    Start,
    Step,
    StopWork,
    ToolOutcomes,
    ToolsLate,
    without_change,
)
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.messages import Message, Usage
from phronomy_ray.models.port import FinishReason


def step(state: AgentState, event: Input, env: Env) -> Step:
    """Decide what `event` does to `state`.

    Raises:
        AgentBusyError: `Start` while an execution is non-terminal.
        AgentParkedError, ConfigurationError: `Start` of an agent that was parked, or closed.
        NotFoundError, StateConflictError, InvalidInputError: a human's `Decide`, `Resolve` or `Cancel` does not fit.
        IllegalTransitionError: a fault of this package: the tables forbid what was about to happen.
    """
    match event:
        case Start():
            return _start(state, event, env)
        case PreparationDone():
            return _preparation_done(state, event, env)
        case PreparationFailed():
            return _preparation_failed(state, event, env)
        case InputBuilt():
            return input_built(state, event, env)
        case InputBuildFailed():
            return input_build_failed(state, event, env)
        case OutputFiltered():
            return output_filtered(state, event, env)
        case OutputFilterFailed():
            return output_filter_failed(state, event, env)
        case ModelAnswered():
            return _model_answered(state, event, env)
        case ModelFailed():
            return _model_failed(state, event, env)
        case ModelStopped():
            return _model_stopped(state, event, env)
        case Authorized():
            return _authorized(state, event, env)
        case ToolOutcomes():
            return _tool_outcomes(state, event, env)
        case ToolsLate():
            return record_late(state, event, env)
        case Decide():
            return _carry_on(humans.decide(state, event, env), "decision")
        case Resolve():
            return _carry_on(humans.resolve(state, event, env), "resolution")
        case Cancel():
            return humans.cancel(state, event, env)
        case Expire():
            return _carry_on(humans.expire(state, env), "expiry")
        case Recover():
            return _recover(state, event, env)
    assert_never(event)


# --- admission and preparation ---------------------------------------------------------------------------------


def _start(state: AgentState, event: Start, env: Env) -> Step:
    root = state.root
    if state.execution is not None:
        held = state.execution.row
        raise AgentBusyError(
            f"agent {root.agent_id!r} has the {held.status.value} execution {held.execution_id}",
            details={"agent_id": root.agent_id, "execution_id": held.execution_id},
        )
    if root.lifecycle is Lifecycle.PARKED:
        raise AgentParkedError(
            f"agent {root.agent_id!r} is parked: {root.metadata.get('parked_reason', 'no reason kept')}"
        )
    if root.lifecycle is Lifecycle.CLOSED:
        raise ConfigurationError(f"agent {root.agent_id!r} is closed")
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
    )
    draft = new_draft(state, env, row, Progress(stream=event.stream, options=event.options))
    draft.record(RecordKind.INPUT_RECEIVED, Channel.EXTERNAL, event.input, role="user")
    draft.event(EventType.STARTED, {"agent_id": root.agent_id})
    if event.prepared is not None:
        return _begin(draft, event.prepared, "admit")
    draft.effects.append(Prepare(event.execution_id, event.input, event.durable_context))
    return draft.finish("admit")


def _preparation_done(state: AgentState, event: PreparationDone, env: Env) -> Step:
    execution = state.execution
    if (
        execution is None
        or execution.row.execution_id != event.execution_id
        or execution.row.phase is not Phase.PREPARING
    ):
        return without_change(state)
    draft = Draft(state, env, execution)
    if execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    return _begin(draft, event.prepared, "prepared")


def _preparation_failed(state: AgentState, event: PreparationFailed, env: Env) -> Step:
    execution = state.execution
    if (
        execution is None
        or execution.row.execution_id != event.execution_id
        or execution.row.phase is not Phase.PREPARING
    ):
        return without_change(state)
    draft = Draft(state, env, execution)
    _announce_capabilities(draft, event.events)
    return blocked(draft, event.error, "blocked") if event.blocked else failed(draft, event.error, "failed")


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


# --- model calls -----------------------------------------------------------------------------------------------


def _waits_for(state: AgentState, model_call_id: str) -> Execution | None:
    execution = state.execution
    if execution is None or execution.model_call is None:
        return None
    return execution if execution.model_call.model_call_id == model_call_id else None


def _model_answered(state: AgentState, event: ModelAnswered, env: Env) -> Step:
    execution = _waits_for(state, event.model_call_id)
    if execution is None:
        return without_change(state)
    answer = event.answer
    draft = Draft(state, env, execution)
    usage = answer.usage or Usage(unknown_calls=1)
    draft.progress(usage=execution.progress.usage + usage)
    ended = draft.end_model_call(
        "completed", usage=usage.to_wire(), attempts=[attempt.to_wire() for attempt in answer.attempts]
    )
    call_id = ended.model_call_id
    draft.record(
        RecordKind.MODEL_CALL_RECORDED,
        Channel.AUDIT,
        {
            "sequence": ended.sequence,
            "status": "completed",
            "usage": usage.to_wire(),
            "finish": answer.finish_reason.value,
        },
        model_call=call_id,
    )
    message = answer.message
    text = message.content or ""
    empty = not text.strip() and not message.tool_calls
    if not empty:
        draft.progress(empty_answers=0)
    withheld = env.filters_output and not message.tool_calls  # until the filters have seen it
    if not empty and not withheld:
        draft.message(RecordKind.ASSISTANT_MESSAGE, Channel.MODEL, message, model_call=call_id)
    if message.tool_calls:
        batch = prepare_batch(
            message.tool_calls,
            draft.tools.tools,
            agent_id=state.root.agent_id,
            execution_id=execution.row.execution_id,
            model_call_id=call_id,
            now=env.now,
            rules=event.rules,
            has_policy=env.definition.tool_approval_policy is not None,
        )
        draft.set_batch(batch)
        remember_direct(draft)
        tools_step.announce(draft)
        announce_decisions(draft, batch)
    if execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    cut = _cut(text, answer.finish_reason)
    if cut is not None:  # what was cut may have lost half a call: nothing of it runs
        return failed(draft, cut, "failed", output=None if withheld else text or None)
    if empty:
        return _empty_answer(draft, answer.finish_reason)
    if not message.tool_calls:
        return deliver(draft, text, model_call=call_id if withheld else "")
    repeat = refuse_repeat(draft)
    if repeat is not None:
        return failed(draft, repeat, "failed")
    if wait_for_code(draft):
        return draft.finish("batch")
    return settle_batch(draft, "batch") or after_batch(draft, "batch")


def _cut(text: str, finish: FinishReason) -> ErrorRecord | None:
    """Why the answer is not whole, if it is not."""
    error: ModelError
    if finish is FinishReason.LENGTH:
        error = OutputTruncatedError(
            f"the answer was cut by the output token limit after {len(text)} characters; raise max_output_tokens",
            details={"characters": len(text)},
        )
    elif finish is FinishReason.CONTENT_FILTER:
        error = ModelError("the provider's content filter cut the answer", code="content_filter")
    else:
        return None
    return ErrorRecord.from_exception(error)


def _empty_answer(draft: Draft, finish: FinishReason) -> Step:
    definition = draft.env.definition
    after_tools = any(message["role"] == "tool" for _, message in draft.execution_messages())
    if definition.allow_empty_answer and after_tools:
        return deliver(draft, "")
    count = draft.execution.progress.empty_answers + 1
    draft.progress(empty_answers=count)
    if count <= definition.empty_answer_retries and not _at_limit(draft):
        return next_model_call(draft, "repeat")
    error = EmptyResponseError(
        f"the model answered {count} times with neither text nor tool calls (finish reason {finish.value!r})",
        details={"answers": count, "finish_reason": finish.value},
    )
    return failed(draft, ErrorRecord.from_exception(error), "failed")


def _model_failed(state: AgentState, event: ModelFailed, env: Env) -> Step:
    execution = _waits_for(state, event.model_call_id)
    if execution is None:
        return without_change(state)
    draft = Draft(state, env, execution)
    ended = draft.end_model_call("failed", attempts=event.attempts, error=event.error.to_wire())
    draft.record(
        RecordKind.MODEL_CALL_RECORDED,
        Channel.AUDIT,
        {"sequence": ended.sequence, "status": "failed", "error": event.error.code},
        model_call=ended.model_call_id,
    )
    if execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    return failed(draft, event.error, "failed")


def _model_stopped(state: AgentState, event: ModelStopped, env: Env) -> Step:
    execution = _waits_for(state, event.model_call_id)
    if execution is None or execution.row.cancel_requested_at is None:
        return without_change(state)
    return cancelled(Draft(state, env, execution), "cancel")


# --- authorization and tools -----------------------------------------------------------------------------------


def _authorized(state: AgentState, event: Authorized, env: Env) -> Step:
    if state.execution is None:
        return without_change(state)
    draft = Draft(state, env, state.execution)
    if not is_awaited(draft, event):
        return without_change(state)
    apply_verdicts(draft, event)
    if draft.execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    return settle_batch(draft, "authorized") or after_batch(draft, "authorized")


def _tool_outcomes(state: AgentState, event: ToolOutcomes, env: Env) -> Step:
    execution = state.execution
    if execution is None or not execution.batch:
        return without_change(state)
    draft = Draft(state, env, execution)
    if not tools_step.apply_outcomes(draft, event.outcomes):
        return without_change(state)
    return after_batch(draft, "results")


def _carry_on(found: Step | Draft, name: str) -> Step:
    return found if isinstance(found, Step) else after_batch(found, name)


def after_batch(draft: Draft, name: str) -> Step:
    """Go on as the present batch allows: wait, ask a human, end, or call the model with the results."""
    tools_step.answer_twins(draft)
    tools_step.fill_gate(draft)
    batch = draft.execution.batch
    if any(call.is_live for call in batch):
        return draft.finish(name)
    if draft.execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    if any(call.phase is ToolPhase.UNRESOLVED for call in batch):
        ask_for_resolution(draft)
        return draft.finish("unresolved")
    output = direct_output(draft)
    is_fatal = any(call.phase is ToolPhase.FAILED for call in batch)
    notice = count_repeats(draft, goes_on=not is_fatal and output is None and not _at_limit(draft))
    fatal = tools_step.journal_batch(draft, notice=notice)
    if fatal is not None:
        cause = fatal.causes[0]
        if cause.code == FilterBlockError.default_code:
            return blocked(draft, replace(cause, details=fatal.details), "blocked")
        return failed(draft, fatal, "failed")
    if output is not None:
        return deliver(draft, output)
    if _at_limit(draft):
        return failed(draft, tools_step.iteration_limit(draft), "failed")
    return next_model_call(draft, name)


def _at_limit(draft: Draft) -> bool:
    return draft.execution.progress.model_calls >= draft.env.definition.max_iterations


# --- recovery --------------------------------------------------------------------------------------------------


def _recover(state: AgentState, event: Recover, env: Env) -> Step:
    execution = state.execution
    if execution is None:
        return without_change(state)
    if execution.row.status is ExecutionStatus.SUSPENDED:
        return _carry_on(humans.expire(state, env), "expiry")
    row = execution.row
    draft = Draft(state, env, execution)
    draft.event(EventType.RECOVERED, {"epoch": state.root.epoch, "phase": row.phase.value, **env.owner})
    if row.cancel_requested_at is not None:
        if tools_step.lose_running(draft, event.attachment):
            draft.move(row.status, row.phase)
            draft.effects.append(StopWork(row.execution_id))
            return draft.finish("recover")
        return cancelled(draft, "cancel")
    match row.phase:
        case Phase.PREPARING:
            draft.move(row.status, row.phase)
            draft.effects.append(Prepare(row.execution_id, row.input, row.durable_context))
            return draft.finish("recover")
        case Phase.BUILDING_INPUT:
            return build_input(draft, "recover")
        case Phase.FILTERING_OUTPUT:
            filter_output(draft)
            return draft.finish("recover")
        case Phase.CALLING_MODEL:
            draft.move(row.status, row.phase)
            draft.effects.append(draft.repeat_model_call())
            return draft.finish("recover")
        case Phase.AUTHORIZING:
            wait_for_code(draft)
            return draft.finish("recover")
        case Phase.DISPATCHING_TOOLS | Phase.RECOVERY_TOOLS:
            draft.move(row.status, row.phase)
            tools_step.redispatch_lost(draft, event.attachment)
            return after_batch(draft, "recover")
        case Phase.APPROVAL | Phase.ENDED:
            raise IllegalTransitionError(
                f"execution {row.execution_id} is stored as {row.status.value} in phase {row.phase.value}"
            )
    assert_never(row.phase)


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
