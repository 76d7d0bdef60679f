"""What the machine allows without any agent: asyncio, threads, and Ray used by hand."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from support.batch_scripts import Work
from support.tool_bodies import cpu_body, sleep_body, trivial_body

#: Shape of the best use of Ray that we know for blocking calls.
CHUNKS = 2
CHUNK_THREADS = 128
ACTOR_THREADS = 256

BODIES: dict[str, Callable[..., Any]] = {
    "trivial": trivial_body,
    "sleep50": sleep_body,
    "burn50": cpu_body,
    "touch": lambda n: str(n),
}

Call = Callable[[], object]


def local_floors(work: Work, stack: ExitStack) -> dict[str, Call]:
    """Floors in this process: ``asyncio_gather`` for an async body, ``threads`` for a plain one."""
    body = BODIES[work.tool]
    each = work.each()
    if work.tool == "trivial":

        async def gather() -> list[str]:
            found: list[str] = await asyncio.gather(*(body(**arguments) for arguments in each))
            return found

        return {"asyncio_gather": lambda: _complete(asyncio.run(gather()), work)}
    width = min(work.calls, ACTOR_THREADS)
    threads = stack.enter_context(ThreadPoolExecutor(width))

    async def in_threads() -> list[str]:
        loop = asyncio.get_running_loop()
        jobs = (loop.run_in_executor(threads, partial(body, **arguments)) for arguments in each)
        found: list[str] = await asyncio.gather(*jobs)
        return found

    return {"threads": lambda: _complete(asyncio.run(in_threads()), work)}


class RayFloors:
    """Ray by hand, on the Ray that this process is connected to."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._chunk = ray.remote(num_cpus=0, max_retries=0)(_chunk)
        self._blocking = ray.remote(max_retries=0)(_one)
        remote: Any = ray.remote(WarmActor)
        self._actor: Any = remote.options(num_cpus=0, max_concurrency=ACTOR_THREADS).remote()
        ray.get(self._actor.ready.remote())

    def of(self, work: Work) -> dict[str, Call]:
        """Floors for one batch."""
        each = work.each()
        floors: dict[str, Call] = {"ray_tasks": lambda: self.tasks(work, each)}
        if work.tool == "sleep50":
            floors["ray_chunks"] = lambda: self.chunks(work, each)
            floors["ray_warm_actor"] = lambda: self.warm_actor(work, each)
            floors["ray_warm_actor_calls"] = lambda: self.warm_actor_calls(work, each)
        return floors

    def tasks(self, work: Work, each: list[dict[str, Any]]) -> None:
        """One task for each call, one CPU each: Ray as it comes."""
        _complete(self._ray.get([self._blocking.remote(work.tool, item) for item in each]), work)

    def chunks(self, work: Work, each: list[dict[str, Any]]) -> None:
        """Few tasks that run many calls on threads and stream lists of what is ready."""
        count = max(1, min(CHUNKS, len(each)), -(-len(each) // CHUNK_THREADS))
        generators = [
            self._chunk.options(num_returns="streaming").remote(work.tool, each[index::count], CHUNK_THREADS)
            for index in range(count)
        ]
        _complete(asyncio.run(_drain(generators)), work)

    def warm_actor(self, work: Work, each: list[dict[str, Any]]) -> None:
        """One call of a warm actor, which runs the batch on threads and streams lists."""
        generator = self._actor.batch.options(num_returns="streaming").remote(work.tool, each)
        _complete(asyncio.run(_drain([generator])), work)

    def warm_actor_calls(self, work: Work, each: list[dict[str, Any]]) -> None:
        """One call of a warm actor for each call."""
        _complete(self._ray.get([self._actor.one.remote(work.tool, item) for item in each]), work)

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)


class WarmActor:
    """A process that is there already."""

    def ready(self) -> bool:
        """Whether it is up."""
        return True

    def one(self, tool: str, arguments: dict[str, Any]) -> str:
        """One call."""
        return _one(tool, arguments)

    def batch(self, tool: str, each: list[dict[str, Any]]) -> Iterator[list[str]]:
        """All calls on threads."""
        yield from _chunk(tool, each, ACTOR_THREADS)


def _one(tool: str, arguments: dict[str, Any]) -> str:
    result = BODIES[tool](**arguments)
    return result if isinstance(result, str) else asyncio.run(result)


def _chunk(tool: str, each: list[dict[str, Any]], threads: int) -> Iterator[list[str]]:
    ready: queue.SimpleQueue[str] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for item in each:
        waiting.put(item)

    def work() -> None:
        try:
            while True:
                ready.put(_one(tool, waiting.get_nowait()))
        except queue.Empty:
            return

    for _ in range(min(threads, len(each))):
        threading.Thread(target=work, daemon=True).start()
    left = len(each)
    while left:
        items = [ready.get()]
        try:
            while True:
                items.append(ready.get_nowait())
        except queue.Empty:
            pass
        left -= len(items)
        yield items


async def _drain(generators: list[Any]) -> list[str]:
    async def one(generator: Any) -> list[str]:
        found: list[str] = []
        async for reference in generator:
            found.extend(await reference)
        return found

    return [item for part in await asyncio.gather(*map(one, generators)) for item in part]


def _complete(results: list[str], work: Work) -> None:
    assert len(results) == work.calls
    assert all(isinstance(item, str) for item in results)
