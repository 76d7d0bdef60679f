"""Requests of one batch: asked together, decided one by one, and concluded when every gated call is settled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from phronomy_ray.approvals import DecisionSource
from phronomy_ray.definition.tool import ToolOrigin, ToolSpec
from phronomy_ray.events import EventType
from phronomy_ray.frozen import replace
from phronomy_ray.ids import approval_request_id
from phronomy_ray.journal import (
    ApprovalRow,
    ApprovalStatus,
    Channel,
    ExecutionStatus,
    Phase,
    RecordKind,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.kernel.authorization import FORMAT, refusal
from phronomy_ray.kernel.display import result_event, shown_arguments, spec_of
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Step
from phronomy_ray.kernel.ending import rejected
from phronomy_ray.kernel.fingerprint import change_since, fingerprint_of
from phronomy_ray.kernel.state import pending_approvals
from phronomy_ray.kernel.tool_call import ToolCall
from phronomy_ray.kernel.tools_step import dispatch
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.redaction import SECRET_FIELD_NAMES, redact_fields, redact_json, secret_values


def settle_batch(draft: Draft, name: str) -> Step | None:
    """Decide about the batch as a whole, once no call of it waits for user code.

    Suspends while a human has to be asked (the step is given), ends the execution when calls were refused and none of the
    gated ones may run (the step is given), else queues every call that may run (``None``: go on).
    """
    phases = [call.phase for call in draft.execution.batch]
    assert ToolPhase.AUTHORIZING not in phases
    if pending_approvals(draft.execution):
        return draft.finish(name)
    if ToolPhase.AWAITING_APPROVAL in phases:
        _ask(draft)
        return draft.finish("suspend")
    if ToolPhase.REJECTED in phases and not any(map(_is_permitted, draft.execution.batch)):
        return rejected(draft, _last_reason(draft), "rejected")
    dispatch(draft, checked=draft.execution.row.phase is not Phase.CALLING_MODEL)
    return None


def _is_permitted(call: ToolCall) -> bool:
    """Whether somebody was, or would have been, asked about this call and it may run."""
    return call.row.requires_approval and call.phase is ToolPhase.AUTHORIZED


def _ask(draft: Draft) -> None:
    """Suspend with one approval request per gated call; nothing of the batch has run."""
    requests = [
        _request(draft, call.row)
        for call in draft.execution.batch
        if call.phase is ToolPhase.AWAITING_APPROVAL
    ]
    for request in requests:
        facts = request_facts(request)
        draft.record(
            RecordKind.APPROVAL_REQUIRED,
            Channel.APPROVAL,
            facts,
            causation=request.tool_call_id,
            model_call=request.batch_id,
        )
        draft.event(EventType.APPROVAL_REQUIRED, facts)
    draft.set_approvals(requests)
    draft.move(ExecutionStatus.ACTIVE, Phase.APPROVAL)
    draft.move(ExecutionStatus.SUSPENDED, Phase.APPROVAL)


def _request(draft: Draft, row: ToolCallRow) -> ApprovalRow:
    spec = spec_of(draft, row)
    note = row.authorization or {}
    facts = note.get("facts")
    expires_s = spec.approval_expires_s if spec is not None else None
    return ApprovalRow(
        approval_request_id=approval_request_id(row.tool_call_id),
        execution_id=row.execution_id,
        agent_id=row.agent_id,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        arguments=shown_arguments(draft, row),
        status=ApprovalStatus.PENDING,
        created_at=draft.env.now,
        batch_id=row.model_call_id,
        asked_by=note.get("source", DecisionSource.TOOL.value),
        tool_origin=(spec.tool_origin if spec is not None else ToolOrigin.LOCAL).value,
        metadata=dict(spec.approval_metadata) if spec is not None else {},
        facts=None if facts is None else _shown_facts(facts, row, spec),
        expires_at=draft.env.now + timedelta(seconds=expires_s) if expires_s is not None else None,
        fingerprint=fingerprint_of(row, draft.tools.tools, draft.env.definition),
    )


def _shown_facts(facts: dict[str, Any], row: ToolCallRow, spec: ToolSpec | None) -> Any:
    """Facts as they may be displayed: without the values of hidden arguments, and without what is named like a secret."""
    hidden = spec.redact_params if spec is not None else ()
    shown = redact_fields(facts, {*SECRET_FIELD_NAMES, *hidden})
    return redact_json(shown, secret_values(row.arguments, hidden) if hidden else ())


def request_facts(request: ApprovalRow) -> dict[str, Any]:
    """What the journal and events say of a request."""
    return {
        "approval_request_id": request.approval_request_id,
        "batch_id": request.batch_id,
        "tool_call_id": request.tool_call_id,
        "tool_name": request.tool_name,
        "arguments": request.arguments,
        "facts": request.facts,
        "asked_by": request.asked_by,
        "tool_origin": request.tool_origin,
        "metadata": request.metadata,
        "expires_at": request.expires_at.isoformat() if request.expires_at is not None else None,
    }


def answer(
    draft: Draft,
    request: ApprovalRow,
    status: ApprovalStatus,
    *,
    source: DecisionSource,
    decided_by: str | None = None,
    reason: str | None = None,
    edited: dict[str, Any] | None = None,
) -> None:
    """Record the answer to one request, whoever gave it, and move its call; `edited` are arguments in place of the model's."""
    call = next(item for item in draft.execution.batch if item.row.tool_call_id == request.tool_call_id)
    answered = replace(request, status=status, decided_at=draft.env.now, decided_by=decided_by, reason=reason)
    changes: dict[str, Any] = {}
    if edited is not None:
        note = dict(call.row.authorization or {"v": FORMAT}) | {"edited_by": decided_by or "a human"}
        changes = {"arguments": edited, "authorization": note}
        row = replace(call.row, **changes)
        answered = replace(
            answered,
            edited_arguments=shown_arguments(draft, row),
            fingerprint=fingerprint_of(row, draft.tools.tools, draft.env.definition),
        )
    draft.set_approvals(answered if item is request else item for item in draft.execution.approvals)
    facts = {
        "approval_request_id": request.approval_request_id,
        "tool_call_id": request.tool_call_id,
        "approved": status is ApprovalStatus.APPROVED,
        "status": status.value,
        "decided_by": decided_by,
        "reason": reason,
    }
    # the journal keeps the human's arguments as they will run, like the model's; observers see them redacted
    kept = facts if edited is None else facts | {"edited_arguments": edited}
    shown = facts if edited is None else facts | {"edited_arguments": answered.edited_arguments}
    draft.record(RecordKind.APPROVAL_DECIDED, Channel.APPROVAL, kept, causation=request.tool_call_id)
    draft.event(EventType.APPROVAL_DECIDED, shown)
    if status is ApprovalStatus.APPROVED:
        moved = call.move(ToolPhase.AUTHORIZED, status=ToolCallStatus.INTENT, **changes)
    else:
        moved = call.close(ToolCallStatus.REJECTED, refusal(source, reason), draft.env.now)
    draft.set_batch(moved if item is call else item for item in draft.execution.batch)
    if moved.is_settled:
        result_event(draft, moved.row)


def _last_reason(draft: Draft) -> str | None:
    """Why the batch was refused: the last human's word, else that of a rule."""
    answered = [item for item in draft.execution.approvals if item.reason and item.decided_at is not None]
    if answered:
        return max(answered, key=lambda item: item.decided_at or item.created_at).reason
    rules = ((call.row.authorization or {}).get("rule") or {} for call in draft.execution.batch)
    return next((rule["reason"] for rule in rules if rule.get("reason")), None)


def first_change(draft: Draft) -> tuple[ToolCallRow, str] | None:
    """A call that may run by what was decided, and must not because its tool has changed; with the reason."""
    approvals = {item.tool_call_id: item for item in draft.execution.approvals}
    for call in draft.execution.batch:
        if call.phase is ToolPhase.AUTHORIZED:
            change = change_since(
                call.row, draft.tools.tools, draft.env.definition, approvals.get(call.row.tool_call_id)
            )
            if change is not None:
                return call.row, change
    return None
