"""The schema, as SQLAlchemy Core metadata: one shape for SQLite and PostgreSQL.

Conventions that hold for every table:

* a JSON column holds canonical JSON *text* (`canonical_json.dumps`), never a pickle and never a database JSON type, so
  that both engines store and return the same characters;
* a column that can grow large comes as a pair, ``x`` (text in line) and ``x_ref`` (id in ``contents``); at most one of
  the two is set, and neither means ``None``;
* a time is UTC as fixed-width ISO text (`codec.encode_time`), so that its order is its text's order;
* text keys compare by bytes on both engines (collation ``C`` on PostgreSQL).

What the migrations build is compared with this module by a test; change both or neither.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    literal_column,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from phronomy_ray.journal import NON_TERMINAL

#: Name of Alembic's version table; read by a plain ``SELECT`` when a store is opened.
VERSION_TABLE = "alembic_version"

#: Statuses of an execution that still occupies its agent, in a stable order (they are part of an index).
OPEN_STATUSES = ("preparing", "active", "suspended")
assert {status.value for status in NON_TERMINAL} == set(OPEN_STATUSES)
#: Those of an execution that goes on by itself.
RUNNING_STATUSES = ("preparing", "active")

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _key() -> TypeEngine[str]:
    return Text().with_variant(Text(collation="C"), "postgresql")


def _agent_reference(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "agent_id",
        _key(),
        ForeignKey("agents.agent_id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )


def _execution_reference(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "execution_id",
        _key(),
        ForeignKey("executions.execution_id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )


#: Facts about the database itself: ``store_id``, ``host_id`` (SQLite), ``content_key`` (a fingerprint, never a key).
store_meta = Table(
    "store_meta",
    metadata,
    Column("name", _key(), primary_key=True),
    Column("value", Text, nullable=False),
)

agents = Table(
    "agents",
    metadata,
    Column("agent_id", _key(), primary_key=True),
    Column("definition_id", Text, nullable=False),
    Column("definition_version", Text, nullable=False),
    Column("class_path", Text, nullable=False),
    Column("agent_revision", BigInteger, nullable=False),
    Column("context_revision", BigInteger, nullable=False),
    Column("transcript_generation", BigInteger, nullable=False),
    Column("journal_position", BigInteger, nullable=False),
    Column("lifecycle", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("last_commit_id", Text),
    Column("metadata", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("starts_without_progress", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("parked", Text),
)

#: Agents that were taken out of service because their starts made no progress.
IS_PARKED = agents.c.lifecycle == literal_column("'parked'")
Index("ix_agents_parked", agents.c.agent_id, sqlite_where=IS_PARKED, postgresql_where=IS_PARKED)

executions = Table(
    "executions",
    metadata,
    Column("execution_id", _key(), primary_key=True),
    _agent_reference(),
    Column("status", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("input_hash", Text, nullable=False),
    Column("input", Text),
    Column("input_ref", Text),
    Column("durable_context", Text),
    Column("durable_context_ref", Text),
    Column("base_position", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("output", Text),
    Column("output_ref", Text),
    Column("error", Text),
    Column("terminal_reason", Text),
    Column("cancel_requested_at", Text),
    Column("created_at", _key(), nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("deadline_at", _key()),
)
#: Written into the SQL as literals, not as parameters: otherwise neither engine can use the partial index.
IS_OPEN = executions.c.status.in_([literal_column(f"'{status}'") for status in OPEN_STATUSES])
#: One non-terminal execution per agent: the admission rule, decided by the database.
one_open_execution = Index(
    "uq_executions_one_open_per_agent",
    executions.c.agent_id,
    unique=True,
    sqlite_where=IS_OPEN,
    postgresql_where=IS_OPEN,
)
#: What the supervisor asks for again and again: its cost must not grow with the executions that are over.
Index(
    "ix_executions_open_created_at",
    executions.c.created_at,
    sqlite_where=IS_OPEN,
    postgresql_where=IS_OPEN,
)
#: Executions that need a process: the supervisor looks for those whose owner is gone, however many wait for humans.
IS_RUNNING = executions.c.status.in_([literal_column(f"'{status}'") for status in RUNNING_STATUSES])
Index(
    "ix_executions_running_created_at",
    executions.c.created_at,
    executions.c.execution_id,
    sqlite_where=IS_RUNNING,
    postgresql_where=IS_RUNNING,
)
#: Open executions whose caller's time will be over.
IS_LIMITED = and_(IS_OPEN, executions.c.deadline_at.is_not(None))
Index(
    "ix_executions_deadline_at",
    executions.c.deadline_at,
    executions.c.execution_id,
    sqlite_where=IS_LIMITED,
    postgresql_where=IS_LIMITED,
)
Index("ix_executions_agent_id_created_at", executions.c.agent_id, executions.c.created_at)
Index("ix_executions_created_at", executions.c.created_at)

#: Requests that wait until their agent is free; a row goes when its execution begins.
queued_requests = Table(
    "queued_requests",
    metadata,
    Column("execution_id", _key(), primary_key=True),
    _agent_reference(),
    Column("position", BigInteger, nullable=False),
    Column("interrupts", Boolean, nullable=False),
    Column("input_hash", Text, nullable=False),
    Column("input", Text),
    Column("input_ref", Text),
    Column("durable_context", Text),
    Column("durable_context_ref", Text),
    Column("stream", Boolean, nullable=False),
    Column("options", Text, nullable=False),
    Column("queued_at", Text, nullable=False),
    Column("deadline_at", _key()),
)
Index("ix_queued_requests_agent_id_position", queued_requests.c.agent_id, queued_requests.c.position)

#: Where an agent must live, and hosts that take no agents; see `statements.pin_of`.
placements = Table(
    "placements",
    metadata,
    Column("subject", _key(), primary_key=True),
    Column("value", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    _agent_reference(),
    Column("position", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("occurred_at", Text, nullable=False),
    Column("execution_id", _key()),
    Column("model_call_id", Text),
    Column("role", Text),
    Column("content", Text),
    Column("content_ref", Text),
    Column("causation_id", Text),
    Column("context_candidate", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("metadata", Text),
    PrimaryKeyConstraint("agent_id", "position", name="pk_journal"),
)
Index("ix_journal_execution_id_position", journal.c.execution_id, journal.c.position)


def is_about_knowledge(kind: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a record of the journal changes what its agent knows; the condition of an index, to be repeated as it is."""
    kinds = ("context_reset", "knowledge", "knowledge_cleared")
    return kind.in_([literal_column(f"'{name}'") for name in kinds])


#: What an agent knows is found without the turns between.
Index(
    "ix_journal_knowledge",
    journal.c.agent_id,
    journal.c.position,
    sqlite_where=is_about_knowledge(journal.c.kind),
    postgresql_where=is_about_knowledge(journal.c.kind),
)

#: Large values and named texts by the hash of their text (by its HMAC when contents are encrypted).
contents = Table(
    "contents",
    metadata,
    Column("content_id", _key(), primary_key=True),
    Column("body", Text, nullable=False),
)

#: Contents that nothing seemed to refer to. Readers look here too, and what is referred to comes back.
condemned_contents = Table(
    "condemned_contents",
    metadata,
    Column("content_id", _key(), primary_key=True),
    Column("body", Text, nullable=False),
    Column("condemned_at", _key(), nullable=False),
)
Index("ix_condemned_contents_condemned_at", condemned_contents.c.condemned_at)

model_calls = Table(
    "model_calls",
    metadata,
    Column("model_call_id", _key(), primary_key=True),
    _execution_reference(),
    Column("sequence", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("usage", Text),
    Column("attempts", Text),
    Column("error", Text),
)
Index("ix_model_calls_execution_id_sequence", model_calls.c.execution_id, model_calls.c.sequence)

#: The effect ledger.
tool_calls = Table(
    "tool_calls",
    metadata,
    Column("tool_call_id", _key(), primary_key=True),
    _execution_reference(),
    Column("agent_id", _key(), nullable=False),
    Column("model_call_id", _key(), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("provider_call_id", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("arguments", Text),
    Column("arguments_ref", Text),
    Column("status", Text, nullable=False),
    Column("replay", Text, nullable=False),
    Column("requires_approval", Boolean, nullable=False),
    Column("schema_hash", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("model_text", Text),
    Column("model_text_ref", Text),
    Column("result", Text),
    Column("result_ref", Text),
    Column("error", Text),
    Column("attempts", Text),
    Column("created_at", Text, nullable=False),
    Column("started_at", Text),
    Column("ended_at", Text),
    Column("authorization", Text),
    Column("contract", Text),
)
Index("ix_tool_calls_execution_id", tool_calls.c.execution_id)

approvals = Table(
    "approvals",
    metadata,
    Column("approval_request_id", _key(), primary_key=True),
    _execution_reference(),
    Column("agent_id", _key(), nullable=False),
    Column("tool_call_id", _key(), nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("arguments", Text),
    Column("arguments_ref", Text),
    Column("status", Text, nullable=False),
    Column("created_at", _key(), nullable=False),
    Column("decided_at", Text),
    Column("decided_by", Text),
    Column("reason", Text),
    Column("batch_id", _key()),
    Column("asked_by", Text),
    Column("tool_origin", Text),
    Column("metadata", Text),
    Column("facts", Text),
    Column("facts_ref", Text),
    Column("expires_at", Text),
    Column("fingerprint", Text),
    Column("edited_arguments", Text),
    Column("edited_arguments_ref", Text),
)
Index("ix_approvals_execution_id", approvals.c.execution_id)
Index("ix_approvals_agent_id", approvals.c.agent_id)
IS_PENDING = approvals.c.status == literal_column("'pending'")
Index(
    "ix_approvals_pending_created_at",
    approvals.c.created_at,
    sqlite_where=IS_PENDING,
    postgresql_where=IS_PENDING,
)

#: Wishes that executions end; a row is never changed.
cancellations = Table(
    "cancellations",
    metadata,
    Column("execution_id", _key(), primary_key=True),
    _agent_reference(),
    Column("reason", Text, nullable=False),
    Column("requested_at", Text, nullable=False),
)
Index("ix_cancellations_agent_id", cancellations.c.agent_id)

#: Holds on what is stored of an agent. The reference has no rule for deletion on purpose: what somebody holds cannot go, whichever
#: code deletes.
retentions = Table(
    "retentions",
    metadata,
    Column("owner_key", _key(), nullable=False),
    Column("agent_id", _key(), ForeignKey("agents.agent_id"), nullable=False),
    # empty for the whole agent: a part of a primary key is never null
    Column("execution_id", _key(), nullable=False),
    Column("created_at", Text, nullable=False),
    PrimaryKeyConstraint("owner_key", "agent_id", "execution_id", name="pk_retentions"),
)
Index("ix_retentions_agent_id", retentions.c.agent_id)
IS_EXPIRING = and_(IS_PENDING, approvals.c.expires_at.is_not(None))
Index(
    "ix_approvals_expiring_expires_at",
    approvals.c.expires_at,
    approvals.c.approval_request_id,
    sqlite_where=IS_EXPIRING,
    postgresql_where=IS_EXPIRING,
)

#: Answers in advance; a row is never changed but for its revocation.
standing_rules = Table(
    "standing_rules",
    metadata,
    Column("rule_id", _key(), primary_key=True),
    Column("effect", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("scope", _key(), nullable=False),
    Column("agent_id", _key()),
    Column("definition_id", Text),
    Column("created_by", Text),
    Column("created_at", _key(), nullable=False),
    Column("reason", Text),
    Column("expires_at", _key()),
    Column("revoked_at", Text),
    Column("revoked_by", Text),
)
IS_IN_FORCE = standing_rules.c.revoked_at.is_(None)
#: Asked after every model answer that holds tool calls.
Index(
    "ix_standing_rules_in_force_scope",
    standing_rules.c.scope,
    sqlite_where=IS_IN_FORCE,
    postgresql_where=IS_IN_FORCE,
)

events = Table(
    "events",
    metadata,
    _execution_reference(),
    Column("seq", BigInteger, nullable=False),
    Column("agent_id", _key(), nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", Text),
    Column("payload_ref", Text),
    Column("created_at", Text, nullable=False),
    PrimaryKeyConstraint("execution_id", "seq", name="pk_events"),
)

#: Who is told of events.
subscriptions = Table(
    "subscriptions",
    metadata,
    Column("subscription_id", _key(), primary_key=True),
    Column("target", Text, nullable=False),
    # "*", or ",completed,failed,": read by the trigger on `events`
    Column("types", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("beats", BigInteger, nullable=False),
    Column("created_at", Text, nullable=False),
)

#: Events that are still to be delivered, or were given up. Rows are made by the trigger ``events_to_deliver`` of migration 0011, in the
#: transaction of the event; a migration that rebuilds `events` has to make it again. No reference to `subscriptions`: a commit must
#: not fail because one is removed in the same moment.
deliveries = Table(
    "deliveries",
    metadata,
    Column("delivery_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("subscription_id", _key(), nullable=False),
    Column("agent_id", _key(), nullable=False),
    Column("execution_id", _key(), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("since", _key(), nullable=False),
    Column("next_at", _key()),
    Column("error", Text),
    Column("dead_at", Text),
    ForeignKeyConstraint(
        ["execution_id", "seq"],
        ["events.execution_id", "events.seq"],
        name="fk_deliveries_event",
        ondelete="CASCADE",
    ),
    sqlite_autoincrement=True,
)
IS_WAITING = deliveries.c.dead_at.is_(None)
IS_DEAD = deliveries.c.dead_at.is_not(None)
Index(
    "ix_deliveries_waiting",
    deliveries.c.subscription_id,
    deliveries.c.agent_id,
    deliveries.c.delivery_id,
    sqlite_where=IS_WAITING,
    postgresql_where=IS_WAITING,
)
Index(
    "ix_deliveries_dead",
    deliveries.c.subscription_id,
    deliveries.c.delivery_id,
    sqlite_where=IS_DEAD,
    postgresql_where=IS_DEAD,
)
Index("ix_deliveries_execution_id_seq", deliveries.c.execution_id, deliveries.c.seq)

#: One row for each cluster (and namespace) whose supervisor looks after agents of this store.
supervisors = Table(
    "supervisors",
    metadata,
    Column("cluster", _key(), primary_key=True),
    Column("beats", BigInteger, nullable=False),
    Column("info", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
)

#: Collections of vectors, which have nothing to do with agents; a row fixes how long its vectors are.
vector_collections = Table(
    "vector_collections",
    metadata,
    Column("collection", _key(), primary_key=True),
    Column("dimensions", Integer, nullable=False),
)

vector_documents = Table(
    "vector_documents",
    metadata,
    Column(
        "collection",
        _key(),
        ForeignKey("vector_collections.collection", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("document_id", _key(), nullable=False),
    Column("content", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    # little-endian float32 on SQLite; on PostgreSQL what pgvector can cast, so that one table serves with and without it
    Column("embedding", LargeBinary().with_variant(postgresql.ARRAY(REAL), "postgresql"), nullable=False),
    PrimaryKeyConstraint("collection", "document_id", name="pk_vector_documents"),
)

__all__ = [
    "IS_DEAD",
    "IS_EXPIRING",
    "IS_IN_FORCE",
    "IS_LIMITED",
    "IS_OPEN",
    "IS_PARKED",
    "IS_PENDING",
    "IS_RUNNING",
    "IS_WAITING",
    "OPEN_STATUSES",
    "RUNNING_STATUSES",
    "VERSION_TABLE",
    "agents",
    "approvals",
    "cancellations",
    "condemned_contents",
    "contents",
    "deliveries",
    "events",
    "executions",
    "is_about_knowledge",
    "journal",
    "metadata",
    "model_calls",
    "one_open_execution",
    "queued_requests",
    "retentions",
    "standing_rules",
    "store_meta",
    "subscriptions",
    "supervisors",
    "tool_calls",
    "vector_collections",
    "vector_documents",
]
