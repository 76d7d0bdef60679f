"""What an agent is started with, wherever that is: plain values that survive in Ray's actor table for its restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phronomy_ray.definition.options import InstanceOptions, RuntimeDefaults
from phronomy_ray.definition.placement import Dedicated, Placement
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.hosting.idle_unload import UnloadLimits
from phronomy_ray.tools.pool_config import PoolConfig

__all__ = ["NAMESPACE", "AgentWiring", "DefinitionSource", "NewAgentRequest", "StoreConfig"]

NAMESPACE = "phronomy"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How a process opens the store; only this travels, never a connection."""

    url: str
    #: Key for content encryption; hidden in ``repr``.
    content_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AgentWiring:
    """Everything that an agent needs besides its id."""

    definition: DefinitionSource
    store: StoreConfig
    namespace: str = NAMESPACE
    #: Number of model gateways to spread calls over.
    gateways: int = 2
    #: Directory of fault plans, for tests.
    fault_directory: str | None = None
    #: Offload pools by name; a pool that is not here has the default bounds.
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    #: Where the runtime has agents live.
    placement: Placement = field(default_factory=Dedicated)
    #: Where the agent's class wants to live; ``None`` for what the runtime says.
    own_placement: Placement | None = None
    #: What is set for this agent beside its definition; by value.
    options: InstanceOptions = field(default_factory=InstanceOptions)
    #: What the runtime sets for all its agents; by value.
    defaults: RuntimeDefaults = field(default_factory=RuntimeDefaults)
    #: Whether a supervisor wakes the agent when something of it is due.
    supervised: bool = False
    #: Whether it is known what the class says of its place; not to whoever wakes the agent by its id.
    knows_own_placement: bool = True

    @property
    def wanted_placement(self) -> Placement:
        """Where the agent belongs when nobody has said otherwise."""
        return self.own_placement or self.placement

    @property
    def unload(self) -> UnloadLimits:
        """When the agent may leave its process by itself."""
        place = self.wanted_placement
        return UnloadLimits(place.idle_unload_after_s, place.suspended_unload_after_s)


@dataclass(frozen=True, slots=True)
class NewAgentRequest:
    """What ``create`` stores with a new root."""

    #: Wire forms of the imported conversation's messages.
    context: tuple[dict[str, Any], ...] = ()
    #: ``{"content": text, "metadata": {...}}`` each.
    knowledge: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    #: The same for every repetition of one ``create``, whose first answer may have been lost; empty for no repetition.
    request_id: str = ""
