"""A collection: everything that a policy does not keep, in short steps, until all was looked at or somebody stops it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime

from phronomy_ray.retention import Collectable, Collected, RetentionPolicy
from phronomy_ray.store.port import Store


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


__all__ = ["collect", "collect_on_thread"]
