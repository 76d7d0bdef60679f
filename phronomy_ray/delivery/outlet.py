"""`Outlet`: delivers the events of one subscription while this process has its lease."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from phronomy_ray.clock import Clock
from phronomy_ray.delivery.limits import DeliveryLimits
from phronomy_ray.delivery.plan import Outcome, Pace, after_failure
from phronomy_ray.delivery.senders import Sender
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import PhronomyError, StoreError, safe_message
from phronomy_ray.subscriptions import DeliveredEvent, Delivery, Subscription
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.delivery")
#: Deliveries that are read at once, and pages of one agent before others have their turn.
PAGE = 20
PAGES_PER_TURN = 5


class Outlet(WorkerInputRestricted):
    """One subscription's deliveries: several agents at once, the events of each one after the other.

    At least once: the receiver is asked first and the store told afterwards. It stops as soon as the store does not take its epoch.
    """

    def __init__(
        self,
        store: StoreClient,
        subscription: Subscription,
        sender: Sender,
        *,
        epoch: int,
        clock: Clock,
        limits: DeliveryLimits,
        time: Callable[[], float],
    ) -> None:
        self.subscription = subscription
        self.epoch = epoch
        #: Whether another deliverer has the subscription, or it was removed.
        self.is_lost = False
        #: When the store last took a word of this epoch, in seconds of `time`.
        self.confirmed_at_s = time()
        self._store = store
        self._sender = sender
        self._clock = clock
        self._limits = limits
        self._time = time
        self._pace = Pace(limits.max_parallel)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._after = ""
        self._counts: Counter[str] = Counter()
        self._error = ""

    @property
    def _id(self) -> str:
        return self.subscription.subscription_id

    async def run(self) -> None:
        """Deliver until the lease is lost; cancel it to stop."""
        try:
            while not self.is_lost:
                try:
                    has_begun = await self._begin()
                except StoreError as error:
                    has_begun = False
                    self._failed("the store cannot be read", error)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next round may go well
                    has_begun = False
                    self._failed("an internal fault", error)
                await self._rest(has_begun)
        finally:
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)
            await self._sender.close()

    async def confirm(self) -> bool:
        """Show a sign of life; whether this process still has the subscription. Raises `StoreError`."""
        asked_at_s = self._time()
        port = self._store.store
        if await self._store.run(port.beat_subscription, self._id, epoch=self.epoch):
            self.confirmed_at_s = asked_at_s
        else:
            self.is_lost = True
        return not self.is_lost

    def report(self) -> dict[str, Any]:
        """What it does, as JSON."""
        return {
            "subscription_id": self._id,
            "epoch": self.epoch,
            "under_way": sorted(self._under_way),
            "failures_in_a_row": self._pace.failures,
            "paused_s": round(self._pace.left_s(self._time()), 1),
            "counts": {name: self._counts[name] for name in ("delivered", "failed", "dead")},
            "error": self._error,
        }

    # --- agents ------------------------------------------------------------------------------------------------

    async def _begin(self) -> bool:
        """Begin with agents whose next event is due, as many as there is room for; whether there were any."""
        room = self._pace.room(len(self._under_way), self._time())
        if not room:
            return False
        limit = room + len(self._under_way)
        found = await self._store.run(
            self._store.store.due_agents, self._id, now=self._clock.now(), after=self._after, limit=limit
        )
        has_more = len(found) == limit or bool(self._after)
        self._after = found[-1] if len(found) == limit else ""  # each agent has its turn
        fresh = [agent_id for agent_id in found if agent_id not in self._under_way][:room]
        for agent_id in fresh:
            task = asyncio.get_running_loop().create_task(self._deliver_all(agent_id))
            self._under_way[agent_id] = task
            task.add_done_callback(partial(self._ended, agent_id))
        return bool(fresh) or has_more

    def _ended(self, agent_id: str, task: asyncio.Task[None]) -> None:
        self._under_way.pop(agent_id, None)

    async def _rest(self, has_begun: bool) -> None:
        """Until there may be something to begin."""
        pause_s = max(self._limits.look_every_s, 0.0)
        left_s = self._pace.left_s(self._time())
        if left_s > 0:
            pause_s = min(max(left_s, 0.01), 5.0)
        tasks = list(self._under_way.values())
        if tasks:
            await asyncio.wait(tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        elif not has_begun or left_s > 0:
            await asyncio.sleep(pause_s)

    async def _deliver_all(self, agent_id: str) -> None:
        """Deliver one agent's events in order, until one fails or none is left."""
        try:
            for _ in range(PAGES_PER_TURN):
                page = await self._store.run(self._store.store.deliveries_of, self._id, agent_id, limit=PAGE)
                for delivery in page:
                    if not await self._deliver(delivery):
                        return
                if len(page) < PAGE:
                    return
        except StoreError as error:
            self._failed(f"events of agent {agent_id} could not be read or recorded", error)
            await asyncio.sleep(self._limits.look_every_s)
        except Exception as error:  # noqa: BLE001 - of one event; the others go on, and it is tried again
            self._failed(f"an internal fault with events of agent {agent_id}", error)
            await asyncio.sleep(self._limits.look_every_s)

    async def _deliver(self, delivery: Delivery) -> bool:
        """One attempt; whether the agent's next event may follow."""
        now_s = self._time()
        is_due = delivery.next_at is None or delivery.next_at <= self._clock.now()
        if not is_due or self._pace.left_s(now_s) > 0 or self.is_lost:
            return False
        if now_s - self.confirmed_at_s > self._limits.takeover_after_s / 2 and not await self.confirm():
            return False  # this process was stopped for a while, and somebody else delivers now
        answer = await self._sender.send(DeliveredEvent.of(delivery))
        self._pace.heard(answer, begun_s=now_s, now_s=self._time(), chance=random.random())
        if answer.outcome is Outcome.UNABLE:
            assert answer.error is not None
            self._say(f"nothing can be sent: {answer.error.message} [{answer.error.code}]")
            return False
        port = self._store.store
        if answer.outcome is Outcome.DELIVERED:
            is_ours = await self._store.run(port.delivery_done, delivery, epoch=self.epoch)
            self._counts["delivered"] += 1
            goes_on = True
        else:
            failed = after_failure(
                delivery,
                answer,
                self.subscription.target,
                now=self._clock.now(),
                chance=random.random(),
            )
            is_ours = await self._store.run(
                port.delivery_failed,
                delivery,
                epoch=self.epoch,
                error=failed.error,
                next_at=failed.next_at,
                dead_at=failed.dead_at,
            )
            goes_on = failed.dead_at is not None
            self._counts["dead" if goes_on else "failed"] += 1
            self._tell(delivery, failed.error.code, failed.error.message, is_dead=goes_on)
        if not is_ours:  # it was purged, or another deliverer has taken over
            await self.confirm()
            return False
        return goes_on

    def _tell(self, delivery: Delivery, code: str, message: str, *, is_dead: bool) -> None:
        """A failed attempt is told of the first time, and when the event is given up."""
        self._error = f"{message} [{code}]"
        if is_dead or delivery.attempts == 0:
            _LOG.warning(
                "subscription %s: event %d of execution %s %s (%s): %s",
                self._id,
                delivery.event.seq,
                delivery.event.execution_id,
                "was given up" if is_dead else "was not delivered and is tried again",
                code,
                message,
            )

    def _failed(self, what: str, error: Exception) -> None:
        code = error.code if isinstance(error, PhronomyError) else "internal"
        self._say(f"{what}: {safe_message(error)} [{code}]")

    def _say(self, text: str) -> None:
        if text != self._error:  # it is tried again and again
            _LOG.warning("subscription %s: %s", self._id, text)
        self._error = text


__all__ = ["Outlet"]
