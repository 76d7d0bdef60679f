"""`Deliverer`: has an `Outlet` for every subscription of a store that nobody else serves.

It may die at any moment: what was not recorded is delivered again by whoever takes over, with the same event id.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Any

from phronomy_ray.clock import Clock
from phronomy_ray.delivery.limits import DeliveryLimits
from phronomy_ray.delivery.outlet import Outlet
from phronomy_ray.delivery.plan import LeaseWatch
from phronomy_ray.delivery.senders import Sender, sender_for
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import PhronomyError, StoreError, safe_message
from phronomy_ray.subscriptions import SubscriptionLease, Target
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.delivery")
#: Where nobody has subscribed it is looked so much less often.
IDLE_FACTOR = 4
#: How long a deliverer that leaves waits for the store to know it, in seconds for each subscription.
GIVE_BACK_S = 2.0
#: How often what was left by removed subscriptions is swept up, in seconds.
SWEEP_EVERY_S = 60.0


class Deliverer(WorkerInputRestricted):
    """The deliverer of one process for one store. Use it on one event loop."""

    def __init__(
        self,
        store: StoreClient,
        *,
        clock: Clock,
        name: str = "",
        limits: DeliveryLimits | None = None,
        senders: Callable[[Target, Clock], Sender] = sender_for,
        time: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            store: where events and subscriptions are.
            clock: for what is due.
            name: who this is, for people.
            limits: how fast, how patient.
            senders: how a target is reached.
            time: seconds that only grow; the loop's by default.
        """
        self._store = store
        self._clock = clock
        #: Unlike any other deliverer's, also of the same process.
        self.holder = f"{name}#{uuid.uuid4().hex[:12]}"
        self._limits = limits or DeliveryLimits()
        self._senders = senders
        self._time = time or asyncio.get_running_loop().time
        self._watch = LeaseWatch(self._limits.takeover_after_s)
        self._outlets: dict[str, tuple[Outlet, asyncio.Task[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._swept_at_s = self._time()
        self._has_subscriptions = False

    def start(self) -> None:
        """Begin to look now and then."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Deliver no more, and let others take over at once; attempts that are under way are made again by them."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        outlets, self._outlets = self._outlets, {}
        for _, serving in outlets.values():
            serving.cancel()
        await asyncio.gather(*(serving for _, serving in outlets.values()), return_exceptions=True)
        for id_, (outlet, _) in outlets.items():
            if outlet.is_lost:
                continue
            try:
                async with asyncio.timeout(GIVE_BACK_S):
                    await self._store.run(self._store.store.free_subscription, id_, epoch=outlet.epoch)
            except (PhronomyError, TimeoutError) as error:  # then they wait until it is seen to be silent
                _LOG.debug("subscription %s was not given back: %s", id_, error)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round may go well
                level = logging.WARNING if isinstance(error, StoreError) else logging.ERROR
                _LOG.log(level, "no look at subscriptions: %s: %s", type(error).__name__, safe_message(error))
            factor = 1 if self._has_subscriptions else IDLE_FACTOR
            await asyncio.sleep(self._limits.look_every_s * factor)

    async def look(self) -> None:
        """One round: keep what is ours, take what nobody serves. Raises `StoreError`."""
        leases: list[SubscriptionLease] = await self._store.run(self._store.store.subscription_leases)
        self._has_subscriptions = bool(leases)
        epochs = {lease.subscription.subscription_id: lease.epoch for lease in leases}
        for id_, (outlet, serving) in list(self._outlets.items()):
            if epochs.get(id_) != outlet.epoch or outlet.is_lost or serving.done():
                await self._stop(id_)
                continue
            is_due = self._time() - outlet.confirmed_at_s >= self._limits.beat_every_s
            if is_due and not await outlet.confirm():
                await self._stop(id_)
        for lease in self._watch.to_take(leases, self._outlets, self._time()):
            await self._take(lease)
        if leases and self._time() - self._swept_at_s >= SWEEP_EVERY_S:
            self._swept_at_s = self._time()
            await self._store.run(self._store.store.forget_strays)

    async def _take(self, lease: SubscriptionLease) -> None:
        id_ = lease.subscription.subscription_id
        epoch = await self._store.run(
            self._store.store.take_subscription,
            id_,
            holder=self.holder,
            epoch=lease.epoch,
            beats=lease.beats,
        )
        if epoch is None:
            return
        if lease.holder:
            _LOG.warning("subscription %s was taken over from %s, which is silent", id_, lease.holder)
        outlet = Outlet(
            self._store,
            lease.subscription,
            self._senders(lease.subscription.target, self._clock),
            epoch=epoch,
            clock=self._clock,
            limits=self._limits,
            time=self._time,
        )
        self._outlets[id_] = (outlet, asyncio.get_running_loop().create_task(outlet.run()))

    async def _stop(self, id_: str) -> None:
        outlet, serving = self._outlets.pop(id_)
        outlet.is_lost = True
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    def report(self) -> list[dict[str, Any]]:
        """What it does for each subscription that it has, as JSON."""
        return [outlet.report() for _, (outlet, _) in sorted(self._outlets.items())]


__all__ = ["Deliverer"]
