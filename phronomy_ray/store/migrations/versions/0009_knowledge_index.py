"""What an agent knows is found by an index, however long its history is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_IS_ABOUT_KNOWLEDGE = sa.text("kind IN ('context_reset', 'knowledge', 'knowledge_cleared')")


def upgrade() -> None:
    """To this version."""
    op.create_index(
        "ix_journal_knowledge",
        "journal",
        ["agent_id", "position"],
        sqlite_where=_IS_ABOUT_KNOWLEDGE,
        postgresql_where=_IS_ABOUT_KNOWLEDGE,
    )


def downgrade() -> None:
    """To the version before."""
    op.drop_index("ix_journal_knowledge", "journal")
