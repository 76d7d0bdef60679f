"""The part of the store port that delivers events: who wants which, what is still to be delivered, and who does it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from phronomy_ray.subscriptions import (
    Delivery,
    DeliveryError,
    Subscription,
    SubscriptionLease,
    SubscriptionState,
)


class DeliveryStore(Protocol):
    """Each method is one transaction; else as `store.port.Store`.

    Whatever transaction inserts an event also inserts one delivery for each subscription that wants its type and is there by then:
    no writer of events has to think of it. A delivery goes with its event (`Store.purge_agent`), and an event whose delivery to a
    subscription is not done, and was not given up, is not collected (`Store.collect_rows`).
    """

    def add_subscription(self, subscription: Subscription) -> Subscription:
        """Keep a subscription; the same id and target again is one. Returns the stored one.

        Raises `ConflictError` when its id has another target. `CommitOutcomeUnknownError`: adding again tells.
        """
        ...

    def remove_subscription(self, subscription_id: str) -> bool:
        """Delete a subscription with all that was to be delivered to it, dead letters included; whether it was there."""
        ...

    def subscriptions(self) -> list[SubscriptionState]:
        """All, oldest first, with what waits; it counts rows, so do not ask for it again and again."""
        ...

    def subscription_leases(self) -> list[SubscriptionLease]:
        """All, oldest first, with who delivers."""
        ...

    def take_subscription(self, subscription_id: str, *, holder: str, epoch: int, beats: int) -> int | None:
        """Become the one who delivers, if nothing has moved since `epoch` and `beats` were read; the new epoch, ``None`` if it has.

        After a lost connection it may have happened: then nobody knows the epoch, and it is taken again after a silence.
        """
        ...

    def beat_subscription(self, subscription_id: str, *, epoch: int) -> bool:
        """Show a sign of life; whether `epoch` is still the one in force."""
        ...

    def free_subscription(self, subscription_id: str, *, epoch: int) -> bool:
        """Let others take it at once; whether `epoch` was the one in force."""
        ...

    def due_agents(
        self, subscription_id: str, *, now: datetime, after: str = "", limit: int = 100
    ) -> list[str]:
        """Agents greater than `after` whose next event is to be delivered by `now`: what follows a delivery that waits, waits too."""
        ...

    def deliveries_of(self, subscription_id: str, agent_id: str, *, limit: int = 50) -> list[Delivery]:
        """What is to be delivered of one agent's events, in the order of their commits."""
        ...

    def delivery_done(self, delivery: Delivery, *, epoch: int) -> bool:
        """The receiver has it: forget the delivery. ``False`` when it is not there any more, or `epoch` not in force."""
        ...

    def delivery_failed(
        self,
        delivery: Delivery,
        *,
        epoch: int,
        error: DeliveryError,
        next_at: datetime | None,
        dead_at: datetime | None = None,
    ) -> bool:
        """Count a failed attempt: to be tried again from `next_at` on or, with `dead_at`, given up. Returns as `delivery_done`."""
        ...

    def dead_letters(
        self, *, subscription_id: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Delivery]:
        """Deliveries that were given up, of one subscription or all, by `Delivery.delivery_id`, ids greater than `after`."""
        ...

    def redeliver(
        self,
        *,
        now: datetime,
        subscription_id: str | None = None,
        delivery_ids: Collection[int] | None = None,
    ) -> int:
        """Try dead letters again from the beginning, all that fit what is given; how many there were. They are older than what
        waits, so they come next; what their agent did later may have been delivered already.
        """
        ...

    def forget_strays(self) -> int:
        """Delete deliveries to subscriptions that were removed while their events were committed; how many."""
        ...


__all__ = ["DeliveryStore"]
