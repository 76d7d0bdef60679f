"""Signs of life: which processes answer, and which clusters still have a supervisor. Pure; time comes in as seconds.

A process that serves agents is asked, it does not report: one that hangs could not, and thousands of idle agents cost
nothing. Silence alone counts only when the one who listens was there: after a pause of its own a supervisor begins anew.
Clocks of different machines are never compared: a cluster is alive as long as its count of beats is seen to grow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from phronomy_ray.open_work import SupervisorBeat
from phronomy_ray.supervision.limits import SupervisionLimits

#: In what a supervisor says of itself: it has left, and nobody needs to wait for its next beat.
LEFT = "left"


class Presence(StrEnum):
    """What asking a process has shown."""

    #: It answers, and says whom it serves.
    ANSWERS = "answers"
    #: It gives no answer: it hangs, is cut off, or is being restarted.
    SILENT = "silent"
    #: There is no such process.
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of asking one process."""

    presence: Presence
    #: Agents that it serves, with the epoch under which.
    serves: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Silence:
    since_s: float
    questions: int = 1


class Silences:
    """How long each process has been silent."""

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._silent: dict[str, _Silence] = {}
        self._heard_at_s: float | None = None

    def hear(self, answers: Mapping[str, Answer], now_s: float) -> list[str]:
        """Take in the answers of one round; which processes have been silent for too long."""
        before, self._heard_at_s = self._heard_at_s, now_s
        if before is not None and now_s - before > self._limits.hung_after_s:
            self._silent.clear()  # nobody was asked meanwhile: the silence was ours
        for name, answer in answers.items():
            if answer.presence is not Presence.SILENT:
                self._silent.pop(name, None)
            elif name in self._silent:
                self._silent[name].questions += 1
            else:
                self._silent[name] = _Silence(now_s)
        return [name for name in answers if self._is_over(name, now_s)]

    def forget(self, name: str) -> None:
        """The process was ended: what comes under its name is another one."""
        self._silent.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Forget all other processes."""
        self._silent = {name: silence for name, silence in self._silent.items() if name in names}

    def lasting(self, now_s: float) -> dict[str, float]:
        """Silent processes, with the seconds since when."""
        return {name: now_s - silence.since_s for name, silence in self._silent.items()}

    def _is_over(self, name: str, now_s: float) -> bool:
        silence = self._silent.get(name)
        return (
            silence is not None
            and silence.questions >= self._limits.hung_after_questions
            and now_s - silence.since_s >= self._limits.hung_after_s
        )


class Clusters:
    """Which other clusters look after their agents themselves."""

    def __init__(self, own: str, limits: SupervisionLimits) -> None:
        self.own = own
        self._limits = limits
        #: Beats of each cluster, and when they were seen to move.
        self._seen: dict[str, tuple[int, float]] = {}
        self._left: set[str] = set()

    def hear(self, beats: Iterable[SupervisorBeat], named: Iterable[str], now_s: float) -> None:
        """Take in the beats in the store, and the clusters whose agents are seen although they have none."""
        rows = list(beats)
        counts = dict.fromkeys(named, 0) | {beat.cluster: beat.beats for beat in rows}
        counts.pop(self.own, None)
        self._left = {beat.cluster for beat in rows if beat.info.get(LEFT)}
        seen = {}
        for cluster, count in counts.items():
            known = self._seen.get(cluster)
            seen[cluster] = known if known is not None and known[0] == count else (count, now_s)
        self._seen = seen

    def is_ours(self, cluster: str, now_s: float) -> bool:
        """Whether agents of that cluster are for us to look after: it is our own one, is unknown, or has fallen silent."""
        if not cluster or cluster == self.own:
            return True
        known = self._seen.get(cluster)
        if cluster in self._left:
            return True
        return known is not None and now_s - known[1] >= self._limits.foreign_after_s

    def lost(self, now_s: float) -> dict[str, int]:
        """Clusters that have fallen silent, with their last count."""
        return {name: count for name, (count, _) in self._seen.items() if self.is_ours(name, now_s)}

    def others(self, now_s: float) -> dict[str, float]:
        """All other clusters, with the seconds since they were seen to move."""
        return {name: now_s - at_s for name, (_, at_s) in self._seen.items()}


__all__ = ["LEFT", "Answer", "Clusters", "Presence", "Silences"]
