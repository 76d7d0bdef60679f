"""The calls of one worker process, on threads, and the one stream of news about them.

The clock of a call runs during each of its attempts. A body that is over its time is given up: its outcome is fenced off,
nothing of it is tried again, and what it does in the end is reported as late.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from phronomy_ray.definition.agent import BoundTool
from phronomy_ray.errors import ErrorRecord, PhronomyError
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import CallKey, ToolInvocation, ToolOutcome
from phronomy_ray.tools.envelope import redacted, run_sync, timed_out, timestamp
from phronomy_ray.tools.pool_wire import ItemKind, News, StartedCalls, item_of
from phronomy_ray.tools.warm_threads import WarmThreads

#: A note that bodies have begun waits so long for outcomes to travel with.
STARTED_DELAY_S = 0.004
#: How soon a body is looked at again whose clock does not run: before its first attempt, or between two.
_UNSTARTED_POLL_S = 0.05


class _Ended(NamedTuple):
    key: CallKey
    outcome: ToolOutcome


@dataclass(slots=True, eq=False)
class _Body:
    bound: BoundTool
    invocation: ToolInvocation
    started_at: str
    #: When the present attempt is over its time; none between two attempts.
    deadline: float | None = None
    is_cancelled: bool = False
    is_given_up: bool = False

    @property
    def key(self) -> CallKey:
        return self.invocation.key

    def should_stop(self) -> bool:
        return self.is_cancelled or self.is_given_up


class WorkerCalls:
    """Bodies of one process. `submit` and `cancel` may be called from any thread; `serve` runs in one."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._threads = WarmThreads()
        self._news: queue.SimpleQueue[StartedCalls | _Ended | None] = queue.SimpleQueue()
        #: Bodies that run, given-up ones included.
        self._bodies: dict[CallKey, _Body] = {}
        self._is_closed = False

    def submit(self, calls: Sequence[tuple[ToolInvocation, BoundTool]]) -> None:
        """Begin these calls side by side."""
        at = timestamp()
        bodies = [_Body(bound, invocation, at) for invocation, bound in calls]
        self._bodies.update({body.key: body for body in bodies})
        self._news.put(StartedCalls(tuple(body.key for body in bodies), self._node, os.getpid(), at))
        for body in bodies:
            self._threads.run(partial(self._run, body))

    def refuse(self, invocation: ToolInvocation, error: Exception) -> None:
        """Give a call the outcome that its code cannot be loaded here."""
        self._news.put(_Ended(invocation.key, unavailable(invocation, error, self._node)))

    def cancel(self, keys: Iterable[CallKey]) -> None:
        """Tell the bodies that they should stop."""
        for key in keys:
            body = self._bodies.get(key)
            if body is not None:
                body.is_cancelled = True

    def close(self) -> None:
        """End `serve`."""
        self._news.put(None)

    def serve(self) -> Iterator[list[News]]:
        """News of all calls, as lists of whatever is ready; ends after `close`."""
        held: list[News] = []
        while not self._is_closed:
            fresh = [*self._collect(STARTED_DELAY_S if held else self._wait_s()), *self._overdue()]
            if not held and all(isinstance(item, StartedCalls) for item in fresh):
                held = fresh
            elif held or fresh:
                yield held + fresh
                held = []

    # --- inside ------------------------------------------------------------------------------------------------

    def _run(self, body: _Body) -> None:
        def on_attempt() -> None:
            body.deadline = time.monotonic() + body.bound.spec.timeout_s

        def on_attempt_end() -> None:
            body.deadline = None

        outcome = run_sync(
            body.bound,
            body.invocation,
            # a call that was given up for its time must not be tried again behind anybody's back
            is_cancelled=body.should_stop,
            node=self._node,
            on_attempt=on_attempt,
            on_attempt_end=on_attempt_end,
        )
        self._news.put(_Ended(body.key, outcome))

    def _collect(self, wait_s: float | None) -> list[News]:
        found: list[News] = []
        try:
            entry = self._news.get(timeout=wait_s)
            while True:
                if entry is None:
                    self._is_closed = True
                elif isinstance(entry, StartedCalls):
                    found.append(entry)
                else:
                    body = self._bodies.pop(entry.key, None)
                    is_late = body is not None and body.is_given_up
                    found.append(item_of(entry.outcome, ItemKind.LATE if is_late else ItemKind.OUTCOME))
                entry = self._news.get_nowait()
        except queue.Empty:
            return found

    def _overdue(self) -> list[News]:
        now = time.monotonic()
        found: list[News] = []
        for body in list(self._bodies.values()):
            deadline = body.deadline
            if deadline is not None and deadline <= now and not body.is_given_up:
                body.is_given_up = True
                outcome = timed_out(body.bound, body.invocation, node=self._node, started=body.started_at)
                found.append(item_of(outcome, ItemKind.GIVEN_UP))
        return found

    def _wait_s(self) -> float | None:
        """How long nothing can be overdue; none for ever."""
        nearest = float("inf")
        for body in list(self._bodies.values()):
            if body.is_given_up:
                continue
            deadline = body.deadline
            if deadline is not None:
                nearest = min(nearest, deadline)
            else:
                nearest = min(nearest, time.monotonic() + _UNSTARTED_POLL_S)
        return None if nearest == float("inf") else max(0.0, nearest - time.monotonic())


def unavailable(invocation: ToolInvocation, error: Exception, node: str) -> ToolOutcome:
    """The outcome of a call whose code cannot be loaded."""
    record = redacted(ErrorRecord.from_exception(error))
    code = error.code if isinstance(error, PhronomyError) else "definition_unavailable"
    return ToolOutcome(
        invocation.tool_call_id,
        invocation.attempt,
        ToolCallStatus.FAILED,
        f"Error ({code}): the tool's code cannot be loaded on node {node}",
        error=ErrorRecord(
            "ToolError", code, f"the tool's code cannot be loaded: {record.message}", (record,)
        ),
        node=node,
        pid=os.getpid(),
        started_at=timestamp(),
        ended_at=timestamp(),
    )
