"""One declaration in three forms: what fits, what does not, and what is coerced, alike in all."""

from __future__ import annotations

import json
import sys
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from tool_runs import CONTEXT, run

from phronomy_ray.definition.schema import MAX_ECHO_CHARS, ArgumentError
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.errors import ConfigurationError


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


# --- coerce -------------------------------------------------------------------------------------------------


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


# --- checks that fail themselves ----------------------------------------------------------------------------


def odd(value: int) -> int:
    """A validator with a fault."""
    if value == 13:
        raise ZeroDivisionError("thirteen")
    if value == 14:
        sys.exit(3)
    return value


@pytest.mark.parametrize("coerce", [False, True])
@pytest.mark.parametrize(("given", "said"), [(13, "ZeroDivisionError: thirteen"), (14, "SystemExit: 3")])
def test_a_validator_that_raises_is_told_to_the_model(given: int, said: str, coerce: bool) -> None:
    @tool
    def count(number: Annotated[int, AfterValidator(odd)]) -> int:
        """Count."""
        return number

    with pytest.raises(ArgumentError, match=said):
        count.spec.parameters.decode(json.dumps({"number": given}), coerce=coerce)
    assert count.spec.parameters.decode('{"number": 1}') == {"number": 1}


def test_a_number_that_is_too_large_to_be_checked_is_refused() -> None:
    @tool(parameters={"type": "object", "properties": {"n": {"multipleOf": 0.5}}, "required": ["n"]})
    def half(n: float) -> float:
        """Take a multiple of a half."""
        return n

    with pytest.raises(ArgumentError, match="cannot be checked: OverflowError"):
        half.spec.parameters.decode(f'{{"n": {"9" * 400}}}')


# --- pydantic models ----------------------------------------------------------------------------------------


def test_a_model_is_shown_without_its_title_and_closed() -> None:
    schema = FORMS["model"].spec.parameters.schema
    assert "title" not in schema
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == list(Order.model_fields)


# --- raw schemas --------------------------------------------------------------------------------------------


def test_a_body_may_change_what_it_is_given() -> None:
    parameters = FORMS["schema as a whole"].spec.parameters
    stored = parameters.decode('{"count": 1, "tags": ["a"]}')
    given = parameters.bind(stored, CONTEXT)["arguments"]
    given["tags"].append("b")
    given["steps"].append("c")
    assert parameters.bind(stored, CONTEXT)["arguments"] == {**DEFAULTS, "count": 1, "tags": ["a"]}


def test_hidden_parameters_may_be_inside_objects() -> None:
    made = tool(parameters=Order, redact_params=["zip"])(order)
    assert made.spec.redact_params == ("zip",)
    with pytest.raises(ConfigurationError, match="'river', which is not a parameter"):
        tool(parameters=Order, redact_params=["river"])(order)


def test_a_type_that_no_model_can_give_is_named_with_its_parameter() -> None:
    with pytest.raises(
        ConfigurationError, match=r"tool 'hold': parameter 'lock': .*has no JSON Schema, so no model"
    ) as caught:

        @tool
        def hold(count: int, lock: threading.Event) -> None:
            """Hold."""

    assert "arbitrary_types_allowed" not in str(caught.value)
