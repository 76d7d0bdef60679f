"""How much progress a body may tell: all that a person could follow, and no flood.

Reports go through every process on the way to whoever watches. A body that tells of each of its rows would fill them all,
and hold up outcomes that it has nothing to do with.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

_LOG = logging.getLogger("phronomy_ray.tools")
#: Reports of one call that are told at once, and how many more each second.
BURST = 20
PER_S = 10.0


class ProgressGate:
    """Tells reports as they come while they are few. Of those in between only the last counts: it is told at the end, unless a
    later one was told before.

    `report` may be called from any thread.
    """

    def __init__(self, tell: Callable[[Any], None], *, clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()
        self._room = float(BURST)
        self._looked_at = clock()
        self._held: list[Any] = []

    def report(self, value: Any) -> None:
        """Tell `value`, or hold it back."""
        with self._lock:
            now = self._clock()
            self._room = min(float(BURST), self._room + (now - self._looked_at) * PER_S)
            self._looked_at = now
            self._held = [value]
            if self._room < 1:
                return
            self._room -= 1
            self._held = []
        self._tell(value)

    def close(self) -> None:
        """The body has ended: tell what was held back. Never raises: the outcome counts more."""
        with self._lock:
            held, self._held = self._held, []
        for value in held:
            try:
                self._tell(value)
            except Exception as error:  # noqa: BLE001 - the way may be gone; whoever waits for the outcome must get it
                _LOG.warning("the last report of progress cannot be told: %s", type(error).__name__)
