"""Outcomes that nobody's body gave: of calls that did not run, or whose end is told by somebody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phronomy_ray.clock import timestamp
from phronomy_ray.errors import BackpressureError, ErrorRecord, PhronomyError, ToolError, ToolTimeoutError
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import CallKey, ToolOutcome


def not_performed(key: CallKey) -> ToolOutcome:
    """The call was taken back before its body began."""
    return ToolOutcome(
        *key,
        ToolCallStatus.NOT_PERFORMED,
        "Not performed: the turn was cancelled before this call was started.",
    )


def unknown(
    key: CallKey, reason: str, *, code: str = "outcome_unknown", node: str = "", started: str = ""
) -> ToolOutcome:
    """Nobody can be asked any more what the body did."""
    return ToolOutcome(
        *key,
        ToolCallStatus.UNKNOWN,
        f"Unknown: {reason}",
        error=ErrorRecord("ToolError", code, reason),
        node=node,
        started_at=started,
        ended_at=timestamp(),
    )


def missing_tool(key: CallKey, tool_name: str) -> ToolOutcome:
    """The definition has no more the tool of a stored call."""
    text = f"the agent's definition has no tool {tool_name!r} any more"
    return _failed(key, ToolError(text, code="definition_changed"))


def timed_out(
    key: CallKey, limit_s: float, *, node: str = "", pid: int = 0, started: str = "", was_killed: bool = False
) -> ToolOutcome:
    """The body was over its time: it was killed, or goes on."""
    text = f"the tool did not finish within {limit_s:g} s" + (" and was killed" if was_killed else "")
    made = _failed(key, ToolTimeoutError(text), ToolCallStatus.TIMED_OUT)
    return replace(made, node=node, pid=pid, started_at=started)


def gave_up(key: CallKey, limit_s: float) -> ToolOutcome:
    """The body is over its time, and its process does not say so."""
    text = f"the tool did not finish within {limit_s:g} s, nor did its process answer"
    return _failed(key, ToolTimeoutError(text), ToolCallStatus.TIMED_OUT)


def rejected(key: CallKey, why: str, details: dict[str, Any]) -> ToolOutcome:
    """The pool had no room for the call's batch; nothing of the batch has run."""
    return _failed(key, BackpressureError(f"the call was not performed: {why}", details=details))


def pool_unavailable(key: CallKey, reason: str) -> ToolOutcome:
    """No process could be started for the call; it has not run."""
    return _failed(key, ToolError(f"the call was not performed: {reason}", code="pool_unavailable"))


def _failed(
    key: CallKey, error: PhronomyError, status: ToolCallStatus = ToolCallStatus.FAILED
) -> ToolOutcome:
    record = ErrorRecord.from_exception(error)
    text = f"Error ({record.code}): {record.message}"
    return ToolOutcome(*key, status, text, error=record, ended_at=timestamp())
