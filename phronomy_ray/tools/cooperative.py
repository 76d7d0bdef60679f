"""Async tool bodies on an agent's event loop, and bodies of any kind that outlive their outcomes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from phronomy_ray.clock import timestamp
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.tool_calls import (
    CallKey,
    ToolInvocation,
    ToolLate,
    ToolOutcome,
    ToolProgress,
    ToolStarted,
)
from phronomy_ray.tool_environment import ToolEnvironment, enter_environment
from phronomy_ray.tools.envelope import NODE, run_async
from phronomy_ray.tools.executor import Sink
from phronomy_ray.tools.exits import contain_exits
from phronomy_ray.tools.outcomes import not_performed, unknown
from phronomy_ray.worker_inputs import WorkerInputRestricted


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
            sink(unknown(invocation.key, "the body went on after its cancellation", node=self._node))

    async def _run(
        self, invocation: ToolInvocation, bound: BoundTool, stop: asyncio.Event, sink: Sink
    ) -> None:
        outside = copy_context()
        enter_environment(self._environment)
        contain_exits()
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
            outside.run(sink, outcome)  # what goes on from here is no part of the body
        if not finished.is_set():
            self.stragglers.add_outlived(invocation, outcome, finished, sink)

    def _ended(self, task: asyncio.Task[None]) -> None:
        given = self._tasks.pop(task, None)
        if given is not None:  # cancelled before its first step
            invocation, sink = given
            sink(not_performed(invocation.key))


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
