"""How long executions may take by their callers' word, counted by the clock of the process that works on them.

Between processes the remaining time travels, never a clock reading. From owner to owner it is the moment that is stored with the
execution (`ExecutionRow.deadline_at`): whoever takes the agent over counts what is left of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Longest delay that a loop is given at once, in seconds; after it the time is looked at again.
MAX_DELAY_S = 1e6


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
        due_s = asyncio.get_running_loop().time() + max(0.0, budget_s)
        self._due[execution_id] = (due_s, self._timer(execution_id, due_s))

    def _timer(self, execution_id: str, due_s: float) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(
            min(max(0.0, due_s - loop.time()), MAX_DELAY_S), self._look, execution_id, due_s
        )

    def _look(self, execution_id: str, due_s: float) -> None:
        if asyncio.get_running_loop().time() < due_s:
            self._due[execution_id] = (due_s, self._timer(execution_id, due_s))
        else:
            self._fire(execution_id)

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


__all__ = ["MAX_DELAY_S", "Deadlines"]
