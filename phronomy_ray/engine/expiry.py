"""The alarm of a suspended execution: it fires when the first of its approval requests expires.

The kernel decides by its own clock whether anything has expired; an alarm that comes too early is set again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phronomy_ray.clock import Clock
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.kernel.state import Execution, pending_approvals

#: Shortest time to an alarm, in seconds: two clocks may differ a little.
MIN_DELAY_S = 0.05
#: Longest, in seconds; after it the alarm looks at the clock again.
MAX_DELAY_S = 3600.0


class ExpiryAlarm:
    """At most one timer; lives on the loop that arms it."""

    def __init__(self, clock: Clock, fire: Callable[[], object]) -> None:
        self._clock = clock
        self._fire = fire
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, execution: Execution | None) -> None:
        """Set, move or drop the alarm by what `execution` waits for."""
        self.cancel()
        if execution is None or execution.row.status is not ExecutionStatus.SUSPENDED:
            return
        moments = [item.expires_at for item in pending_approvals(execution) if item.expires_at is not None]
        if not moments:
            return
        left_s = (min(moments) - self._clock.now()).total_seconds()
        delay_s = min(max(left_s, MIN_DELAY_S), MAX_DELAY_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Drop the alarm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
