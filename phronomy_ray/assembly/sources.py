"""Where the registries come from: a function that fills them, called once in each process that needs them.

Registries hold factories and live instances, so they never travel. What travels is the import path of the function; the
agent's actor and every tool worker call it for themselves, and a stored binding names entries by their key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from phronomy_ray.assembly.capabilities import CapabilityRegistry
from phronomy_ray.assembly.registry import ToolRegistry
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.importing import import_object
from phronomy_ray.errors import ConfigurationError, DefinitionUnavailableError, PhronomyError, safe_message


@dataclass(frozen=True, slots=True)
class AssemblySources:
    """The registries of one process."""

    tools: ToolRegistry = field(default_factory=ToolRegistry)
    #: ``None`` for a system without capabilities: those that an agent lists are then skipped.
    capabilities: CapabilityRegistry | None = field(default_factory=CapabilityRegistry)

    def remove_plugin(self, plugin: str) -> int:
        """Forget all that a plugin registered; returns how many registrations that were."""
        count = self.tools.remove_plugin(plugin)
        return count + (self.capabilities.remove_plugin(plugin) if self.capabilities is not None else 0)


#: ``module:function``, or the function itself.
SourceReference: TypeAlias = "str | Callable[[], AssemblySources]"

_building = threading.Lock()


def load_sources(reference: SourceReference) -> AssemblySources:
    """The registries that the function gives; built once per process, after a failure again.

    Raises:
        DefinitionUnavailableError: the function cannot be imported here, or it raised.
        ConfigurationError: it gave something else, or a registration in it is wrong.
    """
    with _building:
        return _build(reference)


def sources_of(definition: AgentDefinition, registry: SourceReference = "") -> AssemblySources | None:
    """The registries of an agent: what its class names, else the runtime's `registry` if it wants any, else none.

    Raises as `load_sources`.
    """
    reference = definition.tool_sources or (registry if definition.wants_registries else "")
    return load_sources(reference) if reference else None


@lru_cache(maxsize=64)
def _build(reference: SourceReference) -> AssemblySources:
    function = reference
    if isinstance(function, str):
        function = import_object(function, what="a registry function", form="module:function")
    if not callable(function):
        raise ConfigurationError(f"the registry {reference!r} is a {type(function).__name__}, not a function")
    try:
        given: object = function()
    except PhronomyError:
        raise
    except (Exception, SystemExit) as error:
        raise DefinitionUnavailableError(
            f"the registry function {reference!r} raised {type(error).__name__}: {safe_message(error)}"
        ) from error
    if not isinstance(given, AssemblySources):
        raise ConfigurationError(
            f"the registry function {reference!r} gave a {type(given).__name__}, not AssemblySources"
        )
    return given
