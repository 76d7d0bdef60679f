"""The errors of an MCP server as tool errors with stable codes.

| code              | what happened                                                                                     |
|-------------------|---------------------------------------------------------------------------------------------------|
| ``mcp_server_lost`` | the server or the way to it is gone, or never came up; ``details["phase"]`` says when             |
| ``mcp_timeout``     | no answer by the deadline of the call, whatever else was heard                                    |
| ``mcp_protocol``    | an answer that breaks the protocol or the tool's own output schema, or a JSON-RPC error           |
| ``mcp_tool_error``  | the tool itself reported a failure (``isError``); the message is its text                         |
| ``definition_changed`` | the server's tool is not the one that was declared any more, or is gone                        |

``details["may_have_run"]`` says whether the server can have seen the call. Nothing here is repeated by itself.
"""

from __future__ import annotations

from phronomy_ray.errors import ToolError, ToolTimeoutError
from phronomy_ray.mcp.endpoint import McpEndpoint

SERVER_LOST = "mcp_server_lost"
TIMEOUT = "mcp_timeout"
PROTOCOL = "mcp_protocol"
TOOL_FAILED = "mcp_tool_error"
CHANGED = "definition_changed"

PHASE_CONNECT = "connect"
PHASE_CALL = "call"


def lost(endpoint: McpEndpoint, reason: str, *, phase: str = PHASE_CALL) -> ToolError:
    """The server is gone, before (``connect``) or after (``call``) the call was sent to it."""
    sent = phase == PHASE_CALL
    note = " The call may have run; it was not repeated." if sent else " Nothing was sent to it."
    return ToolError(
        endpoint.clean(
            f"MCP server {endpoint.name!r} {'was lost' if sent else 'cannot be reached'}: {reason}.{note}"
        ),
        code=SERVER_LOST,
        details=_details(endpoint, phase=phase, may_have_run=sent),
    )


def timed_out(endpoint: McpEndpoint, timeout_s: float, *, phase: str = PHASE_CALL) -> ToolTimeoutError:
    """No answer within `timeout_s` seconds."""
    sent = phase == PHASE_CALL
    note = (
        " The call may have run, and was told to stop."
        if sent
        else " The call did not reach it and has not run."
    )
    return ToolTimeoutError(
        f"MCP server {endpoint.name!r} did not answer within {timeout_s:g} s.{note}",
        code=TIMEOUT,
        details=_details(endpoint, phase=phase, may_have_run=sent),
    )


def broken(
    endpoint: McpEndpoint, reason: str, *, may_have_run: bool = True, rpc_code: int | None = None
) -> ToolError:
    """The server answered what it must not, or with a JSON-RPC error."""
    details = _details(endpoint, phase=PHASE_CALL, may_have_run=may_have_run)
    if rpc_code is not None:
        details["jsonrpc_code"] = rpc_code
    return ToolError(
        endpoint.clean(f"MCP server {endpoint.name!r}: {reason}"), code=PROTOCOL, details=details
    )


def changed(endpoint: McpEndpoint, tool: str, what: str) -> ToolError:
    """The server's tool is another one than the agent was shown."""
    return ToolError(
        f"the tool {tool!r} of MCP server {endpoint.name!r} {what} since the model was shown it; it was not called",
        code=CHANGED,
        details={**_details(endpoint, phase=PHASE_CALL, may_have_run=False), "tool": tool},
    )


def _details(endpoint: McpEndpoint, *, phase: str, may_have_run: bool) -> dict[str, object]:
    return {
        "server": endpoint.name,
        "server_origin": endpoint.origin,
        "phase": phase,
        "may_have_run": may_have_run,
    }
