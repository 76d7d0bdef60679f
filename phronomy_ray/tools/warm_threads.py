"""Threads that are kept for the next body: starting one costs more than handing work to one that waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class WarmThreads:
    """Runs functions side by side, each on a thread of its own; threads that have ended their work take the next.

    The threads are daemons: one that never returns holds nobody up. There is no bound, which is the caller's to keep.
    """

    def __init__(self, name: str = "phronomy-tool") -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        #: One count per thread that waits for work and has not been promised any.
        self._idle = threading.Semaphore(0)

    def run(self, function: Callable[[], None]) -> None:
        """Begin `function`, which must not raise, at once."""
        self._work.put(function)
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def has_idle(self) -> bool:
        """Whether a thread waits for work."""
        if self._idle.acquire(blocking=False):
            self._idle.release()
            return True
        return False

    def _serve(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()
