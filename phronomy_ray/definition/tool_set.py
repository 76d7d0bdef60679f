"""The tools that a model is shown together: an agent's own ones, or what one turn was assembled from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phronomy_ray.canonical_json import content_hash, dumps
from phronomy_ray.definition.tool import Tool, ToolSpec, with_name


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool under the name that this agent gives it."""

    spec: ToolSpec
    tool: Tool
    #: Key in the tool registry that it came from; empty for one that the agent's class lists itself. Identity is
    #: decided by this key, never by the name that an instance gives itself.
    registry_key: str = ""
    #: A tool of the framework: no allow or deny list, approval, gate or agent-wide timeout applies to it.
    is_framework: bool = False
    #: Filters of results that the agent's class lists; they follow the tool's own.
    class_filters: tuple[Callable[..., Any], ...] = ()

    @property
    def result_filters(self) -> tuple[Callable[..., Any], ...]:
        """Filters of its results, in the order in which they run."""
        return (*self.spec.result_filters, *self.class_filters)

    def filtered_by(self, filters: tuple[Callable[..., Any], ...]) -> BoundTool:
        """This tool with the filters of an agent's class, which a tool of the framework does not get."""
        return self if self.is_framework or not filters else replace(self, class_filters=filters)


def bind_tool(
    tool: Tool, *, name: str = "", timeout_s: float | None = None, registry_key: str = ""
) -> BoundTool:
    """`tool` as an agent has it: under `name` if one is given, and with the agent's time limit if it sets one.

    Raises:
        ConfigurationError: the name is not a legal tool name.
    """
    spec = with_name(tool.spec, name) if name else tool.spec
    if timeout_s is not None:
        spec = replace(spec, timeout_s=timeout_s)
    return BoundTool(spec, tool, registry_key)


@dataclass(frozen=True, slots=True)
class ToolSet:
    """Tools by the name that the model sees, in the order in which it sees them."""

    tools: Mapping[str, BoundTool]
    #: Chat-completions definitions of all tools.
    definitions: tuple[dict[str, Any], ...]
    #: Hash and canonical text of `definitions`.
    content: tuple[str, str]

    @classmethod
    def of(cls, tools: Mapping[str, BoundTool]) -> ToolSet:
        """The set of `tools`, which is kept as given."""
        definitions = tuple(bound.spec.definition() for bound in tools.values())
        text = dumps(definitions)
        return cls(tools, definitions, (content_hash(text), text))
