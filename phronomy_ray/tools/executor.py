"""The executor port, and the executor that needs no Ray: async bodies on the loop, blocking ones on threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from phronomy_ray.definition.tool import ExecutionMode
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.tool_calls import (
    Attachment,
    CallKey,
    ToolInvocation,
    ToolLate,
    ToolOutcome,
    ToolProgress,
    ToolStarted,
)
from phronomy_ray.tool_environment import ToolEnvironment, enter_environment
from phronomy_ray.tools.envelope import (
    NODE,
    missing_tool,
    not_performed,
    run_async,
    run_sync,
    timed_out,
    timestamp,
    unknown,
)
from phronomy_ray.tools.process import cancelled_by
from phronomy_ray.worker_inputs import WorkerInputRestricted

ToolReport: TypeAlias = ToolOutcome | ToolStarted | ToolProgress | ToolLate
Sink: TypeAlias = Callable[[ToolReport], None]


class ToolExecutor(Protocol):
    """Runs the bodies of one agent. All methods are called on the agent's event loop."""

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """Run all side by side and give `sink` exactly one outcome for each; returns at once.

        `sink` may get a `ToolLate` after the outcome of a call whose body went on.
        """
        ...

    async def attach(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> Attachment:
        """Go on with calls that an earlier owner dispatched; a dispatch of that owner can start no more.

        Each attached call gives `sink` exactly one outcome, which may come before this returns.
        """
        ...

    def acknowledge(self, keys: Sequence[CallKey]) -> None:
        """These outcomes are committed: nothing has to be kept for them any more."""
        ...

    def stragglers(self, execution_id: str) -> bool:
        """Whether a body of this execution may still run although its call has its outcome."""
        ...

    async def quiesce(self, execution_id: str, timeout_s: float) -> frozenset[CallKey]:
        """Wait until no body of this execution runs any more; those that still do after `timeout_s` are returned and
        forgotten.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Ask every running body to stop; after `grace_s` seconds those that have not are given up as ``unknown``.

        Returns when each dispatched call has had its outcome.
        """
        ...

    def close(self) -> None:
        """Release what the executor holds; nothing is running."""
        ...


class CooperativeRuns(WorkerInputRestricted):
    """Async bodies on the present loop: the part that every executor shares."""

    def __init__(self, node: str = NODE, environment: ToolEnvironment | None = None) -> None:
        self._node = node
        self._environment = environment
        #: Work that outlives the result that it gave (`ToolCompletion`).
        self.stragglers = Stragglers()
        self._tasks: dict[asyncio.Task[None], tuple[ToolInvocation, Sink]] = {}
        self._stop = asyncio.Event()

    @property
    def running(self) -> int:
        """Bodies that have no outcome yet."""
        return len(self._tasks)

    def start(self, invocation: ToolInvocation, bound: BoundTool, sink: Sink) -> None:
        """Run one call as a task, by whose name a watchdog knows the tool."""
        if self._stop.is_set():
            self._stop = asyncio.Event()  # bodies of the stopped execution keep theirs
        task = asyncio.get_running_loop().create_task(
            self._run(invocation, bound, self._stop, sink),
            name=f"tool:{invocation.tool_name}:{invocation.tool_call_id}",
        )
        self._tasks[task] = (invocation, sink)
        task.add_done_callback(self._ended)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Cancel every task; a body that goes on all the same is given up as unknown after `grace_s` seconds."""
        self._stop.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace_s)
        for task in late:
            invocation, sink = self._tasks.pop(task)
            sink(unknown(invocation, "the body went on after its cancellation", node=self._node))

    async def _run(
        self, invocation: ToolInvocation, bound: BoundTool, stop: asyncio.Event, sink: Sink
    ) -> None:
        enter_environment(self._environment)
        key = invocation.tool_call_id
        sink(ToolStarted(key, invocation.attempt, self._node, os.getpid(), timestamp()))
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_progress(value: Any) -> None:  # from whatever thread the body reports in
            loop.call_soon_threadsafe(sink, ToolProgress(*invocation.key, value))

        outcome = await run_async(
            bound,
            invocation,
            is_cancelled=stop.is_set,
            node=self._node,
            on_finished=finished.set,
            on_progress=on_progress,
        )
        task = asyncio.current_task()
        if task is not None and self._tasks.pop(task, None) is not None:
            sink(outcome)
        if not finished.is_set():
            self.stragglers.add_outlived(invocation, outcome, finished, sink)

    def _ended(self, task: asyncio.Task[None]) -> None:
        given = self._tasks.pop(task, None)
        if given is not None:  # cancelled before its first step
            invocation, sink = given
            sink(not_performed(invocation))


class LocalToolExecutor(WorkerInputRestricted):
    """Runs everything in the present process."""

    def __init__(self, *, threads: int = 64, environment: ToolEnvironment | None = None) -> None:
        self._cooperative = CooperativeRuns(environment=environment)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="phronomy-tool")
        self._blocking: set[asyncio.Task[None]] = set()
        self._stragglers = self._cooperative.stragglers
        self._turn = _Turn()

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """See `ToolExecutor`."""
        if self._turn.stop.is_set():
            self._turn = _Turn()  # threads of the stopped execution keep theirs, and stay stopped
        for invocation in invocations:
            bound = tools.get(invocation.tool_name)
            if bound is None:
                sink(missing_tool(invocation))
            elif bound.spec.execution_mode is ExecutionMode.COOPERATIVE:
                self._cooperative.start(invocation, bound, sink)
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
        self._threads.shutdown(wait=False, cancel_futures=True)


class Stragglers:
    """Bodies that go on although their calls have their outcomes."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Future[ToolOutcome], ToolInvocation] = {}
        #: Those of `_running` that no execution waits for any more.
        self._abandoned: set[asyncio.Future[ToolOutcome]] = set()

    def add(self, invocation: ToolInvocation, body: asyncio.Future[ToolOutcome], sink: Sink) -> None:
        """Report the end of `body` as late."""
        self._running[body] = invocation

        def ended(done: asyncio.Future[ToolOutcome]) -> None:
            self._running.pop(done, None)
            self._abandoned.discard(done)
            if not done.cancelled() and done.exception() is None:
                outcome = done.result()
                late = ToolLate(
                    *invocation.key,
                    invocation.execution_id,
                    outcome.status.value,
                    outcome.ended_at or timestamp(),
                )
                sink(late)

        body.add_done_callback(ended)

    def add_outlived(
        self, invocation: ToolInvocation, outcome: ToolOutcome, finished: asyncio.Event, sink: Sink
    ) -> None:
        """Report it as late when `finished` is set: the work behind `outcome`, which was given already."""

        async def end() -> ToolOutcome:
            await finished.wait()
            return replace(outcome, ended_at=timestamp())

        self.add(invocation, asyncio.get_running_loop().create_task(end(), name="tool-outlived"), sink)

    def any_of(self, execution_id: str) -> bool:
        """Whether one of this execution runs."""
        return any(self._waited_for(execution_id))

    async def wait(self, execution_id: str, timeout_s: float) -> frozenset[CallKey]:
        """See `ToolExecutor.quiesce`."""
        bodies = list(self._waited_for(execution_id))
        if bodies:
            await asyncio.wait(bodies, timeout=timeout_s)
        late = [body for body in bodies if body in self._running and not body.done()]
        self._abandoned.update(late)
        return frozenset(self._running[body].key for body in late)

    async def drain(self, timeout_s: float) -> None:
        """Wait for every body, abandoned ones included."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=timeout_s)

    def _waited_for(self, execution_id: str) -> Iterator[asyncio.Future[ToolOutcome]]:
        return (
            body
            for body, item in self._running.items()
            if item.execution_id == execution_id and body not in self._abandoned
        )


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
            return not_performed(self._invocation)
        if stopped:
            reason = "the body did not stop within the grace time"
            return unknown(self._invocation, reason, node=NODE, started=self._started)
        return timed_out(self._bound, self._invocation, node=NODE, started=self._started)

    def _body(self) -> ToolOutcome:
        if self._is_cancelled():
            return not_performed(self._invocation)
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
