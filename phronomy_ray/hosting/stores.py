"""The stores of one process: each opened once, and shared by all agents that live here."""

from __future__ import annotations

from collections.abc import Callable

from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.hosting.wiring import StoreConfig
from phronomy_ray.store.port import Store
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: Calls besides commits that run at once for the agents of a host.
HOST_THREADS = 3
#: The same for an agent alone.
AGENT_THREADS = 2

#: Opens a store with at most that many connections.
OpenStore = Callable[[StoreConfig, int], Store]


class ProcessStores(WorkerInputRestricted):
    """Use it on the process's event loop.

    Args:
        open_store: opens one; nothing is connected yet.
        threads: calls besides commits that can run at once.
        connections: most connections to each database.
    """

    def __init__(self, open_store: OpenStore, *, threads: int, connections: int) -> None:
        self._open_store = open_store
        self._threads = threads
        self._connections = connections
        self._stores: dict[StoreConfig, SharedStore] = {}

    def get(self, config: StoreConfig) -> SharedStore:
        """The store of this configuration."""
        found = self._stores.get(config)
        if found is None:
            store = self._open_store(config, self._connections)
            found = self._stores[config] = SharedStore(store, threads=self._threads)
        return found

    def close(self) -> None:
        """Release all connections and threads."""
        for store in self._stores.values():
            store.close()


__all__ = ["AGENT_THREADS", "HOST_THREADS", "OpenStore", "ProcessStores"]
