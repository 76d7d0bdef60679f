"""`McpTool`: names, specs, and what it asks its way to the server for; no server here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from phronomy_ray.actors.mcp_client import GatewayAccess
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import ExecutionMode, OnError, Replay, ToolOrigin
from phronomy_ray.errors import ConfigurationError, ToolError
from phronomy_ray.mcp import McpServer, McpTool, RemoteTool, access, mcp_tools
from phronomy_ray.mcp.hub import McpHub
from phronomy_ray.mcp.listing import Listing
from phronomy_ray.mcp.session import McpSession
from phronomy_ray.mcp.tool import tool_name
from phronomy_ray.tool_calls import ToolContext
from phronomy_ray.worker_inputs import check_worker_input

CONTEXT = ToolContext("a1", "ex1", "tc1", "key1", 1, timeout_s=5.0)


def server(**options: Any) -> McpServer:
    return McpServer("files", command=["server"], **options)


def remote(name: str = "read", schema: dict[str, Any] | None = None, **fields: Any) -> RemoteTool:
    return RemoteTool(name, "Reads.", schema if schema is not None else {"type": "object"}, **fields)


class Way:
    """An access that answers from memory."""

    def __init__(self, *tools: RemoteTool) -> None:
        self.listing = Listing(tools)
        self.result: dict[str, Any] = {"content": [{"type": "text", "text": "ok"}]}
        self.calls: list[tuple[Any, ...]] = []

    async def list_tools(self, endpoint: Any, *, timeout_s: float, refresh: bool = False) -> Listing:
        return self.listing

    async def call(self, endpoint: Any, tool: str, arguments: dict[str, Any], **options: Any) -> Any:
        self.calls.append((endpoint.name, tool, arguments, options))
        return self.result


@pytest.fixture
def way() -> Iterator[Way]:
    made = Way(remote("list"), remote("read"))
    access.install(made)
    yield made
    access.install(None)


@pytest.mark.parametrize(
    ("prefix", "name", "expected"),
    [
        (None, "read", "read"),
        ("files_", "read", "files_read"),
        ("files_", "files_read", "files_read"),
    ],
)
def test_P04_a_prefix_is_put_before_a_name_once(prefix: str | None, name: str, expected: str) -> None:
    assert tool_name(server(prefix=prefix), name) == expected


def test_P04_every_name_is_made_legal_and_stays_its_own() -> None:
    names = ["read.file", "read/file", "läs", "x" * 70, "x" * 71, " "]
    made = [tool_name(server(prefix="files."), name) for name in names]
    assert len(set(made)) == len(names)
    for name in made:
        assert 1 <= len(name) <= 64
        assert name.isascii()
        assert all(letter.isalnum() or letter in "_-" for letter in name)
    assert made == [tool_name(server(prefix="files."), name) for name in names]


def test_P04_two_tools_of_one_server_that_would_have_one_name_are_an_error() -> None:
    text = Listing((remote("files_read"), remote("read"))).text
    with pytest.raises(ConfigurationError, match="'files_read' and 'read' would both be named 'files_read'"):
        server(prefix="files_").tools_from(text)


def test_the_spec_says_where_it_comes_from_and_asks_for_approval() -> None:
    spec = McpTool(server(timeout_s=10), remote()).spec
    assert spec.requires_approval is True
    assert spec.tool_origin is ToolOrigin.MCP
    assert spec.execution_mode is ExecutionMode.COOPERATIVE
    assert (spec.on_error, spec.replay) == (OnError.SUPPRESS, Replay.NEVER)
    assert spec.timeout_s > 10  # the call's own deadline comes first
    assert spec.approval_metadata == {
        "server": "files",
        "transport": "stdio",
        "server_origin": "server",
        "tool": "read",
    }
    assert McpTool(server(approval="none"), remote()).spec.requires_approval is False


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"type": "object", "properties": 7}, {"$ref": "http://x"}]
)
def test_a_schema_that_is_none_is_an_error_that_names_server_and_tool(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"MCP server 'files': tool 'read'.*without=\['read'\]"):
        McpTool(server(), remote(schema=schema))


def test_a_schema_without_a_type_is_one_of_an_object() -> None:
    tool = McpTool(server(), remote(schema={"properties": {"path": {"type": "string"}}}))
    assert tool.spec.parameters.decode('{"path": "a"}') == {"path": "a"}


def test_declarations_are_values_and_sessions_are_not() -> None:
    clerk = type("Clerk", (Agent,), {"model": "m/m", "tools": [server(), McpTool(server(), remote())]})
    check_worker_input(clerk, where="the agent class")
    for live in (McpSession(server().endpoint), McpHub(), GatewayAccess(namespace="x")):
        with pytest.raises(ConfigurationError, match=type(live).__name__):
            check_worker_input({"x": [live]}, where="an argument")


async def test_a_call_carries_the_hash_of_what_was_shown_and_the_idempotency_key(way: Way) -> None:
    schema = {"type": "object", "properties": {"arguments": {"type": "string"}, "context": {}}}
    shown = remote(schema=schema)
    tool = McpTool(server(), shown)
    given = {"arguments": "a property of that name", "context": 1}
    assert await tool.body(tool.spec.parameters.bind(given, CONTEXT)) == "ok"
    ((name, called, arguments, options),) = way.calls
    assert (name, called, arguments) == ("files", "read", given)
    assert options == {"timeout_s": 5.0, "tool_hash": shown.hash, "idempotency_key": "key1"}


async def test_a_tool_declared_by_hand_is_not_compared(way: Way) -> None:
    tool = McpTool(server(), remote(), pinned=False)
    await tool.body(tool.spec.parameters.bind({}, CONTEXT))
    assert way.calls[0][3]["tool_hash"] == ""


async def test_the_result_is_checked_against_the_promised_schema(way: Way) -> None:
    promised = remote(output_schema={"type": "object", "required": ["sum"]})
    tool = McpTool(server(), promised)
    with pytest.raises(ToolError, match="sent none"):
        await tool.body(tool.spec.parameters.bind({}, CONTEXT))
    way.result = {"content": [], "structuredContent": {"sum": 1}}
    assert await tool.body(tool.spec.parameters.bind({}, CONTEXT)) == {"sum": 1}


async def test_what_is_offered_can_be_chosen(way: Way) -> None:
    async def names(**options: Any) -> list[str]:
        return [tool.spec.name for tool in await mcp_tools(server(**options))]

    assert await names() == ["list", "read"]
    assert await names(only=["read"]) == ["read"]
    assert await names(without=["read"]) == ["list"]
    with pytest.raises(ConfigurationError, match="has no tool 'write', which only= names"):
        await names(only=["read", "write"])


async def test_the_same_offer_gives_the_same_instances_and_options_can_be_changed(way: Way) -> None:
    (first, _), (second, _) = await mcp_tools(server()), await mcp_tools(server())
    assert first is second
    changed = first.with_options(requires_approval=False, replay="safe", name="ls")
    assert (changed.spec.name, changed.spec.requires_approval, changed.spec.replay) == ("ls", False, "safe")
    assert changed.spec.tool_origin is ToolOrigin.MCP
    await changed.body(changed.spec.parameters.bind({}, CONTEXT))
    assert way.calls[0][1] == "list"
