"""A process on the cluster in which agents live: their store, models, tools and children, shared by all of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from phronomy_ray.actors.mcp_client import GatewayAccess
from phronomy_ray.actors.pool_clients import PoolClients
from phronomy_ray.actors.ray_calls import cluster_name, node_id
from phronomy_ray.actors.tool_executor import RayToolExecutor
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.hosting.agent_life import AgentLife
from phronomy_ray.hosting.agent_port import AgentDirectory
from phronomy_ray.hosting.agent_process import Waiters
from phronomy_ray.hosting.stores import AGENT_THREADS, HOST_THREADS, ProcessStores
from phronomy_ray.hosting.wiring import AgentWiring, StoreConfig
from phronomy_ray.mcp import access
from phronomy_ray.models.port import ModelPort
from phronomy_ray.store.port import Store
from phronomy_ray.store.sql_store import StoreOptions, open_store
from phronomy_ray.tool_environment import ToolEnvironment
from phronomy_ray.tools.executor import ToolExecutor
from phronomy_ray.worker_inputs import WorkerInputRestricted

if TYPE_CHECKING:
    from phronomy_ray.actors.gateway_client import GatewayModel


def agent_stores() -> ProcessStores:
    """Stores of a process with one agent: one connection, since servers have few."""
    return ProcessStores(_open_store, threads=AGENT_THREADS, connections=1)


def host_stores() -> ProcessStores:
    """Stores of a process with many agents."""
    return ProcessStores(_open_store, threads=HOST_THREADS, connections=HOST_THREADS + 1)


def _open_store(config: StoreConfig, connections: int) -> Store:
    options = StoreOptions(pool_size=connections)
    return open_store(config.url, content_key=config.content_key, options=options)


class RayProcess(WorkerInputRestricted):
    """`AgentProcess` of an actor. Use it on the actor's event loop."""

    def __init__(
        self,
        actor_name: str,
        namespace: str,
        *,
        max_waiters: int,
        stores: ProcessStores,
        on_left: Callable[[AgentLife], None],
        on_lost: Callable[[AgentLife], None],
        on_loop_work: Callable[[str], None],
    ) -> None:
        """
        Args:
            actor_name: name of the actor.
            namespace: of the actor.
            max_waiters: calls that may wait in it at once.
            stores: the stores of this process (`agent_stores`, `host_stores`).
            on_left: an agent was unloaded or deleted.
            on_lost: another owner has taken an agent.
            on_loop_work: tool bodies of this agent begin on the event loop.
        """
        self.waiters = Waiters(max_waiters)
        self.owner: Mapping[str, Any] = {
            "actor": actor_name,
            "cluster": cluster_name(namespace),
            "node": node_id(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self.left = on_left
        self.lost = on_lost
        self._on_loop_work = on_loop_work
        self._stores = stores
        self._gateways: dict[tuple[str, int], GatewayModel] = {}
        self._pools: dict[str, PoolClients] = {}

    def store(self, config: StoreConfig) -> SharedStore:
        """As `AgentProcess.store`."""
        return self._stores.get(config)

    def model(self, wiring: AgentWiring) -> ModelPort:
        """As `AgentProcess.model`: the model gateways."""
        return self._gateway(wiring)

    def embeddings(self, wiring: AgentWiring) -> EmbeddingPort:
        """As `AgentProcess.embeddings`: the model gateways."""
        return self._gateway(wiring)

    def tools(
        self, agent_id: str, wiring: AgentWiring, definition: AgentDefinition, environment: ToolEnvironment
    ) -> ToolExecutor:
        """As `AgentProcess.tools`: cooperative bodies here, all others in pools."""
        namespace = wiring.namespace
        if namespace not in self._pools:
            self._pools[namespace] = PoolClients(namespace)
            access.install(GatewayAccess(namespace=namespace))
        executor = RayToolExecutor(
            wiring.definition,
            self._pools[namespace],
            wiring.pools,
            environment,
            on_loop_work=lambda: self._on_loop_work(agent_id),
        )
        executor.prepare(definition.tools.values())
        return executor

    def directory(self, wiring: AgentWiring) -> AgentDirectory:
        """As `AgentProcess.directory`."""
        from phronomy_ray.actors.directory import RayDirectory

        return RayDirectory(wiring.namespace, wiring.placement, self.store(wiring.store).store)

    def _gateway(self, wiring: AgentWiring) -> GatewayModel:
        key = (wiring.namespace, wiring.gateways)
        if key not in self._gateways:
            from phronomy_ray.actors.gateway_client import GatewayModel

            self._gateways[key] = GatewayModel(namespace=wiring.namespace, gateways=wiring.gateways)
        return self._gateways[key]
