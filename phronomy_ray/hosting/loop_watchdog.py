"""Watches an agent's event loop from a thread: how late it is, and which tool holds it.

A cooperative body that does not await holds everything of its agent: its calls, its siblings, its timeouts. The watchdog
says which one, once per offence, with its stack; it cannot end it. A loop that has ended, for instance by ``sys.exit`` in a
callback, is told of too: its process would answer nobody any more.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

_LOG = logging.getLogger("phronomy_ray.loop")
#: How long the loop may be held before a tool is named, in seconds.
BLOCKED_S = 0.25
#: How often the loop is looked at, in seconds, while bodies run on it and while none do.
BUSY_PERIOD_S = 0.05
IDLE_PERIOD_S = 2.0
#: Names of the tasks that run bodies: this, the tool, the call.
TASK_PREFIX = "tool:"


@dataclass(frozen=True, slots=True)
class Offence:
    """A tool that held the loop."""

    tool_name: str
    tool_call_id: str
    #: So far, in seconds.
    blocked_s: float
    #: Where the loop's thread was.
    stack: str


class LoopWatchdog:
    """Watches the loop on which it is made; `start` it there."""

    def __init__(
        self,
        *,
        on_offence: Callable[[Offence], None] | None = None,
        on_look: Callable[[float], None] = lambda late_s: None,
        on_end: Callable[[], None] = lambda: None,
        is_busy: Callable[[], bool] = lambda: True,
        blocked_s: float = BLOCKED_S,
    ) -> None:
        """`on_look` is told how late the loop was, `on_end` that it runs no more although nobody has closed it; `is_busy` says
        whether bodies run on it. All of them are called on the watching thread.
        """
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._on_offence = on_offence if on_offence is not None else log_offence
        self._on_look = on_look
        self._on_end = on_end
        self._is_busy = is_busy
        self._blocked_s = blocked_s
        self._closed = threading.Event()
        self._woken = threading.Event()
        self._beaten = threading.Event()
        self._count = 0
        self._sum_s = 0.0
        self._last_s = 0.0
        self._max_s = 0.0
        self._offences = 0

    def start(self) -> None:
        """Begin to watch, in a thread that ends with the process."""
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()

    def wake(self) -> None:
        """Bodies have begun: look often from now on."""
        self._woken.set()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        self._woken.set()

    def to_wire(self) -> dict[str, object]:
        """How late the loop was, as JSON."""
        return {
            "last_s": round(self._last_s, 6),
            "max_s": round(self._max_s, 6),
            "mean_s": round(self._sum_s / self._count, 6) if self._count else 0.0,
            "looks": self._count,
            "blocked_by_tools": self._offences,
        }

    # --- on the thread -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.is_set():
            self._woken.wait(BUSY_PERIOD_S if self._is_busy() else IDLE_PERIOD_S)
            if self._woken.is_set():
                self._woken.clear()
                self._closed.wait(BUSY_PERIOD_S)
            if self._closed.is_set() or not self._look():
                return

    def _look(self) -> bool:
        """One beat of the loop; whether there is one."""
        self._beaten.clear()
        asked = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._beaten.set)
        except RuntimeError:  # it is closed
            return False
        if not self._beaten.wait(self._blocked_s):
            self._accuse(time.monotonic() - asked)
            while not self._beaten.wait(1.0):
                if self._loop.is_closed() or self._closed.is_set():
                    return False
                if not self._loop.is_running():
                    self._on_end()
                    return False
        late_s = time.monotonic() - asked
        self._count += 1
        self._sum_s += late_s
        self._last_s = late_s
        self._max_s = max(self._max_s, late_s)
        self._on_look(late_s)
        return True

    def _accuse(self, blocked_s: float) -> None:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._loop_thread)
        name = task.get_name() if task is not None else ""
        if not name.startswith(TASK_PREFIX) or frame is None:
            return  # no tool holds it: the machine is busy, or we are
        self._offences += 1
        tool_name, _, call_id = name.removeprefix(TASK_PREFIX).partition(":")
        self._on_offence(Offence(tool_name, call_id, blocked_s, "".join(traceback.format_stack(frame))))


def log_offence(offence: Offence) -> None:
    """One line in the log, with the stack behind it."""
    _LOG.warning(
        "tool %r has held the agent's event loop for %.2f s; make it await, or declare it blocking_io or cpu_bound\n%s",
        offence.tool_name,
        offence.blocked_s,
        offence.stack,
    )
