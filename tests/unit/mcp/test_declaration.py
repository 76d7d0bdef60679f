"""`McpServer`, `McpEndpoint` and listings: declarations, what they show, and what they hide."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from phronomy_ray.errors import ConfigurationError, ToolError
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.failures import broken, lost, timed_out
from phronomy_ray.mcp.listing import Listing, listing_of
from phronomy_ray.mcp.server import McpServer

SECRET = "sk-canary-1234567890"
URL = f"https://user:{SECRET}@tools.example.com:8443/private/mcp?key={SECRET}"
ENDPOINT = McpEndpoint("files", command=("server",))


def remote() -> McpServer:
    return McpServer("search", url=URL, headers={"Authorization": f"Bearer {SECRET}"})


def local() -> McpServer:
    return McpServer("files", command=["/opt/bin/files", "--token", SECRET], env={"TOKEN": SECRET})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "either command or url"),
        ({"command": ["x"], "url": "http://h/"}, "either command or url"),
        ({"command": "npx server"}, "a list"),
        ({"command": ["x", 7]}, "a list of texts"),
        ({"url": "ftp://h/"}, "http:// or https://"),
        ({"url": "http:///mcp"}, "http:// or https://"),
        ({"url": "http://h:x/"}, "http:// or https://"),
        ({"url": "http://h/", "env": {"A": "1"}}, "env must be left out"),
        ({"command": ["x"], "headers": {"A": "1"}}, "headers must be left out"),
        ({"command": ["x"], "env": {"A": 1}}, "env must be a mapping of texts"),
        ({"command": ["x"], "approval": "sometimes"}, "approval must be"),
        ({"command": ["x"], "timeout_s": 0}, "timeout_s must be a positive number"),
        ({"command": ["x"], "idle_close_s": -1}, "idle_close_s must be"),
        ({"command": ["x"], "prefix": ""}, "prefix must be"),
        ({"command": ["x"], "prefix": "a b"}, "prefix must be"),
        ({"command": ["x"], "only": "echo"}, "only must be a list"),
        ({"command": ["x"], "replay": "often"}, "replay must be one of"),
        ({"command": ["x"], "on_error": "ignore"}, "on_error must be one of"),
        ({"command": ["x"], "max_result_chars": 0}, "max_result_chars must be"),
    ],
)
def test_a_wrong_field_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match="MCP server 'files'") as raised:
        McpServer("files", **options)
    assert says in raised.value.message


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a/b"])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name must be"):
        McpServer(name, command=["x"])


def test_a_command_may_be_readable_only_once() -> None:
    assert McpServer("files", command=iter(["a", "b"])).endpoint.command == ("a", "b")


@pytest.mark.parametrize("server", [remote(), local()], ids=["http", "stdio"])
def test_no_secret_is_shown_by_repr_metadata_origin_or_errors(server: McpServer) -> None:
    endpoint = server.endpoint
    shown = [repr(server), repr(endpoint), endpoint.origin, str(server.approval_metadata)]
    for error in (
        lost(endpoint, f"said {SECRET}"),
        broken(endpoint, f"Authorization: Bearer {SECRET}"),
        timed_out(endpoint, 1.0),
    ):
        shown += [error.message, str(error.details), repr(error)]
    assert not [text for text in shown if SECRET in text]


def test_metadata_for_policies_has_neither_path_nor_credentials() -> None:
    assert remote().approval_metadata == {
        "server": "search",
        "transport": "streamable_http",
        "server_origin": "https://tools.example.com:8443",
    }
    assert local().approval_metadata["server_origin"] == "files"
    assert local().approval_metadata["transport"] == "stdio"


def test_the_fingerprint_changes_with_whatever_a_server_could_notice() -> None:
    base = {"name": "s", "url": "http://h/mcp", "headers": {"X-Key": "one-secret"}}
    prints = {
        McpServer(**options).endpoint.fingerprint
        for options in (
            base,
            {**base, "headers": {"X-Key": "two-secret"}},
            {**base, "url": "http://h/other"},
            {"name": "s", "command": ["x"]},
            {"name": "s", "command": ["x", "y"]},
            {"name": "s", "command": ["x"], "env": {"A": "1"}},
            {"name": "s", "command": ["x"], "cwd": "/tmp"},
        )
    }
    assert len(prints) == 7
    same = McpServer(**{**base, "headers": {"x-key": "one-secret"}}, timeout_s=5).endpoint
    assert same.fingerprint in prints


def test_server_and_endpoint_travel_to_other_processes() -> None:
    server = pickle.loads(pickle.dumps(local()))
    assert server == local()
    assert pickle.loads(pickle.dumps(server.endpoint)).fingerprint == local().endpoint.fingerprint
    assert hash(server) == hash(local())


def declared(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": "d", "inputSchema": {"type": "object"}, **fields}


def test_a_listing_is_the_same_whatever_the_order_and_is_read_back_from_its_text() -> None:
    import json

    one = listing_of(ENDPOINT, [declared("b"), declared("a", outputSchema={"type": "object"})])
    two = listing_of(ENDPOINT, [declared("a", outputSchema={"type": "object"}), declared("b")])
    assert one == two
    assert one.hash == two.hash
    assert Listing.from_wire(json.loads(one.text)) == one


@pytest.mark.parametrize(
    "change",
    [
        {"description": "other"},
        {"inputSchema": {"type": "object", "properties": {"x": {}}}},
        {"outputSchema": {"type": "object"}},
        {"annotations": {"readOnlyHint": True}},
    ],
)
def test_every_change_of_a_declaration_changes_the_hash(change: dict[str, Any]) -> None:
    (former,) = listing_of(ENDPOINT, [declared("a")]).tools
    (later,) = listing_of(ENDPOINT, [declared("a", **change)]).tools
    assert former.hash != later.hash


@pytest.mark.parametrize(
    "tools",
    [
        [declared("a"), declared("a")],
        [declared("")],
        [{"inputSchema": {}}],
        [declared("a", inputSchema=[1])],
        [declared("a", outputSchema=float("nan"))],
    ],
)
def test_a_listing_that_breaks_the_protocol_is_refused(tools: list[dict[str, Any]]) -> None:
    with pytest.raises(ToolError) as raised:
        listing_of(ENDPOINT, tools)
    assert raised.value.code == "mcp_protocol"
    assert raised.value.details["may_have_run"] is False
