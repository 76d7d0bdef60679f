"""One pool without Ray: who waits, what runs where, who hears of it, what becomes of calls whose process is gone.

Lives on one event loop. Processes are the fleet's: the core tells it what to start and is told what happened. Each call
ends with exactly one outcome, and holds its share of the pool until nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from phronomy_ray.tool_calls import CallKey, ToolOutcome
from phronomy_ray.tools import pool_wire
from phronomy_ray.tools.kept_outcomes import KeptOutcomes
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_metrics import PoolMetrics
from phronomy_ray.tools.pool_news import Subscription
from phronomy_ray.tools.pool_placement import Placeable, Placer, WorkerView
from phronomy_ray.tools.pool_schedule import Admission, Kind, PoolSchedule
from phronomy_ray.tools.pool_wire import (
    ItemKind,
    News,
    PoolBatch,
    PoolCall,
    PoolItem,
    StartedCalls,
    WorkerSetup,
    item_of,
)

_LOG = logging.getLogger("phronomy_ray.pools")
#: Starts of worker processes that may fail before a call that waits for one fails.
MAX_FAILED_STARTS = 3
#: How long a living worker may take to begin a call, beyond the time that the call itself may take, in seconds.
MAX_UNBEGUN_S = 120.0
#: Agents whose newest owner is remembered.
MAX_KNOWN_OWNERS = 10_000


class Fleet(Protocol):
    """Worker processes and tasks. Every method returns at once; what happens comes back through the core's ``on_...``."""

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes where workers may be started, the best first."""
        ...

    @property
    def max_workers(self) -> int:
        """Bound on worker processes."""
        ...

    @property
    def max_tasks(self) -> int:
        """Bound on tasks at once."""
        ...

    def start(self, worker_id: str, setup: WorkerSetup, node: str) -> None:
        """Start a worker process."""
        ...

    def send(self, worker_id: str, calls: Sequence[tuple[PoolBatch, PoolCall]]) -> None:
        """Have a ready worker run calls."""
        ...

    def cancel(self, worker_id: str, keys: Sequence[CallKey]) -> None:
        """Tell bodies in a worker that they should stop."""
        ...

    def probe(self, worker_id: str) -> None:
        """Ask a worker for a sign of life."""
        ...

    def end(self, worker_id: str) -> None:
        """Kill a worker process."""
        ...

    def run_task(self, batch: PoolBatch, call: PoolCall) -> None:
        """Run one call as a task of its own."""
        ...

    def end_task(self, key: CallKey) -> None:
        """Kill a task's process."""
        ...


class _State(enum.Enum):
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


_REPORTED = (_State.GIVEN_UP, _State.GOES_ON)


@dataclass(slots=True, eq=False)
class _Call:
    call: PoolCall
    batch: PoolBatch
    submitted_at: float
    listener: Subscription
    state: _State = _State.QUEUED
    worker_id: str = ""
    sent_at: float = 0.0
    #: When its body began, seen from here.
    begun_at: float | None = None
    begun: StartedCalls | None = None
    failed_starts: int = 0

    @property
    def key(self) -> CallKey:
        return self.call.key

    @property
    def kind(self) -> Kind:
        return Kind.THREAD if self.call.task_options is None else Kind.TASK


@dataclass(slots=True, eq=False)
class _Worker:
    view: WorkerView
    #: Calls in it, by key: placed, sent, given up and going on.
    calls: dict[CallKey, _Call] = field(default_factory=dict)
    given_up: int = 0
    #: When it was asked for a sign of life that it has not given yet.
    probed_at: float | None = None
    #: Since when nothing but given-up bodies runs in it, or nothing at all.
    unused_since: float = 0.0


class PoolCore:
    """State of one pool."""

    def __init__(
        self,
        name: str,
        config: PoolConfig,
        fleet: Fleet,
        *,
        clock: Callable[[], float],
        incarnation: str = "",
    ) -> None:
        self._name = name
        self._config = config
        self._fleet = fleet
        self._clock = clock
        self._schedule = PoolSchedule(config)
        self._calls: dict[CallKey, _Call] = {}
        self._workers: dict[str, _Worker] = {}
        self._kept = KeptOutcomes(config)
        self._held: list[CallKey] = []
        self._setups: dict[str, WorkerSetup] = {}
        self._ids = (f"{incarnation}w{number}" for number in itertools.count(1))
        self._changed = asyncio.Event()
        #: Newest epoch by agent, the agent that was heard of last at the end.
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self.metrics_of = PoolMetrics()

    # --- what agents ask ---------------------------------------------------------------------------------------

    def submit(self, batch: PoolBatch, listener: Subscription) -> None:
        """Run a batch. A call that is known already is not run again: the listener is told of it instead; nothing runs for
        an owner that another one has replaced.
        """
        now = self._clock()
        if not self._is_owner(batch.agent_id, batch.epoch):
            for call in batch.calls:
                listener.tell(item_of(pool_wire.not_performed(call.key)))
            return
        fresh = [call for call in batch.calls if not self._relate(call.key, listener)]
        if not fresh:
            return
        key = batch.setup.key()
        self._setups.setdefault(key, batch.setup)
        calls = [_Call(call, batch, now, listener) for call in fresh]
        self._calls.update({call.key: call for call in calls})
        listener.open.update(call.key for call in calls)
        admission = self._schedule.submit(batch.agent_id, [(call.key, call.kind) for call in calls], now=now)
        if admission is Admission.REJECTED:
            self._reject([call.key for call in calls], waited=False)
            return
        self._pump()

    def attach(
        self, agent_id: str, epoch: int, keys: Iterable[CallKey], listener: Subscription
    ) -> frozenset[CallKey]:
        """Tell the listener of calls that were submitted earlier, kept outcomes at once; returns the known ones.

        What an owner of an older epoch submits from now on is not run.
        """
        if not self._is_owner(agent_id, epoch):
            return frozenset()  # an owner that was replaced must not take the news from its successor
        return frozenset(key for key in keys if self._relate(key, listener))

    def acknowledge(self, keys: Iterable[CallKey]) -> None:
        """Keep the outcomes of these no longer."""
        self._kept.acknowledge(keys)

    def cancel(self, execution_id: str) -> None:
        """Take back what has not begun, tell bodies on threads to stop, and kill tasks."""
        self._take_back([call.key for call in self._of(execution_id)])
        by_worker: dict[str, list[CallKey]] = {}
        for call in self._of(execution_id):
            if call.kind is Kind.TASK:
                self._fleet.end_task(call.key)
            else:
                by_worker.setdefault(call.worker_id, []).append(call.key)
        for worker_id, keys in by_worker.items():
            self._fleet.cancel(worker_id, keys)

    async def stop(self, execution_id: str, grace_s: float) -> None:
        """`cancel`, and after `grace_s` seconds give up what has no outcome yet. Its process is killed unless calls of
        other executions live in it. Returns when each call has its outcome.
        """
        self.cancel(execution_id)

        def live() -> list[_Call]:
            return [call for call in self._of(execution_id) if call.state not in _REPORTED]

        await self._until(lambda: not live(), grace_s)
        left = live()
        for worker_id in {call.worker_id for call in left if call.worker_id}:
            worker = self._workers[worker_id]
            if all(
                call.batch.execution_id == execution_id or call.state is _State.GIVEN_UP
                for call in worker.calls.values()
            ):
                self._fleet.end(worker_id)
            reason = "the body did not stop within the grace time"
            for call in left:
                if call.worker_id == worker_id and call.state is _State.SENT:
                    self._give_up(call, item_of(self._unknown(call, reason), ItemKind.GIVEN_UP))
        await self._until(lambda: not live(), None)

    def running(self, execution_id: str) -> list[CallKey]:
        """Calls of which something may run, given-up bodies included."""
        return [call.key for call in self._of(execution_id)]

    async def wait_quiet(self, execution_id: str, timeout_s: float) -> list[CallKey]:
        """Wait until nothing of an execution runs; what still does after `timeout_s` seconds."""
        await self._until(lambda: not self._of(execution_id), timeout_s)
        return self.running(execution_id)

    def prepare(self, setup: WorkerSetup) -> None:
        """Have a worker started for a setup that will be used, if there is none."""
        key = setup.key()
        self._setups.setdefault(key, setup)
        if not any(worker.view.environment == key for worker in self._workers.values()):
            nodes = list(self._fleet.nodes) or [""]
            if len(self._workers) < self._fleet.max_workers:
                view = WorkerView(next(self._ids), key, nodes[0], is_ready=False)
                self._start(view)

    # --- what the fleet reports --------------------------------------------------------------------------------

    def on_ready(self, worker_id: str) -> None:
        """A worker process is up."""
        worker = self._workers.get(worker_id)
        if worker is None:
            self._fleet.end(worker_id)
            return
        worker.view.is_ready = True
        worker.unused_since = self._clock()
        self._send(worker, [call for call in worker.calls.values() if call.state is _State.PLACED])

    def on_gone(self, worker_id: str, reason: str, *, code: str = "worker_died") -> None:
        """A worker process has died, or could not be started."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        for call in list(worker.calls.values()):
            if call.state is _State.PLACED:
                call.worker_id = ""
                call.failed_starts += 1
                if call.failed_starts < MAX_FAILED_STARTS:
                    self._held.append(call.key)
                else:
                    self._settle(call, item_of(pool_wire.pool_unavailable(call.key, reason)))
            elif call.state in _REPORTED:
                self._settle(call, PoolItem(ItemKind.ENDED, call.key))
            else:
                self._settle(call, item_of(self._unknown(call, reason, code)))
        self._pump()

    def on_news(self, news: Iterable[News]) -> None:
        """What a worker or a task reports."""
        now = self._clock()
        for item in news:
            if isinstance(item, StartedCalls):
                self._begun(item, now)
                continue
            call = self._calls.get(item.key) if isinstance(item, PoolItem) else None
            if call is None or not isinstance(item, PoolItem):
                continue
            if item.kind is ItemKind.PROGRESS:
                if call.state not in _REPORTED:
                    call.listener.tell(item)
            elif item.kind in (ItemKind.GIVEN_UP, ItemKind.GOES_ON):
                if call.state not in _REPORTED:
                    self._give_up(call, item)
            elif call.state in _REPORTED:
                self._settle(call, item._replace(kind=ItemKind.LATE))
            else:
                self._settle(call, item)
        self._pump()

    def on_alive(self, worker_id: str) -> None:
        """A worker has given a sign of life."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.probed_at = None

    def on_task_over(self, key: CallKey, reason: str, *, code: str = "worker_died") -> None:
        """A task has ended; without an outcome, what its body did is unknown."""
        call = self._calls.get(key)
        if call is None:
            return
        if call.state in _REPORTED:
            self._settle(call, PoolItem(ItemKind.ENDED, key))
        else:
            self._settle(call, item_of(self._unknown(call, reason, code)))
        self._pump()

    def tick(self) -> None:
        """Whatever time brings; to be called a few times per second while anything is here."""
        now = self._clock()
        self._reject(self._schedule.expire(now=now), waited=True)
        for call in list(self._calls.values()):
            if call.state is _State.SENT:
                self._watch(call, now)
        per_node: dict[str, int] = {}
        for worker in self._workers.values():
            per_node[worker.view.node] = per_node.get(worker.view.node, 0) + 1
        for worker_id, worker in list(self._workers.items()):
            unused_s = now - worker.unused_since
            goes_on = any(call.state is _State.GOES_ON for call in worker.calls.values())
            if not worker.view.is_ready or worker.view.load or goes_on:
                continue
            if worker.given_up:
                if unused_s >= self._config.stuck_grace_s:
                    _LOG.warning(
                        "pool %s: worker %s is ended: bodies in it do not end", self._name, worker_id
                    )
                    worker.unused_since = now
                    self._fleet.end(worker_id)
            elif unused_s >= self._config.idle_worker_s and per_node[worker.view.node] > 1:
                per_node[worker.view.node] -= 1
                del self._workers[worker_id]
                self._fleet.end(worker_id)
        self._kept.expire(now=now)
        self._pump()

    def calls_in(self, worker_id: str) -> int:
        """How many calls a worker has."""
        worker = self._workers.get(worker_id)
        return len(worker.calls) if worker is not None else 0

    @property
    def is_idle(self) -> bool:
        """Whether time brings nothing soon."""
        return not self._calls

    def metrics(self) -> dict[str, object]:
        """Gauges, counters and histograms as JSON."""
        given_up = sum(call.state is _State.GIVEN_UP for call in self._calls.values())
        return {
            "pool": self._name,
            "running": self._schedule.running - given_up,
            "abandoned": given_up,
            "queued": self._schedule.queued,
            "agents": self._schedule.agents,
            "workers": len(self._workers),
            "workers_ready": sum(worker.view.is_ready for worker in self._workers.values()),
            "kept_outcomes": len(self._kept),
            "kept_bytes": self._kept.size_bytes,
            "dropped_outcomes": self._kept.dropped,
            "max_running": self._config.max_running,
            "max_workers": self._fleet.max_workers,
            **self.metrics_of.to_wire(),
        }

    # --- inside: from the queue to a process -------------------------------------------------------------------

    def _pump(self) -> None:
        """Give free shares away and find processes for them."""
        self._schedule.max_tasks = self._fleet.max_tasks
        now = self._clock()
        granted = self._schedule.grant(now=now)
        if not granted and not self._held:
            return
        held, self._held = self._held, []
        waiting: list[_Call] = []
        for key in (*held, *granted):
            call = self._calls.get(key)
            if call is None:
                continue
            call.state = _State.PLACED
            if call.kind is Kind.TASK:
                call.state, call.sent_at = _State.SENT, now
                self._fleet.run_task(call.batch, call.call)
            else:
                waiting.append(call)
        if waiting:
            self._place(waiting)

    def _place(self, waiting: list[_Call]) -> None:
        placer = Placer(
            (worker.view for worker in self._workers.values()),
            max_workers=self._fleet.max_workers,
            nodes=self._fleet.nodes,
            new_ids=self._ids,
        )
        placement = placer.place(
            [
                Placeable(call.key, call.batch.execution_id, call.batch.setup.key(), call.call.lane)
                for call in waiting
            ]
        )
        for worker_id in placement.ended:
            del self._workers[worker_id]
            self._fleet.end(worker_id)
        for worker_id, _ in placement.started:
            self._start(placer.workers[worker_id])
        for worker_id, keys in placement.assigned.items():
            worker = self._workers[worker_id]
            calls = [self._calls[key] for key in keys]
            for call in calls:
                call.worker_id = worker_id
                worker.calls[call.key] = call
            if worker.view.is_ready:
                self._send(worker, calls)
        self._held.extend(placement.held)

    def _start(self, view: WorkerView) -> None:
        self._workers[view.worker_id] = _Worker(view, unused_since=self._clock())
        self._fleet.start(view.worker_id, self._setups[view.environment], view.node)

    def _send(self, worker: _Worker, calls: Sequence[_Call]) -> None:
        now = self._clock()
        for call in calls:
            call.state, call.sent_at = _State.SENT, now
        if calls:
            self._fleet.send(worker.view.worker_id, [(call.batch, call.call) for call in calls])

    # --- inside: ends ------------------------------------------------------------------------------------------

    def _relate(self, key: CallKey, listener: Subscription) -> bool:
        """Tell a listener of a known call; whether it is known."""
        kept = self._kept.get(key)
        call = self._calls.get(key)
        if call is not None:
            call.listener.drop(key)
            call.listener = listener
            listener.open.add(key)
            if call.begun is not None:
                listener.tell(call.begun._replace(keys=(key,)))
        if kept is not None:
            listener.tell(kept)
        return call is not None or kept is not None

    def _begun(self, started: StartedCalls, now: float) -> None:
        listeners: dict[int, tuple[Subscription, list[CallKey]]] = {}
        for key in started.keys:
            call = self._calls.get(key)
            if call is None:
                continue
            call.begun, call.begun_at = started, now
            self.metrics_of.waited(now - call.submitted_at)
            listeners.setdefault(id(call.listener), (call.listener, []))[1].append(key)
        for listener, keys in listeners.values():
            listener.tell(started._replace(keys=tuple(keys)))

    def _give_up(self, call: _Call, item: PoolItem) -> None:
        """The call has its outcome, and its body goes on."""
        now = self._clock()
        goes_on = item.kind is ItemKind.GOES_ON
        call.state = _State.GOES_ON if goes_on else _State.GIVEN_UP
        worker = self._workers.get(call.worker_id)
        if worker is not None:
            worker.given_up += not goes_on
            worker.view.is_draining = worker.given_up > 0
            worker.view.remove(call.call.lane)
            worker.unused_since = now
        self._kept.keep(item, now=now)
        self.metrics_of.ended(item.status, now - (call.begun_at or call.sent_at), abandoned=not goes_on)
        call.listener.tell(item)
        self._notify()

    def _settle(self, call: _Call, item: PoolItem) -> None:
        """Nothing of the call runs any more."""
        now = self._clock()
        del self._calls[call.key]
        self._schedule.release(call.key, now=now)
        worker = self._workers.get(call.worker_id)
        if worker is not None:
            worker.calls.pop(call.key, None)
            if call.state is _State.GIVEN_UP:
                worker.given_up -= 1
                worker.view.is_draining = worker.given_up > 0
            elif call.state is not _State.GOES_ON:
                worker.view.remove(call.call.lane)
            worker.unused_since = now
        if item.kind is ItemKind.OUTCOME:
            self._kept.keep(item, now=now)
            self.metrics_of.ended(item.status, now - (call.begun_at or now))
        call.listener.tell(item)
        call.listener.drop(call.key)
        self._notify()

    def _reject(self, keys: Sequence[CallKey], *, waited: bool) -> None:
        running, queued = self._schedule.running, self._schedule.queued
        self.metrics_of.rejected += len(keys)
        for key in keys:
            outcome = pool_wire.rejected(key, pool=self._name, running=running, queued=queued, waited=waited)
            self._settle(self._calls[key], item_of(outcome))

    def _take_back(self, keys: Sequence[CallKey]) -> None:
        """Calls that no process has got: they have not begun."""
        taken = set(self._schedule.withdraw(keys))
        taken |= {key for key in keys if self._calls[key].state is _State.PLACED}
        self._held = [key for key in self._held if key not in taken]
        for key in keys:
            if key in taken:
                self._settle(self._calls[key], item_of(pool_wire.not_performed(key)))

    def _watch(self, call: _Call, now: float) -> None:
        """Give up a body that is over its time while its process does not say so."""
        limit_s = call.call.limit_s + self._config.stuck_grace_s
        if call.kind is Kind.TASK:
            if call.begun_at is not None and now >= call.begun_at + call.call.limit_s:
                started = call.begun.at if call.begun else ""
                outcome = pool_wire.timed_out(call.key, call.call.limit_s, started=started)
                self._give_up(call, item_of(outcome, ItemKind.GIVEN_UP))
                self._fleet.end_task(call.key)
            return
        worker = self._workers.get(call.worker_id)
        if worker is None:
            return
        # a worker that is busy importing the agent's module answers; one whose interpreter a body holds does not
        is_over = now >= (call.sent_at if call.begun_at is None else call.begun_at) + limit_s
        is_hopeless = call.begun_at is None and now >= call.sent_at + limit_s + MAX_UNBEGUN_S
        if is_hopeless:
            self._give_up(call, item_of(pool_wire.gave_up(call.key, call.call.limit_s), ItemKind.GIVEN_UP))
        elif is_over and call.begun_at is None and worker.probed_at is None:
            worker.probed_at = now
            self._fleet.probe(worker.view.worker_id)
        elif is_over and (
            call.begun_at is not None
            or (worker.probed_at is not None and now >= worker.probed_at + self._config.stuck_grace_s)
        ):
            outcome = pool_wire.gave_up(call.key, call.call.limit_s)
            self._give_up(call, item_of(outcome, ItemKind.GIVEN_UP))

    # --- inside: small things ----------------------------------------------------------------------------------

    def _is_owner(self, agent_id: str, epoch: int) -> bool:
        """Whether no newer owner of the agent is known."""
        newest = self._epochs.pop(agent_id, 0)
        self._epochs[agent_id] = max(newest, epoch)
        if len(self._epochs) > MAX_KNOWN_OWNERS:
            self._epochs.popitem(last=False)
        return epoch >= newest

    def _of(self, execution_id: str) -> list[_Call]:
        return [call for call in self._calls.values() if call.batch.execution_id == execution_id]

    @staticmethod
    def _unknown(call: _Call, reason: str, code: str = "outcome_unknown") -> ToolOutcome:
        begun = call.begun
        return pool_wire.unknown(
            call.key,
            reason,
            code=code,
            node=begun.node if begun else "",
            started=begun.at if begun else "",
        )

    async def _until(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait for a condition that changes with the end of calls."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
