"""What humans, and the clock in their place, say about the running execution: decide, resolve, cancel, expire.

A function here gives a finished `Step`, or the `Draft` of a batch with which the machine goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from phronomy_ray.approvals import DecisionSource
from phronomy_ray.canonical_json import content_hash, dumps
from phronomy_ray.definition.schema import ArgumentError
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import (
    ApprovalExpiredError,
    DefinitionChangedError,
    InvalidInputError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.frozen import replace
from phronomy_ray.journal import ApprovalRow, ApprovalStatus, ExecutionStatus, Phase, ToolCallRow
from phronomy_ray.kernel import approvals, resolution
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Step, StopWork, without_change
from phronomy_ray.kernel.ending import cancelled
from phronomy_ray.kernel.fingerprint import change_since
from phronomy_ray.kernel.inputs import Cancel, Decide, Env, Resolve
from phronomy_ray.kernel.state import AgentState, Execution, pending_approvals
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.redaction import REDACTED, restore_fields


def _held(state: AgentState, execution_id: str) -> Execution:
    if state.execution is None or state.execution.row.execution_id != execution_id:
        raise StateConflictError(
            f"execution {execution_id} is not the running execution of agent {state.root.agent_id!r}",
            details={"execution_id": execution_id, "agent_id": state.root.agent_id},
        )
    return state.execution


def decide(state: AgentState, event: Decide, env: Env) -> Step | Draft:
    """One answer to one request: the first counts, the same again changes nothing, another is refused.

    Raises:
        InvalidInputError: edited arguments with a rejection, or such as do not fit the tool's schema (says where).
        NotFoundError: the batch has no such request.
        StateConflictError: the execution is not running, or the request was answered otherwise.
        ApprovalExpiredError: it expired before.
        DefinitionChangedError: an approved call would not be what was asked about; nothing was changed.
    """
    execution = _held(state, event.execution_id)
    wanted = ApprovalStatus.APPROVED if event.approved else ApprovalStatus.REJECTED
    request = next(
        (item for item in execution.approvals if item.approval_request_id == event.approval_request_id), None
    )
    if request is None:
        raise NotFoundError(
            f"execution {event.execution_id} has no open approval request {event.approval_request_id!r}",
            details={"open": [item.approval_request_id for item in pending_approvals(execution)]},
        )
    if request.status is not ApprovalStatus.PENDING:
        if is_same_answer(request, event, Draft(state, env, execution).tools.tools):
            return without_change(state)
        raise answered_otherwise(request)
    if _is_due(request, env):
        raise ApprovalExpiredError(
            f"approval request {request.approval_request_id} expired at {_iso(request.expires_at)}",
            details=decision_details(request),
        )
    draft = Draft(state, env, execution)
    row = next(call.row for call in execution.batch if call.row.tool_call_id == request.tool_call_id)
    if event.edited_arguments is not None and not event.approved:
        raise InvalidInputError("edited arguments go with an approval, not with a rejection")
    edited = None
    if event.approved:
        change = change_since(row, draft.tools.tools, env.definition, request)
        if change is not None:
            raise _changed(row, change)
        if event.edited_arguments is not None:
            edited = _decoded(row, event.edited_arguments, draft.tools.tools)
    approvals.answer(
        draft,
        request,
        wanted,
        source=DecisionSource.HUMAN,
        decided_by=event.decided_by,
        reason=event.reason,
        edited=edited,
    )
    if event.approved and not pending_approvals(draft.execution):
        changed = approvals.first_change(draft)  # something that was approved before
        if changed is not None:
            raise _changed(*changed)
    return approvals.settle_batch(draft, "decision") or draft


def is_same_answer(request: ApprovalRow, event: Decide, tools: Mapping[str, BoundTool]) -> bool:
    """Whether `event` says again what `request` was answered: the same word about the same arguments."""
    if request.status is not (ApprovalStatus.APPROVED if event.approved else ApprovalStatus.REJECTED):
        return False
    if event.edited_arguments is None or request.edited_arguments is None:
        return event.edited_arguments is None and request.edited_arguments is None
    given: Any = event.edited_arguments
    if dumps(given) == dumps(request.edited_arguments):
        return True  # as displays show it, masks included
    bound = tools.get(request.tool_name)
    try:
        given = bound.spec.parameters.decode(dumps(given)) if bound is not None else given
    except ArgumentError:
        pass  # the tool has changed since; then only the very same text is the same answer
    return bool(request.fingerprint.get("arguments") == content_hash(dumps(given)))


def _decoded(row: ToolCallRow, given: dict[str, Any], tools: Mapping[str, BoundTool]) -> dict[str, Any]:
    spec = tools[row.tool_name].spec
    details = {"tool_name": row.tool_name, "tool_call_id": row.tool_call_id}
    try:
        meant = restore_fields(given, row.arguments, spec.redact_params)
    except ValueError as error:
        raise InvalidInputError(
            f"the edited arguments of tool {row.tool_name!r} hold {REDACTED!r} at {error}, where it stands for no value of "
            "the model's; write the value itself",
            details=details,
        ) from None
    try:
        return spec.parameters.decode(dumps(meant))
    except ArgumentError as error:
        raise InvalidInputError(
            f"the edited arguments do not fit tool {row.tool_name!r}: {error}", details=details
        ) from None


def _changed(row: ToolCallRow, change: str) -> DefinitionChangedError:
    return DefinitionChangedError(
        f"{change}: nothing was decided; bring the old version back, or reject the request",
        details={"tool_name": row.tool_name, "tool_call_id": row.tool_call_id},
    )


def answered_otherwise(request: ApprovalRow) -> StateConflictError:
    """The refusal that tells a late answer who decided, when and what."""
    by = f" by {request.decided_by}" if request.decided_by else ""
    when = f" at {_iso(request.decided_at)}" if request.decided_at else ""
    text = f"approval request {request.approval_request_id} was already {request.status.value}{by}{when}"
    if request.status is ApprovalStatus.VOID:
        text = f"approval request {request.approval_request_id} is void{when}: its execution ended unanswered"
    cls = ApprovalExpiredError if request.status is ApprovalStatus.EXPIRED else StateConflictError
    return cls(text, details=decision_details(request))


def decision_details(request: ApprovalRow) -> dict[str, str | None]:
    """Who decided what and when, as an error's details."""
    return {
        "approval_request_id": request.approval_request_id,
        "execution_id": request.execution_id,
        "status": request.status.value,
        "decided_by": request.decided_by,
        "decided_at": _iso(request.decided_at),
        "reason": request.reason,
        "expires_at": _iso(request.expires_at),
    }


def expire(state: AgentState, env: Env) -> Step | Draft:
    """Requests whose time is over count as rejected; without any, nothing changes."""
    execution = state.execution
    if execution is None or execution.row.status is not ExecutionStatus.SUSPENDED:
        return without_change(state)
    due = [item for item in pending_approvals(execution) if _is_due(item, env)]
    if not due:
        return without_change(state)
    draft = Draft(state, env, execution)
    for request in due:
        approvals.answer(draft, request, ApprovalStatus.EXPIRED, source=DecisionSource.EXPIRY)
    return approvals.settle_batch(draft, "expiry") or draft


def _is_due(request: ApprovalRow, env: Env) -> bool:
    return request.expires_at is not None and request.expires_at <= env.now


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def resolve(state: AgentState, event: Resolve, env: Env) -> Step | Draft:
    """A word about a call whose outcome is unknown. Raises as `resolution.resolve`."""
    execution = _held(state, event.execution_id)
    if event.expected_revision is not None and event.expected_revision != execution.row.revision:
        raise StateConflictError(
            f"execution {event.execution_id} is at revision {execution.row.revision}, not {event.expected_revision}",
            details={"revision": execution.row.revision},
        )
    draft = Draft(state, env, execution)
    resolution.resolve(draft, event)
    if any(call.phase is ToolPhase.UNRESOLVED for call in draft.execution.batch):
        return draft.finish("resolution")
    if draft.execution.row.status is ExecutionStatus.SUSPENDED:
        draft.move(ExecutionStatus.ACTIVE, Phase.DISPATCHING_TOOLS)
    return draft


def cancel(state: AgentState, event: Cancel, env: Env) -> Step:
    """Cancel: at once when nothing of it runs, else the intent is committed and its work is stopped."""
    execution = _held(state, event.execution_id)
    row = execution.row
    if row.cancel_requested_at is not None and row.status is not ExecutionStatus.SUSPENDED:
        return without_change(state, StopWork(row.execution_id))
    return request_cancel(Draft(state, env, execution), event.reason, "cancel")


def request_cancel(draft: Draft, reason: str, name: str) -> Step:
    """Commit what the draft holds and that its execution is to end, which it does at once when nothing of it runs. The first
    reason counts.
    """
    execution = draft.execution
    row = execution.row
    is_asked = row.cancel_requested_at is not None and row.status is not ExecutionStatus.SUSPENDED
    if not is_asked:
        draft.execution = replace(
            execution, row=replace(row, cancel_requested_at=draft.env.now, terminal_reason=reason)
        )
    works = execution.model_call is not None or any(call.is_live for call in execution.batch)
    if not works and not is_asked:
        return cancelled(draft, name)
    draft.move(row.status, row.phase)
    draft.effects.append(StopWork(row.execution_id))
    return draft.finish(f"{name}_intent")
