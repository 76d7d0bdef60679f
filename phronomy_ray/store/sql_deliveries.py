"""Subscriptions and deliveries in SQL: a part of `SqlStore`. What is to be delivered is written by a trigger (migration 0011)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable

from phronomy_ray.canonical_json import loads
from phronomy_ray.errors import ConflictError, InvalidInputError, PhronomyError
from phronomy_ray.store import delivery_statements as statements
from phronomy_ray.store.codec import RowDecoder, decode_time, encode_time, plain_json
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.store.rows import AnyRow, to_event
from phronomy_ray.subscriptions import (
    Delivery,
    DeliveryError,
    Subscription,
    SubscriptionLease,
    SubscriptionState,
    target_from_wire,
)

_LOG = logging.getLogger("phronomy_ray.store")


class SqlDeliveries(SqlDatabase):
    """See `store.delivery_port` for the contract of each method."""

    #: Subscriptions that cannot be read here, which was said.
    _left_to_others: frozenset[str] = frozenset()

    def add_subscription(self, subscription: Subscription) -> Subscription:
        """As `DeliveryStore.add_subscription`."""
        types = ",".join(str(item) for item in subscription.target.events)
        row = {
            "subscription_id": subscription.subscription_id,
            "target": plain_json(subscription.target.to_wire()),
            "types": f",{types}," if types else "*",
            "holder": "",
            "epoch": 0,
            "beats": 0,
            "created_at": encode_time(subscription.created_at),
        }
        of = {"the_subscription_id": subscription.subscription_id}

        def work(connection: Connection) -> Subscription:
            connection.execute(statements.INSERT_SUBSCRIPTION[connection.dialect.name], row)
            stored = _to_subscription(connection.execute(statements.SUBSCRIPTION, of).one())
            if stored.target != subscription.target:
                raise ConflictError(
                    f"subscription {subscription.subscription_id!r} exists with another target or other limits; remove it first",
                    details={"subscription_id": subscription.subscription_id},
                )
            return stored

        return self._write(work, repeat_unknown=True)

    def remove_subscription(self, subscription_id: str) -> bool:
        """As `DeliveryStore.remove_subscription`."""
        of = {"the_subscription_id": subscription_id}

        def work(connection: Connection) -> bool:
            removed = connection.execute(statements.DELETE_SUBSCRIPTION, of).rowcount
            connection.execute(statements.DELETE_DELIVERIES, of)
            return bool(removed)

        return self._write(work, repeat_unknown=True)

    def subscriptions(self) -> list[SubscriptionState]:
        """As `DeliveryStore.subscriptions`."""

        def work(connection: Connection) -> list[SubscriptionState]:
            waiting = {row.subscription_id: row for row in connection.execute(statements.WAITING_COUNTS)}
            dead = {row.subscription_id: row.dead for row in connection.execute(statements.DEAD_COUNTS)}
            found = []
            for row in connection.execute(statements.SUBSCRIPTIONS):
                counted = waiting.get(row.subscription_id)
                found.append(
                    SubscriptionState(
                        _to_subscription(row),
                        row.holder,
                        counted.waiting if counted is not None else 0,
                        decode_time(counted.oldest) if counted is not None else None,
                        dead.get(row.subscription_id, 0),
                    )
                )
            return found

        return self._read(work)

    def subscription_leases(self) -> list[SubscriptionLease]:
        """As `DeliveryStore.subscription_leases`."""
        found = []
        for row in self._read(lambda connection: connection.execute(statements.SUBSCRIPTIONS).all()):
            try:
                subscription = _to_subscription(row)
            except PhronomyError as error:  # of a newer release, whose deliverers understand it
                if row.subscription_id not in self._left_to_others:
                    _LOG.warning("subscription %s is left to others: %s", row.subscription_id, error.message)
                self._left_to_others |= {row.subscription_id}
                continue
            found.append(SubscriptionLease(subscription, row.holder, row.epoch, row.beats))
        return found

    def take_subscription(self, subscription_id: str, *, holder: str, epoch: int, beats: int) -> int | None:
        """As `DeliveryStore.take_subscription`."""
        values = {
            "the_subscription_id": subscription_id,
            "the_epoch": epoch,
            "the_beats": beats,
            "new_holder": holder,
        }
        return epoch + 1 if self._has_changed(statements.TAKE, values) else None

    def beat_subscription(self, subscription_id: str, *, epoch: int) -> bool:
        """As `DeliveryStore.beat_subscription`. After a lost connection it may count twice, which is as good a sign of life."""
        return self._has_changed(statements.BEAT, _fence(subscription_id, epoch), repeat_unknown=True)

    def free_subscription(self, subscription_id: str, *, epoch: int) -> bool:
        """As `DeliveryStore.free_subscription`."""
        return self._has_changed(statements.FREE, _fence(subscription_id, epoch), repeat_unknown=True)

    def due_agents(
        self, subscription_id: str, *, now: datetime, after: str = "", limit: int = 100
    ) -> list[str]:
        """As `DeliveryStore.due_agents`."""
        parameters = {
            "the_subscription_id": subscription_id,
            "now": encode_time(now),
            "after": after,
            "row_limit": _limit(limit),
        }
        return self._read(
            lambda connection: [row.agent_id for row in connection.execute(statements.DUE_AGENTS, parameters)]
        )

    def delivery_done(self, delivery: Delivery, *, epoch: int) -> bool:
        """As `DeliveryStore.delivery_done`."""
        guards = _fence(delivery.subscription_id, epoch) | {"the_delivery_id": delivery.delivery_id}
        return self._has_changed(statements.DONE, guards, repeat_unknown=True)

    def delivery_failed(
        self,
        delivery: Delivery,
        *,
        epoch: int,
        error: DeliveryError,
        next_at: datetime | None,
        dead_at: datetime | None = None,
    ) -> bool:
        """As `DeliveryStore.delivery_failed`; again is the same."""
        values = _fence(delivery.subscription_id, epoch) | {
            "the_delivery_id": delivery.delivery_id,
            "new_attempts": delivery.attempts + 1,
            "new_next_at": encode_time(next_at) if next_at is not None else None,
            "new_error": plain_json(error.to_wire()),
            "new_dead_at": encode_time(dead_at) if dead_at is not None else None,
        }
        return self._has_changed(statements.FAILED, values, repeat_unknown=True)

    def redeliver(
        self,
        *,
        now: datetime,
        subscription_id: str | None = None,
        delivery_ids: Collection[int] | None = None,
    ) -> int:
        """As `DeliveryStore.redeliver`."""
        change = statements.redeliver(
            of_subscription=subscription_id is not None, by_ids=delivery_ids is not None
        )
        values: dict[str, Any] = {"new_since": encode_time(now)}
        if subscription_id is not None:
            values["the_subscription_id"] = subscription_id
        if delivery_ids is not None:
            values["delivery_ids"] = sorted(delivery_ids)
        return self._write(lambda connection: connection.execute(change, values).rowcount)

    def forget_strays(self) -> int:
        """As `DeliveryStore.forget_strays`."""
        return self._write(
            lambda connection: connection.execute(statements.FORGET_STRAYS).rowcount, repeat_unknown=True
        )

    def _has_changed(
        self, statement: Executable, values: dict[str, Any], *, repeat_unknown: bool = False
    ) -> bool:
        def work(connection: Connection) -> bool:
            return bool(connection.execute(statement, values).rowcount)

        return self._write(work, repeat_unknown=repeat_unknown)


def to_delivery(row: AnyRow, decoder: RowDecoder) -> Delivery:
    """One delivery with its event."""
    return Delivery(
        delivery_id=row.delivery_id,
        subscription_id=row.subscription_id,
        event=to_event(row, decoder),
        attempts=row.attempts,
        since=decode_time(row.since),
        next_at=decode_time(row.next_at) if row.next_at is not None else None,
        error=DeliveryError.from_wire(loads(row.error)) if row.error is not None else None,
        dead_at=decode_time(row.dead_at) if row.dead_at is not None else None,
    )


def _to_subscription(row: AnyRow) -> Subscription:
    return Subscription(row.subscription_id, target_from_wire(loads(row.target)), decode_time(row.created_at))


def _fence(subscription_id: str, epoch: int) -> dict[str, Any]:
    return {"the_subscription_id": subscription_id, "the_epoch": epoch}


def _limit(limit: int) -> int:
    if limit < 0:
        raise InvalidInputError(f"limit must not be negative, got {limit}")
    return limit


__all__ = ["SqlDeliveries", "to_delivery"]
