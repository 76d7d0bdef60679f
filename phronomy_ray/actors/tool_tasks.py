"""Blocking tools on Ray: chunked streaming tasks, each running its calls on threads.

* A chunk holds calls of one execution only; results come back as lists of whatever is ready.
* Calls that must not run twice (``replay="never"``) travel alone, or in few small chunks when there are many, since the
  death of a worker makes every unfinished call of its chunk unknown. Replayable calls share chunks, one per node; one
  that runs again after its worker's death travels as they do, lest it take the same siblings with it each time.
* Ray repeats nothing: ``max_retries=0``. Only the ledger decides what runs again.
* A chunk asks its owner now and then whether the execution was cancelled; after the grace time its worker is killed,
  which is allowed because everything in it belongs to that execution.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from phronomy_ray.actors.ray_calls import agent_name, alive_nodes, find_actor, node_id
from phronomy_ray.actors.wiring import DefinitionSource
from phronomy_ray.definition.agent import BoundTool
from phronomy_ray.definition.tool import ExecutionMode
from phronomy_ray.errors import ErrorRecord, PhronomyError
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import Attachment, CallKey, ToolInvocation, ToolOutcome, ToolStarted
from phronomy_ray.tools.envelope import missing_tool, redacted, run_sync, timed_out, timestamp, unknown
from phronomy_ray.tools.executor import CooperativeRuns, Sink
from phronomy_ray.tools.resolve import resolve_tool

#: Most chunks that the calls of one batch which travel alone are spread over.
MAX_LONE_CHUNKS = 16
#: Most calls of one chunk, which is its number of threads.
MAX_CHUNK_CALLS = 128
#: How often a chunk asks whether it should stop, in seconds.
CANCEL_POLL_S = 0.5
_NODES_CACHE_S = 10.0


class RayToolExecutor:
    """Runs cooperative bodies on the actor's loop and blocking ones in Ray tasks."""

    def __init__(self, source: DefinitionSource, namespace: str) -> None:
        self._source = source
        self._namespace = namespace
        self._cooperative = CooperativeRuns(node_id())
        self._chunks: dict[asyncio.Task[None], Any] = {}
        self._nodes = (0.0, 1)

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """See `tools.executor.ToolExecutor`."""
        blocking = []
        for invocation in invocations:
            bound = tools.get(invocation.tool_name)
            if bound is None:
                sink(missing_tool(invocation))
            elif bound.spec.execution_mode is ExecutionMode.COOPERATIVE:
                self._cooperative.start(invocation, bound, sink)
            else:
                blocking.append(invocation)
        if not blocking:
            return
        chunks = plan_chunks(blocking, tools, nodes=self._alive_nodes())
        options: dict[str, Any] = {"scheduling_strategy": "SPREAD"} if len(chunks) > 1 else {}
        for chunk in chunks:
            generator = _run_chunk.options(**options).remote(self._source, chunk, self._namespace)
            task = asyncio.get_running_loop().create_task(_consume(generator, chunk, sink))
            self._chunks[task] = generator
            task.add_done_callback(lambda done: self._chunks.pop(done, None))

    async def attach(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> Attachment:
        """See `tools.executor.ToolExecutor`; a task dies with its owner."""
        return Attachment()

    def acknowledge(self, keys: Sequence[CallKey]) -> None:
        """See `tools.executor.ToolExecutor`; nothing is kept."""

    def stragglers(self, execution_id: str) -> bool:
        """See `tools.executor.ToolExecutor`; unknown here."""
        return False

    async def quiesce(self, execution_id: str, timeout_s: float) -> frozenset[CallKey]:
        """See `tools.executor.ToolExecutor`."""
        return frozenset()

    async def stop(self, grace_s: float) -> None:
        """See `tools.executor.ToolExecutor`; chunks that have not ended after the grace time are killed."""
        await asyncio.gather(self._cooperative.stop(grace_s), self._stop_chunks(grace_s))

    def close(self) -> None:
        """See `tools.executor.ToolExecutor`."""

    async def _stop_chunks(self, grace_s: float) -> None:
        if not self._chunks:
            return
        _, late = await asyncio.wait(list(self._chunks), timeout=grace_s)
        for task in late:
            ray.cancel(self._chunks[task], force=True)
        if late:
            await asyncio.wait(late)

    def _alive_nodes(self) -> int:
        checked, count = self._nodes
        now = time.monotonic()
        if now - checked > _NODES_CACHE_S:
            count = alive_nodes()
            self._nodes = (now, count)
        return count


def plan_chunks(
    invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], *, nodes: int
) -> list[list[ToolInvocation]]:
    """Divide one batch into chunks; no call is lost and none stands twice."""
    never = [item for item in invocations if tools[item.tool_name].spec.replay == "never"]
    replayable = [item for item in invocations if tools[item.tool_name].spec.replay != "never"]
    alone = [item for item in replayable if item.alone]
    shared = [item for item in replayable if not item.alone]
    return [*_divide(never, MAX_LONE_CHUNKS), *_divide(alone, MAX_LONE_CHUNKS), *_divide(shared, nodes)]


def _divide(items: list[ToolInvocation], parts: int) -> list[list[ToolInvocation]]:
    if not items:
        return []
    parts = max(1, min(parts, len(items)), -(-len(items) // MAX_CHUNK_CALLS))
    return [items[index::parts] for index in range(parts)]


async def _consume(generator: Any, chunk: list[ToolInvocation], sink: Sink) -> None:
    """Hand on what the chunk yields; whatever has no outcome when it ends is unknown."""
    waiting = {(item.tool_call_id, item.attempt): item for item in chunk}
    started: dict[tuple[str, int], ToolStarted] = {}
    reason = "the worker ended without an outcome for this call"
    try:
        async for reference in generator:
            for item in await reference:
                key = (item.tool_call_id, item.attempt)
                if isinstance(item, ToolStarted):
                    started[key] = item
                elif waiting.pop(key, None) is None:
                    continue
                sink(item)
    except RayError as error:
        reason = f"the worker process was lost ({type(error).__name__})"
    for key, invocation in waiting.items():
        begun = started.get(key)
        sink(
            unknown(
                invocation,
                reason,
                node=begun.node if begun else "",
                started=begun.started_at if begun else "",
            )
        )


@ray.remote(num_cpus=0, max_retries=0, retry_exceptions=False)
def _run_chunk(
    source: DefinitionSource, invocations: list[ToolInvocation], namespace: str
) -> Iterator[list[ToolOutcome | ToolStarted]]:
    node = node_id()
    tools: dict[str, BoundTool] = {}
    unavailable: list[ToolOutcome | ToolStarted] = []
    for item in invocations:
        try:
            tools[item.tool_call_id] = resolve_tool(source, item)
        except Exception as error:  # noqa: BLE001 - the import of a user's module may raise anything
            unavailable.append(_unavailable(item, error, node))
    if unavailable:
        yield unavailable
    runnable = [item for item in invocations if item.tool_call_id in tools]
    if runnable:
        yield from _Chunk(tools, runnable, namespace, node).run()


class _Chunk:
    """The calls of one task, on threads."""

    def __init__(
        self, tools: Mapping[str, BoundTool], invocations: list[ToolInvocation], namespace: str, node: str
    ) -> None:
        #: Each call's tool, by the call's id.
        self._tools = tools
        self._invocations = invocations
        self._namespace = namespace
        self._node = node
        self._ready: queue.SimpleQueue[ToolOutcome | ToolStarted] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        #: When the present attempt of a call is over its time, and when the call began; none between two attempts.
        self._deadlines: dict[str, tuple[float, str]] = {}
        self._open = {item.tool_call_id: item for item in invocations}

    def run(self) -> Iterator[list[ToolOutcome | ToolStarted]]:
        for invocation in self._invocations:
            threading.Thread(target=self._work, args=(invocation,), daemon=True).start()
        asked = time.monotonic()
        while self._open:
            items = self._collect(self._wait_s())
            items.extend(self._overdue())
            if items:
                yield items
            if time.monotonic() - asked >= CANCEL_POLL_S:
                self._ask_owner()
                asked = time.monotonic()

    def _work(self, invocation: ToolInvocation) -> None:
        key, bound = invocation.tool_call_id, self._tools[invocation.tool_call_id]
        started = ToolStarted(key, invocation.attempt, self._node, os.getpid(), timestamp())
        self._ready.put(started)

        def on_attempt() -> None:
            self._deadlines[key] = (time.monotonic() + bound.spec.timeout_s, started.started_at)

        def on_attempt_end() -> None:
            self._deadlines.pop(key, None)

        self._ready.put(
            run_sync(
                bound,
                invocation,
                # a call that was given up for its time must not be tried again behind anybody's back
                is_cancelled=lambda: self._cancelled.is_set() or key not in self._open,
                node=self._node,
                on_attempt=on_attempt,
                on_attempt_end=on_attempt_end,
            )
        )

    def _collect(self, wait_s: float) -> list[ToolOutcome | ToolStarted]:
        items: list[ToolOutcome | ToolStarted] = []
        try:
            item = self._ready.get(timeout=wait_s)
            while True:
                if isinstance(item, ToolStarted) or self._open.pop(item.tool_call_id, None) is not None:
                    items.append(item)
                item = self._ready.get_nowait()
        except queue.Empty:
            return items

    def _overdue(self) -> list[ToolOutcome | ToolStarted]:
        now = time.monotonic()
        late = [(key, began) for key, (end, began) in self._running() if end <= now]
        return [
            timed_out(self._tools[key], self._open.pop(key), node=self._node, started=began)
            for key, began in late
        ]

    def _wait_s(self) -> float:
        nearest = min((end for _, (end, _) in self._running()), default=float("inf")) - time.monotonic()
        return max(0.0, min(CANCEL_POLL_S, nearest))

    def _running(self) -> list[tuple[str, tuple[float, str]]]:
        """Open calls whose body is in an attempt, with their entries of `_deadlines`, which other threads change."""
        return [(key, entry) for key in self._open if (entry := self._deadlines.get(key)) is not None]

    def _ask_owner(self) -> None:
        first = self._invocations[0]
        owner: Any = find_actor(agent_name(first.agent_id), self._namespace)
        if owner is None:
            return  # its death takes this task with it
        try:
            stop = ray.get(owner.is_cancelled.remote(first.execution_id), timeout=2.0)
        except (RayError, TimeoutError):
            return  # it cannot answer now and is asked again
        if stop:
            self._cancelled.set()


def _unavailable(invocation: ToolInvocation, error: Exception, node: str) -> ToolOutcome:
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
