"""When an agent's process may go because nothing needs it. Pure: its process says what happens, time comes in.

An agent that could not be woken as it is stays: one with instance options, which end with its process, and one whose class
no node can import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phronomy_ray.journal import ExecutionStatus

#: How often the process looks: a fraction of the shortest limit, within these bounds, in seconds.
LOOKS_PER_LIMIT = 4
MIN_LOOK_S = 0.1
MAX_LOOK_S = 15.0


@dataclass(frozen=True, slots=True)
class UnloadLimits:
    """How long an unused agent keeps its process, in seconds; ``None`` for ever."""

    idle_s: float | None = None
    #: While its execution waits for a human.
    suspended_s: float | None = None

    @property
    def look_every_s(self) -> float | None:
        """How often it is worth looking; ``None`` when it never is."""
        limits = [limit for limit in (self.idle_s, self.suspended_s) if limit is not None]
        return max(MIN_LOOK_S, min(MAX_LOOK_S, min(limits) / LOOKS_PER_LIMIT)) if limits else None


class IdleUnload:
    """Decides for one agent."""

    def __init__(self, limits: UnloadLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._used_at = clock()

    @property
    def used_at(self) -> float:
        """When the agent was last needed, by the clock."""
        return self._used_at

    def used(self) -> None:
        """Somebody called the agent, or something of it ran."""
        self._used_at = self._clock()

    def is_due(self, status: ExecutionStatus | None, *, is_needed: bool) -> bool:
        """Whether the process may go now.

        Args:
            status: of the non-terminal execution, if there is one.
            is_needed: whether calls wait at the agent, requests are queued, or bodies run in the process.
        """
        limit_s = self._limits.idle_s
        if status is not None:
            limit_s = self._limits.suspended_s if status is ExecutionStatus.SUSPENDED else None
            is_needed = is_needed or status is not ExecutionStatus.SUSPENDED
        if is_needed:
            self.used()
        return limit_s is not None and not is_needed and self._clock() - self._used_at >= limit_s
