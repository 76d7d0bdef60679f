"""What an agent's actor offers to its cooperative tools; nothing of it costs anything before it is used."""

from __future__ import annotations

from collections.abc import Callable

from phronomy_ray.actors.child_agents import ActorChildAgents, ParentView
from phronomy_ray.actors.wiring import AgentWiring
from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingPort, EmbeddingRequest
from phronomy_ray.engine.engine import AgentEngine
from phronomy_ray.store.port import Store
from phronomy_ray.tool_environment import ToolEnvironment


class GatewayEmbeddings:
    """Embeddings through the model gateways, whose client is imported when it is first needed."""

    def __init__(self, namespace: str, gateways: int) -> None:
        self._namespace = namespace
        self._gateways = gateways
        self._port: EmbeddingPort | None = None

    async def embed(self, request: EmbeddingRequest) -> EmbeddingAnswer:
        """As `EmbeddingPort.embed`."""
        if self._port is None:
            from phronomy_ray.actors.gateway_client import GatewayModel

            self._port = GatewayModel(namespace=self._namespace, gateways=self._gateways)
        return await self._port.embed(request)


def environment_of(
    agent_id: str, wiring: AgentWiring, store: Store, engine: Callable[[], AgentEngine]
) -> ToolEnvironment:
    """The environment of one agent's tools; `engine` is asked only while a tool runs."""
    parent = ParentView(
        definition_id=lambda: engine().definition.definition_id,
        metadata=lambda: engine().state.root.metadata,
        is_cancelled=lambda execution_id: engine().is_cancelled(execution_id),
        quiescence_timeout_s=lambda: engine().definition.quiescence_timeout_s,
    )
    return ToolEnvironment(
        agent_id,
        embeddings=GatewayEmbeddings(wiring.namespace, wiring.gateways),
        children=ActorChildAgents(agent_id, wiring, store, parent),
    )
