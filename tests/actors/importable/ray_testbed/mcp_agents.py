"""An agent with tools of a real MCP server, whose log is in the session's folder."""

from __future__ import annotations

from phronomy_ray import Agent
from phronomy_ray.mcp import McpServer
from phronomy_ray.testing.mcp_server import stdio_command
from ray_testbed import effects
from ray_testbed.agents import obedient

SHARED_LOG = effects.folder() / "mcp-shared.log"
SHARED = McpServer("shared", command=stdio_command(log=SHARED_LOG), approval="none")


class Librarian(Agent):
    """Has what the shared server offers."""

    model = obedient()
    definition_id = "librarian"
    tools = [SHARED]
    quiescence_timeout_s = 1.0
