"""Deadlines of executions and of requests that wait: the moment at which the time of whoever asked is over."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version; what is stored keeps counting by each owner's own clock."""
    op.add_column("executions", sa.Column("deadline_at", _key()))
    op.add_column("queued_requests", sa.Column("deadline_at", _key()))
    where = sa.text("status IN ('preparing', 'active', 'suspended') AND deadline_at IS NOT NULL")
    op.create_index(
        "ix_executions_deadline_at",
        "executions",
        ["deadline_at", "execution_id"],
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    """To the version before."""
    op.drop_index("ix_executions_deadline_at", "executions")
    op.drop_column("queued_requests", "deadline_at")
    op.drop_column("executions", "deadline_at")
