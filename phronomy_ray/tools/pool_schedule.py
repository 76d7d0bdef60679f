"""Admission to one pool: how many calls run, who is next, what does not fit. Pure: time comes in, nothing is started here.

* A batch is admitted whole or not at all, so that a full pool leaves nothing half-done.
* Agents take turns, one call each; within an agent calls of a kind are granted in the order in which they came.
* Each agent that has used the pool lately has a claim to the same part of it. What others claim and do not use is lent, but
  not at once (`PoolConfig.borrow_after_s`): agents that begin together do not begin at the same instant, and the first of
  them would take everything.
* Calls that get a task of their own have a bound of their own beside the pool's, near the number of CPUs: what waits beyond
  that in Ray's queue would be served in its order, which knows no agents. Tasks that ask for more than a CPU have one for
  themselves, since those that wait in Ray for what is scarce, or is nowhere, must not hold up all the others.
* A share is held from the grant until `release`, which is when the body has physically ended: a body that was given up
  and still runs keeps its share.

Cost: a release and an admission are O(1) per call, and so is a grant, but O(running calls) when it lends; taking calls back is
O(queued calls of their agents).
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_config import PoolConfig, WhenFull

#: How long an agent keeps its claim to a part of the pool after its last call, in seconds.
CLAIM_S = 2.0


class Admission(enum.Enum):
    """What became of a submitted batch."""

    ADMITTED = "admitted"
    #: It waits for room; see `PoolSchedule.expire`.
    WAITING = "waiting"
    REJECTED = "rejected"


class Kind(enum.Enum):
    """What a call runs in."""

    THREAD = "thread"
    #: A task on one CPU, or less.
    TASK = "task"
    #: A task that asks for anything else; Ray may have no node for it now, or ever.
    SCARCE = "scarce"


class _Line(NamedTuple):
    """One agent's calls of one kind."""

    agent_id: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class _Batch:
    agent_id: str
    calls: tuple[tuple[CallKey, Kind], ...]
    #: When it is given up.
    deadline: float


@dataclass(slots=True)
class _Queue:
    waiting: deque[CallKey] = field(default_factory=deque)
    running: int = 0
    #: Since when it could use a share that others have a claim to.
    wants_since: float | None = None


class PoolSchedule:
    """Shares of one pool. All times are seconds of one monotonic clock."""

    def __init__(self, config: PoolConfig, *, max_tasks: int | None = None) -> None:
        """`max_tasks`: calls of each kind of task that run at once; the pool's bound by default."""
        self._config = config
        self.max_tasks = max_tasks
        self._lines: dict[_Line, _Queue] = {}
        #: Lines with queued calls that may be granted one, the next one first.
        self._turns: OrderedDict[_Line, None] = OrderedDict()
        self._running: dict[CallKey, _Line] = {}
        #: Calls that run, by kind.
        self._of_kind: Counter[Kind] = Counter()
        self._queued: dict[CallKey, _Line] = {}
        self._waiting: deque[_Batch] = deque()
        self._waiting_calls = 0
        #: When an agent was last heard of, the one that was heard of last at the end; those without calls drop out in time.
        self._heard: OrderedDict[str, float] = OrderedDict()

    # --- in ----------------------------------------------------------------------------------------------------

    def submit(self, agent_id: str, calls: Sequence[tuple[CallKey, Kind]], *, now: float) -> Admission:
        """Queue a batch of one agent; none of its keys may be known already."""
        self._hear(agent_id, now)
        if self._fits(len(calls)) and not self._waiting:
            self._queue(agent_id, calls)
            return Admission.ADMITTED
        if self._never_fits(len(calls)) or self._config.when_full is WhenFull.REJECT:
            return Admission.REJECTED
        self._waiting.append(_Batch(agent_id, tuple(calls), now + self._config.queue_timeout_s))
        self._waiting_calls += len(calls)
        return Admission.WAITING

    def refusal(self, pool: str, calls: int, *, waited: bool) -> str:
        """Why there is no room for so many more calls, in words."""
        running, queued = self._config.max_running, self._config.max_queued
        if not waited and self._never_fits(calls):
            return (
                f"a batch of {calls} calls never fits into pool {pool!r}, which takes {running + queued} "
                f"(max_running={running}, max_queued={queued})"
            )
        how = "there was no room in time" if waited else "there is no room"
        return f"{how} in pool {pool!r} ({self.running} of {running} running, {self.queued} of {queued} queued); try again later"

    def grant(self, *, now: float) -> list[CallKey]:
        """Calls that may start now, in order; each holds a share until `release`."""
        granted: list[CallKey] = []
        self._admit_waiting()
        share = self._claim(now)
        passed: list[_Line] = []
        borrowers: deque[_Line] = deque()
        while self._turns and self._free > 0:
            line, _ = self._turns.popitem(last=False)
            if self._is_full(line.kind):
                passed.append(line)
            elif line.kind is Kind.THREAD and self._lines[line].running >= share:
                borrowers.append(line)
            else:
                self._lines[line].wants_since = None
                granted.append(self._start(line))
        while borrowers:
            line = borrowers.popleft()
            if self._free > 0 and self._may_borrow(self._lines[line], share, now):
                granted.append(self._start(line))
                if line in self._turns:
                    del self._turns[line]
                    borrowers.append(line)
            else:
                passed.append(line)
        for line in reversed(passed):  # they have lost no turn
            self._turns[line] = None
            self._turns.move_to_end(line, last=False)
        return granted

    # --- out ---------------------------------------------------------------------------------------------------

    def release(self, key: CallKey, *, now: float) -> bool:
        """Give the share of an ended call back; whether it held one."""
        line = self._running.pop(key, None)
        if line is None:
            return False
        self._hear(line.agent_id, now)
        queue = self._lines[line]
        queue.running -= 1
        self._of_kind[line.kind] -= 1
        self._take_turn(line, queue)
        self._forget_if_empty(line, queue)
        return True

    def withdraw(self, keys: Iterable[CallKey]) -> list[CallKey]:
        """Take back calls that have not been granted; returns those."""
        wanted = set(keys)
        taken = [key for key in wanted if key in self._queued]
        touched = {self._queued.pop(key) for key in taken}
        gone = set(taken)
        for line in touched:
            queue = self._lines[line]
            queue.waiting = deque(key for key in queue.waiting if key not in gone)
            if not queue.waiting:
                queue.wants_since = None
                self._turns.pop(line, None)
            self._forget_if_empty(line, queue)
        if self._waiting:
            kept: deque[_Batch] = deque()
            for batch in self._waiting:
                rest = tuple(call for call in batch.calls if call[0] not in wanted)
                taken.extend(key for key, _ in batch.calls if key in wanted)
                if rest:
                    kept.append(_Batch(batch.agent_id, rest, batch.deadline))
            self._keep_waiting(kept)
        return taken

    def expire(self, *, now: float) -> list[CallKey]:
        """Take back the batches whose wait for room is over; returns their calls."""
        if not any(batch.deadline <= now for batch in self._waiting):
            return []
        expired = [key for batch in self._waiting if batch.deadline <= now for key, _ in batch.calls]
        self._keep_waiting(deque(batch for batch in self._waiting if batch.deadline > now))
        return expired

    # --- what there is -----------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Calls that hold a share."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Calls without a share, those included that wait for room in the queue."""
        return len(self._queued) + self._waiting_calls

    @property
    def agents(self) -> int:
        """Agents with queued or running calls."""
        return len({line.agent_id for line in self._lines} | {batch.agent_id for batch in self._waiting})

    def next_deadline(self) -> float | None:
        """When `expire` has something to do at the earliest."""
        return min((batch.deadline for batch in self._waiting), default=None)

    # --- inside ------------------------------------------------------------------------------------------------

    @property
    def _free(self) -> int:
        return max(0, self._config.max_running - len(self._running))

    def _never_fits(self, calls: int) -> bool:
        return calls > self._config.max_running + self._config.max_queued

    def _fits(self, calls: int) -> bool:
        return len(self._queued) + calls <= self._config.max_queued + self._free

    def _is_full(self, kind: Kind) -> bool:
        return (
            kind is not Kind.THREAD and self.max_tasks is not None and self._of_kind[kind] >= self.max_tasks
        )

    def _start(self, line: _Line) -> CallKey:
        queue = self._lines[line]
        key = queue.waiting.popleft()
        del self._queued[key]
        self._running[key] = line
        queue.running += 1
        self._of_kind[line.kind] += 1
        if not queue.waiting:
            queue.wants_since = None
        self._take_turn(line, queue)
        if self._waiting:
            self._admit_waiting()
        return key

    def _claim(self, now: float) -> int:
        """Shares that each agent has a claim to."""
        while self._heard:
            agent_id, heard_at = next(iter(self._heard.items()))
            if heard_at > now - CLAIM_S:
                break
            del self._heard[agent_id]
            if any(_Line(agent_id, kind) in self._lines for kind in Kind):
                self._heard[agent_id] = now
        return max(1, self._config.max_running // max(1, len(self._heard)))

    def _may_borrow(self, queue: _Queue, share: int, now: float) -> bool:
        """Whether a line that has its part may have one share more."""
        if queue.wants_since is None:
            queue.wants_since = now
        if now >= queue.wants_since + self._config.borrow_after_s:
            return True
        used = Counter(line.agent_id for line in self._running.values())
        claimed = sum(share - min(share, used[agent_id]) for agent_id in self._heard)
        return self._free > claimed

    def _hear(self, agent_id: str, now: float) -> None:
        self._heard[agent_id] = now
        self._heard.move_to_end(agent_id)

    def _queue(self, agent_id: str, calls: Sequence[tuple[CallKey, Kind]]) -> None:
        for key, kind in calls:
            line = _Line(agent_id, kind)
            queue = self._lines.get(line)
            if queue is None:
                queue = self._lines[line] = _Queue()
            queue.waiting.append(key)
            self._queued[key] = line
        for kind in Kind:
            line = _Line(agent_id, kind)
            if line in self._lines:
                self._take_turn(line, self._lines[line])

    def _admit_waiting(self) -> None:
        """In order of arrival: a small batch does not overtake a large one for ever."""
        while self._waiting and self._fits(len(self._waiting[0].calls)):
            batch = self._waiting.popleft()
            self._waiting_calls -= len(batch.calls)
            self._queue(batch.agent_id, batch.calls)

    def _take_turn(self, line: _Line, queue: _Queue) -> None:
        """Put the line at the end of the round if it can use a share and does not stand there already."""
        cap = self._config.max_running_per_agent
        if queue.waiting and (cap is None or queue.running < cap) and line not in self._turns:
            self._turns[line] = None

    def _forget_if_empty(self, line: _Line, queue: _Queue) -> None:
        if not queue.waiting and not queue.running:
            self._lines.pop(line, None)

    def _keep_waiting(self, kept: deque[_Batch]) -> None:
        self._waiting = kept
        self._waiting_calls = sum(len(batch.calls) for batch in kept)
