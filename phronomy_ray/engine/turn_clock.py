"""The time limit of a turn: how long its owner works on it without a human.

One stretch of work is timed: from admission, from the human's answer that let it go on, or from its recovery. While the
execution is suspended no time counts. At the end of the time the turn is cancelled with the reason `TURN_TIMEOUT`; that
outranks every limit, retry and error rule of the tools that run then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.kernel.state import Execution


class TurnClock:
    """At most one timer; lives on the loop that starts it.

    Args:
        limit_s: seconds of one stretch; ``None`` for no limit.
        fire: called with the id of the execution whose time is over.
    """

    def __init__(self, limit_s: float | None, fire: Callable[[str], object]) -> None:
        self._limit_s = limit_s
        self._fire = fire
        self._timer: asyncio.TimerHandle | None = None
        self._execution_id = ""

    def follow(self, execution: Execution | None) -> None:
        """Start, keep or stop the clock by what `execution` does now."""
        if self._limit_s is None:
            return
        row = execution.row if execution is not None else None
        works = (
            row is not None and row.status is not ExecutionStatus.SUSPENDED and not row.cancel_requested_at
        )
        if row is None or not works:
            self.stop()
        elif self._timer is None or self._execution_id != row.execution_id:
            self.stop()
            self._execution_id = row.execution_id
            self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._fire, row.execution_id)

    def stop(self) -> None:
        """Drop the timer; the next stretch has the whole time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
