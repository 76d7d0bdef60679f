"""A collection: everything that a policy does not keep, in short steps, until all was looked at or somebody stops it.

By hand, or now and then as a job of the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from phronomy_ray.clock import Clock
from phronomy_ray.errors import safe_message
from phronomy_ray.retention import Collectable, Collected, RetentionPolicy
from phronomy_ray.store.port import Store
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.supervision")
#: When the first collection of a supervisor begins, in seconds after its start: a cluster that comes back has other things to do.
FIRST_AFTER_S = 60.0


def collect(
    store: Store,
    policy: RetentionPolicy,
    *,
    now: datetime,
    dry_run: bool = False,
    on_step: Callable[[Collected], None] = lambda so_far: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Collected:
    """Delete what `policy` does not keep; `on_step` hears of every step. What was done until a stop or a crash stays done.

    Raises what the store raises.
    """
    done = Collected(dry_run=dry_run)
    ages = {
        Collectable.EVENTS: policy.events,
        Collectable.EXECUTIONS: policy.executions,
        Collectable.CLOSED_AGENTS: policy.closed_agents,
    }
    for kind, age in ages.items():
        after = ""
        while age is not None and not should_stop():
            step = store.collect_rows(kind, before=now - age, after=after, dry_run=dry_run)
            done.rows[kind] = done.rows.get(kind, 0) + step.deleted
            on_step(done)
            after = step.next
            if not after:
                break
    after = ""
    while policy.contents is not None and not should_stop():
        found = store.collect_contents(now=now, older_than=policy.contents, after=after, dry_run=dry_run)
        done.condemned += found.condemned
        done.restored += found.restored
        done.contents += found.deleted
        on_step(done)
        after = found.next
        if not after:
            done.is_whole = True
            break
    if policy.contents is None:
        done.is_whole = not should_stop()
    return done


async def collect_on_thread(
    store: Store, policy: RetentionPolicy, *, now: datetime, dry_run: bool
) -> Collected:
    """`collect` on a thread; it stops after its present step when the waiting task is cancelled."""
    stopped = threading.Event()
    try:
        return await asyncio.to_thread(
            collect, store, policy, now=now, dry_run=dry_run, should_stop=stopped.is_set
        )
    finally:
        stopped.set()


class CollectionJob(WorkerInputRestricted):
    """One store's collections, one after another. Two of them at once, of two clusters, do no harm."""

    def __init__(self, store: Store, policy: RetentionPolicy, clock: Clock, *, every_s: float) -> None:
        """
        Args:
            store: what is collected.
            policy: what is kept.
            clock: for what is old.
            every_s: pause between two collections, in seconds.
        """
        self._store = store
        self._policy = policy
        self._clock = clock
        self._every_s = every_s
        self._begun_at: datetime | None = None
        self._done: Collected | None = None
        self._error = ""

    async def run(self) -> None:
        """Collect now and then, until it is cancelled."""
        await asyncio.sleep(min(FIRST_AFTER_S, self._every_s))
        while True:
            await self.collect()
            await asyncio.sleep(self._every_s)

    async def collect(self) -> None:
        """Collect now. What goes wrong is told by the report, and tried again next time."""
        self._begun_at = self._clock.now()
        try:
            self._done = await collect_on_thread(self._store, self._policy, now=self._begun_at, dry_run=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one may go well
            self._error = f"{type(error).__name__}: {safe_message(error)}"
            _LOG.warning("a collection failed: %s", self._error)
            return
        self._error = ""
        _LOG.info("collected: %s", self._done.summary)

    def to_wire(self) -> dict[str, Any]:
        """The last collection, as JSON."""
        return {
            "begun_at": self._begun_at.isoformat() if self._begun_at is not None else None,
            "deleted": self._done.to_wire() if self._done is not None else None,
            "error": self._error,
        }


__all__ = ["CollectionJob", "collect", "collect_on_thread"]
