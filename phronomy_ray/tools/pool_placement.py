"""Which worker process runs which of the granted calls. Pure: workers are views, nothing is started here.

A process that dies makes every unfinished call in it unknown, so calls are kept apart as far as the bound on processes
allows:

* A call that must not run twice (``replay="never"``) has a process of its own: an idle one, or a new one. At the bound such
  calls share with each other, the emptiest process first.
* Replayable calls of one execution share a process, two on each node when there are many. They do not wait for a process to
  start while a ready one runs nothing but replayable calls; they may then share it with another agent's.
* A call whose last worker died is suspected of having killed it: it goes alone, and at the bound never to calls that must
  not run twice.

Each kind leaves one process to the other while the bound is more than one. Every environment gets one process even beyond
the bound: its calls could otherwise wait for ever behind another's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from phronomy_ray.tool_calls import CallKey

#: A replayable batch is divided into so many parts that each has at least this many calls, and at most so many for each node:
#: one interpreter takes longer to begin and to report a few hundred calls than many a call takes.
MIN_PART_CALLS = 32
PARTS_PER_NODE = 2


class Lane(enum.StrEnum):
    """With whom a call may share a process."""

    NEVER = "never"
    REPLAYABLE = "replayable"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class Placeable:
    """What placement needs to know of a granted call."""

    key: CallKey
    execution_id: str
    #: Calls of different environments never share a process.
    environment: str
    lane: Lane


@dataclass(slots=True)
class WorkerView:
    """A worker process as placement sees it."""

    worker_id: str
    environment: str
    node: str
    is_ready: bool = True
    #: Takes no more calls: a body in it was given up and still runs.
    is_draining: bool = False
    #: Calls in it that have no outcome, those included that wait for its start, by lane.
    live: dict[Lane, int] = field(default_factory=dict)

    @property
    def load(self) -> int:
        """Calls without outcome."""
        return sum(self.live.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in it."""
        return not self.is_draining and not self.load

    def add(self, lane: Lane, count: int = 1) -> None:
        """Count calls in."""
        self.live[lane] = self.live.get(lane, 0) + count

    def remove(self, lane: Lane) -> None:
        """Count one call out."""
        left = self.live.get(lane, 0) - 1
        if left > 0:
            self.live[lane] = left
        else:
            self.live.pop(lane, None)


@dataclass(slots=True)
class Placement:
    """What is to be done."""

    #: Calls by worker, in order; a worker that is not ready gets them when it is.
    assigned: dict[str, list[CallKey]] = field(default_factory=dict)
    #: Workers to start: id and environment.
    started: list[tuple[str, str]] = field(default_factory=list)
    #: Idle workers of other environments to end, since the bound leaves no room for the started ones.
    ended: list[str] = field(default_factory=list)
    #: Calls that no worker can take now: to be placed again when a worker is free.
    held: list[CallKey] = field(default_factory=list)


class Placer:
    """Places one round of granted calls; changes the given views as it goes."""

    def __init__(
        self, workers: Iterable[WorkerView], *, max_workers: int, nodes: Sequence[str], new_ids: Iterable[str]
    ) -> None:
        """`nodes`: where new workers may be, the best first. `new_ids`: endless ids for them."""
        self._workers = {worker.worker_id: worker for worker in workers}
        self._max_workers = max_workers
        self._nodes = list(nodes) or [""]
        self._new_ids = iter(new_ids)
        self._placement = Placement()
        self._unplaced: list[Placeable] = []

    def place(self, calls: Sequence[Placeable]) -> Placement:
        """Give each call a worker. The order within an execution is kept."""
        shared: dict[tuple[str, str], list[Placeable]] = {}
        for call in calls:
            if call.lane is Lane.REPLAYABLE:
                shared.setdefault((call.environment, call.execution_id), []).append(call)
        groups = list(shared.values())
        for group in groups:
            parts = max(1, min(PARTS_PER_NODE * len(self._nodes), len(group) // MIN_PART_CALLS))
            for index in range(parts):
                self._place_shared(group[index::parts])
        for call in calls:
            if call.lane is not Lane.REPLAYABLE:
                self._place_lone(call)
        unplaced, self._unplaced = self._unplaced, []
        for call in unplaced:  # a worker may have been started since, for another one
            self._assign(_emptiest(self._usable(call.environment)), [call])
        self._placement.held = [call.key for call in self._unplaced]
        return self._placement

    @property
    def workers(self) -> dict[str, WorkerView]:
        """The views, those of started workers included."""
        return self._workers

    # --- inside ------------------------------------------------------------------------------------------------

    def _place_shared(self, part: list[Placeable]) -> None:
        environment = part[0].environment
        usable = self._usable(environment)
        best = _emptiest(worker for worker in usable if worker.is_idle and worker.is_ready)
        if best is None:
            best = _emptiest(
                worker
                for worker in usable
                if worker.is_ready and not _hosts(worker, Lane.NEVER, Lane.SUSPECT)
            )
            if best is not None:
                self._start(environment, Lane.REPLAYABLE)  # for the next ones: nobody waits for it
        if best is None:
            best = _emptiest(worker for worker in usable if worker.is_idle)
        if best is None:
            best = self._start(environment, Lane.REPLAYABLE)
        if best is None:
            best = _emptiest(worker for worker in usable if not _hosts(worker, Lane.NEVER)) or _emptiest(
                usable
            )
        self._assign(best, part)

    def _place_lone(self, call: Placeable) -> None:
        usable = self._usable(call.environment)
        best: WorkerView | None = None
        if self._may_occupy(call.lane):
            idle = [worker for worker in usable if worker.is_idle]
            best = _emptiest(worker for worker in idle if worker.is_ready) or _emptiest(idle)
        if best is None:
            best = self._start(call.environment, call.lane)
        if best is None and call.lane is Lane.NEVER:
            best = _emptiest(worker for worker in usable if not _hosts(worker, Lane.REPLAYABLE, Lane.SUSPECT))
        elif best is None:
            best = _emptiest(worker for worker in usable if not _hosts(worker, Lane.NEVER))
        self._assign(best or _emptiest(usable), [call])

    def _assign(self, worker: WorkerView | None, calls: list[Placeable]) -> None:
        if worker is None:
            self._unplaced.extend(calls)
            return
        for call in calls:
            worker.add(call.lane)
        self._placement.assigned.setdefault(worker.worker_id, []).extend(call.key for call in calls)

    def _usable(self, environment: str) -> list[WorkerView]:
        return [
            worker
            for worker in self._workers.values()
            if worker.environment == environment and not worker.is_draining
        ]

    def _may_occupy(self, lane: Lane) -> bool:
        """Whether one more process may be given to this kind: the last one is the other kind's."""
        mine = sum(_is_of(worker, lane) for worker in self._workers.values())
        return mine < max(1, self._max_workers - 1)

    def _start(self, environment: str, lane: Lane) -> WorkerView | None:
        is_first = not any(worker.environment == environment for worker in self._workers.values())
        if not is_first and not self._may_occupy(lane):
            return None
        if lane is Lane.REPLAYABLE and any(
            worker.is_idle and not worker.is_ready for worker in self._usable(environment)
        ):
            return None  # one is on its way
        if len(self._workers) >= self._max_workers:
            spare = next(
                (
                    worker
                    for worker in self._workers.values()
                    if worker.is_idle and worker.is_ready and worker.environment != environment
                ),
                None,
            )
            if spare is not None:
                del self._workers[spare.worker_id]
                self._placement.ended.append(spare.worker_id)
            elif not is_first:
                return None
        made = WorkerView(next(self._new_ids), environment, self._best_node(), is_ready=False)
        self._workers[made.worker_id] = made
        self._placement.started.append((made.worker_id, environment))
        return made

    def _best_node(self) -> str:
        counts = dict.fromkeys(self._nodes, 0)
        for worker in self._workers.values():
            if worker.node in counts:
                counts[worker.node] += 1
        return min(self._nodes, key=lambda node: counts[node])


def _hosts(worker: WorkerView, *lanes: Lane) -> bool:
    return any(worker.live.get(lane) for lane in lanes)


def _is_of(worker: WorkerView, lane: Lane) -> bool:
    """Whether a worker is taken by the kind of this lane."""
    if lane is Lane.REPLAYABLE:
        return _hosts(worker, Lane.REPLAYABLE)
    return _hosts(worker, Lane.NEVER, Lane.SUSPECT)


def _emptiest(workers: Iterable[WorkerView]) -> WorkerView | None:
    return min(workers, key=lambda worker: (worker.load, not worker.is_ready), default=None)
