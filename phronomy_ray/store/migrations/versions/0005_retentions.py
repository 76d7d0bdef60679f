"""Holds on what is stored of an agent."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "retentions",
        sa.Column("owner_key", _key(), nullable=False),
        sa.Column("agent_id", _key(), nullable=False),
        sa.Column("execution_id", _key(), nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("owner_key", "agent_id", "execution_id", name="pk_retentions"),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.agent_id"], name="fk_retentions_agent_id"),
    )
    op.create_index("ix_retentions_agent_id", "retentions", ["agent_id"])


def downgrade() -> None:
    """To the version before: nothing is held any more."""
    op.drop_table("retentions")
