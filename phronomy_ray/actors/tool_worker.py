"""What runs tool bodies on Ray: the worker process with its threads, and the task of one call. Shells, owned by a pool."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from phronomy_ray.actors.memory_watch import MemoryWatch
from phronomy_ray.actors.ray_calls import find_actor, node_id
from phronomy_ray.actors.signals import die_at_sigterm
from phronomy_ray.clock import timestamp
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.tool_calls import CallKey, ToolInvocation
from phronomy_ray.tools.envelope import run_sync
from phronomy_ray.tools.pool_wire import (
    OUT_OF_MEMORY,
    News,
    PoolItem,
    StartedCalls,
    WorkerSetup,
    item_of,
    progress_item,
)
from phronomy_ray.tools.resolve import resolve_tool
from phronomy_ray.tools.worker_calls import WorkerCalls, unavailable

_LOG = logging.getLogger("phronomy_ray.pools")
#: Threads of the actor: one for its news, the others for calls that may wait for the import of an agent's module.
WORKER_CONCURRENCY = 16

#: How long the last news of a process may take to leave it, in seconds.
LAST_WORDS_S = 0.1
#: How long a task that ends itself waits for the pool to hear of it, in seconds.
LAST_CALL_S = 2.0

#: Sources that this process has read, by key, and how many it remembers.
_SOURCES: dict[str, DefinitionSource] = {}
MAX_SOURCES = 1_000
#: Handles of pools' actors by name and namespace.
_POOLS: dict[tuple[str, str], Any] = {}


class ToolWorker:
    """A warm process that runs blocking bodies on threads."""

    def __init__(self, setup: WorkerSetup, memory_bytes: int | None = None) -> None:
        die_at_sigterm()
        use_path(setup)
        self._calls = WorkerCalls(node_id())
        watch = MemoryWatch(
            self._run_out, limit_bytes=memory_bytes, is_needed=lambda: self._calls.running > 0
        )
        watch.start()

    def _run_out(self, reason: str) -> None:
        self._calls.announce_end(reason, OUT_OF_MEMORY)
        time.sleep(LAST_WORDS_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def news(self) -> Iterator[list[News]]:
        """What happens here, for ever; an empty list first, when the process is ready."""
        yield []
        yield from self._calls.serve()

    def run(self, sources: Mapping[str, bytes], calls: Sequence[tuple[CallKey, str, bytes]]) -> None:
        """Begin calls; everything else comes as news.

        Args:
            sources: pickled `DefinitionSource` by key.
            calls: of each its key, the key of its source and its pickled `ToolInvocation`.
        """
        loaded = []
        for key, source_key, payload in calls:
            try:
                invocation = _invocation(payload)
                source = _source(source_key, sources[source_key])
                loaded.append((invocation, resolve_tool(source, invocation)))
            except Exception as error:  # noqa: BLE001 - the import of a user's module may raise anything
                _LOG.warning("call %s, attempt %d, cannot be loaded", *key, exc_info=True)
                self._calls.refuse(key, error)
        if loaded:
            self._calls.submit(loaded)

    def cancel(self, keys: Sequence[CallKey]) -> None:
        """Tell bodies that they should stop."""
        self._calls.cancel(keys)

    def ping(self) -> None:
        """Sign of life."""


class TaskHeader(NamedTuple):
    """What the tasks of one agent have in common."""

    setup: WorkerSetup
    source_key: str
    source: bytes
    memory_bytes: int | None
    #: Name and namespace of the pool's actor.
    pool: tuple[str, str]


@ray.remote(max_retries=0, retry_exceptions=False)
def run_task(header: bytes, payload: bytes) -> PoolItem:
    """One call in a process of its own; the pool is told when it begins, since its clock starts then."""
    common: TaskHeader = pickle.loads(header)  # noqa: S301 - written by the pool
    use_path(common.setup)
    invocation, node = _invocation(payload), node_id()
    try:
        bound = resolve_tool(_source(common.source_key, common.source), invocation)
    except Exception as error:  # noqa: BLE001 - as above
        return item_of(unavailable(invocation.key, error, node))
    pool = _pool(*common.pool)

    def tell(news: News) -> None:
        if pool is not None:
            pool.task_news.remote([news])

    tell(StartedCalls((invocation.key,), node, os.getpid(), timestamp()))
    _TASKS.begin(invocation.key, pool, common.memory_bytes)
    try:
        return item_of(
            run_sync(
                bound,
                invocation,
                is_cancelled=lambda: False,  # it is killed
                node=node,
                on_progress=lambda value: tell(progress_item(invocation.key, value)),
            )
        )
    finally:
        _TASKS.end()


class _Tasks:
    """The task that this process runs, and a watch on its memory."""

    def __init__(self) -> None:
        self._running: tuple[CallKey, Any] | None = None
        self._watch: MemoryWatch | None = None

    def begin(self, key: CallKey, pool: Any, memory_bytes: int | None) -> None:
        self._running = (key, pool)
        if self._watch is None:
            self._watch = MemoryWatch(
                self._run_out, limit_bytes=memory_bytes, is_needed=lambda: self._running is not None
            )
            self._watch.start()

    def end(self) -> None:
        self._running = None

    def _run_out(self, reason: str) -> None:
        key, pool = self._running or (None, None)
        if pool is not None:
            try:
                ray.get(pool.task_ends.remote(key, reason, OUT_OF_MEMORY), timeout=LAST_CALL_S)
            except (RayError, TimeoutError):
                _LOG.warning("the pool could not be told of the end of this process: %s", reason)
        os.kill(os.getpid(), signal.SIGKILL)


_TASKS = _Tasks()


def _pool(name: str, namespace: str) -> Any:
    """The pool's actor; ``None`` when there is none now, which may be another time."""
    found = _POOLS.get((name, namespace)) or find_actor(name, namespace)
    if found is not None:
        _POOLS[name, namespace] = found
    return found


def use_path(setup: WorkerSetup) -> None:
    """Import from where the agent's actor imports."""
    missing = [entry for entry in setup.sys_path if entry not in sys.path]
    sys.path[:0] = missing


def _source(source_key: str, data: bytes) -> DefinitionSource:
    """An agent's source, read once per process: a class that travels by value is made anew each time it is read."""
    source = _SOURCES.get(source_key)
    if source is None:
        if len(_SOURCES) >= MAX_SOURCES:
            del _SOURCES[next(iter(_SOURCES))]
        source = _SOURCES[source_key] = pickle.loads(data)  # noqa: S301 - written by the agent's actor
    return source


def _invocation(payload: bytes) -> ToolInvocation:
    invocation: ToolInvocation = pickle.loads(payload)  # noqa: S301 - as above
    return invocation
