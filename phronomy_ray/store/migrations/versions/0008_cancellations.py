"""Wishes that executions end."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "cancellations",
        sa.Column("execution_id", _key(), nullable=False),
        sa.Column("agent_id", _key(), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("requested_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name="pk_cancellations"),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.agent_id"], name="fk_cancellations_agent_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_cancellations_agent_id", "cancellations", ["agent_id"])


def downgrade() -> None:
    """To the version before: an end that no owner has taken up is not wished any more."""
    op.drop_table("cancellations")
