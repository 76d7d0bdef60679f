"""What runs tool bodies on Ray: the worker process with its threads, and the task of one call. Shells, owned by a pool."""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import ray

from phronomy_ray.actors.memory_watch import MemoryWatch
from phronomy_ray.actors.ray_calls import node_id
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.tool_calls import CallKey, ToolInvocation, ToolOutcome
from phronomy_ray.tools.envelope import run_sync, timestamp
from phronomy_ray.tools.pool_wire import OUT_OF_MEMORY, News, StartedCalls, WorkerSetup, item_of, unknown
from phronomy_ray.tools.resolve import resolve_tool
from phronomy_ray.tools.worker_calls import WorkerCalls, unavailable

_LOG = logging.getLogger("phronomy_ray.pools")
#: Threads of the actor: one for its news, the others for calls that may wait for the import of an agent's module.
WORKER_CONCURRENCY = 16

#: How long the last news of a process may take to leave it, in seconds.
LAST_WORDS_S = 0.1
_KILLED = "the process that ran the tool was ended for its memory: {}"

#: Sources that this process has read, by key.
_SOURCES: dict[str, DefinitionSource] = {}


class ToolWorker:
    """A warm process that runs blocking bodies on threads."""

    def __init__(self, setup: WorkerSetup, memory_bytes: int | None = None) -> None:
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

    def run(self, source_key: str, source: bytes, payloads: Sequence[bytes]) -> None:
        """Begin calls; everything else comes as news."""
        calls = []
        for invocation in map(_invocation, payloads):
            try:
                calls.append((invocation, resolve_tool(_source(source_key, source), invocation)))
            except Exception as error:  # noqa: BLE001 - the import of a user's module may raise anything
                _LOG.warning("tool %s cannot be loaded", invocation.tool_name, exc_info=True)
                self._calls.refuse(invocation, error)
        if calls:
            self._calls.submit(calls)

    def cancel(self, keys: Sequence[CallKey]) -> None:
        """Tell bodies that they should stop."""
        self._calls.cancel(keys)

    def ping(self) -> None:
        """Sign of life."""


@ray.remote(max_retries=0, retry_exceptions=False)
def run_task(
    setup: WorkerSetup, source_key: str, source: bytes, payload: bytes, memory_bytes: int | None
) -> Iterator[list[News]]:
    """One call in a process of its own: a note that it has begun, then its outcome."""
    use_path(setup)
    invocation, node = _invocation(payload), node_id()
    try:
        bound = resolve_tool(_source(source_key, source), invocation)
    except Exception as error:  # noqa: BLE001 - as above
        yield [item_of(unavailable(invocation, error, node))]
        return
    started = timestamp()
    yield [StartedCalls((invocation.key,), node, os.getpid(), started)]
    ready: queue.SimpleQueue[ToolOutcome] = queue.SimpleQueue()

    def run_out(reason: str) -> None:
        ready.put(
            unknown(invocation.key, _KILLED.format(reason), code=OUT_OF_MEMORY, node=node, started=started)
        )

    def work() -> None:
        ready.put(run_sync(bound, invocation, is_cancelled=lambda: False, node=node))

    MemoryWatch(run_out, limit_bytes=memory_bytes).start()
    threading.Thread(target=work, name="phronomy-tool", daemon=True).start()
    outcome = ready.get()
    yield [item_of(outcome)]
    if outcome.error is not None and outcome.error.code == OUT_OF_MEMORY:
        time.sleep(LAST_WORDS_S)
        os.kill(os.getpid(), signal.SIGKILL)


def use_path(setup: WorkerSetup) -> None:
    """Import from where the agent's actor imports."""
    missing = [entry for entry in setup.sys_path if entry not in sys.path]
    sys.path[:0] = missing


def _source(source_key: str, data: bytes) -> DefinitionSource:
    """An agent's source, read once per process: a class that travels by value is made anew each time it is read."""
    source = _SOURCES.get(source_key)
    if source is None:
        source = _SOURCES[source_key] = pickle.loads(data)  # noqa: S301 - written by the agent's actor
    return source


def _invocation(payload: bytes) -> ToolInvocation:
    invocation: ToolInvocation = pickle.loads(payload)  # noqa: S301 - as above
    return invocation
