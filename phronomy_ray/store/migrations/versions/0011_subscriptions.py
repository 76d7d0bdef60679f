"""Subscriptions to events, and what is still to be delivered: written by a trigger, so that no event is there without it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_COLUMNS = "subscription_id, agent_id, execution_id, seq, attempts, since"

_ON_SQLITE = f"""
CREATE TRIGGER events_to_deliver AFTER INSERT ON events
BEGIN
    INSERT INTO deliveries ({_COLUMNS})
    SELECT s.subscription_id, NEW.agent_id, NEW.execution_id, NEW.seq, 0, NEW.created_at
    FROM subscriptions AS s
    WHERE s.types = '*' OR instr(s.types, ',' || NEW.type || ',') > 0;
END
"""

# once for a statement, however many rows it inserts; nearly nothing where nobody has subscribed
_FUNCTION_ON_POSTGRESQL = f"""
CREATE FUNCTION phronomy_events_to_deliver() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM subscriptions) THEN
        INSERT INTO deliveries ({_COLUMNS})
        SELECT s.subscription_id, e.agent_id, e.execution_id, e.seq, 0, e.created_at
        FROM (SELECT *, row_number() OVER () AS n FROM new_events) AS e
        JOIN subscriptions AS s ON s.types = '*' OR position(',' || e.type || ',' IN s.types) > 0
        ORDER BY e.n, s.subscription_id;
    END IF;
    RETURN NULL;
END
$$
"""
_ON_POSTGRESQL = """
CREATE TRIGGER events_to_deliver AFTER INSERT ON events
REFERENCING NEW TABLE AS new_events
FOR EACH STATEMENT EXECUTE FUNCTION phronomy_events_to_deliver()
"""


def _key() -> Any:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "subscriptions",
        sa.Column("subscription_id", _key(), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("types", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("subscription_id", name="pk_subscriptions"),
    )
    op.create_table(
        "deliveries",
        sa.Column(
            "delivery_id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("subscription_id", _key(), nullable=False),
        sa.Column("agent_id", _key(), nullable=False),
        sa.Column("execution_id", _key(), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("since", _key(), nullable=False),
        sa.Column("next_at", _key()),
        sa.Column("error", sa.Text),
        sa.Column("dead_at", sa.Text),
        sa.PrimaryKeyConstraint("delivery_id", name="pk_deliveries"),
        sa.ForeignKeyConstraint(
            ["execution_id", "seq"],
            ["events.execution_id", "events.seq"],
            name="fk_deliveries_event",
            ondelete="CASCADE",
        ),
        sqlite_autoincrement=True,
    )
    for name, columns, condition in (
        ("waiting", ["subscription_id", "agent_id", "delivery_id"], "dead_at IS NULL"),
        ("dead", ["subscription_id", "delivery_id"], "dead_at IS NOT NULL"),
    ):
        op.create_index(
            f"ix_deliveries_{name}",
            "deliveries",
            columns,
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
    op.create_index("ix_deliveries_execution_id_seq", "deliveries", ["execution_id", "seq"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_FUNCTION_ON_POSTGRESQL)
        op.execute(_ON_POSTGRESQL)
    else:
        op.execute(_ON_SQLITE)


def downgrade() -> None:
    """To the version before: nobody is told of anything any more."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER events_to_deliver ON events")
        op.execute("DROP FUNCTION phronomy_events_to_deliver()")
    else:
        op.execute("DROP TRIGGER events_to_deliver")
    op.drop_table("deliveries")
    op.drop_table("subscriptions")
