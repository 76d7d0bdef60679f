"""A tool executor that needs no cluster: async bodies on the loop, all others on threads of the present process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from phronomy_ray.clock import timestamp
from phronomy_ray.definition.tool import ExecutionMode
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.tool_calls import (
    Attachment,
    CallKey,
    ToolInvocation,
    ToolOutcome,
    ToolProgress,
    ToolStarted,
)
from phronomy_ray.tool_environment import ToolEnvironment
from phronomy_ray.tools.cooperative import CooperativeRuns, Stragglers
from phronomy_ray.tools.envelope import NODE, run_sync
from phronomy_ray.tools.executor import Sink
from phronomy_ray.tools.outcomes import missing_tool, not_performed, timed_out, unknown
from phronomy_ray.tools.process import cancelled_by
from phronomy_ray.worker_inputs import WorkerInputRestricted


class LocalToolExecutor(WorkerInputRestricted):
    """Runs everything in the present process."""

    def __init__(
        self,
        *,
        threads: int | ThreadPoolExecutor = 64,
        environment: ToolEnvironment | None = None,
        on_loop_work: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            threads: how many for blocking bodies; or a pool that is shared, and stays open.
            environment: what cooperative bodies find around them.
            on_loop_work: told when bodies begin on the loop.
        """
        self._cooperative = CooperativeRuns(environment=environment)
        self._owned: ThreadPoolExecutor | None = None
        if isinstance(threads, int):
            threads = self._owned = ThreadPoolExecutor(threads, thread_name_prefix="phronomy-tool")
        self._threads = threads
        self._on_loop_work = on_loop_work
        self._blocking: set[asyncio.Task[None]] = set()
        self._stragglers = self._cooperative.stragglers
        self._turn = _Turn()

    @property
    def on_loop(self) -> int:
        """See `ToolExecutor`."""
        return self._cooperative.running

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """See `ToolExecutor`."""
        if self._turn.stop.is_set():
            self._turn = _Turn()  # threads of the stopped execution keep theirs, and stay stopped
        for invocation in invocations:
            bound = tools.get(invocation.tool_name)
            if bound is None:
                sink(missing_tool(invocation.key, invocation.tool_name))
            elif bound.spec.execution_mode is ExecutionMode.COOPERATIVE:
                self._cooperative.start(invocation, bound, sink)
                self._on_loop_work()
            else:
                call = _BlockingCall(bound, invocation, self._turn, sink, self._stragglers)
                task = asyncio.get_running_loop().create_task(call.run(self._threads))
                self._blocking.add(task)
                task.add_done_callback(self._blocking.discard)

    async def attach(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> Attachment:
        """See `ToolExecutor`; nothing outlives the process that ran it."""
        return Attachment()

    def acknowledge(self, keys: Sequence[CallKey]) -> None:
        """See `ToolExecutor`; nothing is kept."""

    def stragglers(self, execution_id: str) -> bool:
        """See `ToolExecutor`."""
        return self._stragglers.any_of(execution_id)

    async def quiesce(self, execution_id: str, timeout_s: float) -> frozenset[CallKey]:
        """See `ToolExecutor`."""
        return await self._stragglers.wait(execution_id, timeout_s)

    async def stop(self, grace_s: float) -> None:
        """See `ToolExecutor`."""
        turn = self._turn
        turn.stop.set()
        tasks = list(self._blocking)
        await asyncio.gather(self._cooperative.stop(grace_s), turn.end(tasks, grace_s))

    def close(self) -> None:
        """See `ToolExecutor`."""
        if self._owned is not None:
            self._owned.shutdown(wait=False, cancel_futures=True)


class _Turn:
    """What the blocking bodies of one execution share."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.grace_over = asyncio.Event()

    async def end(self, tasks: list[asyncio.Task[None]], grace_s: float) -> None:
        """Wait for `tasks`, and give them up after `grace_s` seconds."""
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
            self.grace_over.set()
            await asyncio.wait(tasks)


class _BlockingCall:
    """One blocking body: its clock runs during each attempt, not before its thread or between two; a queued one can be called off."""

    def __init__(
        self,
        bound: BoundTool,
        invocation: ToolInvocation,
        turn: _Turn,
        sink: Sink,
        stragglers: Stragglers,
    ) -> None:
        self._bound = bound
        self._stragglers = stragglers
        self._invocation = invocation
        self._turn = turn
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        #: Set when nobody waits for the body any more: it must not be tried again.
        self._given_up = threading.Event()
        #: Start of the first attempt; empty while the body waits for a thread.
        self._started = ""
        #: Whether an attempt runs, as opposed to the wait before the next one.
        self._in_attempt = False
        self._attempt_changed = asyncio.Event()
        #: Set when nothing of the body runs any more.
        self._finished = asyncio.Event()

    async def run(self, threads: ThreadPoolExecutor) -> None:
        """Run it and give the one outcome."""
        queued = threads.submit(self._body)
        body = asyncio.wrap_future(queued)
        grace = self._loop.create_task(self._turn.grace_over.wait())
        while True:
            changed = self._loop.create_task(self._attempt_changed.wait())
            waiting: set[asyncio.Future[Any]] = {body, grace, changed}
            limit = self._bound.spec.timeout_s if self._in_attempt else None
            done, _ = await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if changed not in done or body in done or grace in done:
                break
            self._attempt_changed.clear()
        grace.cancel()
        outcome = self._outcome(body, queued, grace in done)
        self._sink(outcome)
        if not body.done():
            self._stragglers.add(self._invocation, body, self._sink)
        elif self._started and not self._finished.is_set():
            self._stragglers.add_outlived(self._invocation, outcome, self._finished, self._sink)

    def _outcome(
        self, body: asyncio.Future[ToolOutcome], queued: Future[ToolOutcome], stopped: bool
    ) -> ToolOutcome:
        if body.done() and not body.cancelled():
            return body.result()
        self._given_up.set()
        if queued.cancel():
            return not_performed(self._invocation.key)
        if stopped:
            reason = "the body did not stop within the grace time"
            return unknown(self._invocation.key, reason, node=NODE, started=self._started)
        return timed_out(
            self._invocation.key,
            self._bound.spec.timeout_s,
            node=NODE,
            pid=os.getpid(),
            started=self._started,
        )

    def _body(self) -> ToolOutcome:
        if self._is_cancelled():
            return not_performed(self._invocation.key)
        with cancelled_by(self._is_cancelled):
            return run_sync(
                self._bound,
                self._invocation,
                is_cancelled=self._is_cancelled,
                on_attempt=lambda: self._report(self._on_attempt),
                on_attempt_end=lambda: self._report(self._on_attempt_end),
                on_finished=lambda: self._report(self._finished.set),
                on_progress=lambda value: self._report(
                    partial(self._sink, ToolProgress(*self._invocation.key, value))
                ),
            )

    def _report(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def _on_attempt(self) -> None:
        if not self._started:
            key = self._invocation
            self._started = timestamp()
            self._sink(ToolStarted(key.tool_call_id, key.attempt, NODE, os.getpid(), self._started))
        self._in_attempt = True
        self._attempt_changed.set()

    def _on_attempt_end(self) -> None:
        self._in_attempt = False
        self._attempt_changed.set()

    def _is_cancelled(self) -> bool:
        return self._turn.stop.is_set() or self._given_up.is_set()
