"""Supervision: parked agents, what the supervisor looks for, and who looks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    """To this version."""
    op.add_column("agents", sa.Column("parked", sa.Text))
    _partial_index("ix_agents_parked", "agents", ["agent_id"], "lifecycle = 'parked'")
    _partial_index(
        "ix_executions_running_created_at",
        "executions",
        ["created_at", "execution_id"],
        "status IN ('preparing', 'active')",
    )
    _partial_index(
        "ix_approvals_expiring_expires_at",
        "approvals",
        ["expires_at", "approval_request_id"],
        "status = 'pending' AND expires_at IS NOT NULL",
    )
    op.create_table(
        "supervisors",
        sa.Column("cluster", _key(), nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False),
        sa.Column("info", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("cluster", name="pk_supervisors"),
    )


def downgrade() -> None:
    """To the version before; parked agents are in service again."""
    op.execute(
        "UPDATE agents SET lifecycle = COALESCE((SELECT CASE status WHEN 'suspended' THEN 'suspended' ELSE 'active' END "
        "FROM executions WHERE executions.agent_id = agents.agent_id "
        "AND status IN ('preparing', 'active', 'suspended')), 'idle') WHERE lifecycle = 'parked'"
    )
    op.drop_table("supervisors")
    op.drop_index("ix_approvals_expiring_expires_at", "approvals")
    op.drop_index("ix_executions_running_created_at", "executions")
    op.drop_index("ix_agents_parked", "agents")
    op.drop_column("agents", "parked")
