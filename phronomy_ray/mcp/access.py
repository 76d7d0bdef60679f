"""How tool bodies of this process reach MCP servers.

Agents on a cluster go through the gateway of each server, so that it is started once and not per agent: their actor
installs that way when it starts. A process that installs nothing (tests, scripts) has sessions of its own, which
`close_local` ends.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.hub import McpHub
from phronomy_ray.mcp.listing import Listing


class McpAccess(Protocol):
    """A way to MCP servers. Cancelling the awaiting task cancels the call on the server."""

    async def list_tools(self, endpoint: McpEndpoint, *, timeout_s: float, refresh: bool = False) -> Listing:
        """The server's tools. Raises `ToolError` with one of the codes of `phronomy_ray.mcp.failures`."""
        ...

    async def call(
        self,
        endpoint: McpEndpoint,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float,
        tool_hash: str = "",
        idempotency_key: str = "",
    ) -> dict[str, Any]:
        """The server's result as JSON; sent at most once. Raises as `list_tools`, and ``definition_changed``."""
        ...


#: One access per process, because what it stands for is where this process runs.
_installed: list[McpAccess] = []
_local: WeakKeyDictionary[asyncio.AbstractEventLoop, McpHub] = WeakKeyDictionary()


def install(access: McpAccess | None) -> None:
    """Make `access` the way of this process; ``None`` goes back to sessions of its own."""
    _installed[:] = [access] if access is not None else []


def current() -> McpAccess:
    """The way of this process, on the running event loop."""
    if _installed:
        return _installed[0]
    loop = asyncio.get_running_loop()
    hub = _local.get(loop)
    if hub is None:
        hub = _local[loop] = McpHub()
    return hub


async def close_local() -> None:
    """End the sessions that this process opened by itself on the running loop."""
    hub = _local.pop(asyncio.get_running_loop(), None)
    if hub is not None:
        await hub.close()
