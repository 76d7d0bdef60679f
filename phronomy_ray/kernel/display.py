"""What observers are told of a call: its arguments and its result without what is hidden, and words for ends without a text."""

from __future__ import annotations

from typing import Any

from phronomy_ray.definition.tool import ToolSpec
from phronomy_ray.events import EventType
from phronomy_ray.journal import ResultStatus, ToolCallRow, ToolCallStatus
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.shown import result_status
from phronomy_ray.redaction import REDACTED, redact_fields, redact_text, secret_values
from phronomy_ray.tool_results import result_text

#: How much of a result an event shows.
PREVIEW_CHARS = 300

#: What the model is told of a call that has no text of its own.
CLOSING_TEXT = {
    ToolCallStatus.NOT_PERFORMED: "Not performed: the turn ended before this call was started.",
    ToolCallStatus.CANCELLED: "Cancelled: this call was stopped.",
    ToolCallStatus.REJECTED: "Rejected: a human refused this call; it was not performed.",
    ToolCallStatus.UNKNOWN: "Unknown: this call was started and its outcome is not known.",
}


def shown_arguments(draft: Draft, row: ToolCallRow) -> Any:
    """Arguments as events and displays may show them."""
    spec = spec_of(draft, row)
    return redact_fields(row.arguments, spec.redact_params if spec else ())


def result_event(draft: Draft, row: ToolCallRow) -> None:
    """Tell observers what became of a call, without what is hidden."""
    spec = spec_of(draft, row)
    text = row.model_text or CLOSING_TEXT.get(row.status, "")
    names = spec.redact_params if spec is not None else ()
    # refused arguments are quoted in the refusal and were never taken apart, so there is nothing to search for
    hidden = spec is not None and (spec.redact_result or (bool(names) and row.arguments is None))
    secrets = secret_values(row.arguments, names) if names else ()
    status = result_status(row)
    shown = text
    if secrets and status is ResultStatus.TRUNCATED:
        shown = result_text(row.result)  # a hidden value may be torn where the text for the model was cut
    draft.event(
        EventType.TOOL_RESULT,
        {
            "tool_call_id": row.tool_call_id,
            "tool_name": row.tool_name,
            "status": row.status.value,
            "result_status": status.value,
            "attempt": row.attempt,
            "preview": REDACTED
            if hidden
            else redact_text(shown[: 2 * PREVIEW_CHARS], secrets)[:PREVIEW_CHARS],
            "characters": len(text),
        },
    )


def public_error(error: dict[str, Any] | None) -> dict[str, Any] | None:
    """An error of the ledger as the journal keeps it beside the result."""
    if error is None:
        return None
    return {key: value for key, value in error.items() if key not in ("traceback", "fatal")}


def spec_of(draft: Draft, row: ToolCallRow) -> ToolSpec | None:
    """The declaration of the call's tool as it is now; ``None`` when the agent has no such tool."""
    bound = draft.tools.tools.get(row.tool_name)
    return bound.spec if bound else None
