"""The gate of one agent: how many of its calls may be under way at once.

It stands before the executor, so it is the same in one process and on a cluster, and a call's clock cannot start before
the call is let through. A call that waits here has not begun: it is given back when its turn is cancelled, and after a
failed commit it can be dispatched again whatever its replay rule. A body that outlives its timeout has had its outcome and
holds no place: a body that never ends would else close the gate for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from phronomy_ray.tool_calls import CallKey, ToolInvocation


class ToolGate:
    """Lets at most `limit` calls through at once, in their order; ``None`` lets all through together.

    Args:
        limit: at least 1.
        start: begins calls; may come back with `ended` before it returns.
    """

    def __init__(self, limit: int | None, start: Callable[[Sequence[ToolInvocation]], None]) -> None:
        self._limit = limit
        self._start = start
        self._waiting: deque[ToolInvocation] = deque()
        self._running: set[CallKey] = set()
        self._is_closed = False
        self._is_filling = False

    @property
    def is_limited(self) -> bool:
        """Whether anything ever waits here."""
        return self._limit is not None

    def admit(self, invocations: Sequence[ToolInvocation], *, free: Collection[str] = ()) -> None:
        """Take a batch. Tools named in `free` pass at once and hold no place."""
        if self._limit is None:
            self._start(invocations)
            return
        passing = [invocation for invocation in invocations if invocation.tool_name in free]
        if passing:
            self._start(passing)
        self._waiting.extend(invocation for invocation in invocations if invocation.tool_name not in free)
        self._fill()

    def ended(self, key: CallKey) -> None:
        """A call has its outcome; the next one takes its place."""
        if key in self._running:
            self._running.discard(key)
            self._fill()

    def occupy(self, keys: Iterable[CallKey]) -> None:
        """These may be under way, begun by an earlier owner: they hold places."""
        self._running.update(keys)

    def keep_only(self, keys: Collection[CallKey]) -> None:
        """Of the calls that hold places only these are under way."""
        self._running.intersection_update(keys)
        self._fill()

    def release(self) -> None:
        """Give everything that waits to `start` now: its turn has ended, and `start` answers it without beginning it."""
        waiting = tuple(self._waiting)
        self._waiting.clear()
        if waiting:
            self._start(waiting)

    def close(self) -> None:
        """Let nothing through until `reopen`."""
        self._is_closed = True

    def reopen(self) -> frozenset[CallKey]:
        """Begin again; the calls that waited and were never begun, which are forgotten here."""
        held = frozenset(invocation.key for invocation in self._waiting)
        self._waiting.clear()
        self._running.clear()
        self._is_closed = False
        return held

    def _fill(self) -> None:
        if self._is_filling or self._limit is None:
            return  # `start` has come back with an outcome at once: the loop below goes on
        self._is_filling = True
        try:
            while self._waiting and not self._is_closed and (room := self._limit - len(self._running)) > 0:
                through = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
                self._running.update(invocation.key for invocation in through)
                self._start(through)
        finally:
            self._is_filling = False
