"""What a model call came to: an answer, tool calls, nothing at all, a failure, a stop."""

from __future__ import annotations

from phronomy_ray.errors import EmptyResponseError, ErrorRecord, ModelError, OutputTruncatedError
from phronomy_ray.journal import Channel, ModelCallStatus, RecordKind
from phronomy_ray.kernel import tools_step
from phronomy_ray.kernel.after_batch import after_batch, at_limit
from phronomy_ray.kernel.approvals import settle_batch
from phronomy_ray.kernel.authorization import announce_decisions, wait_for_code
from phronomy_ray.kernel.batch import prepare_batch
from phronomy_ray.kernel.direct import remember_direct
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Step, without_change
from phronomy_ray.kernel.ending import cancelled, failed
from phronomy_ray.kernel.inputs import Env, ModelAnswered, ModelFailed, ModelStopped
from phronomy_ray.kernel.model_input import next_model_call
from phronomy_ray.kernel.output import deliver
from phronomy_ray.kernel.repeats import refuse_repeat
from phronomy_ray.kernel.state import AgentState, Execution
from phronomy_ray.messages import Usage
from phronomy_ray.models.port import FinishReason


def model_answered(state: AgentState, event: ModelAnswered, env: Env) -> Step:
    """Go on with the answer: its tool calls, its text, or neither."""
    execution = _waits_for(state, event.model_call_id)
    if execution is None:
        return without_change(state)
    answer = event.answer
    draft = Draft(state, env, execution)
    usage = answer.usage or Usage(unknown_calls=1)
    draft.progress(usage=execution.progress.usage + usage)
    ended = draft.end_model_call(
        ModelCallStatus.COMPLETED,
        usage=usage.to_wire(),
        attempts=[attempt.to_wire() for attempt in answer.attempts],
    )
    call_id = ended.model_call_id
    draft.record(
        RecordKind.MODEL_CALL_RECORDED,
        Channel.AUDIT,
        {
            "sequence": ended.sequence,
            "status": ended.status.value,
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


def model_failed(state: AgentState, event: ModelFailed, env: Env) -> Step:
    """End with the failure, or as cancelled."""
    execution = _waits_for(state, event.model_call_id)
    if execution is None:
        return without_change(state)
    draft = Draft(state, env, execution)
    ended = draft.end_model_call(ModelCallStatus.FAILED, attempts=event.attempts, error=event.error.to_wire())
    draft.record(
        RecordKind.MODEL_CALL_RECORDED,
        Channel.AUDIT,
        {"sequence": ended.sequence, "status": ended.status.value, "error": event.error.code},
        model_call=ended.model_call_id,
    )
    if execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    return failed(draft, event.error, "failed")


def model_stopped(state: AgentState, event: ModelStopped, env: Env) -> Step:
    """End as cancelled, which is what the call was stopped for."""
    execution = _waits_for(state, event.model_call_id)
    if execution is None or execution.row.cancel_requested_at is None:
        return without_change(state)
    return cancelled(Draft(state, env, execution), "cancel")


def _waits_for(state: AgentState, model_call_id: str) -> Execution | None:
    execution = state.execution
    if execution is None or execution.model_call is None:
        return None
    return execution if execution.model_call.model_call_id == model_call_id else None


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
    if count <= definition.empty_answer_retries and not at_limit(draft):
        return next_model_call(draft, "repeat")
    error = EmptyResponseError(
        f"the model answered {count} times with neither text nor tool calls (finish reason {finish.value!r})",
        details={"answers": count, "finish_reason": finish.value},
    )
    return failed(draft, ErrorRecord.from_exception(error), "failed")
