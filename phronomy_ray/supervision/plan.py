"""`WakePlan`: whom to wake, in which order and how fast; whom to give up. Pure: no Ray, SQL or clock.

One round: `questions` says which processes to ask, `look` takes the answers and says which processes hang, `next_wakes` gives
agents to wake as far as the pace allows, and `woken` or `failed` says what came of it. Nothing here decides who owns an agent:
a wake that was not needed finds it live, and one that comes too early takes a new epoch. So a wrong guess costs time, never a
fact.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from phronomy_ray.open_work import OpenWork, SupervisorBeat, WorkKind
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.supervision.signs import Answer, Clusters, Presence, Silences


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a wake failed."""

    #: Of the error.
    code: str
    message: str
    #: Whether trying again soon is useless: somebody has to change something.
    is_blocked: bool = False


@dataclass(slots=True)
class _Tries:
    """Wakes of one agent that have changed nothing yet."""

    count: int = 0
    next_at_s: float = 0.0
    failure: Failure | None = None


class WakePlan:
    """The plan of one supervisor for one store."""

    def __init__(self, cluster: str, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._clusters = Clusters(cluster, limits)
        self._silences = Silences(limits)
        #: Epoch and revision of each agent with work, as the last round has seen them.
        self._seen: dict[str, tuple[int, int]] = {}
        #: Agents that need a wake, the oldest work first.
        self._wanted: dict[str, OpenWork] = {}
        self._tries: dict[str, _Tries] = {}
        #: When each process was asked last.
        self._asked_at_s: dict[str, float] = {}
        self._in_flight: set[str] = set()
        self._tokens = float(limits.max_wakes)
        self._refilled_at_s: float | None = None
        self._elsewhere = 0
        self._with_work = 0

    # --- a round -----------------------------------------------------------------------------------------------

    def questions(
        self, found: Iterable[OpenWork], beats: Iterable[SupervisorBeat], now_s: float
    ) -> frozenset[str]:
        """Processes to ask: the owners of work that is ours, unless it has moved since the last round; when there are many, those
        that were not asked for longest.
        """
        works = list(found)
        self._clusters.hear(beats, {work.cluster for work in works if work.cluster}, now_s)
        due = {
            work.process: work.since
            for work in sorted(works, key=lambda item: item.since, reverse=True)
            if work.process
            and self._is_at_home(work)
            and not self._has_moved(work)
            and work.agent_id not in self._in_flight
        }
        turn = sorted(due, key=lambda process: (self._asked_at_s.get(process, -1.0), due[process]))
        asked = frozenset(turn[: self._limits.questions_per_round])
        self._asked_at_s = {name: at_s for name, at_s in self._asked_at_s.items() if name in due}
        self._asked_at_s.update(dict.fromkeys(asked, now_s))
        return asked

    def look(self, found: Iterable[OpenWork], answers: Mapping[str, Answer], now_s: float) -> list[str]:
        """Take in what was found and answered. Returns the processes that hang: end them, and say so by `ended`."""
        works: dict[str, OpenWork] = {}
        # a wish that nobody has taken up is told even to an owner that is at work
        for work in sorted(
            found, key=lambda item: (item.kind is not WorkKind.WISHED, item.since, item.agent_id)
        ):
            works.setdefault(work.agent_id, work)
        hung = self._silences.hear(answers, now_s)
        moving = {work.process for work in works.values() if self._has_moved(work)}
        for process in moving:  # a commit is as good as an answer
            self._silences.forget(process)
        self._silences.keep({work.process for work in works.values()})
        known, self._wanted = self._wanted, {}
        self._elsewhere = 0
        self._with_work = len(works)
        for work in works.values():
            if not self._clusters.is_ours(work.cluster, now_s):
                self._elsewhere += 1
            elif self._needs_wake(work, answers, known):
                self._wanted[work.agent_id] = work
        self._seen = {work.agent_id: (work.epoch, work.revision) for work in works.values()}
        #: An agent that is served, or has nothing to do any more, is no case any more.
        self._tries = {
            name: tries
            for name, tries in self._tries.items()
            if name in self._wanted or name in self._in_flight
        }
        return [process for process in hung if process not in moving]

    def _has_moved(self, work: OpenWork) -> bool:
        """Whether somebody has committed since the last round."""
        return self._seen.get(work.agent_id, (work.epoch, work.revision)) != (work.epoch, work.revision)

    def _is_at_home(self, work: OpenWork) -> bool:
        return work.cluster in ("", self._clusters.own)

    def _needs_wake(self, work: OpenWork, answers: Mapping[str, Answer], known: Container[str]) -> bool:
        if work.kind is WorkKind.WISHED or not work.process or not self._is_at_home(work):
            return True  # it was never owned, or its whole cluster is gone
        answer = answers.get(work.process)
        if answer is None:
            # it moves, is being woken, or was asked a moment ago
            return work.agent_id in known and not self._has_moved(work)
        if answer.presence is Presence.ANSWERS:
            return answer.serves.get(work.agent_id, -1) < work.epoch
        return answer.presence is Presence.ABSENT

    def ended(self, process: str) -> None:
        """A process that hung was ended: its agents need a wake once it is seen to be absent."""
        self._silences.forget(process)

    # --- wakes -------------------------------------------------------------------------------------------------

    def next_wakes(self, now_s: float) -> list[OpenWork]:
        """Agents to wake now, the oldest work first; each is under way until `woken` or `failed`."""
        self._refill(now_s)
        chosen: list[OpenWork] = []
        for agent_id, work in self._wanted.items():
            if len(self._in_flight) >= self._limits.max_wakes or self._tokens < 1:
                break
            tries = self._tries.get(agent_id)
            if agent_id in self._in_flight or (tries is not None and tries.next_at_s > now_s):
                continue
            self._in_flight.add(agent_id)
            self._tokens -= 1
            chosen.append(work)
        for work in chosen:
            del self._wanted[work.agent_id]
        return chosen

    def pause_s(self, now_s: float) -> float | None:
        """How long until `next_wakes` may give more by itself, in seconds; ``None`` for not before something happens."""
        if len(self._in_flight) >= self._limits.max_wakes:
            return None
        due = [
            self._tries[name].next_at_s if name in self._tries else now_s
            for name in self._wanted
            if name not in self._in_flight
        ]
        if not due:
            return None
        missing = max(0.0, 1 - self._tokens) / self._limits.wakes_per_s
        return max(min(due) - now_s, missing, 0.0)

    def woken(self, agent_id: str, now_s: float) -> None:
        """A wake has succeeded: it is tried again, ever later, only if the work is still found without an owner."""
        self._settle(agent_id, None, now_s)

    def failed(self, agent_id: str, failure: Failure, now_s: float) -> None:
        """A wake has failed; it is tried again, ever later."""
        self._settle(agent_id, failure, now_s)

    def unblock(self) -> None:
        """Something may have changed (a new driver, other code): what was given up for now is tried again at once."""
        for tries in self._tries.values():
            if tries.failure is not None and tries.failure.is_blocked:
                tries.next_at_s = 0.0

    def _settle(self, agent_id: str, failure: Failure | None, now_s: float) -> None:
        self._in_flight.discard(agent_id)
        tries = self._tries.setdefault(agent_id, _Tries())
        tries.count += 1
        tries.failure = failure
        limits = self._limits
        pause_s = min(limits.max_retry_s, limits.first_retry_s * 2.0 ** min(tries.count - 1, 60))
        if failure is not None and failure.is_blocked:
            pause_s = limits.max_retry_s
        tries.next_at_s = now_s + pause_s

    def _refill(self, now_s: float) -> None:
        if self._refilled_at_s is not None:
            passed_s = max(0.0, now_s - self._refilled_at_s)
            self._tokens = min(
                float(self._limits.max_wakes), self._tokens + passed_s * self._limits.wakes_per_s
            )
        self._refilled_at_s = now_s

    # --- for people --------------------------------------------------------------------------------------------

    def lost_clusters(self, now_s: float) -> dict[str, int]:
        """Clusters whose agents were taken over, with their last count of beats."""
        return self._clusters.lost(now_s)

    def to_wire(self, now_s: float) -> dict[str, Any]:
        """What it knows, as JSON."""
        failing = {name: tries for name, tries in self._tries.items() if tries.failure is not None}
        return {
            "agents_with_work": self._with_work,
            "watched_elsewhere": self._elsewhere,
            "waiting_for_a_wake": len(self._wanted),
            "wakes_under_way": sorted(self._in_flight),
            "silent_processes": _rounded(self._silences.lasting(now_s)),
            "other_clusters": _rounded(self._clusters.others(now_s)),
            "failing": [
                {
                    "agent_id": name,
                    "parked": _words(tries.failure),
                    "code": tries.failure.code if tries.failure else "",
                    "message": tries.failure.message if tries.failure else "",
                    "tries": tries.count,
                    "next_try_in_s": round(max(0.0, tries.next_at_s - now_s), 1),
                }
                for name, tries in sorted(failing.items())
            ],
        }


def _words(failure: Failure | None) -> str:
    """``definition_changed`` and the like for what waits for a human; empty for what is just tried again."""
    return failure.code if failure is not None and failure.is_blocked else ""


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in sorted(seconds.items())}


__all__ = ["Failure", "WakePlan"]
