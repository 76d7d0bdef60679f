"""Statements of `sql_supervision`, built once like those of `statements`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, Select, and_, bindparam, delete, func, not_, select, tuple_, update

from phronomy_ray.store.statements import OPEN_EXECUTION, _PerEngine
from phronomy_ray.store.tables import (
    IS_EXPIRING,
    IS_LIMITED,
    IS_OPEN,
    IS_PARKED,
    IS_RUNNING,
    agents,
    approvals,
    cancellations,
    executions,
    queued_requests,
    supervisors,
)

_AGENT = (agents.c.agent_id, agents.c.epoch, agents.c.agent_revision, agents.c.owner)
_LIMIT: BindParameter[int] = bindparam("row_limit")


def _from(*columns: Any) -> Any:
    """Rows behind the last one of the page before: by a row value, which both engines look up in the index."""
    return tuple_(*columns) > tuple_(bindparam("after_since"), bindparam("after_key"))


#: Executions that go on by themselves, oldest first.
RUNNING: Select[Any] = (
    select(executions.c.created_at.label("since"), executions.c.execution_id.label("key"), *_AGENT)
    .join_from(executions, agents, agents.c.agent_id == executions.c.agent_id)
    .where(IS_RUNNING, _from(executions.c.created_at, executions.c.execution_id), not_(IS_PARKED))
    .order_by(executions.c.created_at, executions.c.execution_id)
    .limit(_LIMIT)
)

#: Agents whose next request could begin, by agent id.
QUEUED: Select[Any] = (
    select(
        func.min(queued_requests.c.queued_at).label("since"),
        queued_requests.c.agent_id.label("key"),
        *_AGENT,
    )
    .join_from(queued_requests, agents, agents.c.agent_id == queued_requests.c.agent_id)
    .where(
        queued_requests.c.agent_id > bindparam("after_key"),
        not_(IS_PARKED),
        ~select(executions.c.execution_id)
        .where(executions.c.agent_id == queued_requests.c.agent_id, IS_OPEN)
        .exists(),
    )
    .group_by(queued_requests.c.agent_id, agents.c.agent_id)
    .order_by(queued_requests.c.agent_id)
    .limit(_LIMIT)
)

#: Requests that nobody answered in time, the longest overdue first.
EXPIRED: Select[Any] = (
    select(approvals.c.expires_at.label("since"), approvals.c.approval_request_id.label("key"), *_AGENT)
    .join_from(approvals, agents, agents.c.agent_id == approvals.c.agent_id)
    .where(
        IS_EXPIRING,
        approvals.c.expires_at <= bindparam("due"),
        _from(approvals.c.expires_at, approvals.c.approval_request_id),
        not_(IS_PARKED),
    )
    .order_by(approvals.c.expires_at, approvals.c.approval_request_id)
    .limit(_LIMIT)
)

#: Open executions that are wished to end and whose owner has not taken that up, the oldest wish first.
WISHED: Select[Any] = (
    select(cancellations.c.requested_at.label("since"), cancellations.c.execution_id.label("key"), *_AGENT)
    .join_from(executions, cancellations, cancellations.c.execution_id == executions.c.execution_id)
    .join(agents, agents.c.agent_id == executions.c.agent_id)
    .where(
        IS_OPEN,
        executions.c.cancel_requested_at.is_(None),
        _from(cancellations.c.requested_at, cancellations.c.execution_id),
        not_(IS_PARKED),
    )
    .order_by(cancellations.c.requested_at, cancellations.c.execution_id)
    .limit(_LIMIT)
)

#: Open executions whose caller's time is over, the longest overdue first.
OVERDUE: Select[Any] = (
    select(executions.c.deadline_at.label("since"), executions.c.execution_id.label("key"), *_AGENT)
    .join_from(executions, agents, agents.c.agent_id == executions.c.agent_id)
    .where(
        IS_LIMITED,
        executions.c.deadline_at <= bindparam("due"),
        _from(executions.c.deadline_at, executions.c.execution_id),
        not_(IS_PARKED),
    )
    .order_by(executions.c.deadline_at, executions.c.execution_id)
    .limit(_LIMIT)
)

PARK = (
    update(agents)
    .where(
        agents.c.agent_id == bindparam("the_agent_id"),
        agents.c.epoch == bindparam("the_epoch"),
        not_(IS_PARKED),
    )
    .values(
        lifecycle="parked",
        parked=bindparam("new_parked"),
        updated_at=bindparam("new_updated_at"),
        agent_revision=agents.c.agent_revision + 1,
    )
)

UNCOUNT = (
    update(agents)
    .where(
        agents.c.agent_id == bindparam("the_agent_id"),
        agents.c.epoch == bindparam("the_epoch"),
        agents.c.starts_without_progress > 0,
    )
    .values(starts_without_progress=agents.c.starts_without_progress - 1)
)

#: Also gives the agent a new epoch: an owner from before has no say any more.
UNPARK = (
    update(agents)
    .where(agents.c.agent_id == bindparam("the_agent_id"), IS_PARKED)
    .values(
        lifecycle=bindparam("new_lifecycle"),
        parked=None,
        starts_without_progress=0,
        epoch=agents.c.epoch + 1,
        agent_revision=agents.c.agent_revision + 1,
        updated_at=bindparam("new_updated_at"),
    )
)

LIFECYCLE = select(agents.c.lifecycle).where(agents.c.agent_id == bindparam("the_agent_id")).with_for_update()

#: The first reason counts.
INTEND_CANCEL = (
    update(executions)
    .where(
        executions.c.agent_id == bindparam("the_agent_id"),
        IS_OPEN,
        executions.c.cancel_requested_at.is_(None),
    )
    .values(
        cancel_requested_at=bindparam("new_cancel_requested_at"),
        terminal_reason=bindparam("new_terminal_reason"),
        revision=executions.c.revision + 1,
    )
)

PARKED: Select[Any] = (
    select(agents)
    .where(IS_PARKED, agents.c.agent_id > bindparam("after"))
    .order_by(agents.c.agent_id)
    .limit(_LIMIT)
)

_THE_CLUSTER = supervisors.c.cluster == bindparam("the_cluster")
BEAT = (
    update(supervisors)
    .where(_THE_CLUSTER)
    .values(beats=supervisors.c.beats + 1, info=bindparam("new_info"), updated_at=bindparam("new_updated_at"))
)
INSERT_SUPERVISOR = _PerEngine(supervisors)
SUPERVISORS = select(supervisors).order_by(supervisors.c.cluster)
FORGET = delete(supervisors).where(and_(_THE_CLUSTER, supervisors.c.beats == bindparam("the_beats")))

__all__ = [
    "BEAT",
    "EXPIRED",
    "FORGET",
    "INSERT_SUPERVISOR",
    "INTEND_CANCEL",
    "LIFECYCLE",
    "OPEN_EXECUTION",
    "OVERDUE",
    "PARK",
    "PARKED",
    "QUEUED",
    "RUNNING",
    "SUPERVISORS",
    "UNCOUNT",
    "UNPARK",
]
