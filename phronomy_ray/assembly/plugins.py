"""Plugins: registrations that take effect together or not at all.

A plugin registers into a stage; only when it has ended without an error the stage is copied into the registries. It may
provide the capabilities that were declared for it, and no others. Follows Insika's plugin loader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from phronomy_ray.assembly.capabilities import Provider, ProviderKind
from phronomy_ray.assembly.registry import ToolRegistry, check_name
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.tool import Tool
from phronomy_ray.errors import ConfigurationError, safe_message

_LOG = logging.getLogger("phronomy_ray.assembly")


class PluginStage:
    """What a plugin's function is given: it registers here, under the plugin's id."""

    def __init__(self, plugin: str, provides: Collection[str]) -> None:
        #: The plugin's id.
        self.plugin = plugin
        self._provides = frozenset(provides)
        self._checked = ToolRegistry()  # refuses at the spot what the real one would refuse
        self._tools: list[tuple[str, dict[str, Any]]] = []
        self._providers: list[Provider] = []

    def tool(
        self,
        name: str,
        item: Tool | type[Tool] | None = None,
        *,
        factory: Callable[[], Tool] | None = None,
        optional: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """As `ToolRegistry.register`. Raises `ConfigurationError`."""
        options: dict[str, Any] = {
            "item": item,
            "factory": factory,
            "optional": optional,
            "metadata": metadata,
            "plugin": self.plugin,
        }
        entry = self._checked.register(name, **options)
        self._tools.append((entry.name, options))

    def capability(
        self,
        name: str,
        implementation: str,
        *,
        kind: ProviderKind = ProviderKind.TOOL,
        priority: int | None = None,
        availability: Callable[[], object] | None = None,
    ) -> None:
        """Provide a capability; one that was not declared for the plugin is ignored with a warning.

        Raises:
            ConfigurationError: a field is not what it must be.
        """
        optional = {} if availability is None else {"availability": availability}
        provider = Provider(name, implementation, kind, self.plugin, priority, **optional)
        if provider.capability in self._provides:
            self._providers.append(provider)
        else:
            _LOG.warning(
                "plugin %r provides %r, which was not declared for it: ignored",
                self.plugin,
                provider.capability,
            )

    def commit(self, sources: AssemblySources) -> None:
        """Copy everything into the registries."""
        for name, options in self._tools:
            sources.tools.register(name, **options)
        if sources.capabilities is not None:
            for provider in self._providers:
                sources.capabilities.register(provider)


def load_plugin(
    sources: AssemblySources,
    plugin: str,
    register: Callable[[PluginStage], None],
    *,
    provides: Collection[str] = (),
) -> None:
    """Have a plugin register its tools and providers: all of them, or none when it raises.

    Args:
        sources: where they go.
        plugin: its id, by which `AssemblySources.remove_plugin` takes all of it out again.
        register: its function.
        provides: the capabilities that it may provide.

    Raises:
        ConfigurationError: code ``plugin_failed``: it raised, and nothing of it is registered.
    """
    stage = PluginStage(check_name(plugin, "a plugin id"), provides)
    try:
        register(stage)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"plugin {plugin!r} failed and is not loaded: {type(error).__name__}: {safe_message(error)}",
            code="plugin_failed",
            details={"plugin": plugin},
        ) from error
    stage.commit(sources)
