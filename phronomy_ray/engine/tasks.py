"""The asyncio tasks of one engine: none is forgotten, and none ends in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from phronomy_ray.errors import PhronomyError

_LOG = logging.getLogger("phronomy_ray.engine")


class EngineTasks:
    """Tasks that are held until they end; `halt` is called with what a guarded one raises, or with an internal fault."""

    def __init__(self, agent_id: str, halt: Callable[[Exception], None]) -> None:
        self._agent_id = agent_id
        self._halt = halt
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(self._running)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Work whose error is its caller's to see, if it is a `PhronomyError`; any other is an internal fault."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def spawn_guarded(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Work that nobody awaits: whatever it raises halts the engine, which would never miss its kernel input else."""
        task = self.spawn(self._guard(work))
        # cancelled before its first step, nobody has awaited it
        task.add_done_callback(lambda _: work.close())
        return task

    async def _guard(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Exception as error:
            self._halt(error)
            if not isinstance(error, PhronomyError):
                raise

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, PhronomyError):
            _LOG.error("agent %s: internal fault", self._agent_id, exc_info=error)
            self._halt(error if isinstance(error, Exception) else RuntimeError(repr(error)))
