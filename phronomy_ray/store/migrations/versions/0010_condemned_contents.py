"""Contents that nothing seemed to refer to, until they are deleted."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "condemned_contents",
        sa.Column("content_id", _key(), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("condemned_at", _key(), nullable=False),
        sa.PrimaryKeyConstraint("content_id", name="pk_condemned_contents"),
    )
    op.create_index("ix_condemned_contents_condemned_at", "condemned_contents", ["condemned_at"])


def downgrade() -> None:
    """To the version before; what was condemned comes back, where it has not come back already."""
    op.execute(
        "INSERT INTO contents (content_id, body) SELECT content_id, body FROM condemned_contents AS c "
        "WHERE NOT EXISTS (SELECT 1 FROM contents WHERE contents.content_id = c.content_id)"
    )
    op.drop_table("condemned_contents")
