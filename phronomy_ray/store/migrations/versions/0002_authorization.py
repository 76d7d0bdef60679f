"""Authorization: what an approval request shows and approves, how a call was settled, and standing rules."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TOOL_CALL_COLUMNS = ("authorization", "contract")
_APPROVAL_COLUMNS = (
    "asked_by",
    "tool_origin",
    "metadata",
    "facts",
    "facts_ref",
    "expires_at",
    "fingerprint",
    "edited_arguments",
    "edited_arguments_ref",
)


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version; requests that wait get the id of their batch, and show less than new ones."""
    for name in _TOOL_CALL_COLUMNS:
        op.add_column("tool_calls", sa.Column(name, sa.Text))
    op.add_column("approvals", sa.Column("batch_id", _key()))
    for name in _APPROVAL_COLUMNS:
        op.add_column("approvals", sa.Column(name, sa.Text))
    op.execute(
        "UPDATE approvals SET batch_id = (SELECT model_call_id FROM tool_calls "
        "WHERE tool_calls.tool_call_id = approvals.tool_call_id)"
    )
    op.create_table(
        "standing_rules",
        sa.Column("rule_id", _key(), nullable=False),
        sa.Column("effect", sa.Text, nullable=False),
        sa.Column("tool_name", sa.Text, nullable=False),
        sa.Column("scope", _key(), nullable=False),
        sa.Column("agent_id", _key()),
        sa.Column("definition_id", sa.Text),
        sa.Column("created_by", sa.Text),
        sa.Column("created_at", _key(), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("expires_at", _key()),
        sa.Column("revoked_at", sa.Text),
        sa.Column("revoked_by", sa.Text),
        sa.PrimaryKeyConstraint("rule_id", name="pk_standing_rules"),
    )
    in_force = sa.text("revoked_at IS NULL")
    op.create_index(
        "ix_standing_rules_in_force_scope",
        "standing_rules",
        ["scope"],
        sqlite_where=in_force,
        postgresql_where=in_force,
    )


def downgrade() -> None:
    """To 0001: standing rules and what requests showed are lost."""
    op.drop_table("standing_rules")
    for name in ("batch_id", *_APPROVAL_COLUMNS):
        op.drop_column("approvals", name)
    for name in _TOOL_CALL_COLUMNS:
        op.drop_column("tool_calls", name)
