"""Every statement of the hot path, built once.

SQLAlchemy compiles a statement once per dialect and finds it again by its cache key, so a commit costs no SQL
construction. Bind names of guards begin with ``the_`` or ``expected_``, those of new values with ``new_``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    Select,
    Table,
    Update,
    asc,
    bindparam,
    cast,
    delete,
    desc,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from phronomy_ray.journal import VIEW_KINDS
from phronomy_ray.store.tables import (
    IS_IN_FORCE,
    IS_OPEN,
    IS_PARKED,
    IS_PENDING,
    agents,
    approvals,
    cancellations,
    condemned_contents,
    contents,
    events,
    executions,
    is_about_knowledge,
    journal,
    model_calls,
    placements,
    queued_requests,
    retentions,
    standing_rules,
    store_meta,
    tool_calls,
)


def _insert_ignoring(table: Table, engine_name: str) -> Executable:
    if engine_name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


class _PerEngine:
    """An ``INSERT ... ON CONFLICT DO NOTHING``, which each dialect spells by a construct of its own."""

    def __init__(self, table: Table) -> None:
        self._forms = {name: _insert_ignoring(table, name) for name in ("sqlite", "postgresql")}

    def __getitem__(self, engine_name: str) -> Executable:
        return self._forms[engine_name]


def _is(column: ColumnElement[Any], prefix: str, name: str) -> ColumnElement[bool]:
    return column == bindparam(f"{prefix}_{name}")


def _changes(table: Table, *names: str) -> dict[str, Any]:
    return {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}


# --- root ------------------------------------------------------------------------------------------------------

#: Columns of the root that every commit writes.
ADVANCED = (
    "agent_revision",
    "journal_position",
    "last_commit_id",
    "lifecycle",
    "context_revision",
    "transcript_generation",
    "updated_at",
)

#: First statement of every commit: the guard and the new root in one. No row touched means: refused.
ADVANCE_ROOT: Update = (
    update(agents)
    .where(
        _is(agents.c.agent_id, "the", "agent_id"),
        _is(agents.c.epoch, "the", "epoch"),
        _is(agents.c.agent_revision, "expected", "revision"),
        _is(agents.c.journal_position, "expected", "position"),
    )
    .values(
        **_changes(
            agents,
            *ADVANCED,
        ),
        starts_without_progress=agents.c.starts_without_progress * bindparam("kept_starts", type_=Integer),
    )
)

CLAIM_ROOT = (
    update(agents)
    .where(_is(agents.c.agent_id, "the", "agent_id"))
    .values(
        **_changes(agents, "owner", "updated_at"),
        epoch=agents.c.epoch + 1,
        starts_without_progress=agents.c.starts_without_progress + 1,
    )
    .returning(agents)
)

#: The same for an owner that serves one definition: another one's agent, or one out of service, is not touched.
CLAIM_SERVED_ROOT = CLAIM_ROOT.where(
    _is(agents.c.definition_id, "the", "definition_id"),
    _is(agents.c.definition_version, "the", "definition_version"),
    ~IS_PARKED,
)

GUARDS_OF_ROOT = select(
    agents.c.epoch,
    agents.c.agent_revision,
    agents.c.journal_position,
    agents.c.last_commit_id,
    agents.c.owner,
    agents.c.created_at,
).where(_is(agents.c.agent_id, "the", "agent_id"))

#: The same with the row locked (on SQLite the transaction itself holds the lock).
LOCK_ROOT = GUARDS_OF_ROOT.with_for_update()

ROOT = select(agents).where(_is(agents.c.agent_id, "the", "agent_id"))

INSERT_ROOT = _PerEngine(agents)

STORED_ROOTS = select(agents.c.agent_id).where(agents.c.agent_id.in_(bindparam("agent_ids", expanding=True)))
#: Which of these roots no other transaction holds; locks them.
FREE_ROOTS = (
    select(agents.c.agent_id)
    .where(agents.c.agent_id.in_(bindparam("agent_ids", expanding=True)))
    .with_for_update(key_share=True, skip_locked=True)
)

#: Everything that belongs to the agent goes with it by its foreign keys. What must not be deleted was looked for under the lock of
#: the root; the guards are here so that nobody can forget them.
DELETE_ROOT = delete(agents).where(
    _is(agents.c.agent_id, "the", "agent_id"),
    _is(agents.c.epoch, "the", "epoch"),
    _is(agents.c.created_at, "the", "created_at"),
    ~exists().where(executions.c.agent_id == agents.c.agent_id, IS_OPEN),
    ~exists().where(retentions.c.agent_id == agents.c.agent_id),
)
#: Marker with the highest epoch that any deleted agent had: agents that are made later begin above it, so that an owner of a
#: deleted agent never passes for one of the next agent of that id, here or in a pool.
EPOCH_FLOOR = "epoch_floor"
_FLOOR = cast(store_meta.c.value, BigInteger)
_IS_FLOOR = store_meta.c.name == EPOCH_FLOOR
_FLOOR_NOW = select(_FLOOR).where(_IS_FLOOR).scalar_subquery()
#: A statement of its own behind the insert, which may have waited for the deletion of an agent of this id.
BEGIN_ABOVE_FLOOR = (
    update(agents)
    .where(_is(agents.c.agent_id, "the", "agent_id"), agents.c.epoch < _FLOOR_NOW)
    .values(epoch=_FLOOR_NOW)
)
RAISE_FLOOR = (
    update(store_meta)
    .where(_IS_FLOOR, bindparam("the_epoch", type_=BigInteger) > _FLOOR)
    .values(value=bindparam("new_floor"))
)
DELETE_RULES_OF_AGENT = delete(standing_rules).where(_is(standing_rules.c.agent_id, "the", "agent_id"))

# --- placements -------------------------------------------------------------------------------------------------


def pin_of(agent_id: str) -> str:
    """Subject of the row that says where an agent must live."""
    return f"agent:{agent_id}"


def host_of(host: str) -> str:
    """Subject of the row that says that a host takes no agents."""
    return f"host:{host}"


INSERT_PLACEMENT = _PerEngine(placements)
DELETE_PLACEMENT = delete(placements).where(_is(placements.c.subject, "the", "subject"))
PLACEMENT = select(placements.c.value).where(_is(placements.c.subject, "the", "subject"))
WHEREABOUTS = select(
    select(agents.c.owner).where(_is(agents.c.agent_id, "the", "agent_id")).scalar_subquery().label("owner"),
    PLACEMENT.scalar_subquery().label("pin"),
)

# --- rows of a commit ------------------------------------------------------------------------------------------

INSERT_EXECUTION = _PerEngine(executions)
INSERT_CONTENT = _PerEngine(contents)
INSERT_META = _PerEngine(store_meta)
DELETE_CONTENT = delete(contents).where(_is(contents.c.content_id, "the", "content_id"))
INSERT_CONDEMNED = insert(condemned_contents)
DELETE_CONDEMNED = delete(condemned_contents).where(_is(condemned_contents.c.content_id, "the", "content_id"))
INSERT_REQUEST = _PerEngine(queued_requests)
DELETE_REQUEST = delete(queued_requests).where(
    _is(queued_requests.c.execution_id, "the", "execution_id"),
    _is(queued_requests.c.agent_id, "the", "agent_id"),
)
INSERT_JOURNAL = insert(journal)
INSERT_MODEL_CALL = insert(model_calls)
INSERT_TOOL_CALL = insert(tool_calls)
INSERT_APPROVAL = insert(approvals)
INSERT_EVENT = insert(events)

#: A terminal execution is never written again: the guard is here, where nobody can forget it.
UPDATE_EXECUTION = (
    update(executions)
    .where(
        _is(executions.c.execution_id, "the", "execution_id"),
        _is(executions.c.agent_id, "the", "agent_id"),
        _is(executions.c.revision, "expected", "revision"),
        IS_OPEN,
    )
    .values(
        **_changes(
            executions,
            "status",
            "phase",
            "revision",
            "state",
            "output",
            "output_ref",
            "error",
            "terminal_reason",
            "cancel_requested_at",
            "updated_at",
            "ended_at",
        )
    )
)

#: The rare change of a definition.
UPDATE_DEFINITION = (
    update(agents)
    .where(_is(agents.c.agent_id, "the", "agent_id"))
    .values(**_changes(agents, "definition_id", "definition_version", "class_path", "metadata"))
)
UPDATE_EXECUTION_CONTEXT = (
    update(executions)
    .where(
        _is(executions.c.execution_id, "the", "execution_id"),
        _is(executions.c.agent_id, "the", "agent_id"),
        IS_OPEN,
    )
    .values(**_changes(executions, "durable_context", "durable_context_ref"))
)
UPDATE_REQUEST_CONTEXT = (
    update(queued_requests)
    .where(
        _is(queued_requests.c.execution_id, "the", "execution_id"),
        _is(queued_requests.c.agent_id, "the", "agent_id"),
    )
    .values(**_changes(queued_requests, "durable_context", "durable_context_ref"))
)

UPDATE_MODEL_CALL = (
    update(model_calls)
    .where(
        _is(model_calls.c.model_call_id, "the", "model_call_id"),
        _is(model_calls.c.execution_id, "the", "execution_id"),
    )
    .values(**_changes(model_calls, "status", "manifest", "ended_at", "usage", "attempts", "error"))
)

_THE_TOOL_CALL = (
    _is(tool_calls.c.tool_call_id, "the", "tool_call_id"),
    _is(tool_calls.c.agent_id, "the", "agent_id"),
)
_OUTCOME = (
    "status",
    "attempt",
    "model_text",
    "model_text_ref",
    "result",
    "result_ref",
    "error",
    "attempts",
    "started_at",
    "ended_at",
)
UPDATE_TOOL_CALL = update(tool_calls).where(*_THE_TOOL_CALL).values(**_changes(tool_calls, *_OUTCOME))

#: The same for a call that authorization has changed.
UPDATE_REVISED_TOOL_CALL = (
    update(tool_calls)
    .where(*_THE_TOOL_CALL)
    .values(
        **_changes(tool_calls, *_OUTCOME, "arguments", "arguments_ref", "requires_approval", "authorization")
    )
)

UPDATE_APPROVAL = (
    update(approvals)
    .where(
        _is(approvals.c.approval_request_id, "the", "approval_request_id"),
        _is(approvals.c.agent_id, "the", "agent_id"),
    )
    .values(
        **_changes(
            approvals,
            "status",
            "decided_at",
            "decided_by",
            "reason",
            "fingerprint",
            "edited_arguments",
            "edited_arguments_ref",
        )
    )
)

# --- retentions ------------------------------------------------------------------------------------------------

INSERT_RETENTION = _PerEngine(retentions)

_THE_RETENTION = (
    _is(retentions.c.owner_key, "the", "owner_key"),
    _is(retentions.c.agent_id, "the", "agent_id"),
    _is(retentions.c.execution_id, "the", "execution_id"),
)
RETENTION = select(retentions).where(*_THE_RETENTION)
DELETE_RETENTION = delete(retentions).where(*_THE_RETENTION)

# --- cancellations ---------------------------------------------------------------------------------------------

#: The first wish counts.
INSERT_CANCELLATION = _PerEngine(cancellations)
CANCELLATION = select(cancellations).where(_is(cancellations.c.execution_id, "the", "execution_id"))

# --- standing rules --------------------------------------------------------------------------------------------

INSERT_RULE = _PerEngine(standing_rules)

#: The first revocation counts.
REVOKE_RULE = (
    update(standing_rules)
    .where(_is(standing_rules.c.rule_id, "the", "rule_id"), IS_IN_FORCE)
    .values(**_changes(standing_rules, "revoked_at", "revoked_by"))
)

RULE = select(standing_rules).where(_is(standing_rules.c.rule_id, "the", "rule_id"))

RULES_IN_FORCE = (
    select(standing_rules)
    .where(
        standing_rules.c.scope.in_(
            [bindparam("everywhere"), bindparam("of_agent"), bindparam("of_definition")]
        ),
        IS_IN_FORCE,
        or_(standing_rules.c.expires_at.is_(None), standing_rules.c.expires_at > bindparam("now")),
    )
    .order_by(standing_rules.c.created_at, standing_rules.c.rule_id)
)

#: The same for several agents.
RULES_OF = (
    select(standing_rules)
    .where(
        standing_rules.c.scope.in_(bindparam("scopes", expanding=True)),
        IS_IN_FORCE,
        or_(standing_rules.c.expires_at.is_(None), standing_rules.c.expires_at > bindparam("now")),
    )
    .order_by(standing_rules.c.created_at, standing_rules.c.rule_id)
)

RULES = (
    select(standing_rules)
    .order_by(standing_rules.c.created_at, standing_rules.c.rule_id)
    .limit(bindparam("row_limit"))
)

# --- reads -----------------------------------------------------------------------------------------------------

EXECUTION = select(executions).where(_is(executions.c.execution_id, "the", "execution_id"))

OPEN_EXECUTION = select(executions).where(_is(executions.c.agent_id, "the", "agent_id"), IS_OPEN)

#: Requests that wait for an agent, the next one first.
QUEUE = (
    select(queued_requests)
    .where(_is(queued_requests.c.agent_id, "the", "agent_id"))
    .order_by(desc(queued_requests.c.interrupts), queued_requests.c.position)
)
REQUEST = select(queued_requests).where(_is(queued_requests.c.execution_id, "the", "execution_id"))

EXECUTION_GUARDS = select(executions.c.agent_id, executions.c.status, executions.c.revision).where(
    _is(executions.c.execution_id, "the", "execution_id")
)

MODEL_CALLS = (
    select(model_calls)
    .where(_is(model_calls.c.execution_id, "the", "execution_id"))
    .order_by(model_calls.c.sequence)
)

TOOL_CALLS = (
    select(tool_calls)
    .select_from(tool_calls.outerjoin(model_calls, model_calls.c.model_call_id == tool_calls.c.model_call_id))
    .where(_is(tool_calls.c.execution_id, "the", "execution_id"))
    .order_by(model_calls.c.sequence, tool_calls.c.position, tool_calls.c.tool_call_id)
)

LAST_EVENT_SEQ = select(func.coalesce(func.max(events.c.seq), 0)).where(
    _is(events.c.execution_id, "the", "execution_id")
)

EVENTS = (
    select(events)
    .where(_is(events.c.execution_id, "the", "execution_id"), events.c.seq > bindparam("after"))
    .order_by(events.c.seq)
    .limit(bindparam("row_limit"))
)

JOURNAL_OF_EXECUTION = (
    select(journal)
    .where(_is(journal.c.execution_id, "the", "execution_id"))
    .order_by(journal.c.agent_id, journal.c.position)
)

_CLEARINGS = journal.alias("clearings")
_LAST_CLEARING = (
    select(_CLEARINGS.c.position)
    .where(
        _is(_CLEARINGS.c.agent_id, "the", "agent_id"),
        is_about_knowledge(_CLEARINGS.c.kind),
        _CLEARINGS.c.kind != literal_column("'knowledge'"),
    )
    .order_by(desc(_CLEARINGS.c.position))
    .limit(literal_column("1"))
    .scalar_subquery()
)
#: All that an agent knows: what was added since its knowledge was cleared.
KNOWLEDGE = (
    select(journal)
    .where(
        _is(journal.c.agent_id, "the", "agent_id"),
        is_about_knowledge(journal.c.kind),
        journal.c.kind == literal_column("'knowledge'"),
        journal.c.position > func.coalesce(_LAST_CLEARING, literal_column("0")),
    )
    .order_by(journal.c.position)
)

CONDEMNED_CONTENTS = select(condemned_contents.c.content_id, condemned_contents.c.body).where(
    condemned_contents.c.content_id.in_(bindparam("content_ids", expanding=True))
)

CONTENTS = select(contents.c.content_id, contents.c.body).where(
    contents.c.content_id.in_(bindparam("content_ids", expanding=True))
)

AGENTS = (
    select(agents)
    .where(agents.c.agent_id > bindparam("after"))
    .order_by(agents.c.agent_id)
    .limit(bindparam("row_limit"))
)

META = select(store_meta.c.name, store_meta.c.value)


@cache
def journal_page(*, bounded: bool, newest_first: bool, view_only: bool = False) -> Select[Any]:
    """A page of one agent's journal; `bounded` adds the upper limit ``before``, `view_only` leaves out what no model sees."""
    query = select(journal).where(
        _is(journal.c.agent_id, "the", "agent_id"), journal.c.position > bindparam("after")
    )
    if bounded:
        query = query.where(journal.c.position < bindparam("before"))
    if view_only:
        query = query.where(journal.c.kind.in_(sorted(VIEW_KINDS)))
    order = desc if newest_first else asc
    return query.order_by(order(journal.c.position)).limit(bindparam("row_limit"))


@cache
def execution_list(*, of_agent: bool, open_only: bool) -> Select[Any]:
    """Executions, newest first."""
    query = select(executions)
    if of_agent:
        query = query.where(_is(executions.c.agent_id, "the", "agent_id"))
    if open_only:
        query = query.where(IS_OPEN)
    return query.order_by(desc(executions.c.created_at), desc(executions.c.execution_id)).limit(
        bindparam("row_limit")
    )


@cache
def retention_list(*, of_agent: bool, of_owner: bool) -> Select[Any]:
    """Holds, oldest first."""
    query = select(retentions)
    if of_agent:
        query = query.where(_is(retentions.c.agent_id, "the", "agent_id"))
    if of_owner:
        query = query.where(_is(retentions.c.owner_key, "the", "owner_key"))
    return query.order_by(
        retentions.c.created_at, retentions.c.owner_key, retentions.c.agent_id, retentions.c.execution_id
    ).limit(bindparam("row_limit"))


@cache
def approval_list(*, of_execution: bool, of_agent: bool, pending_only: bool) -> Select[Any]:
    """Approval requests, oldest first; those of one batch in the order of its calls."""
    query = select(approvals).select_from(
        approvals.outerjoin(tool_calls, tool_calls.c.tool_call_id == approvals.c.tool_call_id)
    )
    if of_execution:
        query = query.where(_is(approvals.c.execution_id, "the", "execution_id"))
    if of_agent:
        query = query.where(_is(approvals.c.agent_id, "the", "agent_id"))
    if pending_only:
        query = query.where(IS_PENDING)
    return query.order_by(
        approvals.c.created_at, tool_calls.c.position, approvals.c.approval_request_id
    ).limit(bindparam("row_limit"))
