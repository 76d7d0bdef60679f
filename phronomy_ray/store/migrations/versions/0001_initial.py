"""The first schema: agents, executions, journal, contents, calls, approvals, events."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _text(name: str, *, required: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=not required)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _id(name: str, *, required: bool = True) -> sa.Column[Any]:
    return sa.Column(name, _key(), nullable=not required)


def _reference(table: str, column: str, parent: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{parent}.{column}"], name=f"fk_{table}_{column}", ondelete="CASCADE"
    )


def _primary(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def upgrade() -> None:
    """To this version."""
    op.create_table("store_meta", _id("name"), _text("value", required=True), _primary("store_meta", "name"))
    op.create_table(
        "contents", _id("content_id"), _text("body", required=True), _primary("contents", "content_id")
    )
    op.create_table(
        "agents",
        _id("agent_id"),
        _text("definition_id", required=True),
        _text("definition_version", required=True),
        _text("class_path", required=True),
        _number("agent_revision"),
        _number("context_revision"),
        _number("transcript_generation"),
        _number("journal_position"),
        _text("lifecycle", required=True),
        _number("epoch"),
        _text("last_commit_id"),
        _text("metadata", required=True),
        _text("owner", required=True),
        sa.Column("starts_without_progress", sa.Integer, nullable=False),
        _text("created_at", required=True),
        _text("updated_at", required=True),
        _primary("agents", "agent_id"),
    )
    _executions()
    _journal()
    _calls()
    _approvals()
    op.create_table(
        "events",
        _id("execution_id"),
        _number("seq"),
        _id("agent_id"),
        _text("type", required=True),
        _text("payload"),
        _text("payload_ref"),
        _text("created_at", required=True),
        _primary("events", "execution_id", "seq"),
        _reference("events", "execution_id", "executions"),
    )


def _executions() -> None:
    op.create_table(
        "executions",
        _id("execution_id"),
        _id("agent_id"),
        _text("status", required=True),
        _text("phase", required=True),
        _number("revision"),
        _text("input_hash", required=True),
        _text("input"),
        _text("input_ref"),
        _text("durable_context"),
        _text("durable_context_ref"),
        _number("base_position"),
        _text("state", required=True),
        _text("output"),
        _text("output_ref"),
        _text("error"),
        _text("terminal_reason"),
        _text("cancel_requested_at"),
        _id("created_at"),
        _text("updated_at", required=True),
        _text("ended_at"),
        _primary("executions", "execution_id"),
        _reference("executions", "agent_id", "agents"),
    )
    is_open = sa.text("status IN ('preparing', 'active', 'suspended')")
    op.create_index(
        "uq_executions_one_open_per_agent",
        "executions",
        ["agent_id"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index(
        "ix_executions_open_created_at",
        "executions",
        ["created_at"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index("ix_executions_agent_id_created_at", "executions", ["agent_id", "created_at"])
    op.create_index("ix_executions_created_at", "executions", ["created_at"])


def _journal() -> None:
    op.create_table(
        "journal",
        _id("agent_id"),
        _number("position"),
        _text("kind", required=True),
        _text("channel", required=True),
        _text("occurred_at", required=True),
        _id("execution_id", required=False),
        _text("model_call_id"),
        _text("role"),
        _text("content"),
        _text("content_ref"),
        _text("causation_id"),
        sa.Column("context_candidate", sa.Boolean, nullable=False),
        _number("generation"),
        _text("metadata"),
        _primary("journal", "agent_id", "position"),
        _reference("journal", "agent_id", "agents"),
    )
    op.create_index("ix_journal_execution_id_position", "journal", ["execution_id", "position"])


def _calls() -> None:
    op.create_table(
        "model_calls",
        _id("model_call_id"),
        _id("execution_id"),
        _number("sequence"),
        _text("status", required=True),
        _text("manifest", required=True),
        _text("started_at", required=True),
        _text("ended_at"),
        _text("usage"),
        _text("attempts"),
        _text("error"),
        _primary("model_calls", "model_call_id"),
        _reference("model_calls", "execution_id", "executions"),
    )
    op.create_index("ix_model_calls_execution_id_sequence", "model_calls", ["execution_id", "sequence"])
    op.create_table(
        "tool_calls",
        _id("tool_call_id"),
        _id("execution_id"),
        _id("agent_id"),
        _id("model_call_id"),
        _number("position"),
        _text("provider_call_id", required=True),
        _text("tool_name", required=True),
        _text("arguments"),
        _text("arguments_ref"),
        _text("status", required=True),
        _text("replay", required=True),
        sa.Column("requires_approval", sa.Boolean, nullable=False),
        _text("schema_hash", required=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        _text("model_text"),
        _text("model_text_ref"),
        _text("result"),
        _text("result_ref"),
        _text("error"),
        _text("attempts"),
        _text("created_at", required=True),
        _text("started_at"),
        _text("ended_at"),
        _primary("tool_calls", "tool_call_id"),
        _reference("tool_calls", "execution_id", "executions"),
    )
    op.create_index("ix_tool_calls_execution_id", "tool_calls", ["execution_id"])


def _approvals() -> None:
    op.create_table(
        "approvals",
        _id("approval_request_id"),
        _id("execution_id"),
        _id("agent_id"),
        _id("tool_call_id"),
        _text("tool_name", required=True),
        _text("arguments"),
        _text("arguments_ref"),
        _text("status", required=True),
        _id("created_at"),
        _text("decided_at"),
        _text("decided_by"),
        _text("reason"),
        _primary("approvals", "approval_request_id"),
        _reference("approvals", "execution_id", "executions"),
    )
    op.create_index("ix_approvals_execution_id", "approvals", ["execution_id"])
    op.create_index("ix_approvals_agent_id", "approvals", ["agent_id"])
    is_pending = sa.text("status = 'pending'")
    op.create_index(
        "ix_approvals_pending_created_at",
        "approvals",
        ["created_at"],
        sqlite_where=is_pending,
        postgresql_where=is_pending,
    )


def downgrade() -> None:
    """To an empty database: every agent is lost."""
    for table in ("events", "approvals", "tool_calls", "model_calls", "journal", "executions", "agents"):
        op.drop_table(table)
    op.drop_table("contents")
    op.drop_table("store_meta")
