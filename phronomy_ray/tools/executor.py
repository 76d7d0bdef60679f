"""The executor port, and the executor that needs no Ray: async bodies on the loop, blocking ones on threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from phronomy_ray.definition.agent import BoundTool
from phronomy_ray.definition.tool import ExecutionMode
from phronomy_ray.tool_calls import ToolInvocation, ToolOutcome, ToolStarted
from phronomy_ray.tools.envelope import NODE, run_async, run_sync, timed_out, timestamp, unknown

Sink: TypeAlias = Callable[[ToolOutcome | ToolStarted], None]


class ToolExecutor(Protocol):
    """Runs the bodies of one agent. All methods are called on the agent's event loop."""

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """Run all side by side and give `sink` exactly one outcome for each; returns at once."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Ask every running body to stop; after `grace_s` seconds those that have not are given up as ``unknown``.

        Returns when each dispatched call has had its outcome.
        """
        ...

    def close(self) -> None:
        """Release what the executor holds; nothing is running."""
        ...


class CooperativeRuns:
    """Async bodies on the present loop: the part that every executor shares."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._stopping = False

    def start(self, invocation: ToolInvocation, bound: BoundTool, sink: Sink) -> None:
        """Run one call as a task."""
        self._stopping = False
        key = (invocation.tool_call_id, invocation.attempt)
        task = asyncio.get_running_loop().create_task(
            self._run(invocation, bound, sink), name=f"tool:{key[0]}"
        )
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def stop(self) -> None:
        """Cancel every task and wait until each has given its outcome."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, invocation: ToolInvocation, bound: BoundTool, sink: Sink) -> None:
        sink(ToolStarted(invocation.tool_call_id, invocation.attempt, NODE, os.getpid(), timestamp()))
        sink(await run_async(bound, invocation, is_cancelled=lambda: self._stopping))


class LocalToolExecutor:
    """Runs everything in the present process."""

    def __init__(self, *, threads: int = 64) -> None:
        self._cooperative = CooperativeRuns()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="phronomy-tool")
        self._blocking: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._grace_over = asyncio.Event()

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """See `ToolExecutor`."""
        self._stopping.clear()
        self._grace_over.clear()
        for invocation in invocations:
            bound = tools[invocation.tool_name]
            if bound.spec.execution_mode is ExecutionMode.COOPERATIVE:
                self._cooperative.start(invocation, bound, sink)
                continue
            key = (invocation.tool_call_id, invocation.attempt)
            task = asyncio.get_running_loop().create_task(self._run_blocking(invocation, bound, sink))
            self._blocking[key] = task
            task.add_done_callback(lambda _, key=key: self._blocking.pop(key, None))  # type: ignore[misc]

    async def stop(self, grace_s: float) -> None:
        """See `ToolExecutor`."""
        self._stopping.set()
        await self._cooperative.stop()
        tasks = list(self._blocking.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            self._grace_over.set()
            if late:
                await asyncio.wait(late)

    def close(self) -> None:
        """See `ToolExecutor`."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run_blocking(self, invocation: ToolInvocation, bound: BoundTool, sink: Sink) -> None:
        loop = asyncio.get_running_loop()
        started = timestamp()
        sink(ToolStarted(invocation.tool_call_id, invocation.attempt, NODE, os.getpid(), started))
        body = loop.run_in_executor(
            self._threads,
            lambda: run_sync(bound, invocation, is_cancelled=self._stopping.is_set),
        )
        grace = loop.create_task(self._grace_over.wait())
        waiting: set[asyncio.Future[Any]] = {body, grace}
        done, _ = await asyncio.wait(
            waiting, timeout=bound.spec.timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        grace.cancel()
        if body in done:
            sink(body.result())
        elif grace in done:
            sink(
                unknown(invocation, "the body did not stop within the grace time", node=NODE, started=started)
            )
        else:
            sink(timed_out(bound, invocation, node=NODE, started=started))
