"""What an engine is made of: the ports and settings that its process gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phronomy_ray.assembly.sources import SourceReference
from phronomy_ray.clock import Clock, SystemClock
from phronomy_ray.definition.options import InstanceOptions, RuntimeDefaults
from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.models.port import ModelPort
from phronomy_ray.store.port import Store
from phronomy_ray.tool_calls import ToolSettings
from phronomy_ray.tools.executor import ToolExecutor


@dataclass
class EngineParts:
    """What an engine is wired to."""

    #: A store of the agent's own, closed with it, or the one that the agents of its process share.
    store: Store | SharedStore
    model: ModelPort
    tools: ToolExecutor
    clock: Clock = field(default_factory=SystemClock)
    #: Who the owner is, for people: node, pid.
    owner: dict[str, Any] = field(default_factory=dict)
    #: Called once when another owner has taken the agent.
    on_ownership_lost: Callable[[], None] = lambda: None
    fault_directory: str | None = None
    #: The runtime's tool registries, for definitions that name none themselves (`assembly.sources`); empty for none.
    registry: SourceReference = ""
    #: How long an unreachable store is tried again, in seconds.
    store_retry_s: float = 10.0
    #: What is set for this agent beside its definition.
    options: InstanceOptions = field(default_factory=InstanceOptions)
    #: What the runtime sets for all its agents.
    defaults: RuntimeDefaults = field(default_factory=RuntimeDefaults)

    @property
    def tool_settings(self) -> ToolSettings | None:
        """What is set for every tool call beside the tool's own spec; ``None`` for nothing."""
        filters, limit = tuple(self.options.result_filters), self.defaults.max_result_chars
        return ToolSettings(limit, filters) if filters or limit is not None else None


@dataclass
class EngineTiming:
    """What this process has spent on the agent's commits."""

    #: Waiting for commits, in seconds.
    commit_s: float = 0.0
    commits: int = 0
