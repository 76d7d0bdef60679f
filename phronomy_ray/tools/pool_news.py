"""Who hears of which calls of a pool: news are collected for each listener and handed over when it asks.

A listener asks with ordinary calls that wait; nothing is pushed. A process that is stopped or cut off from us therefore
holds up nobody but itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_wire import News

#: Least time between two lists of news of one batch for each call that is still open, and at most, in seconds.
LISTS_PER_CALL_S = 0.006
LISTS_EVERY_S = 0.4
#: A listener that has not asked for so long is forgotten, in seconds; what became of its calls is kept elsewhere.
FORGOTTEN_AFTER_S = 60.0


class NewsList(NamedTuple):
    """What a listener is told at once."""

    news: list[News]
    #: Whether there is no more to come.
    is_over: bool


class Subscription:
    """What one listener is told: news of its calls, in lists of whatever is ready, until all of them are over."""

    def __init__(self) -> None:
        self.open: set[CallKey] = set()
        #: Whether it waits for an answer right now.
        self.is_asking = False
        self._is_closed = False
        self._news: list[News] = []
        self._ready = asyncio.Event()
        self._told_at = float("-inf")

    def tell(self, news: News) -> None:
        """Add news."""
        if not self._is_closed:
            self._news.append(news)
            self._ready.set()

    def drop(self, key: CallKey) -> None:
        """This listener hears no more of the call."""
        self.open.discard(key)
        if not self.open:
            self._ready.set()

    def close(self) -> None:
        """Nobody listens any more."""
        self._is_closed = True
        self._news.clear()
        self.open.clear()
        self._ready.set()

    async def next(self) -> NewsList:
        """All news so far, in order; waits for the first. While calls are open, lists keep a distance that grows with their
        number: each list costs its reader a commit. The end of the last call waits for nothing.
        """
        loop = asyncio.get_running_loop()
        self.is_asking = True
        try:
            while self.open and not self._news:
                self._ready.clear()
                await self._ready.wait()
            while self.open and (rest_s := self._told_at + self._distance_s() - loop.time()) > 0:
                self._ready.clear()
                try:
                    async with asyncio.timeout(rest_s):
                        await self._ready.wait()
                except TimeoutError:
                    break
            self._told_at = loop.time()
            news, self._news = self._news, []
            return NewsList(news, is_over=not self.open)
        finally:
            self.is_asking = False

    def _distance_s(self) -> float:
        return min(LISTS_EVERY_S, LISTS_PER_CALL_S * len(self.open))


class Listeners:
    """Subscriptions under the names that their listeners gave them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[Subscription, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, name: str) -> Subscription:
        """A new one."""
        subscription = Subscription()
        self._known[name] = subscription, self._clock()
        return subscription

    async def next(self, name: str) -> NewsList | None:
        """The next news of a listener; ``None`` when nobody of this name is known."""
        if name not in self._known:
            return None
        subscription, _ = self._known[name]
        told = await subscription.next()
        if told.is_over:
            self._known.pop(name, None)
        elif name in self._known:
            self._known[name] = subscription, self._clock()
        return told

    def forget_silent(self) -> None:
        """Forget those that have not asked for a long time: their process is gone or stopped."""
        now = self._clock()
        for name, (subscription, asked_at) in list(self._known.items()):
            if not subscription.is_asking and now - asked_at >= FORGOTTEN_AFTER_S:
                subscription.close()
                del self._known[name]
