"""One streamed model answer as groups that are asked for: plain asyncio, without Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from phronomy_ray.models.port import ModelAnswer, StreamItem, TextDelta
from phronomy_ray.models.retry import close_stream

#: Text is handed over in groups at most this often, in seconds.
BATCH_INTERVAL_S = 0.03


class StreamGroup(NamedTuple):
    """What has come since the group before."""

    items: list[StreamItem]
    #: Whether nothing follows. The `ModelAnswer` is the last item then, unless the stream was cancelled.
    is_over: bool


class AnswerStream:
    """Reads a model's stream as fast as it comes, and hands it over in groups."""

    def __init__(self, items: AsyncIterator[StreamItem]) -> None:
        self._queue: asyncio.Queue[StreamItem | None] = asyncio.Queue()
        self._sent_at = float("-inf")
        self._is_read = False
        #: The reading of the model's stream; cancelling it ends the stream and closes the provider's connection.
        self.task = asyncio.create_task(self._read(items))
        self.task.add_done_callback(lambda _: self._queue.put_nowait(None))

    async def next(self) -> StreamGroup:
        """The next group. The first piece goes out at once; what comes within an interval after it goes together.

        Raises:
            ModelError: the call has failed; everything that came before was handed over.
        """
        if not self._is_read:
            group = [await self._queue.get()]
            rest_s = self._sent_at + BATCH_INTERVAL_S - time.monotonic()
            if rest_s > 0 and not isinstance(group[0], ModelAnswer) and not self.task.done():
                await asyncio.wait({self.task}, timeout=rest_s)
            while not self._queue.empty():
                group.append(self._queue.get_nowait())
            self._sent_at = time.monotonic()
            self._is_read = group[-1] is None
            items = merge_text(item for item in group if item is not None)
            if items:
                return StreamGroup(items, is_over=isinstance(items[-1], ModelAnswer))
        if not self.task.cancelled():
            self.task.result()
        return StreamGroup([], is_over=True)

    async def _read(self, items: AsyncIterator[StreamItem]) -> None:
        try:
            async for item in items:
                self._queue.put_nowait(item)
        finally:
            await close_stream(items)


def merge_text(items: Iterable[StreamItem]) -> list[StreamItem]:
    """The items with neighbouring texts joined."""
    merged: list[StreamItem] = []
    texts: list[str] = []
    for item in items:
        if isinstance(item, TextDelta):
            texts.append(item.text)
            continue
        if texts:
            merged.append(TextDelta("".join(texts)))
            texts = []
        merged.append(item)
    if texts:
        merged.append(TextDelta("".join(texts)))
    return merged
