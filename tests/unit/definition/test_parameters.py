"""Parameters in their three forms: hints, a pydantic model and a raw JSON Schema read and refuse the same texts alike."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from phronomy_ray.definition.raw_schema import parameters_from_schema
from phronomy_ray.definition.schema import MAX_ECHO_CHARS, ArgumentError, Parameters
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import ToolContext

CONTEXT = ToolContext("a", "ex", "tc", "key", 1)


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str
    zip: int | None = None


class Order(BaseModel):
    """An order."""

    count: Annotated[int, Field(ge=1, le=9)]
    kind: Literal["new", "used"] = "new"
    urgent: bool = False
    level: Literal[1, 2, True] = 1
    place: Place | None = None
    tags: list[str] = []
    steps: list[Place] = []
    price: float | str = 0.0
    code: Annotated[str, Field(pattern="^[a-z]+$", max_length=5)] = "abc"


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["new", "used"], "default": "new"},
        "urgent": {"type": "boolean", "default": False},
        "level": {"enum": [1, 2, True], "default": 1},
        "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        "steps": {"type": "array", "items": {"$ref": "#/$defs/Place"}, "default": []},
        "price": {"type": ["number", "string"], "default": 0.0},
        "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "default": "abc"},
    },
    "required": ["count"],
    "additionalProperties": False,
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "zip": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            },
            "required": ["city"],
            "additionalProperties": False,
        }
    },
}


def order(
    count: Annotated[int, Field(ge=1, le=9)],
    kind: Literal["new", "used"] = "new",
    urgent: bool = False,
    level: Literal[1, 2, True] = 1,
    place: Place | None = None,
    tags: list[str] = [],  # noqa: B006 - a default as users write it
    steps: list[Place] = [],  # noqa: B006
    price: float | str = 0.0,
    code: Annotated[str, Field(pattern="^[a-z]+$", max_length=5)] = "abc",
) -> Any:
    """An order."""
    return locals()


def order_of_model(order: Order) -> Any:
    return {name: getattr(order, name) for name in Order.model_fields}


def order_of_mapping(arguments: dict[str, Any]) -> Any:
    return arguments


FORMS: dict[str, Any] = {
    "hints": tool(order),
    "model": tool(parameters=Order)(order),
    "model as a whole": tool(parameters=Order)(order_of_model),
    "schema": tool(parameters=SCHEMA)(order),
    "schema as a whole": tool(parameters=SCHEMA)(order_of_mapping),
}
forms = pytest.mark.parametrize("made", FORMS.values(), ids=FORMS)


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def run(made: Tool, raw: str) -> Any:
    parameters = made.spec.parameters
    return plain(made.body(parameters.bind(parameters.decode(raw), CONTEXT)))


DEFAULTS = {
    "kind": "new",
    "urgent": False,
    "level": 1,
    "place": None,
    "tags": [],
    "steps": [],
    "price": 0.0,
    "code": "abc",
}


@forms
@pytest.mark.parametrize(
    "given",
    [
        {"count": 3},
        {"count": 3, "kind": "used", "urgent": True, "level": 2, "price": "free", "code": "x"},
        {"count": 3, "place": {"city": "Rome", "zip": 1}},
        {"count": 3, "place": None, "steps": [{"city": "Rome", "zip": None}], "tags": ["a", "b"]},
        {"count": 3, "price": 2.5},
    ],
)
def test_what_fits_reaches_the_body_with_its_defaults(made: Tool, given: dict[str, Any]) -> None:
    assert run(made, json.dumps(given)) == {**DEFAULTS, **given}


@forms
def test_defaults_inside_objects_are_filled_in(made: Tool) -> None:
    given = '{"count": 1, "steps": [{"city": "Rome"}]}'
    assert run(made, given)["steps"] == [{"city": "Rome", "zip": None}]


@forms
@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({}, "$.count: Field required"),
        ({"count": "3"}, "$.count: "),
        ({"count": 0}, "$.count: "),
        ({"count": 10}, "$.count: "),
        ({"count": True}, "$.count: "),
        ({"count": 1.5}, "$.count: "),
        ({"count": None}, "$.count: "),
        ({"count": 1, "kind": "old"}, "$.kind: "),
        ({"count": 1, "urgent": "true"}, "$.urgent: "),
        ({"count": 1, "urgent": 1}, "$.urgent: "),
        ({"count": 1, "level": 3}, "$.level: "),
        ({"count": 1, "level": False}, "$.level: "),
        ({"count": 1, "level": "1"}, "$.level: "),
        ({"count": 1, "place": {}}, "$.place.city: Field required"),
        ({"count": 1, "place": {"city": 1}}, "$.place.city: "),
        ({"count": 1, "place": {"city": "x", "river": 1}}, "$.place.river: Extra inputs"),
        ({"count": 1, "tags": ["a", 1]}, "$.tags[1]: "),
        ({"count": 1, "steps": [{"city": "x"}, {}]}, "$.steps[1].city: Field required"),
        ({"count": 1, "price": None}, "$.price"),
        ({"count": 1, "code": "ABC"}, "$.code: "),
        ({"count": 1, "code": "abcdef"}, "$.code: "),
        ({"count": 1, "colour": 1}, "$.colour: Extra inputs are not permitted"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(made: Tool, given: dict[str, Any], where: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        made.spec.parameters.decode(json.dumps(given))
    assert where in str(caught.value)
    assert len(str(caught.value)) < 600


@forms
def test_T01_no_text_is_no_arguments_in_every_form(made: Tool) -> None:
    for raw in ("", "  ", "\n"):
        with pytest.raises(ArgumentError, match=r"^\$\.count: Field required$"):
            made.spec.parameters.decode(raw)


@forms
@pytest.mark.parametrize("raw", ["null", "[]", '"x"', "42", "true", '{"count":', '"' + "x" * 5_000_000])
def test_T02_what_is_no_object_is_refused_with_a_short_echo_in_every_form(made: Tool, raw: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        made.spec.parameters.decode(raw)
    assert str(caught.value).startswith("$: ")
    assert len(str(caught.value)) < MAX_ECHO_CHARS + 200
    if len(raw) > MAX_ECHO_CHARS:
        assert "(5000001 characters)" in str(caught.value)


@forms
def test_T02_a_huge_value_in_its_place_is_not_echoed(made: Tool) -> None:
    for given in (
        {"count": "x" * 1_000_000},
        {"count": 1, "code": "y" * 1_000_000},
        {"count": [1] * 100_000},
    ):
        with pytest.raises(ArgumentError) as caught:
            made.spec.parameters.decode(json.dumps(given))
        assert len(str(caught.value)) < 600


@forms
def test_T04_json_text_is_decoded_where_the_schema_wants_a_structure(made: Tool) -> None:
    parameters = made.spec.parameters
    given = {
        "count": 1,
        "place": '{"city": "[1]"}',
        "steps": '[{"city": "x"}]',
        "tags": ["[1]"],
        "price": "[1]",
    }
    assert parameters.decode(json.dumps(given)) == {
        "count": 1,
        "place": {"city": "[1]"},
        "steps": [{"city": "x"}],
        "tags": ["[1]"],
        "price": "[1]",
    }
    assert parameters.decode(json.dumps(json.dumps({"count": 1}))) == {"count": 1}
    assert parameters.decode(json.dumps({"count": 1, "steps": ['{"city": "x"}']}))["steps"] == [{"city": "x"}]
    for wrong in ({"count": 1, "tags": "[1"}, {"count": 1, "place": "Rome"}):
        with pytest.raises(ArgumentError, match="send JSON, not a string"):
            parameters.decode(json.dumps(wrong))


@forms
def test_a_number_without_a_fraction_is_an_integer(made: Tool) -> None:
    decoded = made.spec.parameters.decode('{"count": 2.0}')
    assert decoded == {"count": 2}
    assert type(decoded["count"]) is int


# --- coerce ----------------------------------------------------------------------------------------------------


@forms
def test_coerce_reads_what_can_be_read_without_a_guess(made: Tool) -> None:
    parameters = made.spec.parameters
    given = {
        "count": " 3 ",
        "urgent": "TRUE",
        "level": "2",
        "place": {"city": 7, "zip": "12"},
        "tags": [1, "b", 2.5],
        "price": "1.5",
    }
    coerced = parameters.decode(json.dumps(given), coerce=True)
    assert coerced == {
        "count": 3,
        "urgent": True,
        "level": 2,
        "place": {"city": "7", "zip": 12},
        "tags": ["1", "b", "2.5"],
        "price": "1.5",
    }
    assert parameters.decode(json.dumps(coerced)) == coerced, "what was coerced is what is approved and run"


@forms
@pytest.mark.parametrize(
    "given",
    [
        {"count": "three"},
        {"count": "9" * 400},
        {"count": "1.5"},
        {"count": None},
        {"count": 1, "urgent": "perhaps"},
        {"count": 1, "kind": "NEW"},
        {"count": 1, "place": {"city": None}},
        {"count": "10"},
    ],
)
def test_what_cannot_be_coerced_is_refused_as_it_was(made: Tool, given: dict[str, Any]) -> None:
    parameters = made.spec.parameters
    with pytest.raises(ArgumentError) as strict:
        parameters.decode(json.dumps(given))
    with pytest.raises(ArgumentError) as coerced:
        parameters.decode(json.dumps(given), coerce=True)
    assert str(coerced.value) == str(strict.value)


def test_pydantic_reads_more_when_it_is_not_strict() -> None:
    def when(ready: bool) -> bool:
        return ready

    made = tool(when).spec.parameters
    assert made.decode('{"ready": "yes"}', coerce=True) == {"ready": True}


def test_a_field_that_hides_its_value_is_not_coerced_into_its_mask() -> None:
    def login(name: SecretStr, port: bool) -> str:
        return ""

    made = tool(login).spec.parameters
    with pytest.raises(ArgumentError, match=r"\$\.port"):
        made.decode('{"name": "hunter2", "port": "yes"}', coerce=True)
    assert made.decode('{"name": "hunter2", "port": "true"}', coerce=True) == {
        "name": "hunter2",
        "port": True,
    }


# --- pydantic models -------------------------------------------------------------------------------------------


def test_a_model_is_shown_without_its_title_and_closed() -> None:
    schema = FORMS["model"].spec.parameters.schema
    assert "title" not in schema
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == list(Order.model_fields)


class Node(BaseModel):
    name: str
    children: list[Node] = []


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


# --- raw schemas -----------------------------------------------------------------------------------------------


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


def test_a_body_may_change_what_it_is_given() -> None:
    parameters = FORMS["schema as a whole"].spec.parameters
    stored = parameters.decode('{"count": 1, "tags": ["a"]}')
    given = parameters.bind(stored, CONTEXT)["arguments"]
    given["tags"].append("b")
    given["steps"].append("c")
    assert parameters.bind(stored, CONTEXT)["arguments"] == {**DEFAULTS, "count": 1, "tags": ["a"]}


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


def test_hidden_parameters_may_be_inside_objects() -> None:
    made = tool(parameters=Order, redact_params=["zip"])(order)
    assert made.spec.redact_params == ("zip",)
    with pytest.raises(ConfigurationError, match="'river', which is not a parameter"):
        tool(parameters=Order, redact_params=["river"])(order)


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
