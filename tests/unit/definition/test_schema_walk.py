"""Reading a value beside its schema changes nothing that fits already, and only what the schema asks for otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from phronomy_ray.definition.raw_schema import parameters_from_schema
from phronomy_ray.definition.schema import ArgumentError
from phronomy_ray.definition.schema_walk import fit
from phronomy_ray.definition.tool import tool

#: Texts that look like what they are not.
TEXTS = st.sampled_from(["", "x", "1", "1.5", "true", "null", "[1]", '{"a": 1}', "[", " [] ", '"x"', "[[1]]"])
NUMBERS = st.sampled_from([0, 1, -3, 10**30, 1.5, 2.0, -0.0, 1e300])
NAMES = st.sampled_from(["a", "b", "c"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def object_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "additionalProperties": st.booleans() | inner,
            "required": st.lists(NAMES, unique=True, max_size=2),
            "patternProperties": st.dictionaries(st.just("^[ab]$"), inner, max_size=1),
        },
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]).map(
        lambda t: {"type": t}
    )
    | st.just({"type": ["array", "null"]})
    | st.just({"$ref": "#/$defs/list"})
    | st.just({"enum": ["x", 1, "[1]"]})
    | st.just({"const": "x"})
    | st.just({}),
    lambda inner: (
        inner.map(lambda items: {"type": "array", "items": items})
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
        | st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"oneOf": parts})
        | st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"allOf": parts})
        | object_schemas(inner)
    ),
    max_leaves=8,
)
ROOTS = object_schemas(SCHEMAS).map(lambda root: {**root, "$defs": {"list": {"type": "array"}}})
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


def same(left: Any, right: Any) -> bool:
    """Equal as JSON Schema sees it: ``2.0`` is ``2``, but no number is a boolean."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return isinstance(left, bool) is isinstance(right, bool) and left == right


@settings(deadline=None)
@given(ROOTS, ARGUMENTS)
def test_what_fits_is_not_changed(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    parameters = parameters_from_schema(schema, tool="t")
    try:
        parameters.validate(arguments)
    except ArgumentError:
        return
    for coerce in (False, True):
        assert same(parameters.decode(json.dumps(arguments), coerce=coerce), arguments)


@settings(deadline=None)
@given(ROOTS, ARGUMENTS)
def test_what_was_decoded_fits_and_stays_as_it_is(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    parameters = parameters_from_schema(schema, tool="t")
    for coerce in (False, True):
        refused = ""
        try:
            decoded = parameters.decode(json.dumps(arguments), coerce=coerce)
        except ArgumentError as error:
            refused = str(error)
        if refused:
            assert refused.startswith("$")
            assert len(refused) < 2000
            continue
        parameters.validate(decoded)
        assert parameters.decode(json.dumps(decoded)) == decoded, "what was approved is what runs"


@settings(deadline=None)
@given(ROOTS, VALUES)
def test_reading_never_fails(schema: dict[str, Any], value: Any) -> None:
    for coerce in (False, True):
        fit(value, schema, schema, coerce=coerce)


# --- unions ----------------------------------------------------------------------------------------------------


class Walk(BaseModel):
    kind: str = "walk"
    steps: list[int]


class Note(BaseModel):
    text: str
    steps: str = ""


def test_T04_alternatives_that_cannot_be_meant_have_no_say() -> None:
    def go(what: Walk | Note) -> str:
        return ""

    parameters = tool(go).spec.parameters
    assert parameters.decode('{"what": {"steps": "[1]"}}') == {"what": {"steps": [1]}}
    assert parameters.decode('{"what": {"text": "t", "steps": "[1]"}}') == {
        "what": {"text": "t", "steps": "[1]"}
    }


def test_T04_the_word_that_tells_alternatives_apart_is_heard() -> None:
    shapes = [
        {"type": "object", "properties": {"kind": {"const": "list"}, "value": {"type": "array"}}},
        {"type": "object", "properties": {"kind": {"const": "text"}, "value": {"type": "string"}}},
    ]
    schema = {"type": "object", "properties": {"item": {"oneOf": shapes}}}
    parameters = parameters_from_schema(schema, tool="t")
    assert parameters.decode('{"item": {"kind": "list", "value": "[1]"}}') == {
        "item": {"kind": "list", "value": [1]}
    }
    given = {"item": {"kind": "text", "value": "[1]"}}
    assert parameters.decode(json.dumps(given)) == given


@pytest.mark.parametrize("open_shape", [{}, {"additionalProperties": True}, {"additionalProperties": {}}])
def test_T04_text_that_one_alternative_allows_is_text(open_shape: dict[str, Any]) -> None:
    shapes = [
        {"type": "object", "properties": {"x": {"type": "array"}}},
        {"type": "object", "properties": {"y": {"type": "integer"}}, **open_shape},
    ]
    schema = {"type": "object", "properties": {"item": {"anyOf": shapes}}}
    given = {"item": {"x": "[1]"}}
    assert parameters_from_schema(schema, tool="t").decode(json.dumps(given)) == given
