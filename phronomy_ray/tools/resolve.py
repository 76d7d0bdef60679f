"""The tool of a call in another process: the same one that the agent's turn was given."""

from __future__ import annotations

from phronomy_ray.assembly.assembly import bind_entry
from phronomy_ray.assembly.sources import sources_of
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import ToolInvocation


def resolve_tool(source: DefinitionSource, invocation: ToolInvocation) -> BoundTool:
    """The bound tool that `invocation` is a call of: the class's own one, or a fresh one from its registry entry.

    Never chooses: the turn's binding has chosen, and the invocation carries its key. Cheap enough to call for each call;
    imports happen once per process. Errors concern this call alone.

    Raises:
        DefinitionUnavailableError: the class or the registry cannot be imported in this process.
        ConfigurationError: code ``definition_changed`` when the tool is not there any more, ``tool_factory`` when its
            factory fails.
    """
    definition = source.load().definition()
    if invocation.registry_key:
        sources = sources_of(definition, source.registry)
        bound = bind_entry(definition, sources, invocation.registry_key, invocation.tool_name)
        return bound.filtered_by(definition.result_filters)
    own = definition.tools.get(invocation.tool_name)
    if own is None:
        raise ConfigurationError(
            f"the agent's definition has no tool {invocation.tool_name!r} any more",
            code="definition_changed",
            details={"tool_name": invocation.tool_name},
        )
    return own
