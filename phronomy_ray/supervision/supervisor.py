"""`Supervisor`: looks into the store, asks processes, and wakes agents, as `WakePlan` says. Without Ray.

It may die at any moment and begin anew: it holds nothing that the store does not have. Two of them on one cluster would only
wake agents that are live already.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from phronomy_ray.clock import Clock, SystemClock
from phronomy_ray.delivery.deliverer import Deliverer
from phronomy_ray.delivery.limits import DeliveryLimits
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import (
    AgentParkedError,
    ConfigurationError,
    NotFoundError,
    PhronomyError,
    StoreError,
    safe_message,
)
from phronomy_ray.open_work import OpenWork, SupervisorBeat, WorkKind
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.collecting import CollectionJob
from phronomy_ray.supervision.crowd import too_many
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.supervision.plan import Failure, WakePlan
from phronomy_ray.supervision.population import Population
from phronomy_ray.supervision.signs import LEFT, Answer, Presence
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.supervision")
#: Rows that are read at once, and pages of one round: more work than that is looked at when some of it is done.
PAGE = 500
MAX_PAGES = 20
#: Parked agents that a report names.
MAX_PARKED_SHOWN = 100
#: How often it is looked for too many live agents, in rounds.
ROUNDS_PER_CROWD = 5


class Supervisor(WorkerInputRestricted):
    """One store's supervisor in one cluster. Use it on one event loop."""

    def __init__(
        self,
        store: StoreClient,
        population: Population,
        *,
        clock: Clock,
        limits: SupervisionLimits | None = None,
        info: Mapping[str, Any] | None = None,
        time: Callable[[], float] | None = None,
        deliverer: Deliverer | None = None,
    ) -> None:
        """
        Args:
            store: where the work is.
            population: where agents live.
            clock: for what is due.
            limits: how fast, how patient.
            info: who this is, for people.
            time: seconds that only grow; the loop's by default.
            deliverer: who delivers events while this supervisor works.
        """
        self._store = store
        self._population = population
        self._clock = clock
        self._limits = limits or SupervisionLimits()
        self._info = dict(info or {})
        self._time = time or asyncio.get_running_loop().time
        self._deliverer = deliverer
        self._plan = WakePlan(population.cluster, self._limits)
        self._wakes: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._error = ""
        self._looked_at: datetime | None = None
        self._round_s = 0.0
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._beats: list[SupervisorBeat] = []
        self._beaten_at_s = float("-inf")
        policy = self._limits.retention
        self._collection = (
            CollectionJob(store.store, policy, clock, every_s=self._limits.collect_every_s)
            if policy
            else None
        )

    @property
    def store(self) -> Store:
        """The store."""
        return self._store.store

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look now and then."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._run()), loop.create_task(self._beat_on())]
            if self._collection is not None:
                self._tasks.append(loop.create_task(self._collection.run()))
            if self._deliverer is not None:
                self._deliverer.start()

    async def close(self) -> None:
        """Look no more; wakes that are under way are given up."""
        tasks = [*self._wakes, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        if self._deliverer is not None:
            await self._deliverer.close()

    async def say_goodbye(self) -> None:
        """After `close`, when nothing lives here any more: others need not wait for a next beat to take its agents over."""
        self._info[LEFT] = True
        try:
            await self._beat()
        except StoreError as error:  # then they wait in vain
            _LOG.debug("no last beat: %s", error)

    def use(self, population: Population) -> None:
        """Wake with other settings from now on: what was given up for now is tried again."""
        self._population = population
        self._plan.unblock()
        self._changed.set()

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round may go well
                self._counts["failed_rounds"] += 1
                self._error = f"{type(error).__name__}: {safe_message(error)}"
                level = logging.WARNING if isinstance(error, StoreError) else logging.ERROR
                _LOG.log(level, "a round of the supervisor failed: %s", self._error)
            await self._work_until(self._time() + self._limits.look_every_s)

    async def _work_until(self, deadline_s: float) -> None:
        """Begin wakes as fast as they may, until it is time to look again."""
        while True:
            self._begin_wakes()
            now_s = self._time()
            left_s = deadline_s - now_s
            if left_s <= 0:
                return
            pause_s = self._plan.pause_s(now_s)
            self._changed.clear()
            try:
                await asyncio.wait_for(
                    self._changed.wait(), min(left_s, pause_s) if pause_s is not None else left_s
                )
            except TimeoutError:
                continue

    # --- a round -----------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """One round: look, ask, and begin wakes. Raises `StoreError` when the store cannot be read."""
        async with self._lock:
            begun_s = self._time()
            now = self._clock.now()
            await self._beat()
            beats = self._beats
            found = [work for kind in WorkKind for work in await self._pages(kind, now)]
            asked = self._plan.questions(found, beats, self._time())
            answers = await self._ask(asked)
            for process in self._plan.look(found, answers, self._time()):
                await self._end(process)
            await self._forget_lost(beats, found)
            self._begin_wakes()
            if self._counts["rounds"] % ROUNDS_PER_CROWD == 0:
                await self._thin_out()
            self._counts["rounds"] += 1
            self._looked_at = now
            self._round_s = self._time() - begun_s
            self._error = ""

    async def _beat(self) -> None:
        """Show that this cluster looks after its agents, and see who else does."""
        self._beats = await self._store.run(
            self._store.store.beat, self._population.cluster, info=self._info, now=self._clock.now()
        )
        self._beaten_at_s = self._time()

    async def _beat_on(self) -> None:
        """Beat also while a round takes long: a process that gives no answer must not look like the loss of this cluster."""
        every_s = self._limits.look_every_s
        while True:
            await asyncio.sleep(every_s)
            if self._time() - self._beaten_at_s < every_s:
                continue
            try:
                await self._beat()
            except Exception as error:  # noqa: BLE001 - the rounds tell of it; without beats this cluster would look lost
                _LOG.debug("no beat: %s: %s", type(error).__name__, safe_message(error))

    async def _pages(self, kind: WorkKind, now: datetime) -> list[OpenWork]:
        found: list[OpenWork] = []
        for _ in range(MAX_PAGES):
            after = found[-1] if found else None
            page: list[OpenWork] = await self._store.run(
                self._store.store.open_work, kind, now=now, after=after, limit=PAGE
            )
            found += page
            if len(page) < PAGE:
                break
        return found

    async def _ask(self, processes: Iterable[str]) -> dict[str, Answer]:
        timeout_s = self._limits.answer_timeout_s

        async def ask(process: str) -> tuple[str, Answer]:
            try:
                return process, await self._population.ask(process, timeout_s=timeout_s)
            except Exception as error:  # noqa: BLE001 - of one process: the round is about all of them
                _LOG.warning("process %s: %s: %s", process, type(error).__name__, safe_message(error))
                return process, Answer(Presence.SILENT)

        return dict(await asyncio.gather(*(ask(process) for process in processes)))

    async def _end(self, process: str) -> None:
        _LOG.error(
            "process %s has not answered for %g s although it has work: it is ended and its agents are woken elsewhere",
            process,
            self._limits.hung_after_s,
        )
        self._counts["ended_processes"] += 1
        try:
            await self._population.end(process)
        except PhronomyError as error:
            _LOG.warning("process %s could not be ended: %s", process, error)
            return
        self._plan.ended(process)

    async def _forget_lost(self, beats: Iterable[SupervisorBeat], found: Iterable[OpenWork]) -> None:
        """Remove the rows of clusters that are gone once nothing of them is left to do."""
        lost = self._plan.lost_clusters(self._time())
        named = {work.cluster for work in found}
        for beat in beats:
            if lost.get(beat.cluster) == beat.beats and beat.cluster not in named:
                await self._store.run(self._store.store.forget_cluster, beat.cluster, beats=beat.beats)

    async def _thin_out(self) -> None:
        limit = self._population.max_live_agents
        if limit is None:
            return
        for one in too_many(await self._population.crowd() or (), limit):
            try:
                if await self._population.unload(one.agent_id):
                    self._counts["unloaded"] += 1
            except PhronomyError as error:  # somebody has just come, or it does not answer
                _LOG.debug("agent %s stays: %s", one.agent_id, error)

    # --- wakes -------------------------------------------------------------------------------------------------

    def _begin_wakes(self) -> None:
        for work in self._plan.next_wakes(self._time()):
            task = asyncio.get_running_loop().create_task(self._wake(work))
            self._wakes.add(task)
            task.add_done_callback(self._wakes.discard)

    async def _wake(self, work: OpenWork) -> None:
        agent_id = work.agent_id
        try:
            await self._population.wake(agent_id)
        except asyncio.CancelledError:
            self._plan.failed(agent_id, Failure("cancelled", "the supervisor was stopped"), self._time())
            raise
        except Exception as error:  # noqa: BLE001 - it is told by the report, and tried again
            self._counts["failed_wakes"] += 1
            failure = failure_of(error)
            self._plan.failed(agent_id, failure, self._time())
            _LOG.warning("agent %s could not be woken (%s): %s", agent_id, work.kind.value, failure.message)
        else:
            self._counts["wakes"] += 1
            self._plan.woken(agent_id, self._time())
            _LOG.info("agent %s was woken (%s)", agent_id, work.kind.value)
        self._changed.set()

    async def activate(self, agent_id: str) -> None:
        """Wake one agent at once, for whoever holds raw handles only. Raises as `Population.wake`."""
        await self._population.wake(agent_id)

    # --- for people --------------------------------------------------------------------------------------------

    async def report(self) -> dict[str, Any]:
        """What it sees and does, as JSON. Raises `StoreError`."""
        parked = await self._store.run(self._store.store.parked_agents, limit=MAX_PARKED_SHOWN)
        return {
            "cluster": self._population.cluster,
            "store": self._store.store.identity,
            **self._info,
            **self._plan.to_wire(self._time()),
            "parked": [
                {"agent_id": root.agent_id, **(root.parked.to_wire() if root.parked is not None else {})}
                for root in parked
            ],
            "counts": {
                name: self._counts[name]
                for name in (
                    "rounds",
                    "failed_rounds",
                    "wakes",
                    "failed_wakes",
                    "ended_processes",
                    "unloaded",
                )
            },
            "collection": self._collection.to_wire() if self._collection is not None else None,
            "deliveries": self._deliverer.report() if self._deliverer is not None else [],
            "looked_at": self._looked_at.isoformat() if self._looked_at is not None else None,
            "round_s": round(self._round_s, 4),
            "error": self._error,
        }


def deliverer_for(store: StoreClient, limits: SupervisionLimits, info: Mapping[str, Any]) -> Deliverer:
    """A deliverer as patient as the supervisor that it works beside."""
    return Deliverer(
        store,
        clock=SystemClock(),
        name=f"{info['host']}:{info['pid']}",
        limits=DeliveryLimits(limits.deliver_every_s, limits.foreign_after_s),
    )


def failure_of(error: BaseException) -> Failure:
    """What a failed wake means for the next one."""
    blocked = isinstance(error, ConfigurationError | NotFoundError | AgentParkedError)
    code = error.code if isinstance(error, PhronomyError) else "internal"
    return Failure(code, safe_message(error), is_blocked=blocked)


__all__ = ["Supervisor", "deliverer_for", "failure_of"]
