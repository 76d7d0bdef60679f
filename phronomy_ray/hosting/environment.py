"""What an agent's process offers to its cooperative tools; nothing of it costs anything before it is used."""

from __future__ import annotations

from collections.abc import Callable

from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingPort, EmbeddingRequest
from phronomy_ray.engine.engine import AgentEngine
from phronomy_ray.hosting.agent_port import AgentDirectory
from phronomy_ray.hosting.child_agents import HostedChildAgents, ParentView
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.store.port import Store
from phronomy_ray.tool_environment import ToolEnvironment


class LazyEmbeddings:
    """Embeddings through a port that is made when it is first needed."""

    def __init__(self, make: Callable[[], EmbeddingPort]) -> None:
        self._make = make

    async def embed(self, request: EmbeddingRequest) -> EmbeddingAnswer:
        """As `EmbeddingPort.embed`."""
        return await self._make().embed(request)


def environment_of(
    agent_id: str,
    wiring: AgentWiring,
    store: Store,
    *,
    directory: AgentDirectory,
    embeddings: Callable[[], EmbeddingPort],
    engine: Callable[[], AgentEngine],
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
        embeddings=LazyEmbeddings(embeddings),
        children=HostedChildAgents(agent_id, wiring, store, parent, directory),
    )
