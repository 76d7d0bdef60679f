"""What the tool executors of one process share: the ways to the pools, and what their workers need to know."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping

from phronomy_ray.actors.pool_client import PoolClient
from phronomy_ray.actors.ray_calls import node_id, pickle_by_value, runtime_env_text
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_wire import WorkerSetup
from phronomy_ray.worker_inputs import WorkerInputRestricted


class PoolClients(WorkerInputRestricted):
    """The pools of a namespace. Use it on one event loop, in a process connected to Ray."""

    def __init__(self, namespace: str) -> None:
        self.node = node_id()
        self.setup = WorkerSetup(runtime_env_text(), tuple(entry for entry in sys.path if entry))
        self._namespace = namespace
        self._clients: dict[str, PoolClient] = {}
        self._sources: dict[DefinitionSource, tuple[bytes, str]] = {}

    def client(self, pool: str, configs: Mapping[str, PoolConfig]) -> PoolClient:
        """The way to one pool; whoever asks first says how it is bounded."""
        if pool not in self._clients:
            self._clients[pool] = PoolClient(pool, configs.get(pool, PoolConfig()), self._namespace)
        return self._clients[pool]

    def source(self, source: DefinitionSource) -> tuple[bytes, str]:
        """A definition source as bytes, and the key under which workers keep it."""
        if source not in self._sources:
            data = pickle_by_value(source)
            self._sources[source] = (data, hashlib.sha256(data).hexdigest()[:32])
        return self._sources[source]
