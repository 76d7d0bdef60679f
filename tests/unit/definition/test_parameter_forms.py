"""Pydantic models and raw JSON Schemas: what each of them adds to the common behaviour."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tool_runs import CONTEXT, run

from phronomy_ray.definition.raw_schema import parameters_from_schema
from phronomy_ray.definition.schema import ArgumentError, Parameters
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import ToolContext


def order_of_mapping(arguments: dict[str, Any]) -> Any:
    return arguments


class Node(BaseModel):
    name: str
    children: list[Node] = []


# --- pydantic models ----------------------------------------------------------------------------------------


def doubling(levels: int, link: Any) -> dict[str, Any]:
    """A schema in which each level refers to the next one twice, in the way of `link`."""
    steps = {f"s{n}": link([{"$ref": f"#/$defs/s{n + 1}"}] * 2) for n in range(levels)}
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/s0"}},
        "required": ["a"],
        "$defs": {**steps, f"s{levels}": {}},
    }


@pytest.mark.parametrize(
    "schema",
    [
        doubling(10, lambda both: {"anyOf": both}),
        doubling(60, lambda both: {"properties": {"b": both[0], "c": both[1]}}),
    ],
)
def test_references_that_share_their_targets_are_looked_at_once(schema: dict[str, Any]) -> None:
    made = tool(parameters=schema)(of_a)
    assert made.spec.parameters.bind({"a": 1}, None)


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_short_schema_cannot_make_its_validation_endless(keyword: str, foreign: bool) -> None:
    schema = doubling(60, lambda both: {keyword: both})
    with pytest.raises(ConfigurationError, match="compared with more than 10000 schemas"):
        parameters_from_schema(schema, tool="mine", foreign=foreign)


def test_a_model_that_contains_itself() -> None:
    @tool(parameters=Node)
    def walk(node: Node) -> str:
        return node.children[0].name

    assert walk.spec.parameters.schema["type"] == "object"
    assert run(walk, '{"name": "a", "children": "[{\\"name\\": \\"b\\"}]"}') == "b"


def test_aliases_are_what_the_model_writes() -> None:
    class Mail(BaseModel):
        sender: Annotated[str, Field(alias="from")]

    @tool(parameters=Mail, redact_params=["from"])
    def send(sender: str) -> str:
        return sender

    assert run(send, '{"from": "me"}') == "me"
    with pytest.raises(ArgumentError, match="sender"):
        send.spec.parameters.decode('{"sender": "me"}')


def test_a_model_that_says_what_becomes_of_other_fields_is_believed() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    class Deaf(BaseModel):
        model_config = ConfigDict(extra="ignore")
        a: int

    @tool(parameters=Open)
    def everything(**given: Any) -> Any:
        return given

    @tool(parameters=Deaf)
    def known(a: int) -> Any:
        return a

    assert run(everything, '{"a": 1, "b": 2}') == {"a": 1, "b": 2}
    assert run(known, '{"a": 1, "b": 2}') == 1


# --- raw schemas --------------------------------------------------------------------------------------------


def test_the_body_of_a_schema_takes_its_arguments_in_three_ways() -> None:
    schema = {"type": "object", "properties": {"from": {"type": "string"}, "n": {"type": "integer"}}}

    @tool(parameters=schema)
    def mapping(arguments: dict[str, Any], context: ToolContext) -> Any:
        return [arguments, context.agent_id]

    @tool(parameters=schema)
    def keywords(n: int = 5, **rest: Any) -> Any:
        return [n, rest]

    @tool(parameters={**schema, "properties": {"n": {"type": "integer"}}})
    def named(n: int = 5) -> Any:
        return n

    assert run(mapping, '{"from": "x", "other": 1}') == [{"from": "x", "other": 1}, "a"]
    assert run(keywords, '{"from": "x", "other": 1}') == [5, {"from": "x", "other": 1}]
    assert run(named, '{"n": 2}') == 2
    assert named.spec.parameters.schema["additionalProperties"] is False
    assert "additionalProperties" not in mapping.spec.parameters.schema
    with pytest.raises(ArgumentError, match=r"\$\.other: Extra inputs"):
        named.spec.parameters.decode('{"other": 2}')


def test_a_class_may_have_a_schema_too() -> None:
    class Search(Tool):
        """Search."""

        parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}

        async def execute(self, q: str, context: ToolContext) -> str:
            return q

    class Again(Search):
        async def execute(self, *, q: str) -> str:
            return q + q

    assert Search().spec.parameters.context_parameter == "context"
    assert Again().spec.parameters.context_parameter is None
    assert Again().spec.parameters.schema == Search().spec.parameters.schema


def test_a_property_called_arguments_is_a_property() -> None:
    @tool(
        parameters={
            "type": "object",
            "properties": {"arguments": {"type": "array"}},
            "required": ["arguments"],
        }
    )
    def process(arguments: list[Any]) -> Any:
        return arguments

    assert run(process, '{"arguments": [1]}') == [1]


def test_nobody_sets_the_context_or_what_a_partial_has_fixed() -> None:
    import functools

    @tool(parameters={"type": "object"})
    def anything(context: ToolContext, **rest: Any) -> Any:
        return [context.agent_id, rest]

    def send(user: str, **rest: Any) -> Any:
        return [user, rest]

    fixed = tool(parameters={"type": "object"})(functools.partial(send, user="me"))

    class Open(Tool):
        parameters = {"type": "object"}

        def execute(self, **rest: Any) -> Any:
            return rest

    assert run(anything, '{"x": 1}') == ["a", {"x": 1}]
    assert run(fixed, '{"x": 1}') == ["me", {"x": 1}]
    for made, name in ((anything, "context"), (fixed, "user"), (Open(), "self")):
        with pytest.raises(ArgumentError, match=rf"\$\.{name}: Extra inputs are not permitted"):
            made.spec.parameters.decode(json.dumps({name: "evil"}))


def test_references_of_every_inner_kind() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/x~1y"},
            "b": {"$ref": "#list"},
            "c": {"$ref": "#/properties/a"},
            "again": {"$ref": "#"},
        },
        "$defs": {"x/y": {"type": "array"}, "z": {"$anchor": "list", "type": "array"}},
    }
    parameters = parameters_from_schema(schema, tool="t")
    given = json.dumps({"a": "[1]", "b": "[2]", "c": "[3]", "again": '{"a": "[4]"}'})
    assert parameters.decode(given) == {"a": [1], "b": [2], "c": [3], "again": {"a": [4]}}
    with pytest.raises(ArgumentError, match=r"\$\.again\.b: must be array"):
        parameters.decode('{"again": {"b": 3}}')


def test_unions_of_objects_and_conditions() -> None:
    schema = {
        "type": "object",
        "properties": {
            "shape": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"r": {"type": "number"}},
                        "required": ["r"],
                        "additionalProperties": False,
                    },
                    {
                        "type": "object",
                        "properties": {"w": {"type": "number"}},
                        "required": ["w"],
                        "additionalProperties": False,
                    },
                ]
            }
        },
        "if": {"required": ["shape"]},
        "then": {"required": ["unit"]},
    }
    parameters = parameters_from_schema(schema, tool="t")
    assert parameters.decode('{"shape": "{\\"r\\": 1}", "unit": "m"}') == {"shape": {"r": 1}, "unit": "m"}
    with pytest.raises(ArgumentError, match=r"\$\.unit: Field required"):
        parameters.decode('{"shape": {"r": 1}}')
    with pytest.raises(ArgumentError, match=r"\$\.shape"):
        parameters.decode('{"shape": {"h": 1}, "unit": "m"}')


def test_constraints_have_short_texts() -> None:
    schema = {
        "type": "object",
        "properties": {
            "few": {"type": "array", "minItems": 1, "maxItems": 2, "uniqueItems": True},
            "even": {"type": "integer", "multipleOf": 2},
            "fixed": {"const": "x"},
            "never": False,
        },
        "dependentRequired": {"few": ["even"]},
    }
    decode = parameters_from_schema(schema, tool="t").decode
    for given, text in (
        ({"few": [], "even": 2}, "$.few: must have at least 1 items"),
        ({"few": [1, 2, 3], "even": 2}, "$.few: must have at most 2 items"),
        ({"few": [1, 1], "even": 2}, "$.few: must not repeat an item"),
        ({"even": 3}, "$.even: must be a multiple of 2 (got 3)"),
        ({"fixed": "y"}, "$.fixed: must be 'x' (got 'y')"),
        ({"never": 1}, "no value is allowed here (got 1)"),
        ({"few": [1]}, "$: does not fit the schema's dependentRequired"),
    ):
        with pytest.raises(ArgumentError) as caught:
            decode(json.dumps(given))
        assert text in str(caught.value)


def whole(arguments: dict[str, Any]) -> str:
    return ""


def empty() -> str:
    return ""


def of_a(a: Any) -> str:
    return ""


def of_a_or_not(a: Any = None) -> str:
    return ""


def of_context(a: ToolContext) -> str:
    return ""


@pytest.mark.parametrize(
    ("schema", "body", "about"),
    [
        ({}, whole, "root of the schema must have type 'object'"),
        ({"type": "array"}, whole, "root"),
        ({"type": ["object", "null"]}, whole, "root"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, whole, r"\$\.properties\.a"),
        ({"type": "object", "properties": {"a": 3}}, whole, r"\$\.properties\.a"),
        ({"type": "object", "required": "a"}, whole, r"\$\.required"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, whole, "regular expression|regex"),
        ({"type": "object", "patternProperties": {"(": {}}}, whole, "regular expression|regex"),
        ({"type": "object", "x": object()}, whole, "plain JSON"),
        ({"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"}, whole, "draft-07"),
        ({"type": "object", "$schema": "https://example.com/mine"}, whole, "example.com"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}, whole, "leads out"),
        ({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}, whole, "leads out"),
        ({"type": "object", "properties": {"a": {"$ref": "other.json#/a"}}}, whole, "leads out"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}, whole, "leads nowhere"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, whole, "refers to itself"),
        ({"type": "object", "anyOf": [{"$ref": "#"}]}, whole, "refers to itself"),
        ({"type": "object", "properties": {"a": {"type": "integer", "default": "1"}}}, whole, "default '1'"),
        (
            {"type": "object", "properties": {"a": {"type": "boolean", "enum": ["true"]}}},
            whole,
            "enum 'true'",
        ),
        ({"type": "object", "properties": {"a": {"type": "integer", "enum": [1, True]}}}, whole, "enum True"),
        ({"type": "object", "properties": {"a": {}}}, empty, "property 'a' that the body does not take"),
        ({"type": "object", "properties": {}}, of_a, "'a' is no property"),
        ({"type": "object", "properties": {"a": {}}}, of_a, "'a' may be left out"),
        ({"type": "object", "properties": {"a": {}}}, of_context, "'a', which the body has another use for"),
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
            of_a_or_not,
            "may allow more",
        ),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{}]}, of_a_or_not, "may allow more"),
        (3, whole, "must be a pydantic model or a JSON Schema"),
        (int, whole, "must be a pydantic model or a JSON Schema"),
    ],
)
def test_a_schema_that_cannot_be_used_fails_at_definition(schema: Any, body: Any, about: str) -> None:
    with pytest.raises(ConfigurationError, match=about) as caught:
        tool(name="mine", parameters=schema)(body)
    assert "'mine'" in caught.value.message


def test_a_property_named_like_a_keyword_is_no_keyword() -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "default": {"type": "string"}}}
    assert run(tool(parameters=schema)(order_of_mapping), '{"$ref": "http://x"}') == {"$ref": "http://x"}


def test_a_schema_of_a_server_may_be_older_and_looser() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "a": {"type": "string", "default": None},
            "b": {"type": "array", "items": [{"type": "object"}]},
            "c": {"$ref": "#/definitions/C"},
        },
        "definitions": {"C": {"type": "array"}},
    }
    parameters = parameters_from_schema(schema, tool="t", foreign=True)
    assert parameters.decode('{"b": ["{}"], "c": "[1]"}') == {"b": [{}], "c": [1]}
    assert parameters.bind({}, CONTEXT) == {}, "the server knows its defaults"
    made = tool(parameters=parameters)(order_of_mapping)
    assert run(made, '{"a": "x"}') == {"a": "x"}
    with pytest.raises(ConfigurationError, match="leads out"):
        parameters_from_schema(
            {"type": "object", "properties": {"a": {"$ref": "http://evil/"}}}, tool="t", foreign=True
        )


def test_the_schema_is_a_copy_and_travels() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    parameters = parameters_from_schema(schema, tool="t")
    schema["properties"]["a"] = {"type": "integer"}  # type: ignore[index]
    again: Parameters = pickle.loads(pickle.dumps(parameters))
    assert again == parameters
    assert again.decode('{"a": "x"}') == {"a": "x"}


def test_a_body_does_not_fit_a_model() -> None:
    def lacks(count: int) -> str:
        return ""

    def more(count: int, colour: str) -> str:
        return ""

    class Small(BaseModel):
        count: int
        size: int

    for body, about in ((lacks, "field 'size' that the body does not take"), (more, "'colour' is no field")):
        with pytest.raises(ConfigurationError, match=about):
            tool(parameters=Small)(body)


def test_a_body_that_takes_the_whole_may_have_any_properties() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in ("context", "arguments", "self")},
    }
    parameters = parameters_from_schema(schema, tool="t", foreign=True)
    whole = dataclasses.replace(parameters, whole_parameter="arguments", context_parameter="context")

    def body(arguments: dict[str, Any], context: ToolContext) -> Any:
        return [arguments, context.agent_id]

    made = tool(name="t", parameters=whole)(body)
    for again in (made, made.with_options(timeout_s=3)):
        assert run(again, '{"context": 1, "arguments": 2, "self": 3}') == [
            {"context": 1, "arguments": 2, "self": 3},
            "a",
        ]
    with pytest.raises(ConfigurationError, match="has another use"):
        tool(name="t", parameters=schema)(body)
