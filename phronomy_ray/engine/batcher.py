"""What many ask for at the same time, done at once: whatever arrives while one batch is being done is the next batch.

No timer and no waiting for company: the first one goes at once, alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Batches of one kind of work, one at a time, on one event loop.

    Args:
        work: does a batch; an outcome for each item in order, or an error that is everybody's.
        most: limit of one batch.
        key_of: two items of one key are done in the order of the calls, and never in one batch; ``None`` for no such rule.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], Awaitable[Sequence[R | Exception]]],
        *,
        most: int,
        key_of: Callable[[T], Hashable] | None = None,
    ) -> None:
        self._work = work
        self._most = most
        self._key_of = key_of
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._running: asyncio.Task[None] | None = None
        #: Batches that were begun, and the items in them.
        self.batches = 0
        self.items = 0

    async def ask(self, item: T) -> R:
        """Have `item` done; begins after this call. A caller that is cancelled does not undo it.

        Raises the error that is its outcome.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, done))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return await done

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._do_next()
        finally:
            self._running = None

    async def _do_next(self) -> None:
        batch = self._take()
        self.batches += 1
        self.items += len(batch)
        outcomes: Sequence[R | Exception]
        try:
            outcomes = await self._work([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of all who wait
            outcomes = [error] * len(batch)
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            if done.done():
                continue
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)

    def _take(self) -> list[tuple[T, asyncio.Future[R]]]:
        """The next batch, in order; a second item of one key waits for the batch after it."""
        batch: list[tuple[T, asyncio.Future[R]]] = []
        later: list[tuple[T, asyncio.Future[R]]] = []
        keys: set[Hashable] = set()
        while self._waiting and len(batch) < self._most:
            item = self._waiting.popleft()
            if self._key_of is None:
                batch.append(item)
                continue
            key = self._key_of(item[0])
            (later if key in keys else batch).append(item)
            keys.add(key)
        self._waiting.extendleft(reversed(later))
        return batch


__all__ = ["Batcher"]
