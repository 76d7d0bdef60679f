"""What a pool has seen: outcomes by status, and histograms of the wait before a body and of its run. Pure."""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds of the buckets, in seconds; one more holds what is longer.
BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: Observations that are kept between two reports to a slower system.
MAX_SAMPLES = 16


class Histogram:
    """Counts by bucket, with sum and greatest."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum = 0.0
        self._max = 0.0

    def add(self, seconds: float) -> None:
        """Count one observation."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum += seconds
        self._max = max(self._max, seconds)

    def to_wire(self) -> dict[str, object]:
        """As JSON: ``le`` maps each bound to the number of observations up to it."""
        total, cumulative = 0, {}
        for bound, count in zip(BUCKETS_S, self._counts, strict=False):
            total += count
            cumulative[f"{bound:g}"] = total
        return {
            "count": total + self._counts[-1],
            "sum_s": round(self._sum, 6),
            "max_s": round(self._max, 6),
            "le": cumulative,
        }


class PoolMetrics:
    """Counters of one pool since its start."""

    def __init__(self) -> None:
        #: Outcomes by status.
        self.outcomes: dict[str, int] = {}
        self._wait = Histogram()
        self._run = Histogram()
        #: Calls that were refused for lack of room.
        self.rejected = 0
        #: Bodies that were given up while they ran.
        self.given_up = 0
        self._samples: tuple[list[float], list[float]] = ([], [])

    def waited(self, seconds: float) -> None:
        """A body began so long after its call came."""
        self._wait.add(seconds)
        if len(self._samples[0]) < MAX_SAMPLES:
            self._samples[0].append(seconds)

    def ended(self, status: str, seconds: float | None, *, abandoned: bool = False) -> None:
        """A call got its outcome so long after its body began; ``None`` when none began."""
        self.outcomes[status] = self.outcomes.get(status, 0) + 1
        if seconds is not None:
            self._run.add(seconds)
            if len(self._samples[1]) < MAX_SAMPLES:
                self._samples[1].append(seconds)
        self.given_up += abandoned

    def take_samples(self) -> tuple[list[float], list[float]]:
        """The first few waits and runs since the last time."""
        samples, self._samples = self._samples, ([], [])
        return samples

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {
            "outcomes": dict(sorted(self.outcomes.items())),
            "rejected_total": self.rejected,
            "abandoned_total": self.given_up,
            "wait": self._wait.to_wire(),
            "run": self._run.to_wire(),
        }
