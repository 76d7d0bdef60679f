"""Calls whose outcome nobody knows: asking a human what became of them, and taking the word."""

from __future__ import annotations

from phronomy_ray.errors import ErrorRecord, InvalidInputError, NotFoundError, StateConflictError
from phronomy_ray.events import EventType
from phronomy_ray.journal import ExecutionStatus, Phase, ToolCallStatus
from phronomy_ray.kernel.display import result_event, shown_arguments
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.inputs import Resolve
from phronomy_ray.kernel.tools_step import dispatch, is_fatal
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.tool_calls import Resolution, ToolOutcome


def ask_for_resolution(draft: Draft) -> None:
    """Suspend until a human says what became of each unresolved call."""
    draft.move(ExecutionStatus.SUSPENDED, Phase.RECOVERY_TOOLS)
    for call in draft.execution.batch:
        if call.phase is ToolPhase.UNRESOLVED:
            draft.event(
                EventType.RESOLUTION_REQUIRED,
                {
                    "tool_call_id": call.row.tool_call_id,
                    "tool_name": call.row.tool_name,
                    "arguments": shown_arguments(draft, call.row),
                    "allowed_outcomes": [word.value for word in Resolution],
                    "attempt": call.row.attempt,
                    "execution_revision": draft.execution.row.revision + 1,
                    "reason": "the process that ran this call was lost and its replay rule is 'never'",
                },
            )


def resolve(draft: Draft, event: Resolve) -> None:
    """Settle one unresolved call by a human's word.

    Raises:
        NotFoundError: the call is not waiting for one.
        StateConflictError: it waits for one about another attempt.
        InvalidInputError: the outcome does not fit what was given with it.
    """
    call = next((item for item in draft.execution.batch if item.row.tool_call_id == event.tool_call_id), None)
    if call is None or call.phase is not ToolPhase.UNRESOLVED:
        waiting = [
            item.row.tool_call_id for item in draft.execution.batch if item.phase is ToolPhase.UNRESOLVED
        ]
        raise NotFoundError(
            f"tool call {event.tool_call_id!r} does not wait for a resolution", details={"waiting": waiting}
        )
    if event.expected_attempt is not None and event.expected_attempt != call.row.attempt:
        raise StateConflictError(
            f"tool call {event.tool_call_id!r} waits for a word about attempt {call.row.attempt}, not "
            f"{event.expected_attempt}",
            details={"attempt": call.row.attempt},
        )
    if event.outcome is not Resolution.FAILED and event.error:
        raise InvalidInputError(f"outcome {event.outcome.value!r} takes no error")
    if event.outcome is not Resolution.SUCCEEDED and event.result is not None:
        raise InvalidInputError(f"outcome {event.outcome.value!r} takes no result")
    draft.event(
        EventType.RESOLVED,
        {"tool_call_id": event.tool_call_id, "outcome": event.outcome.value, "decided_by": event.decided_by},
    )
    if event.outcome is Resolution.NOT_PERFORMED:
        dispatch(draft, {event.tool_call_id})
        return
    if event.outcome is Resolution.SUCCEEDED:
        outcome = ToolOutcome(
            call.row.tool_call_id, call.row.attempt, ToolCallStatus.SUCCEEDED, event.result_text, event.result
        )
    else:
        if not event.error:
            raise InvalidInputError("outcome 'failed' needs an error text")
        record = ErrorRecord("ToolError", "resolved_failed", event.error)
        outcome = ToolOutcome(
            call.row.tool_call_id,
            call.row.attempt,
            ToolCallStatus.FAILED,
            f"Error (resolved_failed): {event.error}",
            error=record,
        )
    settled = call.settle(outcome, fatal=is_fatal(draft, call.row, outcome), now=draft.env.now)
    draft.set_batch(settled if item is call else item for item in draft.execution.batch)
    result_event(draft, settled.row)
    draft.move(draft.execution.row.status, draft.execution.row.phase)
