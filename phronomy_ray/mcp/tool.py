"""One tool of an MCP server as a tool of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from phronomy_ray.canonical_json import loads
from phronomy_ray.definition.raw_schema import WHOLE_PARAMETER, parameters_from_schema
from phronomy_ray.definition.tool import ExecutionMode, Tool, ToolOrigin, derive_tool_name
from phronomy_ray.definition.tool_spec import ToolSpec, compile_spec
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.mcp import access
from phronomy_ray.mcp.content import tool_value
from phronomy_ray.mcp.listing import Listing, RemoteTool
from phronomy_ray.mcp.server import Approval, McpServer
from phronomy_ray.tool_calls import ToolContext

#: How much longer the envelope waits than the call itself, so that the call's own error is the one that is told, in seconds.
GRACE_S = 2.0
_CONTEXT_PARAMETER = "context"


class McpTool(Tool, abstract=True):
    """A tool that is called on its server. Holds no state of a call; one instance serves all.

    With `pinned` the server must still declare it exactly so when it is called; otherwise the call is refused
    (``definition_changed``) and not sent.
    """

    def __init__(self, server: McpServer, remote: RemoteTool, *, pinned: bool = True) -> None:
        """
        Raises:
            ConfigurationError: the schema is none, or the name cannot be used; names the server and the tool.
        """
        self._server = server
        self._remote = remote
        self._hash = remote.hash if pinned else ""
        self._spec = _spec_of(server, remote)

    async def execute(self, /, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call it on the server, at most once.

        Raises:
            ToolError: see `phronomy_ray.mcp.failures`.
        """
        endpoint, limit_s = self._server.endpoint, self._server.timeout_s
        result = await access.current().call(
            endpoint,
            self._remote.name,
            arguments,
            timeout_s=limit_s if context.timeout_s is None else min(limit_s, context.timeout_s),
            tool_hash=self._hash,
            idempotency_key=context.idempotency_key,
        )
        return tool_value(endpoint, result, tool=self._remote.name, output_schema=self._remote.output_schema)


def tool_name(server: McpServer, remote_name: str) -> str:
    """The name of a server's tool here: with the server's prefix, which is put before it once, and made legal."""
    prefix = server.prefix or ""
    return derive_tool_name(remote_name, prefix="" if remote_name.startswith(prefix) else prefix)


def tools_of_text(server: McpServer, text: str) -> tuple[McpTool, ...]:
    """The tools of a listing's text; the same instances for the same text.

    Raises:
        ConfigurationError: two of them would have one name, or the schema of one is none.
    """
    return _tools(server, text)


@lru_cache(maxsize=128)
def _tools(server: McpServer, text: str) -> tuple[McpTool, ...]:
    named: dict[str, str] = {}
    tools: list[McpTool] = []
    for remote in Listing.from_wire(loads(text)).tools:
        tool = McpTool(server, remote)
        other = named.setdefault(tool.spec.name, remote.name)
        if other != remote.name:
            raise ConfigurationError(
                f"MCP server {server.name!r}: its tools {other!r} and {remote.name!r} would both be named "
                f"{tool.spec.name!r}; leave one out with without=[...]"
            )
        tools.append(tool)
    return tuple(tools)


def _spec_of(server: McpServer, remote: RemoteTool) -> ToolSpec:
    name = tool_name(server, remote.name)
    schema: Mapping[str, Any] = remote.input_schema
    if "type" not in schema:
        schema = {"type": "object", **schema}
    approval = server.approval
    try:
        parameters = dataclasses.replace(
            parameters_from_schema(schema, tool=name, foreign=True),
            whole_parameter=WHOLE_PARAMETER,
            context_parameter=_CONTEXT_PARAMETER,
        )
        return compile_spec(
            name=name,
            description=remote.description,
            parameters=parameters,
            execution_mode=ExecutionMode.COOPERATIVE,
            options={
                "replay": server.replay,
                "requires_approval": approval if callable(approval) else approval == Approval.REQUIRED,
                "approval_metadata": {**server.approval_metadata, "tool": remote.name},
                "on_error": server.on_error,
                "timeout_s": server.timeout_s + GRACE_S,
                "max_result_chars": server.max_result_chars,
                "tool_origin": ToolOrigin.MCP,
            },
        )
    except ConfigurationError as error:
        raise ConfigurationError(
            f"MCP server {server.name!r}: {error.message} (without=[{remote.name!r}] leaves it out)"
        ) from None
