"""What a pool knows of each of its calls and workers, and what the passing of time means to them. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_news import Subscription
from phronomy_ray.tools.pool_placement import WorkerView
from phronomy_ray.tools.pool_schedule import Kind
from phronomy_ray.tools.pool_wire import PoolBatch, PoolCall, StartedCalls

#: How long a living worker may take to begin a call, beyond the time that the call itself may take, in seconds.
MAX_UNBEGUN_S = 120.0


class CallState(enum.Enum):
    """Where a call is."""

    #: Waits for a share.
    QUEUED = "queued"
    #: Has a share, waits for its worker.
    PLACED = "placed"
    #: Handed to a process.
    SENT = "sent"
    #: Its outcome is given, and its body still runs, which it should not.
    GIVEN_UP = "given_up"
    #: Its outcome is given, and its body still runs, as it is meant to.
    GOES_ON = "goes_on"


@dataclass(slots=True, eq=False)
class PoolEntry:
    """One call of a pool."""

    call: PoolCall
    batch: PoolBatch
    submitted_at: float
    listener: Subscription
    #: Key of the batch's setup.
    environment: str
    state: CallState = CallState.QUEUED
    worker_id: str = ""
    sent_at: float = 0.0
    #: When its body began, seen from here.
    begun_at: float | None = None
    begun: StartedCalls | None = None
    failed_starts: int = 0

    @property
    def key(self) -> CallKey:
        """Which call it is."""
        return self.call.key

    @property
    def kind(self) -> Kind:
        """What it runs in."""
        options = self.call.task_options
        if options is None:
            return Kind.THREAD
        return (
            Kind.TASK if not set(options) - {"num_cpus"} and options.get("num_cpus", 1) <= 1 else Kind.SCARCE
        )

    @property
    def has_outcome(self) -> bool:
        """Whether its outcome is given, although its body still runs."""
        return self.state in (CallState.GIVEN_UP, CallState.GOES_ON)


@dataclass(slots=True, eq=False)
class WorkerEntry:
    """One worker process of a pool."""

    view: WorkerView
    #: Calls in it, by key: placed, sent, given up and going on.
    calls: dict[CallKey, PoolEntry] = field(default_factory=dict)
    given_up: int = 0
    #: When it was asked for a sign of life that it has not given yet.
    probed_at: float | None = None
    #: Since when nothing but given-up bodies runs in it, or nothing at all.
    unused_since: float = 0.0

    @property
    def is_in_use(self) -> bool:
        """Whether something runs in it that should."""
        goes_on = any(call.state is CallState.GOES_ON for call in self.calls.values())
        return not self.view.is_ready or self.view.load > 0 or goes_on


class Overdue(enum.Enum):
    """What is to be done about a call that was handed to a process."""

    #: It has time left.
    NOTHING = "nothing"
    #: Its worker is to give a sign of life.
    PROBE = "probe"
    #: It is over its time, and its worker does not say so: the worker hangs.
    GIVE_UP = "give_up"
    #: It is over its time in a process of its own.
    KILL = "kill"


def overdue(call: PoolEntry, worker: WorkerEntry | None, *, grace_s: float, now: float) -> Overdue:
    """What is to be done about a sent call. A worker gives up its bodies itself, and has `grace_s` seconds more to say so."""
    limit_s = call.call.limit_s
    if call.kind is not Kind.THREAD:
        is_over = call.begun_at is not None and now >= call.begun_at + limit_s
        return Overdue.KILL if is_over else Overdue.NOTHING
    limit_s += grace_s
    if worker is None:
        return Overdue.NOTHING
    if call.begun_at is not None:
        return Overdue.GIVE_UP if now >= call.begun_at + limit_s else Overdue.NOTHING
    if now < call.sent_at + limit_s:
        return Overdue.NOTHING
    if now >= call.sent_at + limit_s + MAX_UNBEGUN_S:
        return Overdue.GIVE_UP
    # a worker that is busy importing the agent's module answers; one whose interpreter a body holds does not
    if worker.probed_at is None:
        return Overdue.PROBE
    return Overdue.GIVE_UP if now >= worker.probed_at + grace_s else Overdue.NOTHING


def unused_workers(
    workers: Iterable[WorkerEntry], config: PoolConfig, *, now: float
) -> tuple[list[WorkerEntry], list[WorkerEntry]]:
    """Workers to end: those in which nothing runs but bodies that were given up and do not end, and those that have been idle
    for long, except one on each node.
    """
    workers = list(workers)
    per_node = Counter(worker.view.node for worker in workers)
    stuck: list[WorkerEntry] = []
    idle: list[WorkerEntry] = []
    for worker in workers:
        unused_s = now - worker.unused_since
        if worker.is_in_use:
            continue
        if worker.given_up:
            if unused_s >= config.stuck_grace_s:
                stuck.append(worker)
        elif unused_s >= config.idle_worker_s and per_node[worker.view.node] > 1:
            per_node[worker.view.node] -= 1
            idle.append(worker)
    return stuck, idle
