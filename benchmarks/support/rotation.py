"""Contenders that are timed in rotation, so that a drift of the machine meets all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from support.report import median


@dataclass
class Samples:
    """Times of one contender, in milliseconds."""

    #: The warm-up: the first call, which pays for code, threads and workers.
    first: float
    times: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Middle of the measured calls."""
        return median(self.times)


def rotate(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, budget_s: float
) -> dict[str, Samples]:
    """Warm each contender up once, then time `rounds` calls of each, one of each per round.

    A contender whose calls have taken `budget_s` seconds leaves the rotation, but not before its first measured call.
    """
    found = {name: Samples(_timed(call)) for name, call in contenders.items()}
    for _ in range(rounds):
        for name, call in contenders.items():
            samples = found[name]
            if not samples.times or sum(samples.times) < budget_s * 1e3:
                samples.times.append(_timed(call))
    return found


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3
