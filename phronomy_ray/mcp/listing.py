"""What a server says that it can do: its tools as values with hashes, so that a change is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phronomy_ray.canonical_json import content_hash, dumps, to_json_value
from phronomy_ray.errors import SerializationError
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.failures import broken

#: Most pages and tools of one listing: a paginator that never ends must not hold an agent.
MAX_PAGES = 100
MAX_TOOLS = 2_000


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """One tool as its server declares it."""

    name: str
    description: str
    #: JSON Schema of the arguments, as the server sent it.
    input_schema: Mapping[str, Any]
    #: JSON Schema of the structured result; ``None`` when the server promises none.
    output_schema: Mapping[str, Any] | None = None
    #: Hints of the server (``readOnlyHint``, ...). Shown to policies, believed by nobody.
    annotations: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form, of which the hash is taken."""
        wire: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "input_schema": dict(self.input_schema),
        }
        if self.output_schema is not None:
            wire["output_schema"] = dict(self.output_schema)
        if self.annotations:
            wire["annotations"] = dict(self.annotations)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> RemoteTool:
        """Inverse of `to_wire`."""
        return cls(
            name=wire["name"],
            description=wire["description"],
            input_schema=wire["input_schema"],
            output_schema=wire.get("output_schema"),
            annotations=wire.get("annotations", {}),
        )

    @property
    def hash(self) -> str:
        """Hash of everything that the server says of it."""
        return content_hash(dumps(self.to_wire()))


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of one server at one moment, sorted by name: two listings of the same tools are equal."""

    tools: tuple[RemoteTool, ...]

    @property
    def text(self) -> str:
        """Canonical JSON: what is stored with an execution."""
        return dumps([tool.to_wire() for tool in self.tools])

    @property
    def hash(self) -> str:
        """Hash of `text`."""
        return content_hash(self.text)

    def find(self, name: str) -> RemoteTool | None:
        """The tool of that name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @classmethod
    def from_wire(cls, wire: Sequence[Mapping[str, Any]]) -> Listing:
        """From the JSON value of `text`."""
        return cls(tuple(RemoteTool.from_wire(item) for item in wire))


def listing_of(endpoint: McpEndpoint, declared: Sequence[Mapping[str, Any]]) -> Listing:
    """A listing from what the server sent (``name``, ``description``, ``inputSchema``, ...).

    Raises:
        ToolError: code ``mcp_protocol``: a tool without a name, twice the same name, or a schema that is no JSON object.
    """
    tools: dict[str, RemoteTool] = {}
    for item in declared:
        name = item.get("name")
        if not isinstance(name, str) or not name:
            raise broken(endpoint, "it lists a tool without a name", may_have_run=False)
        if name in tools:
            raise broken(endpoint, f"it lists two tools named {name!r}", may_have_run=False)
        tools[name] = RemoteTool(
            name=name,
            description=_text(item.get("description")) or _text(item.get("title")),
            input_schema=_schema(endpoint, name, item.get("inputSchema"), "input") or {"type": "object"},
            output_schema=_schema(endpoint, name, item.get("outputSchema"), "output"),
            annotations=_schema(endpoint, name, item.get("annotations"), "annotations") or {},
        )
    return Listing(tuple(tools[name] for name in sorted(tools)))


def _schema(endpoint: McpEndpoint, tool: str, value: Any, what: str) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        plain = to_json_value(value)
    except SerializationError as error:
        raise broken(endpoint, f"tool {tool!r}: its {what} is no JSON: {error}", may_have_run=False) from None
    if not isinstance(plain, dict):
        raise broken(endpoint, f"tool {tool!r}: its {what} is no JSON object", may_have_run=False)
    return dict(plain)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
