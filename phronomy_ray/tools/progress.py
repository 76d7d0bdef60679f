"""How much progress a body may tell: all that a person could follow, and no flood.

Reports go through every process on the way to whoever watches. A body that tells of each of its rows would fill them all,
and hold up outcomes that it has nothing to do with.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

_LOG = logging.getLogger("phronomy_ray.tools")
#: Reports of one call that are told at once, and how many more each second.
BURST = 20
PER_S = 10.0


class Timer(Protocol):
    """What can be called off, as `threading.Timer`."""

    def cancel(self) -> None:
        """Do not act."""
        ...


def start_timer(after_s: float, act: Callable[[], None]) -> Timer:
    """Act in so many seconds, on a thread that keeps no process alive."""
    timer = threading.Timer(after_s, act)
    timer.daemon = True
    timer.start()
    return timer


class ProgressGate:
    """Tells reports as they come while they are few. Of those in between only the last counts: it is told as soon as there is
    room, at the latest at the end, unless a later one was told before.

    `report` may be called from any thread; reports are told in the order in which they came.
    """

    def __init__(
        self,
        tell: Callable[[Any], None],
        *,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Timer] = start_timer,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._later = later
        self._lock = threading.Lock()
        self._room = float(BURST)
        self._looked_at = clock()
        self._held: list[Any] = []
        self._timer: Timer | None = None

    def report(self, value: Any) -> None:
        """Tell `value`, or hold it back."""
        with self._lock:
            self._make_room()
            self._held = [value]
            if self._room >= 1:
                self._tell_held()
            elif self._timer is None:
                self._timer = self._later((1 - self._room) / PER_S, self._on_time)

    def close(self) -> None:
        """The body has ended: tell what was held back. Never raises: the outcome counts more."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._try_to_tell_held()

    def _on_time(self) -> None:
        with self._lock:
            self._timer = None
            self._make_room()
            self._try_to_tell_held()

    def _make_room(self) -> None:
        now = self._clock()
        self._room = min(float(BURST), self._room + (now - self._looked_at) * PER_S)
        self._looked_at = now

    def _try_to_tell_held(self) -> None:
        try:
            self._tell_held()
        except Exception as error:  # noqa: BLE001 - the way may be gone; whoever waits for the outcome must get it
            _LOG.warning("the last report of progress cannot be told: %s", type(error).__name__)

    def _tell_held(self) -> None:
        held, self._held = self._held, []
        for value in held:
            self._room = max(0.0, self._room - 1)
            self._tell(value)
