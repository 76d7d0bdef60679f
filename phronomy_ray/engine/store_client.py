"""The store from an event loop: calls on a small thread pool, and commits that are settled before anybody goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from tenacity import retry_if_exception_type, stop_after_delay, wait_exponential, wait_random
from tenacity.asyncio import AsyncRetrying

from phronomy_ray.commits import Commit
from phronomy_ray.errors import AgentUnloadedError, CommitOutcomeUnknownError, StoreUnavailableError
from phronomy_ray.store.port import Store
from phronomy_ray.worker_inputs import WorkerInputRestricted

P = ParamSpec("P")
R = TypeVar("R")

#: How long an unreachable store is tried again before the agent stops, in seconds.
RETRY_S = 10.0
#: How long an unused connection is kept, in seconds: an agent that waits for a human needs none, and servers have few.
IDLE_CLOSE_S = 30.0


class StoreClient(WorkerInputRestricted):
    """A store on threads, with retries of what is known not to have happened."""

    def __init__(self, store: Store, *, retry_s: float = RETRY_S, threads: int = 2) -> None:
        self.store = store
        self._retry_s = retry_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="phronomy-store")
        self._running = 0
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`function` on a thread; an unreachable store is tried again for `retry_s` seconds.

        Raises what `function` raises, and `StoreUnavailableError` at the end of the retries.
        """
        loop = asyncio.get_running_loop()
        self._running += 1
        if self._idle is not None:
            self._idle.cancel()
        try:
            async for attempt in self._retrying():
                with attempt:
                    if self._closed:
                        raise AgentUnloadedError("the agent was unloaded from this process")
                    return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        finally:
            self._running -= 1
            if not self._running and not self._closed:
                self._idle = loop.call_later(IDLE_CLOSE_S, self._release)
        raise AssertionError("unreachable")

    async def commit(self, commit: Commit) -> None:
        """Execute `commit`; when its outcome is unknown, find out under the root row's lock before anything else.

        Raises:
            CommitOutcomeUnknownError: it could not be found out; the agent must stay closed.
        """
        try:
            await self.run(self.store.execute, commit)
        except CommitOutcomeUnknownError as lost:
            try:
                happened = await self.run(
                    self.store.settle, commit.agent_id, epoch=commit.epoch, commit_id=commit.commit_id
                )
            except StoreUnavailableError as error:
                raise lost from error
            if not happened:
                await self.run(self.store.execute, commit)

    def close(self) -> None:
        """Release connections and threads."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        self.store.close()
        self._threads.shutdown(wait=False)

    def _release(self) -> None:
        """Give the connection back to the server; the next call opens one again."""
        if not self._running and not self._closed:
            self._threads.submit(self.store.close)

    def _retrying(self) -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_delay(self._retry_s),
            wait=wait_exponential(multiplier=0.05, max=1.0) + wait_random(0, 0.05),
            reraise=True,
        )
