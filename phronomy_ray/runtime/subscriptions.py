"""`Subscriptions`: who is told of durable events for certain. They live in the store; whoever supervises it delivers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import cast

from phronomy_ray.clock import Clock, SystemClock
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.ids import check_id
from phronomy_ray.runtime.bridge import Bridge, blocking
from phronomy_ray.store.port import Store
from phronomy_ray.subscriptions import (
    Callback,
    Delivery,
    Subscription,
    SubscriptionState,
    Target,
    Webhook,
)

#: Dead letters that are listed at once.
DEFAULT_LIMIT = 100


class Subscriptions:
    """The subscriptions of one store."""

    def __init__(
        self,
        store: Callable[[], Store],
        bridge: Callable[[], Bridge],
        *,
        on_add: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            store: where they are.
            bridge: the loop of the blocking forms.
            on_add: called when there is one more; it sees to it that somebody delivers.
            clock: for the time of a subscription.
        """
        self._store = store
        self._find_bridge = bridge
        self._on_add = on_add
        self._clock = clock or SystemClock()

    @property
    def _bridge(self) -> Bridge:
        """The loop that blocking forms run on."""
        return self._find_bridge()

    async def add_async(self, target: Target, *, subscription_id: str | None = None) -> Subscription:
        """Deliver every durable event that is committed from now on, of the types that `target` wants, to `target`.

        Delivered at least once, the events of each agent in the order of their commits, by one deliverer at a time: the supervisor of
        any runtime on this store. The same id and target again is one subscription, so a program may add its own whenever it
        starts; without an id each call makes a new one.

        Raises:
            InvalidInputError: `target` is neither a `Webhook` nor a `Callback`, or the id is not text.
            ConflictError: the id has another target or other limits.
        """
        if not isinstance(cast("object", target), Webhook | Callback):
            raise InvalidInputError(
                f"a subscription's target is a Webhook or a Callback, not {type(target).__name__}"
            )
        id_ = (
            f"sub_{uuid.uuid4().hex[:16]}"
            if subscription_id is None
            else check_id(subscription_id, "subscription_id")
        )
        added = await asyncio.to_thread(
            self._store().add_subscription, Subscription(id_, target, self._clock.now())
        )
        self._on_add()
        return added

    add = blocking(add_async)

    async def list_async(self) -> list[SubscriptionState]:
        """All subscriptions, oldest first, with what waits, what was given up, and who delivers."""
        return await asyncio.to_thread(self._store().subscriptions)

    list = blocking(list_async)

    async def remove_async(self, subscription_id: str) -> bool:
        """End a subscription; what was still to be delivered to it, and its dead letters, are forgotten. Whether it was there.

        An attempt that is under way may still arrive.
        """
        check_id(subscription_id, "subscription_id")
        return await asyncio.to_thread(self._store().remove_subscription, subscription_id)

    remove = blocking(remove_async)

    async def dead_letters_async(
        self, subscription_id: str | None = None, *, after: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Sequence[Delivery]:
        """Events that were given up, with the last error: of one subscription or of all, oldest first.

        Args:
            subscription_id: whose; ``None`` for all.
            after: the `Delivery.delivery_id` of the last one of the page before.
            limit: how many at most.
        """
        return await asyncio.to_thread(
            self._store().dead_letters, subscription_id=subscription_id, after=after, limit=limit
        )

    dead_letters = blocking(dead_letters_async)

    async def redeliver_async(
        self, subscription_id: str | None = None, *, delivery_ids: Sequence[int] | None = None
    ) -> int:
        """Try dead letters again, with the event ids that they had: all of a subscription, some, or all there are; how many.

        They come before what waits; what their agent did later may have been delivered already.
        """
        return await asyncio.to_thread(
            self._store().redeliver,
            now=self._clock.now(),
            subscription_id=subscription_id,
            delivery_ids=delivery_ids,
        )

    redeliver = blocking(redeliver_async)


__all__ = ["Subscriptions"]
