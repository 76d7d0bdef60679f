"""The ends of an execution: each closes every open call and request in the commit that makes it terminal."""

from __future__ import annotations

from typing import Any

from phronomy_ray.errors import CancellationError, DeadlineExceededError, ErrorRecord, TurnTimeoutError
from phronomy_ray.events import EventType
from phronomy_ray.journal import Channel, ExecutionStatus, ModelCallStatus, Phase, RecordKind
from phronomy_ray.kernel import tools_step
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Step

#: Reason of a cancellation by the turn's own time limit.
TURN_TIMEOUT = TurnTimeoutError.default_code
#: Reason of a cancellation by its caller's time limit.
DEADLINE = DeadlineExceededError.default_code
#: What ends are raised as that came with time and not by anybody's word.
_TIMEOUTS: dict[str, type[CancellationError]] = {
    TURN_TIMEOUT: TurnTimeoutError,
    DEADLINE: DeadlineExceededError,
}


def completed(draft: Draft, output: str, name: str) -> Step:
    """A final answer."""
    draft.record(RecordKind.FINAL_OUTPUT, Channel.AUDIT, {"output": output})
    draft.record(
        RecordKind.EXECUTION_COMPLETED, Channel.AUDIT, {"usage": draft.execution.progress.usage.to_wire()}
    )
    draft.event(EventType.COMPLETED, {"output": output})
    return _end(draft, ExecutionStatus.COMPLETED, name, output=output)


def failed(draft: Draft, error: ErrorRecord, name: str, *, output: str | None = None) -> Step:
    """A typed failure; what was done stays in the journal and in the next turn's view."""
    if draft.execution.model_call is not None:
        draft.end_model_call(ModelCallStatus.FAILED, error=error.to_wire())
    tools_step.close_open_calls(draft)
    draft.record(
        RecordKind.EXECUTION_FAILED,
        Channel.AUDIT,
        {"code": error.code, "type": error.type, "message": error.message},
    )
    draft.event(EventType.FAILED, {"error": error.to_wire()})
    return _end(
        draft, ExecutionStatus.FAILED, name, error=error.to_wire(), output=output, terminal_reason=error.code
    )


def blocked(draft: Draft, error: ErrorRecord, name: str) -> Step:
    """A filter let the input, the output or a result not pass; the reason is the error's message."""
    tools_step.close_open_calls(draft)
    site = (error.details or {}).get("site")
    draft.record(
        RecordKind.EXECUTION_BLOCKED,
        Channel.AUDIT,
        {"code": error.code, "site": site, "reason": error.message},
    )
    draft.event(EventType.BLOCKED, {"error": error.to_wire()})
    return _end(draft, ExecutionStatus.BLOCKED, name, error=error.to_wire(), terminal_reason=error.code)


def cancelled(draft: Draft, name: str) -> Step:
    """The end of a cancelled execution; nothing of it runs any more."""
    row = draft.execution.row
    reason = row.terminal_reason or "cancelled"
    if draft.execution.model_call is not None:
        ended = draft.end_model_call(ModelCallStatus.CANCELLED)
        draft.record(
            RecordKind.MODEL_CALL_RECORDED,
            Channel.AUDIT,
            {"sequence": ended.sequence, "status": ended.status.value},
            model_call=ended.model_call_id,
        )
    tools_step.close_open_calls(draft)
    draft.record(RecordKind.EXECUTION_CANCELLED, Channel.AUDIT, {"reason": reason})
    draft.event(EventType.CANCELLED, {"reason": reason})
    error = cancellation_error(f"execution {row.execution_id} was cancelled", reason)
    return _end(
        draft,
        ExecutionStatus.CANCELLED,
        name,
        error=error.to_wire(),
        terminal_reason=reason,
        cancel_requested_at=row.cancel_requested_at or draft.env.now,
    )


def cancellation_error(what: str, reason: str) -> ErrorRecord:
    """The error of a cancelled execution: a time that was over is told apart from somebody's word."""
    kind = _TIMEOUTS.get(reason, CancellationError)
    text = what + ("" if reason == "cancelled" else f": {reason}")
    return ErrorRecord.from_exception(kind(text, details={"reason": reason}))


def rejected(draft: Draft, reason: str | None, name: str) -> Step:
    """A human refused a call of the batch: none of it runs."""
    draft.move(ExecutionStatus.ACTIVE, Phase.APPROVAL)
    tools_step.close_open_calls(draft)
    draft.record(RecordKind.EXECUTION_REJECTED, Channel.AUDIT, {"reason": reason})
    draft.event(EventType.REJECTED, {"reason": reason})
    return _end(draft, ExecutionStatus.REJECTED, name, terminal_reason="rejected")


def _end(draft: Draft, status: ExecutionStatus, name: str, **changes: Any) -> Step:
    draft.move(status, Phase.ENDED, ended_at=draft.env.now, **changes)
    return draft.finish(name)
