"""MCP servers as sources of tools: what an author declares, and the sessions behind it (see docs/guide/mcp.md).

The ``mcp`` package is needed only where a server is reached: in the gateway, or in a process that opens sessions itself.
"""

from __future__ import annotations

from phronomy_ray.mcp.server import Approval, McpServer

__all__ = ["Approval", "McpServer"]
