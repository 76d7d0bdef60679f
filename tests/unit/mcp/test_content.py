"""The tables of `phronomy_ray.mcp.content`, line by line."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from phronomy_ray.errors import ToolError
from phronomy_ray.mcp.content import tool_value
from phronomy_ray.mcp.endpoint import McpEndpoint

SECRET = "canary-4711-canary"
ENDPOINT = McpEndpoint("files", command=("server",), env={"TOKEN": SECRET})
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
BYTES = b"\x89PNG...."
DATA = base64.b64encode(BYTES).decode()
SUMMARY = {"bytes": len(BYTES), "sha256": hashlib.sha256(BYTES).hexdigest()}


def value(result: dict[str, Any], output_schema: dict[str, Any] | None = None) -> Any:
    return tool_value(ENDPOINT, result, tool="probe", output_schema=output_schema)


def failure(result: dict[str, Any], output_schema: dict[str, Any] | None = None) -> ToolError:
    with pytest.raises(ToolError) as raised:
        value(result, output_schema)
    return raised.value


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"content": []}, None),
        ({}, None),
        ({"content": [text("one")]}, "one"),
        ({"content": [text("one"), text("two")]}, "one\ntwo"),
        ({"content": [text('{"sum": 3}')], "structuredContent": {"sum": 3}}, {"sum": 3}),
        ({"content": [], "structuredContent": None}, None),
        ({"content": [text("x")], "structuredContent": [1, "a"]}, [1, "a"]),
        (
            {"content": [text("see"), {"type": "image", "data": DATA, "mimeType": "image/png"}]},
            {"content": [text("see"), {"type": "image", "mime_type": "image/png", **SUMMARY}]},
        ),
        (
            {"content": [{"type": "audio", "data": DATA, "mimeType": "audio/wav"}], "structuredContent": {}},
            {
                "content": [{"type": "audio", "mime_type": "audio/wav", **SUMMARY}],
                "structured_content": {},
            },
        ),
        (
            {
                "content": [
                    {
                        "type": "resource",
                        "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "w"},
                    },
                    {"type": "resource", "resource": {"uri": "file:///b", "blob": DATA}},
                    {"type": "resource_link", "uri": "file:///c", "name": "c"},
                    {"type": "hologram", "data": DATA},
                    "not a block",
                ]
            },
            {
                "content": [
                    {"type": "resource", "uri": "file:///a", "mime_type": "text/plain", "text": "w"},
                    {"type": "resource", "uri": "file:///b", "mime_type": "", **SUMMARY},
                    {"type": "resource_link", "uri": "file:///c", "name": "c"},
                    {"type": "unsupported", "block_type": "hologram"},
                    {"type": "unsupported", "block_type": "str"},
                ]
            },
        ),
    ],
)
def test_the_table(result: dict[str, Any], expected: Any) -> None:
    assert value(result) == expected


def test_binary_data_is_nowhere_in_what_is_kept() -> None:
    kept = value({"content": [{"type": "image", "data": DATA, "mimeType": "image/png"}]})
    assert DATA not in json.dumps(kept)


def test_broken_base64_is_said_to_be_of_unknown_size() -> None:
    kept = value({"content": [{"type": "image", "data": "%%%", "mimeType": "image/png"}]})
    assert kept["content"][0]["bytes"] is None


def test_an_error_result_is_a_failure_with_the_servers_text() -> None:
    error = failure({"content": [text("no such file"), text("try again")], "isError": True})
    assert (error.code, error.message) == ("mcp_tool_error", "no such file\ntry again")


def test_an_error_result_needs_not_fit_the_output_schema_and_may_say_nothing() -> None:
    assert "did not say why" in failure({"content": [], "isError": True}, SUM).message
    assert failure({"content": [], "structuredContent": {"why": 1}, "isError": True}).message == '{"why":1}'


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"content": [text("3")]}, "sent none"),
        ({"content": [], "structuredContent": {"sum": "many"}}, "$.sum: 'many' is not of type 'integer'"),
        ({"content": [], "structuredContent": {}}, "'sum' is a required property"),
        ({"content": [], "structuredContent": None}, "None is not of type 'object'"),
    ],
)
def test_a_result_that_breaks_the_promised_schema_is_a_protocol_error(
    result: dict[str, Any], says: str
) -> None:
    error = failure(result, SUM)
    assert error.code == "mcp_protocol"
    assert says in error.message
    assert error.details["may_have_run"] is True


#: A short text that means 2 to the 40 comparisons.
ENDLESS = {
    "$ref": "#/$defs/s0",
    "$defs": {**{f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(40)}, "s40": {}},
}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 7},
        {"anyOf": 3},
        {"$ref": "https://example.com/schema.json"},
        {"allOf": [{"$ref": "#"}]},
        ENDLESS,
    ],
)
def test_an_output_schema_that_cannot_be_used_is_a_protocol_error_and_nothing_is_fetched(
    schema: dict[str, Any],
) -> None:
    error = failure({"content": [], "structuredContent": {"sum": 3}}, schema)
    assert error.code == "mcp_protocol"
    assert "not usable" in error.message


def test_secrets_of_the_endpoint_are_blanked_in_results_and_errors() -> None:
    assert value({"content": [text(f"the token is {SECRET}")]}) == "the token is [REDACTED]"
    assert value({"content": [], "structuredContent": {"env": [SECRET]}}) == {"env": ["[REDACTED]"]}
    assert SECRET not in failure({"content": [text(SECRET)], "isError": True}).message


def test_a_result_that_only_looks_like_a_secret_is_left_alone() -> None:
    assert value({"content": [text("password: hunter2")]}) == "password: hunter2"
