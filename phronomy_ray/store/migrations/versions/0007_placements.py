"""Where agents must live, and hosts that take none."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "placements",
        sa.Column("subject", _key(), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_placements"),
    )


def downgrade() -> None:
    """To the version before: agents live where the runtime says."""
    op.drop_table("placements")
