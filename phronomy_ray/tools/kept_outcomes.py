"""Outcomes that wait to be acknowledged: bounded in number, bytes and time; the oldest goes first. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_wire import PoolItem


class KeptOutcomes:
    """Outcomes by call, the oldest first."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._items: OrderedDict[CallKey, tuple[PoolItem, float]] = OrderedDict()
        self._bytes = 0
        #: Outcomes that were dropped before anybody acknowledged them.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        """Bytes of all kept outcomes."""
        return self._bytes

    def get(self, key: CallKey) -> PoolItem | None:
        """The outcome of a call, if it is kept."""
        found = self._items.get(key)
        return found[0] if found is not None else None

    def keep(self, item: PoolItem, *, now: float) -> None:
        """Keep an outcome until it is acknowledged or too old, or there is no room."""
        self._remove(item.key)
        self._items[item.key] = (item, now)
        self._bytes += len(item.payload)
        while self._items and (
            len(self._items) > self._config.kept_outcomes or self._bytes > self._config.kept_bytes
        ):
            self._remove(next(iter(self._items)))
            self.dropped += 1

    def acknowledge(self, keys: Iterable[CallKey]) -> None:
        """Forget these."""
        for key in keys:
            self._remove(key)

    def expire(self, *, now: float) -> None:
        """Forget what is too old."""
        while self._items:
            key, (_, since) = next(iter(self._items.items()))
            if now - since < self._config.kept_s:
                return
            self._remove(key)
            self.dropped += 1

    def _remove(self, key: CallKey) -> None:
        found = self._items.pop(key, None)
        if found is not None:
            self._bytes -= len(found[0].payload)
