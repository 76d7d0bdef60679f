"""Collections of documents with their vectors; pgvector where the server has it and lets us."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "vector_collections",
        sa.Column("collection", _key(), nullable=False),
        sa.Column("dimensions", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("collection", name="pk_vector_collections"),
    )
    op.create_table(
        "vector_documents",
        sa.Column("collection", _key(), nullable=False),
        sa.Column("document_id", _key(), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column(
            "embedding",
            sa.LargeBinary().with_variant(postgresql.ARRAY(sa.REAL), "postgresql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("collection", "document_id", name="pk_vector_documents"),
        sa.ForeignKeyConstraint(
            ["collection"],
            ["vector_collections.collection"],
            name="fk_vector_documents_collection",
            ondelete="CASCADE",
        ),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_CREATE_EXTENSION)


def downgrade() -> None:
    """To the version before: every vector is lost. The extension stays, others may use it."""
    op.drop_table("vector_documents")
    op.drop_table("vector_collections")


#: Searches do without the extension, so a server that lacks it or a user who may not create it is no reason to fail.
_CREATE_EXTENSION = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') THEN
        CREATE EXTENSION IF NOT EXISTS vector;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$
"""
