"""One pool without Ray: who waits, what runs where, who hears of it, what becomes of calls whose process is gone.

Lives on one event loop. Processes are the fleet's: the core tells it what to start and is told what happened. Each call
ends with exactly one outcome, and holds its share of the pool until nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from phronomy_ray.tool_calls import CallKey, ToolOutcome
from phronomy_ray.tools import outcomes
from phronomy_ray.tools.kept_outcomes import KeptOutcomes
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_entries import (
    CallState,
    Overdue,
    PoolEntry,
    WorkerEntry,
    overdue,
    unused_workers,
)
from phronomy_ray.tools.pool_metrics import PoolMetrics
from phronomy_ray.tools.pool_news import Subscription
from phronomy_ray.tools.pool_placement import Placeable, Placer, WorkerView
from phronomy_ray.tools.pool_processes import Fleet
from phronomy_ray.tools.pool_schedule import Admission, Kind, PoolSchedule
from phronomy_ray.tools.pool_wire import (
    ItemKind,
    News,
    PoolBatch,
    PoolItem,
    StartedCalls,
    WorkerSetup,
    item_of,
)

_LOG = logging.getLogger("phronomy_ray.pools")
#: Starts of worker processes that may fail before a call that waits for one fails.
MAX_FAILED_STARTS = 3
#: Agents whose newest owner is remembered.
MAX_KNOWN_OWNERS = 10_000


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
        self._calls: dict[CallKey, PoolEntry] = {}
        self._workers: dict[str, WorkerEntry] = {}
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
                listener.tell(item_of(outcomes.not_performed(call.key)))
            return
        fresh = [call for call in batch.calls if not self._relate(call.key, listener)]
        if not fresh:
            return
        key = batch.setup.key()
        self._setups.setdefault(key, batch.setup)
        calls = [PoolEntry(call, batch, now, listener, key) for call in fresh]
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
            if call.kind is not Kind.THREAD:
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

        def live() -> list[PoolEntry]:
            return [call for call in self._of(execution_id) if not call.has_outcome]

        await self._until(lambda: not live(), grace_s)
        left = live()
        for worker_id in {call.worker_id for call in left if call.worker_id}:
            worker = self._workers[worker_id]
            if all(
                call.batch.execution_id == execution_id or call.state is CallState.GIVEN_UP
                for call in worker.calls.values()
            ):
                self._fleet.end(worker_id)
            reason = "the body did not stop within the grace time"
            for call in left:
                if call.worker_id == worker_id and call.state is CallState.SENT:
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
        self._send(worker, [call for call in worker.calls.values() if call.state is CallState.PLACED])

    def on_gone(self, worker_id: str, reason: str, *, code: str = "worker_died") -> None:
        """A worker process has died, or could not be started."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        for call in list(worker.calls.values()):
            if call.state is CallState.PLACED:
                call.worker_id = ""
                call.failed_starts += 1
                if call.failed_starts < MAX_FAILED_STARTS:
                    self._held.append(call.key)
                else:
                    self._settle(call, item_of(outcomes.pool_unavailable(call.key, reason)))
            elif call.has_outcome:
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
                if not call.has_outcome:
                    call.listener.tell(item)
            elif item.kind in (ItemKind.GIVEN_UP, ItemKind.GOES_ON):
                if not call.has_outcome:
                    self._give_up(call, item)
            elif call.has_outcome:
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
        if call.has_outcome:
            self._settle(call, PoolItem(ItemKind.ENDED, key))
        else:
            self._settle(call, item_of(self._unknown(call, reason, code)))
        self._pump()

    def tick(self) -> None:
        """Whatever time brings; to be called a few times per second while anything is here."""
        now = self._clock()
        self._reject(self._schedule.expire(now=now), waited=True)
        for call in list(self._calls.values()):
            if call.state is CallState.SENT:
                self._watch(call, now)
        stuck, idle = unused_workers(self._workers.values(), self._config, now=now)
        for worker in stuck:
            worker_id = worker.view.worker_id
            _LOG.warning("pool %s: worker %s is ended: bodies in it do not end", self._name, worker_id)
            worker.unused_since = now
            self._fleet.end(worker_id)
        for worker in idle:
            del self._workers[worker.view.worker_id]
            self._fleet.end(worker.view.worker_id)
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
        given_up = sum(call.state is CallState.GIVEN_UP for call in self._calls.values())
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
        waiting: list[PoolEntry] = []
        for key in (*held, *granted):
            call = self._calls.get(key)
            if call is None:
                continue
            call.state = CallState.PLACED
            if call.kind is not Kind.THREAD:
                call.state, call.sent_at = CallState.SENT, now
                self._fleet.run_task(call.batch, call.call)
            else:
                waiting.append(call)
        if waiting:
            self._place(waiting)

    def _place(self, waiting: list[PoolEntry]) -> None:
        placer = Placer(
            (worker.view for worker in self._workers.values()),
            max_workers=self._fleet.max_workers,
            nodes=self._fleet.nodes,
            new_ids=self._ids,
        )
        placement = placer.place(
            [
                Placeable(call.key, call.batch.execution_id, call.environment, call.call.lane)
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
        self._workers[view.worker_id] = WorkerEntry(view, unused_since=self._clock())
        self._fleet.start(view.worker_id, self._setups[view.environment], view.node)

    def _send(self, worker: WorkerEntry, calls: Sequence[PoolEntry]) -> None:
        now = self._clock()
        for call in calls:
            call.state, call.sent_at = CallState.SENT, now
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

    def _give_up(self, call: PoolEntry, item: PoolItem) -> None:
        """The call has its outcome, and its body goes on."""
        now = self._clock()
        goes_on = item.kind is ItemKind.GOES_ON
        call.state = CallState.GOES_ON if goes_on else CallState.GIVEN_UP
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

    def _settle(self, call: PoolEntry, item: PoolItem) -> None:
        """Nothing of the call runs any more."""
        now = self._clock()
        del self._calls[call.key]
        self._schedule.release(call.key, now=now)
        worker = self._workers.get(call.worker_id)
        if worker is not None:
            worker.calls.pop(call.key, None)
            if call.state is CallState.GIVEN_UP:
                worker.given_up -= 1
                worker.view.is_draining = worker.given_up > 0
            elif call.state is not CallState.GOES_ON:
                worker.view.remove(call.call.lane)
            worker.unused_since = now
        if item.kind is ItemKind.OUTCOME:
            self._kept.keep(item, now=now)
            self.metrics_of.ended(item.status, None if call.begun_at is None else now - call.begun_at)
        call.listener.tell(item)
        call.listener.drop(call.key)
        self._notify()

    def _reject(self, keys: Sequence[CallKey], *, waited: bool) -> None:
        why = self._schedule.refusal(self._name, len(keys), waited=waited)
        details = {"pool": self._name, "running": self._schedule.running, "queued": self._schedule.queued}
        self.metrics_of.rejected += len(keys)
        for key in keys:
            self._settle(self._calls[key], item_of(outcomes.rejected(key, why, details)))

    def _take_back(self, keys: Sequence[CallKey]) -> None:
        """Calls that no process has got: they have not begun."""
        taken = set(self._schedule.withdraw(keys))
        taken |= {key for key in keys if self._calls[key].state is CallState.PLACED}
        self._held = [key for key in self._held if key not in taken]
        for key in keys:
            if key in taken:
                self._settle(self._calls[key], item_of(outcomes.not_performed(key)))

    def _watch(self, call: PoolEntry, now: float) -> None:
        """Give up a body that is over its time while its process does not say so."""
        worker = self._workers.get(call.worker_id)
        limit_s = call.call.limit_s
        match overdue(call, worker, grace_s=self._config.stuck_grace_s, now=now):
            case Overdue.PROBE:
                if worker is not None:
                    worker.probed_at = now
                    self._fleet.probe(call.worker_id)
            case Overdue.GIVE_UP:
                self._give_up(call, item_of(outcomes.gave_up(call.key, limit_s), ItemKind.GIVEN_UP))
            case Overdue.KILL:
                started = call.begun.at if call.begun else ""
                outcome = outcomes.timed_out(call.key, limit_s, started=started, was_killed=True)
                self._give_up(call, item_of(outcome, ItemKind.GIVEN_UP))
                self._fleet.end_task(call.key)
            case Overdue.NOTHING:
                pass

    # --- inside: small things ----------------------------------------------------------------------------------

    def _is_owner(self, agent_id: str, epoch: int) -> bool:
        """Whether no newer owner of the agent is known."""
        newest = self._epochs.pop(agent_id, 0)
        self._epochs[agent_id] = max(newest, epoch)
        if len(self._epochs) > MAX_KNOWN_OWNERS:
            self._epochs.popitem(last=False)
        return epoch >= newest

    def _of(self, execution_id: str) -> list[PoolEntry]:
        return [call for call in self._calls.values() if call.batch.execution_id == execution_id]

    @staticmethod
    def _unknown(call: PoolEntry, reason: str, code: str = "outcome_unknown") -> ToolOutcome:
        begun = call.begun
        return outcomes.unknown(
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
