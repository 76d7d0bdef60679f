"""Requests that wait until their agent is free."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "queued_requests",
        sa.Column("execution_id", _key(), nullable=False),
        sa.Column("agent_id", _key(), nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("interrupts", sa.Boolean, nullable=False),
        sa.Column("input_hash", sa.Text, nullable=False),
        sa.Column("input", sa.Text),
        sa.Column("input_ref", sa.Text),
        sa.Column("durable_context", sa.Text),
        sa.Column("durable_context_ref", sa.Text),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("queued_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name="pk_queued_requests"),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.agent_id"], name="fk_queued_requests_agent_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_queued_requests_agent_id_position", "queued_requests", ["agent_id", "position"])


def downgrade() -> None:
    """To the version before: requests that wait are lost."""
    op.drop_table("queued_requests")
