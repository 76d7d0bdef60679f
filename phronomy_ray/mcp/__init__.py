"""MCP servers as sources of tools: what an author declares, and the sessions behind it (see docs/guide/mcp.md).

The ``mcp`` package is needed only where a server is reached: in the gateway, or in a process that opens sessions itself.
"""

from __future__ import annotations

from phronomy_ray.mcp.access import close_local
from phronomy_ray.mcp.listing import RemoteTool
from phronomy_ray.mcp.server import Approval, McpServer
from phronomy_ray.mcp.tool import McpTool, tools_of_text


async def mcp_tools(server: McpServer) -> tuple[McpTool, ...]:
    """The tools that `server` offers now, for explicit use: in a registry, in a script, or to look at them.

    In an agent's ``tools`` put the server itself.

    Raises:
        ToolError: the server cannot be asked (see `phronomy_ray.mcp.failures`).
        ConfigurationError: it offers what this declaration cannot use.
    """
    return tools_of_text(server, await server.fetch())


__all__ = ["Approval", "McpServer", "McpTool", "RemoteTool", "close_local", "mcp_tools"]
