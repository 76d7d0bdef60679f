"""Time as an argument: the clock that production reads, and the only place that asks the machine for the date.

Tests set `phronomy_ray.testing.clock.ManualClock` in its place. Spans are measured with `time.monotonic` where they arise.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of the present time."""

    def now(self) -> datetime:
        """The present time, aware, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The present time, aware, UTC."""
        return utc_now()


def timestamp() -> str:
    """Now, ISO 8601 UTC, from the machine's clock."""
    return utc_now().isoformat()


def utc_now() -> datetime:
    """The present time of the machine's clock, aware, UTC."""
    return datetime.now(UTC)  # noqa: TID251 - here, so that nobody else has to
