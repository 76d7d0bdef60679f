"""`AgentProcess`: the process around agents, as they see it. A dedicated actor, a host of many and the driver are the three."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.hosting.agent_port import AgentDirectory
from phronomy_ray.hosting.wiring import AgentWiring, StoreConfig
from phronomy_ray.models.port import ModelPort
from phronomy_ray.tool_environment import ToolEnvironment
from phronomy_ray.tools.executor import ToolExecutor

if TYPE_CHECKING:
    from phronomy_ray.hosting.agent_life import AgentLife


class Waiters:
    """Calls that wait in one process at once, each of which costs some 50 KB; bounded."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0


class AgentProcess(Protocol):
    """The process around an agent: what it gives to the agent, and what it is told."""

    @property
    def owner(self) -> Mapping[str, Any]:
        """Who owns what lives here, as the store and people are told: ``actor``, node, pid, host."""
        ...

    def store(self, config: StoreConfig) -> SharedStore:
        """The store that all agents of this process share; the same one for the same configuration."""
        ...

    def model(self, wiring: AgentWiring) -> ModelPort:
        """The way to models that are given by name."""
        ...

    def embeddings(self, wiring: AgentWiring) -> EmbeddingPort:
        """The way to embeddings."""
        ...

    def tools(
        self, agent_id: str, wiring: AgentWiring, definition: AgentDefinition, environment: ToolEnvironment
    ) -> ToolExecutor:
        """An executor for one agent's tools."""
        ...

    def directory(self, wiring: AgentWiring) -> AgentDirectory:
        """Where child agents are found."""
        ...

    @property
    def waiters(self) -> Waiters:
        """How many calls wait in this process."""
        ...

    def left(self, agent: AgentLife) -> None:
        """The agent was unloaded or deleted; it serves nobody here any more."""
        ...

    def lost(self, agent: AgentLife) -> None:
        """Another owner has taken the agent."""
        ...
