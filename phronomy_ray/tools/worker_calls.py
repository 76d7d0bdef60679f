"""The calls of one worker process, on threads, and the one stream of news about them.

The clock of a call runs during each of its attempts. A body that is over its time is given up: its outcome is fenced off,
nothing of it is tried again, and what it does in the end is reported as late.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from phronomy_ray.clock import timestamp
from phronomy_ray.definition.tool_options import ExecutionMode
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import ErrorRecord, PhronomyError
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.redaction import redact_error
from phronomy_ray.tool_calls import CallKey, ToolInvocation, ToolOutcome
from phronomy_ray.tools.envelope import run_sync
from phronomy_ray.tools.outcomes import not_performed, timed_out
from phronomy_ray.tools.pool_wire import (
    ItemKind,
    News,
    PoolItem,
    StartedCalls,
    WorkerEnds,
    item_of,
    progress_item,
)
from phronomy_ray.tools.process import cancelled_by
from phronomy_ray.tools.warm_threads import WarmThreads

#: Least time between two lists of news while few bodies run, in seconds: a list costs much more than an item in it. A note
#: that bodies have begun waits so long for an outcome to travel with.
BUNDLE_S = 0.003
#: How much longer it is for each body that runs, and at most.
BUNDLE_PER_BODY_S = 0.001
MAX_BUNDLE_S = 0.024
#: How much longer than its time the body of an ``external_process`` tool may take to report that it killed its program.
PROCESS_MARGIN_S = 1.0
#: Cancelled calls without a body that are remembered.
MAX_EARLY = 10_000
#: How soon a body is looked at again whose clock does not run: before its first attempt, or between two.
_UNSTARTED_POLL_S = 0.05


class _Ended(NamedTuple):
    key: CallKey
    outcome: ToolOutcome
    #: Whether nothing of the body runs any more (`definition.tool.ToolCompletion`).
    is_over: bool = True


@dataclass(slots=True, eq=False)
class _Body:
    bound: BoundTool
    invocation: ToolInvocation
    started_at: str
    #: When the present attempt is over its time; none between two attempts.
    deadline: float | None = None
    is_cancelled: bool = False
    is_given_up: bool = False
    #: Whether its outcome has been reported.
    is_reported: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    outcome: ToolOutcome | None = None
    is_over: bool = False

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
        self._news: queue.SimpleQueue[StartedCalls | WorkerEnds | PoolItem | _Ended | None] = (
            queue.SimpleQueue()
        )
        #: Bodies that run, given-up ones included.
        self._bodies: dict[CallKey, _Body] = {}
        #: Calls that were cancelled before they came: two messages to a process may overtake each other. Some have ended before.
        self._early: dict[CallKey, bool] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(self, calls: Sequence[tuple[ToolInvocation, BoundTool]]) -> None:
        """Begin these calls side by side."""
        at = timestamp()
        bodies = [_Body(bound, invocation, at) for invocation, bound in calls]
        with self._lock:
            stopped = {body.key for body in bodies if self._early.pop(body.key, False)}
            bodies = [body for body in bodies if body.key not in stopped]
            self._bodies.update({body.key: body for body in bodies})
        for key in stopped:
            self._news.put(_Ended(key, not_performed(key)))
        if not bodies:
            return
        self._news.put(StartedCalls(tuple(body.key for body in bodies), self._node, os.getpid(), at))
        for body in bodies:
            self._threads.run(partial(self._run, body))

    def refuse(self, key: CallKey, error: Exception) -> None:
        """Give a call the outcome that its code cannot be loaded here."""
        self._news.put(_Ended(key, unavailable(key, error, self._node)))

    def cancel(self, keys: Iterable[CallKey]) -> None:
        """Tell the bodies that they should stop; one that has not been submitted yet will not begin."""
        with self._lock:
            for key in keys:
                body = self._bodies.get(key)
                if body is not None:
                    body.is_cancelled = True
                    continue
                self._early[key] = True
                if len(self._early) > MAX_EARLY:
                    del self._early[next(iter(self._early))]

    @property
    def running(self) -> int:
        """Bodies that run."""
        return len(self._bodies)

    def announce_end(self, reason: str, code: str) -> None:
        """Say that this process is about to end itself."""
        self._news.put(WorkerEnds(reason, code))

    def close(self) -> None:
        """End `serve`."""
        self._news.put(None)

    def serve(self) -> Iterator[list[News]]:
        """News of all calls, as lists of whatever is ready; ends after `close`."""
        begun: list[News] = []  # notes that wait for an outcome to travel with
        told_at = 0.0
        while not self._is_closed:
            fresh = self._collect(BUNDLE_S if begun else self._wait_s(), told_at + self._bundle_s())
            fresh += self._overdue()
            if not begun and all(isinstance(item, StartedCalls) for item in fresh):
                begun = fresh
            else:
                yield begun + fresh
                begun, told_at = [], time.monotonic()

    # --- inside ------------------------------------------------------------------------------------------------

    def _run(self, body: _Body) -> None:
        def on_attempt() -> None:
            spec = body.bound.spec
            # a program is killed at its timeout by the thread that runs it, which then has the outcome
            margin_s = PROCESS_MARGIN_S if spec.execution_mode is ExecutionMode.EXTERNAL_PROCESS else 0.0
            body.deadline = time.monotonic() + spec.timeout_s + margin_s

        def on_attempt_end() -> None:
            body.deadline = None

        def on_finished() -> None:
            with body.lock:
                body.is_over = True
                if body.outcome is not None:
                    self._news.put(_Ended(body.key, replace(body.outcome, ended_at=timestamp())))

        with cancelled_by(body.should_stop):
            outcome = run_sync(
                body.bound,
                body.invocation,
                # a call that was given up for its time must not be tried again behind anybody's back
                is_cancelled=body.should_stop,
                node=self._node,
                on_attempt=on_attempt,
                on_attempt_end=on_attempt_end,
                on_finished=on_finished,
                on_progress=lambda value: self._news.put(progress_item(body.key, value)),
            )
        with body.lock:
            body.outcome = outcome
            self._news.put(_Ended(body.key, outcome, body.is_over))

    def _collect(self, wait_s: float | None, until: float) -> list[News]:
        """What is ready; the first is waited for, and when it is an outcome, those that come until then are taken along.

        Sleeping while they come, not waiting for each: every wait would take the interpreter from the bodies once more.
        """
        found: list[News] = []
        try:
            entry = self._news.get(timeout=wait_s)
            if isinstance(entry, _Ended):
                # the last bodies of all wait for nothing
                while (rest_s := until - time.monotonic()) > 0 and self._news.qsize() + 1 < len(self._bodies):
                    time.sleep(min(rest_s, BUNDLE_S))
            while True:
                if entry is None:
                    self._is_closed = True
                    return found
                # what is no end travels as it is
                found += self._ended(entry) if isinstance(entry, _Ended) else [entry]
                entry = self._news.get_nowait()
        except queue.Empty:
            return found

    def _bundle_s(self) -> float:
        return min(MAX_BUNDLE_S, BUNDLE_S + BUNDLE_PER_BODY_S * len(self._bodies))

    def _ended(self, entry: _Ended) -> list[News]:
        body = self._bodies.get(entry.key)
        was_reported = body is not None and body.is_reported
        if entry.is_over:
            self._bodies.pop(entry.key, None)
            return [item_of(entry.outcome, ItemKind.LATE if was_reported else ItemKind.OUTCOME)]
        if body is None or was_reported:
            return []  # its end will be told
        body.is_reported = True
        return [item_of(entry.outcome, ItemKind.GOES_ON)]

    def _overdue(self) -> list[News]:
        now = time.monotonic()
        found: list[News] = []
        for body in list(self._bodies.values()):
            deadline = body.deadline
            if deadline is not None and deadline <= now and not body.is_reported:
                body.is_given_up = body.is_reported = True
                outcome = timed_out(
                    body.key,
                    body.bound.spec.timeout_s,
                    node=self._node,
                    pid=os.getpid(),
                    started=body.started_at,
                )
                found.append(item_of(outcome, ItemKind.GIVEN_UP))
        return found

    def _wait_s(self) -> float | None:
        """How long nothing can be overdue; none for ever."""
        nearest = float("inf")
        for body in list(self._bodies.values()):
            if body.is_reported:
                continue
            deadline = body.deadline
            if deadline is not None:
                nearest = min(nearest, deadline)
            else:
                nearest = min(nearest, time.monotonic() + _UNSTARTED_POLL_S)
        return None if nearest == float("inf") else max(0.0, nearest - time.monotonic())


def unavailable(key: CallKey, error: Exception, node: str) -> ToolOutcome:
    """The outcome of a call whose code cannot be loaded."""
    record = redact_error(ErrorRecord.from_exception(error))
    code = error.code if isinstance(error, PhronomyError) else "definition_unavailable"
    return ToolOutcome(
        *key,
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
