"""What the handles of one agent work with; none of it is shown on a handle."""

from __future__ import annotations

from dataclasses import dataclass, field

from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.runtime.bridge import Bridge
from phronomy_ray.runtime.open_scopes import OpenScopes
from phronomy_ray.store.port import Store


@dataclass(frozen=True, slots=True)
class AgentLink:
    """Ways to one agent, live or not."""

    #: Calls of its live actor, which is found or woken for them.
    client: AgentClient
    #: The runtime's store.
    store: Store
    #: The loop that blocking forms run on.
    bridge: Bridge
    #: The runtime's open scopes.
    scopes: OpenScopes = field(default_factory=OpenScopes)
