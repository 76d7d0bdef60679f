"""How an agent of any class is started that nobody has a handle of: by what its root says."""

from __future__ import annotations

from dataclasses import replace

from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.errors import DefinitionUnavailableError
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.journal import AgentRoot


def definition_source(root: AgentRoot, registry: str = "") -> DefinitionSource:
    """Where the class of a stored agent is.

    Raises:
        DefinitionUnavailableError: its class was one of a driver's ``__main__``.
    """
    if not root.class_path:
        raise DefinitionUnavailableError(
            f"agent {root.agent_id!r} was created from {root.definition_id!r}, a class of a driver's own script or function, "
            "so it cannot be woken by its id: load it from that script, or move the class to a module that every "
            "node can import",
            details={"agent_id": root.agent_id, "definition_id": root.definition_id},
        )
    return DefinitionSource(root.class_path, registry=registry)


def wiring_for(root: AgentRoot, like: AgentWiring) -> AgentWiring:
    """How to start a stored agent, else like another one of the same runtime; where its class wants to live is not known.

    Raises as `definition_source`.
    """
    source = definition_source(root, like.definition.registry)
    return replace(like, definition=source, own_placement=None, knows_own_placement=False)


__all__ = ["definition_source", "wiring_for"]
