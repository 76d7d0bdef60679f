"""How long executions may take by their callers' word, counted by the clock of the process that works on them.

Between processes the remaining time travels, never a clock reading. What an earlier owner has used is not known to the next one,
which counts the whole time again; the caller's own clock goes on meanwhile and ends it in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Longest delay that a loop is given at once, in seconds.
_MAX_DELAY_S = 1e6


class Deadlines:
    """At most one timer for each execution; lives on the loop that starts it.

    Args:
        fire: called with the id of an execution whose time is over.
    """

    def __init__(self, fire: Callable[[str], object]) -> None:
        self._fire = fire
        self._due: dict[str, tuple[float, asyncio.TimerHandle]] = {}

    def arm(self, execution_id: str, budget_s: float | None) -> None:
        """Begin to count, unless it is counted already."""
        if budget_s is None or execution_id in self._due:
            return
        loop = asyncio.get_running_loop()
        wait_s = min(max(0.0, budget_s), _MAX_DELAY_S)
        self._due[execution_id] = (loop.time() + wait_s, loop.call_later(wait_s, self._fire, execution_id))

    def forget(self, execution_id: str) -> None:
        """It has ended."""
        found = self._due.pop(execution_id, None)
        if found is not None:
            found[1].cancel()

    def clear(self) -> None:
        """Nothing is counted here any more."""
        for execution_id in list(self._due):
            self.forget(execution_id)

    def remaining_s(self, execution_id: str) -> float | None:
        """Seconds that are left, 0 when none are; ``None`` for no limit."""
        found = self._due.get(execution_id)
        return max(0.0, found[0] - asyncio.get_running_loop().time()) if found is not None else None


__all__ = ["Deadlines"]
