"""Statements of `sql_deliveries`, built once like those of `statements`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, and_, bindparam, delete, exists, func, select, text, update

from phronomy_ray.store.statements import _PerEngine
from phronomy_ray.store.tables import IS_DEAD, IS_WAITING, deliveries, events, subscriptions

_ID = subscriptions.c.subscription_id == bindparam("the_subscription_id")
_EPOCH = subscriptions.c.epoch == bindparam("the_epoch")

INSERT_SUBSCRIPTION = _PerEngine(subscriptions)
SUBSCRIPTION = select(subscriptions).where(_ID)
SUBSCRIPTIONS = select(subscriptions).order_by(subscriptions.c.created_at, subscriptions.c.subscription_id)
DELETE_SUBSCRIPTION = delete(subscriptions).where(_ID)
DELETE_DELIVERIES = delete(deliveries).where(deliveries.c.subscription_id == bindparam("the_subscription_id"))

WAITING_COUNTS = (
    select(
        deliveries.c.subscription_id,
        func.count().label("waiting"),
        func.min(deliveries.c.since).label("oldest"),
    )
    .where(IS_WAITING)
    .group_by(deliveries.c.subscription_id)
)
DEAD_COUNTS = (
    select(deliveries.c.subscription_id, func.count().label("dead"))
    .where(IS_DEAD)
    .group_by(deliveries.c.subscription_id)
)

TAKE = (
    update(subscriptions)
    .where(_ID, _EPOCH, subscriptions.c.beats == bindparam("the_beats"))
    .values(holder=bindparam("new_holder"), epoch=subscriptions.c.epoch + 1, beats=0)
)
BEAT = update(subscriptions).where(_ID, _EPOCH).values(beats=subscriptions.c.beats + 1)
FREE = update(subscriptions).where(_ID, _EPOCH).values(holder="", beats=subscriptions.c.beats + 1)

#: Looks up one agent after the other in the index of what waits: its cost follows the agents that wait, not their events.
DUE_AGENTS = text(
    """
    WITH RECURSIVE behind(agent_id) AS (
        SELECT min(agent_id) FROM deliveries
        WHERE subscription_id = :the_subscription_id AND dead_at IS NULL AND agent_id > :after
        UNION ALL
        SELECT (
            SELECT min(d.agent_id) FROM deliveries AS d
            WHERE d.subscription_id = :the_subscription_id AND d.dead_at IS NULL AND d.agent_id > behind.agent_id
        )
        FROM behind WHERE behind.agent_id IS NOT NULL
    )
    SELECT behind.agent_id FROM behind
    WHERE (
        SELECT coalesce(d.next_at, '') FROM deliveries AS d
        WHERE d.subscription_id = :the_subscription_id AND d.dead_at IS NULL AND d.agent_id = behind.agent_id
        ORDER BY d.delivery_id LIMIT 1
    ) <= :now
    LIMIT :row_limit
    """
)

_WITH_EVENT = select(
    deliveries,
    events.c.type,
    events.c.payload,
    events.c.payload_ref,
    events.c.created_at,
).join_from(
    deliveries,
    events,
    and_(events.c.execution_id == deliveries.c.execution_id, events.c.seq == deliveries.c.seq),
)

DELIVERIES_OF: Select[Any] = (
    _WITH_EVENT.where(
        deliveries.c.subscription_id == bindparam("the_subscription_id"),
        deliveries.c.agent_id == bindparam("the_agent_id"),
        IS_WAITING,
    )
    .order_by(deliveries.c.delivery_id)
    .limit(bindparam("row_limit"))
)


def dead_letters(*, of_subscription: bool) -> Select[Any]:
    """Deliveries that were given up."""
    query = _WITH_EVENT.where(IS_DEAD, deliveries.c.delivery_id > bindparam("after"))
    if of_subscription:
        query = query.where(deliveries.c.subscription_id == bindparam("the_subscription_id"))
    return query.order_by(deliveries.c.delivery_id).limit(bindparam("row_limit"))


#: Of a deliverer that is still the one: an older epoch records nothing.
_THE_DELIVERY = and_(
    deliveries.c.delivery_id == bindparam("the_delivery_id"),
    IS_WAITING,
    exists().where(_ID, _EPOCH),
)
DONE = delete(deliveries).where(_THE_DELIVERY)
FAILED = (
    update(deliveries)
    .where(_THE_DELIVERY)
    .values(
        attempts=bindparam("new_attempts"),
        next_at=bindparam("new_next_at"),
        error=bindparam("new_error"),
        dead_at=bindparam("new_dead_at"),
    )
)


def redeliver(*, of_subscription: bool, by_ids: bool) -> Any:
    """Dead letters begin anew."""
    change = update(deliveries).where(IS_DEAD)
    if of_subscription:
        change = change.where(deliveries.c.subscription_id == bindparam("the_subscription_id"))
    if by_ids:
        change = change.where(deliveries.c.delivery_id.in_(bindparam("delivery_ids", expanding=True)))
    return change.values(dead_at=None, attempts=0, next_at=None, since=bindparam("new_since"))


FORGET_STRAYS = delete(deliveries).where(
    ~exists().where(subscriptions.c.subscription_id == deliveries.c.subscription_id)
)

__all__ = [
    "BEAT",
    "DEAD_COUNTS",
    "DELETE_DELIVERIES",
    "DELETE_SUBSCRIPTION",
    "DELIVERIES_OF",
    "DONE",
    "DUE_AGENTS",
    "FAILED",
    "FORGET_STRAYS",
    "FREE",
    "INSERT_SUBSCRIPTION",
    "SUBSCRIPTION",
    "SUBSCRIPTIONS",
    "TAKE",
    "WAITING_COUNTS",
    "dead_letters",
    "redeliver",
]
