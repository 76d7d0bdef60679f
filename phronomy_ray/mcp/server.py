"""`McpServer`: an MCP server as a source of tools, as an agent's author declares it.

```python
files = McpServer("files", command=["npx", "-y", "@modelcontextprotocol/server-filesystem", "/data"])
search = McpServer("search", url="https://tools.example.com/mcp", headers={"Authorization": f"Bearer {token}"})
```

Follows Phronomy's MCP tool: approval is required unless said otherwise, and policies see the transport and the origin of a
server without credentials and path. The schema of a tool may be any JSON Schema (draft 2020-12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast
from urllib.parse import urlsplit

from phronomy_ray.definition.tool import OnError, Replay, Tool, is_number, is_whole
from phronomy_ray.definition.tool_source import ToolSource
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.mcp import access
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.listing import Listing, RemoteTool

MAX_NAME_CHARS = 64


class Approval(StrEnum):
    """Whether a human must agree to the calls of a server's tools."""

    REQUIRED = "required"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer(ToolSource):
    """Declaration of one server; put it into an agent's ``tools``.

    Raises:
        ConfigurationError: a wrong field; names the server and the field, never a secret value.
    """

    #: Name of the server in errors, policies and the name of its gateway: letters, digits, ``_``, ``-`` and ``.``.
    name: str = field(kw_only=False)
    #: Program and arguments of a stdio server, started once per cluster; never through a shell.
    command: Iterable[str] = field(default=(), repr=False)
    #: Address of a streamable HTTP server.
    url: str = field(default="", repr=False)
    #: Variables for a stdio server, added to the few that it inherits (PATH, HOME, USER, ...).
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Headers for an HTTP server.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Working directory of a stdio server.
    cwd: str | None = None
    #: ``required``, ``none``, or a function of the approval request as for any tool.
    approval: str | Callable[..., Any] = Approval.REQUIRED
    #: Limit of one call with everything that it needs, reconnecting included, in seconds.
    timeout_s: float = 60.0
    #: Limit of starting or reaching the server and of listing its tools, in seconds.
    connect_timeout_s: float = 30.0
    #: Text before every tool name, once; ``None`` leaves the names as they are.
    prefix: str | None = None
    #: The server's own names of the tools that are offered; ``None`` for all.
    only: Iterable[str] | None = None
    #: The server's own names of tools that are not.
    without: Iterable[str] = ()
    #: Whether a turn goes on without its tools when the server cannot be asked for them; otherwise the execution fails.
    optional: bool = False
    #: What may be done with a call whose outcome a crash of ours left unknown.
    replay: str = Replay.NEVER
    #: What a failed call does; by default the model is told.
    on_error: str = OnError.SUPPRESS
    #: How much of a result the model is shown, in characters; ``None`` for the runtime's default.
    max_result_chars: int | None = None
    #: Close a connection, and so end a stdio server, that has been idle for so long, in seconds; ``None`` keeps it.
    idle_close_s: float | None = None

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "env", dict(self.env))
        object.__setattr__(self, "headers", dict(self.headers))

    def __hash__(self) -> int:
        return hash((self.name, self.url, self.command))

    # --- as a source of tools ---

    @property
    def source_name(self) -> str:
        """See `ToolSource`."""
        return self.name

    @property
    def is_optional(self) -> bool:
        """See `ToolSource`."""
        return self.optional

    async def fetch(self) -> str:
        """The server's tools as text, without those that this declaration leaves out.

        Raises:
            ToolError: see `phronomy_ray.mcp.failures`.
            ConfigurationError: `only` names a tool that the server does not have.
        """
        listing = await access.current().list_tools(self.endpoint, timeout_s=self.connect_timeout_s)
        return Listing(tuple(tool for tool in listing.tools if self._offers(tool, listing))).text

    def _offers(self, tool: RemoteTool, listing: Listing) -> bool:
        if self.only is not None:
            unknown = sorted(set(self.only) - {item.name for item in listing.tools})
            if unknown:
                raise ConfigurationError(
                    f"MCP server {self.name!r} has no tool {unknown[0]!r}, which only= names"
                )
        return tool.name not in self.without and (self.only is None or tool.name in self.only)

    def tools_from(self, text: str) -> tuple[Tool, ...]:
        """See `ToolSource`."""
        from phronomy_ray.mcp.tool import tools_of_text  # which needs this class

        return tools_of_text(self, text)

    # --- what others see of it ---

    @property
    def endpoint(self) -> McpEndpoint:
        """What a gateway needs of it."""
        return McpEndpoint(
            name=self.name,
            command=tuple(self.command),
            url=self.url,
            env=self.env,
            headers=self.headers,
            cwd=self.cwd,
            connect_timeout_s=self.connect_timeout_s,
            idle_close_s=self.idle_close_s,
        )

    @property
    def approval_metadata(self) -> dict[str, str]:
        """What an approval request and a policy see of the server."""
        endpoint = self.endpoint
        return {
            "server": self.name,
            "transport": endpoint.transport.value,
            "server_origin": endpoint.origin,
        }


def _check(server: McpServer) -> None:
    """Refuse wrong fields; what may be readable only once is kept as it was read."""

    def wrong(name: str, expected: str) -> ConfigurationError:
        return ConfigurationError(f"MCP server {server.name!r}: {name} must be {expected}")

    def texts(value: object) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(part, str) for item in value.items() for part in item
        )

    name = cast("object", server.name)
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARS or not _is_plain(name):
        raise ConfigurationError(
            f"MCP server {name!r}: name must be 1 to {MAX_NAME_CHARS} letters, digits, '_', '-' or '.'"
        )
    command = cast("object", server.command)
    if isinstance(command, str) or not isinstance(command, Iterable):
        raise wrong("command", "a list: the program and its arguments, for no shell reads them")
    parts: tuple[object, ...] = tuple(command)
    object.__setattr__(server, "command", parts)
    if not all(isinstance(part, str) and "\0" not in part for part in parts):
        raise wrong("command", "a list of texts without NUL")
    if bool(server.command) == bool(server.url):
        raise ConfigurationError(f"MCP server {server.name!r}: give either command or url")
    if server.url and not _is_http(server.url):
        raise wrong("url", "an http:// or https:// address with a host")
    for field_name, needs in (("env", "command"), ("headers", "url")):
        value = getattr(server, field_name)
        if not texts(value):
            raise wrong(field_name, "a mapping of texts")
        if value and not getattr(server, needs):
            raise wrong(field_name, f"left out for a server without {needs}")
    approval: object = server.approval
    if not (callable(approval) or approval in list(Approval)):
        raise wrong("approval", "'required', 'none' or a function of the approval request")
    for field_name in ("timeout_s", "connect_timeout_s"):
        value = getattr(server, field_name)
        if not (is_number(value) and value > 0):
            raise wrong(field_name, f"a positive number of seconds, not {value!r}")
    if server.idle_close_s is not None and not (is_number(server.idle_close_s) and server.idle_close_s > 0):
        raise wrong("idle_close_s", f"a positive number of seconds or None, not {server.idle_close_s!r}")
    limit = server.max_result_chars
    if limit is not None and not (is_whole(limit) and limit > 0):
        raise wrong("max_result_chars", f"a positive number of characters, not {server.max_result_chars!r}")
    prefix = cast("object", server.prefix)
    if prefix is not None and not (isinstance(prefix, str) and prefix and _is_plain(prefix)):
        raise wrong("prefix", f"letters, digits, '_', '-' or '.', not {prefix!r}")
    for field_name in ("only", "without"):
        names: object = getattr(server, field_name)
        if names is None and field_name == "only":
            continue
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise wrong(field_name, "a list of tool names")
        object.__setattr__(server, field_name, frozenset(names))
    if not isinstance(cast("object", server.optional), bool):
        raise wrong("optional", f"True or False, not {server.optional!r}")
    for field_name, kind in (("replay", Replay), ("on_error", OnError)):
        if getattr(server, field_name) not in list(kind):
            allowed = ", ".join(repr(item.value) for item in kind)
            raise wrong(field_name, f"one of {allowed}, not {getattr(server, field_name)!r}")


def _is_plain(text: str) -> bool:
    return text.isascii() and all(letter.isalnum() or letter in "_-." for letter in text)


def _is_http(url: object) -> bool:
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False
