"""Rows of approval requests and standing rules; the same conventions as `rows`."""

from __future__ import annotations

from phronomy_ray.approvals import RuleEffect, StandingRule
from phronomy_ray.journal import ApprovalRow, ApprovalStatus
from phronomy_ray.store.codec import (
    RowDecoder,
    RowEncoder,
    decode_optional_time,
    decode_time,
    encode_optional_time,
    encode_time,
    plain_text,
)
from phronomy_ray.store.rows import AnyRow, Columns, member

# --- approvals -------------------------------------------------------------------------------------------------

APPROVAL_REFS = ("arguments_ref", "facts_ref", "edited_arguments_ref")


def approval_columns(row: ApprovalRow, encoder: RowEncoder) -> Columns:
    """All columns of a new approval request."""
    arguments, arguments_ref = encoder.content(row.arguments)
    facts, facts_ref = encoder.content(row.facts)
    edited, edited_ref = encoder.content(row.edited_arguments)
    return {
        "approval_request_id": row.approval_request_id,
        "execution_id": row.execution_id,
        "agent_id": row.agent_id,
        "tool_call_id": row.tool_call_id,
        "tool_name": plain_text(row.tool_name),
        "arguments": arguments,
        "arguments_ref": arguments_ref,
        "status": row.status.value,
        "created_at": encode_time(row.created_at),
        "decided_at": encode_optional_time(row.decided_at),
        "decided_by": encoder.sealed(row.decided_by),
        "reason": encoder.sealed(row.reason),
        "batch_id": row.batch_id or None,
        "asked_by": row.asked_by,
        "tool_origin": plain_text(row.tool_origin),
        "metadata": encoder.sealed(row.metadata) if row.metadata else None,
        "facts": facts,
        "facts_ref": facts_ref,
        "expires_at": encode_optional_time(row.expires_at),
        "fingerprint": encoder.sealed(row.fingerprint) if row.fingerprint else None,
        "edited_arguments": edited,
        "edited_arguments_ref": edited_ref,
    }


def approval_changes(row: ApprovalRow, encoder: RowEncoder) -> Columns:
    """The columns of an approval request that change."""
    edited, edited_ref = encoder.content(row.edited_arguments)
    return {
        "the_approval_request_id": row.approval_request_id,
        "the_agent_id": row.agent_id,
        "new_status": row.status.value,
        "new_decided_at": encode_optional_time(row.decided_at),
        "new_decided_by": encoder.sealed(row.decided_by),
        "new_reason": encoder.sealed(row.reason),
        "new_fingerprint": encoder.sealed(row.fingerprint) if row.fingerprint else None,
        "new_edited_arguments": edited,
        "new_edited_arguments_ref": edited_ref,
    }


def to_approval(row: AnyRow, decoder: RowDecoder) -> ApprovalRow:
    """One approval request."""
    return ApprovalRow(
        approval_request_id=row.approval_request_id,
        execution_id=row.execution_id,
        agent_id=row.agent_id,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        arguments=decoder.content(row.arguments, row.arguments_ref),
        status=member(ApprovalStatus, row.status),
        created_at=decode_time(row.created_at),
        decided_at=decode_optional_time(row.decided_at),
        decided_by=decoder.sealed(row.decided_by),
        reason=decoder.sealed(row.reason),
        batch_id=row.batch_id or "",
        asked_by=row.asked_by or "tool",
        tool_origin=row.tool_origin or "local",
        metadata=decoder.sealed(row.metadata) or {},
        facts=decoder.content(row.facts, row.facts_ref),
        expires_at=decode_optional_time(row.expires_at),
        fingerprint=decoder.sealed(row.fingerprint) or {},
        edited_arguments=decoder.content(row.edited_arguments, row.edited_arguments_ref),
    )


# --- standing rules --------------------------------------------------------------------------------------------


def rule_columns(rule: StandingRule, encoder: RowEncoder) -> Columns:
    """All columns of a new standing rule."""
    return {
        "rule_id": rule.rule_id,
        "effect": rule.effect.value,
        "tool_name": plain_text(rule.tool_name),
        "scope": rule.scope,
        "agent_id": rule.agent_id,
        "definition_id": rule.definition_id,
        "created_by": encoder.sealed(rule.created_by),
        "created_at": encode_time(rule.created_at),
        "reason": encoder.sealed(rule.reason),
        "expires_at": encode_optional_time(rule.expires_at),
        "revoked_at": encode_optional_time(rule.revoked_at),
        "revoked_by": encoder.sealed(rule.revoked_by),
    }


def to_rule(row: AnyRow, decoder: RowDecoder) -> StandingRule:
    """One standing rule."""
    return StandingRule(
        rule_id=row.rule_id,
        effect=member(RuleEffect, row.effect),
        tool_name=row.tool_name,
        created_by=decoder.sealed(row.created_by) or "",
        created_at=decode_time(row.created_at),
        agent_id=row.agent_id,
        definition_id=row.definition_id,
        reason=decoder.sealed(row.reason),
        expires_at=decode_optional_time(row.expires_at),
        revoked_at=decode_optional_time(row.revoked_at),
        revoked_by=decoder.sealed(row.revoked_by),
    )
