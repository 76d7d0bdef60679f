"""Which calls of a batch may run, who says so, and what user code has to be asked first.

The order follows Phronomy's authorization: facts, the tool's default, then (ours) standing rules, then the agent's
policy. A rule that refuses is final; one that allows saves the question, and the policy still has the last word. What
needs no user code is settled in the batch's own commit; the rest waits in `ToolPhase.AUTHORIZING`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from phronomy_ray.approvals import (
    ApprovalEvaluationRequest,
    ApprovalVerdict,
    CallAuthorization,
    DecisionSource,
    RuleEffect,
    StandingRule,
    rule_for,
)
from phronomy_ray.definition.tool import OnError, ToolOrigin
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import ErrorRecord
from phronomy_ray.events import EventType
from phronomy_ray.journal import Channel, ExecutionStatus, Phase, RecordKind, ToolCallStatus
from phronomy_ray.kernel.display import result_event
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Authorize
from phronomy_ray.kernel.inputs import Authorized
from phronomy_ray.kernel.tool_call import ToolCall, error_wire
from phronomy_ray.kernel.transitions import ToolPhase

FORMAT = 1
#: Code of a call whose authorization failed: its body never ran.
FAILED_CODE = "authorization_failed"

_REFUSERS = {
    DecisionSource.HUMAN: "a human refused this call",
    DecisionSource.EXPIRY: "nobody approved this call in time",
    DecisionSource.POLICY: "the agent's policy refuses this call",
    DecisionSource.RULE: "a standing rule refuses this tool",
    DecisionSource.TOOL: "the tool refuses this call",
}


def refusal(source: DecisionSource, reason: str | None) -> str:
    """What the model is told of a refused call."""
    why = f" Reason: {reason}" if reason else ""
    return f"Rejected: {_REFUSERS[source]}; it was not performed.{why}"


def gate(
    call: ToolCall,
    bound: BoundTool,
    arguments: dict[str, Any],
    *,
    rules: Sequence[StandingRule],
    has_policy: bool,
    now: datetime,
) -> ToolCall:
    """A validated call, as far as it can be settled without user code: rejected, authorized, awaiting, or authorizing."""
    if bound.is_framework:  # the framework's own tools ask nobody
        return call.move(ToolPhase.AUTHORIZING, arguments=arguments).move(ToolPhase.AUTHORIZED)
    spec = bound.spec
    rule = rule_for(rules, call.row.tool_name, bound.registry_key)
    refused = rule is not None and rule.effect is RuleEffect.REFUSE
    default = spec.requires_approval
    asks_code = callable(default) or (bool(default) and spec.approval_facts is not None)
    if not refused and (has_policy or (rule is None and asks_code)):
        return call.move(
            ToolPhase.AUTHORIZING,
            arguments=arguments,
            status=ToolCallStatus.AUTHORIZING,
            authorization=_note(rule) if rule is not None else None,
        )
    call = call.move(ToolPhase.AUTHORIZING, arguments=arguments)
    if rule is not None:
        verdict = ApprovalVerdict.REJECT if refused else ApprovalVerdict.ALLOW
        note = _note(rule, verdict=verdict, source=DecisionSource.RULE)
        if refused:
            text = refusal(DecisionSource.RULE, rule.reason)
            return call.move(
                ToolPhase.REJECTED,
                status=ToolCallStatus.REJECTED,
                model_text=text,
                authorization=note,
                ended_at=now,
            )
        return call.move(ToolPhase.AUTHORIZED, authorization=note)
    if default:
        return call.move(ToolPhase.AWAITING_APPROVAL, status=ToolCallStatus.AWAITING_APPROVAL)
    return call.move(ToolPhase.AUTHORIZED)


def _note(
    rule: StandingRule | None = None,
    *,
    verdict: ApprovalVerdict | None = None,
    source: DecisionSource | None = None,
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The ledger's form of how a call was settled."""
    note: dict[str, Any] = {"v": FORMAT}
    if rule is not None:
        note["rule"] = {
            "rule_id": rule.rule_id,
            "effect": rule.effect.value,
            "created_by": rule.created_by,
            "scope": rule.scope,
            "reason": rule.reason,
        }
    if verdict is not None and source is not None:
        note |= {"verdict": verdict.value, "source": source.value}
    if facts is not None:
        note["facts"] = facts
    return note


def announce_decisions(draft: Draft, calls: Iterable[ToolCall]) -> None:
    """Journal who settled each call before it ran, where that was a rule or user code, and tell observers."""
    for call in calls:
        note = call.row.authorization or {}
        if "verdict" not in note:
            continue
        facts = {
            "tool_call_id": call.row.tool_call_id,
            "tool_name": call.row.tool_name,
            "verdict": note["verdict"],
            "source": note["source"],
            "rule": note.get("rule"),
        }
        draft.record(
            RecordKind.AUTHORIZATION_DECIDED,
            Channel.APPROVAL,
            facts,
            causation=call.row.tool_call_id,
            model_call=call.row.model_call_id,
        )
        draft.event(EventType.AUTHORIZATION_DECIDED, facts)


# --- user code -------------------------------------------------------------------------------------------------


def wait_for_code(draft: Draft) -> bool:
    """Have user code asked about every call that needs it; whether any does. Nothing of the batch runs meanwhile."""
    requests = tuple(
        _request(draft, call) for call in draft.execution.batch if call.phase is ToolPhase.AUTHORIZING
    )
    if not requests:
        return False
    row = draft.execution.row
    draft.move(ExecutionStatus.ACTIVE, Phase.AUTHORIZING)
    draft.effects.append(Authorize(row.execution_id, draft.execution.batch[0].row.model_call_id, requests))
    return True


def _request(draft: Draft, call: ToolCall) -> ApprovalEvaluationRequest:
    row = call.row
    definition = draft.env.definition
    bound = draft.tools.tools.get(row.tool_name)
    rule = (row.authorization or {}).get("rule") or {}
    return ApprovalEvaluationRequest(
        agent_id=row.agent_id,
        definition_id=definition.definition_id,
        definition_version=definition.definition_version,
        execution_id=row.execution_id,
        tool_name=row.tool_name,
        tool_schema=bound.spec.parameters.schema if bound else {},
        tool_call_id=row.tool_call_id,
        arguments=row.arguments,
        invocation_context=draft.execution.row.durable_context,
        origin=(bound.spec.tool_origin if bound else ToolOrigin.LOCAL).value,
        metadata=dict(bound.spec.approval_metadata) if bound else {},
        rule_id=rule.get("rule_id"),
    )


def is_awaited(draft: Draft, event: Authorized) -> bool:
    """Whether the present batch waits for this answer of user code."""
    execution = draft.execution
    return (
        execution.row.execution_id == event.execution_id
        and execution.row.phase is Phase.AUTHORIZING
        and bool(execution.batch)
        and execution.batch[0].row.model_call_id == event.model_call_id
    )


def apply_verdicts(draft: Draft, event: Authorized) -> None:
    """Settle every call that waited for user code; one without an answer has failed, and is not run."""
    found = {item.tool_call_id: item for item in event.verdicts}
    waiting = [call for call in draft.execution.batch if call.phase is ToolPhase.AUTHORIZING]
    settled = {
        call.row.tool_call_id: _settle(draft, call, found.get(call.row.tool_call_id)) for call in waiting
    }
    draft.set_batch(settled.get(call.row.tool_call_id, call) for call in draft.execution.batch)
    announce_decisions(draft, settled.values())
    for call in settled.values():
        if call.is_settled:
            result_event(draft, call.row)


def _settle(draft: Draft, call: ToolCall, found: CallAuthorization | None) -> ToolCall:
    now = draft.env.now
    if found is None or found.error is not None or found.verdict is None:
        return _failed(draft, call, found.error if found is not None else None, now)
    note = dict(call.row.authorization or {"v": FORMAT}) | _note(
        verdict=found.verdict, source=found.source, facts=found.facts
    )
    gated = found.gated or found.verdict is ApprovalVerdict.REQUIRE_APPROVAL or call.row.requires_approval
    changes: dict[str, Any] = {"authorization": note, "requires_approval": gated}
    match found.verdict:
        case ApprovalVerdict.ALLOW:
            return call.move(ToolPhase.AUTHORIZED, status=ToolCallStatus.INTENT, **changes)
        case ApprovalVerdict.REQUIRE_APPROVAL:
            return call.move(ToolPhase.AWAITING_APPROVAL, status=ToolCallStatus.AWAITING_APPROVAL, **changes)
        case ApprovalVerdict.REJECT:
            return call.move(
                ToolPhase.REJECTED,
                status=ToolCallStatus.REJECTED,
                model_text=refusal(found.source, None),
                ended_at=now,
                **changes,
            )


def _failed(draft: Draft, call: ToolCall, cause: ErrorRecord | None, now: datetime) -> ToolCall:
    """Fail closed: what could not be authorised does not run, and ends the execution as its tool's ``on_error`` says."""
    bound = draft.tools.tools.get(call.row.tool_name)
    fatal = bound is None or bound.spec.on_error is OnError.RAISE
    text = f"whether tool {call.row.tool_name!r} may run could not be decided, so it did not"
    if cause is not None:
        text += f": {cause.message}"
    causes = (ErrorRecord(cause.type, cause.code, cause.message), *cause.causes) if cause is not None else ()
    return call.move(
        ToolPhase.FAILED if fatal else ToolPhase.COMPLETED,
        status=ToolCallStatus.FAILED,
        error=error_wire(ErrorRecord("ToolError", FAILED_CODE, text, causes), fatal=fatal),
        model_text=f"Error ({FAILED_CODE}): whether this call may run could not be decided; it was not performed.",
        ended_at=now,
    )
