"""Tools as users write them: what they compile to, what is inherited, and how a mistake is reported."""

from __future__ import annotations

import dataclasses
import enum
import warnings
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from phronomy_ray.definition.schema import ArgumentError, Parameters
from phronomy_ray.definition.tool import ExecutionMode, OnError, Replay, Tool, tool
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import ToolContext


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Step(BaseModel):
    action: str
    args: list[str] = []


class Where(TypedDict):
    x: int
    y: int


@dataclasses.dataclass
class Size:
    width: int


CONTEXT = ToolContext("a", "ex", "tc", "key", 1)


def parameters(function: Any) -> Parameters:
    return tool(function).spec.parameters


# --- schema ----------------------------------------------------------------------------------------------------


def test_the_schema_comes_from_hints_and_docstring() -> None:
    @tool
    def weather(city: str, unit: Unit = Unit.C, days: Annotated[int, Field(ge=1, le=9)] = 3) -> str:
        """Tell the weather.

        Only for places on land.

        Args:
            city: name of the place
            days: how far to look ahead
        """
        return city

    definition = weather.spec.definition()
    assert definition["type"] == "function"
    function = definition["function"]
    assert function["name"] == "weather"
    assert function["description"] == "Tell the weather.\n\nOnly for places on land."
    schema = function["parameters"]
    assert schema["type"] == "object"
    assert schema["required"] == ["city"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["city"] == {"type": "string", "description": "name of the place"}
    days = schema["properties"]["days"]
    assert (days["minimum"], days["maximum"], days["default"]) == (1, 9, 3)
    assert days["description"] == "how far to look ahead"
    assert "celsius" in str(schema)
    assert "title" not in str(schema["properties"]["city"])


def test_the_decorated_function_can_still_be_called() -> None:
    @tool(replay="safe")
    def double(x: int) -> int:
        """Double x."""
        return 2 * x

    assert double(4) == 8
    assert double.__doc__ == "Double x."
    assert double.spec.replay is Replay.SAFE


def test_what_a_body_is_given_is_typed() -> None:
    @tool
    def everything(
        unit: Unit,
        step: Step,
        where: Where,
        size: Size,
        kind: Literal["a", "b"],
        pair: tuple[int, str],
        tags: set[str],
        ratio: float,
        maybe: int | None = None,
    ) -> str:
        return ""

    compiled = parameters(everything._function)
    raw = (
        '{"unit": "celsius", "step": {"action": "go"}, "where": {"x": 1, "y": 2}, "size": {"width": 3}, "kind": "a", '
        '"pair": [1, "x"], "tags": ["t"], "ratio": 2}'
    )
    bound = compiled.bind(compiled.decode(raw), CONTEXT)
    assert bound["unit"] is Unit.C
    assert bound["step"] == Step(action="go")
    assert bound["where"] == {"x": 1, "y": 2}
    assert bound["size"] == Size(3)
    assert bound["pair"] == (1, "x")
    assert bound["tags"] == {"t"}
    assert bound["ratio"] == 2.0
    assert bound["maybe"] is None


@pytest.mark.parametrize(
    "name", ["schema", "json", "copy", "dict", "validate", "model_name", "construct", "fields", "self_"]
)
def test_parameters_may_be_named_like_methods_of_pydantic(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f({name}: str, other: int = 1) -> str:\n    return {name}", namespace)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = tool(namespace["f"])
    compiled = made.spec.parameters
    assert list(compiled.schema["properties"]) == [name, "other"]
    assert compiled.bind(compiled.decode(f'{{"{name}": "x"}}'), CONTEXT) == {name: "x", "other": 1}


def test_a_schema_has_one_hash() -> None:
    def one(x: int) -> str:
        return ""

    def two(x: str) -> str:
        return ""

    assert parameters(one).hash == parameters(one).hash
    assert parameters(one).hash != parameters(two).hash


# --- the context -----------------------------------------------------------------------------------------------


def test_the_context_is_given_by_the_runtime_and_never_by_the_model() -> None:
    @tool
    def peek(x: int, context: ToolContext) -> str:
        return ""

    compiled = peek.spec.parameters
    assert list(compiled.schema["properties"]) == ["x"]
    assert compiled.bind(compiled.decode('{"x": 1}'), CONTEXT) == {"x": 1, "context": CONTEXT}
    for raw in (
        '{"x": 1, "context": {}}',
        '{"x": 1, "context": null}',
        '{"x": 1, "context": {"agent_id": "evil"}}',
    ):
        with pytest.raises(ArgumentError, match=r"\$\.context: Extra inputs"):
            compiled.decode(raw)


def test_the_context_may_be_optional_and_annotated() -> None:
    @tool
    def peek(x: int, where: ToolContext | None = None) -> str:
        return ""

    @tool
    def peek_too(x: int, *, where: Annotated[ToolContext, "the call"]) -> str:
        return ""

    for made in (peek, peek_too):
        compiled = made.spec.parameters
        assert list(compiled.schema["properties"]) == ["x"]
        assert compiled.bind({"x": 1}, CONTEXT)["where"] is CONTEXT


# --- classes ---------------------------------------------------------------------------------------------------


class SendMailTool(Tool):
    """Send a mail."""

    requires_approval = True
    redact_params = ("body",)
    timeout_s = 5
    on_error = "suppress"

    async def execute(self, to: str, body: str, context: ToolContext) -> str:
        return f"{to} {body} {context.agent_id}"


def test_a_tool_class_is_a_tool() -> None:
    spec = SendMailTool().spec
    assert spec.name == "send_mail"
    assert spec.description == "Send a mail."
    assert spec.requires_approval is True
    assert spec.execution_mode is ExecutionMode.COOPERATIVE
    assert spec.on_error is OnError.SUPPRESS
    assert spec.redact_params == ("body",)
    assert list(spec.parameters.schema["properties"]) == ["to", "body"]


@pytest.mark.parametrize(
    ("class_name", "tool_name"),
    [
        ("ReadFile", "read_file"),
        ("HTTPGetTool", "http_get"),
        ("Ping", "ping"),
        ("Base64Encode", "base64_encode"),
    ],
)
def test_the_name_is_derived_from_the_class(class_name: str, tool_name: str) -> None:
    def execute(self: Any, x: int) -> str:
        return ""

    made = type(class_name, (Tool,), {"execute": execute, "__module__": __name__})
    assert made().spec.name == tool_name


def test_settings_are_inherited_and_hidden_parameters_add_up() -> None:
    class SendNow(SendMailTool):
        redact_params = ("to",)

        async def execute(self, to: str, body: str) -> str:
            return ""

    spec = SendNow().spec
    assert spec.name == "send_now"
    assert (spec.requires_approval, spec.timeout_s, spec.on_error) == (True, 5, OnError.SUPPRESS)
    assert set(spec.redact_params) == {"to", "body"}
    assert SendMailTool().spec.redact_params == ("body",), "the parent is as it was"


def test_a_description_from_a_docstring_is_inherited() -> None:
    class Quiet(SendMailTool):
        requires_approval = False

    assert Quiet().spec.description == "Send a mail."
    assert Quiet().spec.requires_approval is False


def test_the_body_of_a_static_execute_keeps_all_its_parameters() -> None:
    class Add(Tool):
        """Add."""

        @staticmethod
        def execute(a: int, b: int) -> int:
            return a + b

    assert list(Add().spec.parameters.schema["properties"]) == ["a", "b"]
    assert Add().body({"a": 1, "b": 2}) == 3


def test_an_abstract_base_needs_no_body() -> None:
    class Base(Tool):
        requires_approval = True

    with pytest.raises(ConfigurationError, match="Base must define execute"):
        _ = Base().spec


def test_modes_follow_the_body() -> None:
    @tool
    def plain() -> str:
        return ""

    @tool
    async def later() -> str:
        return ""

    @tool(execution_mode="blocking_io")
    async def threaded() -> str:
        return ""

    assert plain.spec.execution_mode is ExecutionMode.BLOCKING_IO
    assert later.spec.execution_mode is ExecutionMode.COOPERATIVE
    assert threaded.spec.execution_mode is ExecutionMode.BLOCKING_IO


# --- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"retries": -1, "replay": "safe"}, "retries"),
        ({"retries": 1.5, "replay": "safe"}, "retries"),
        ({"retries": 2}, "replay"),
        ({"max_result_chars": 0}, "max_result_chars"),
        ({"max_result_chars": 1.5}, "max_result_chars"),
        ({"requires_approval": "yes"}, "requires_approval"),
        ({"requires_approval": None}, "requires_approval"),
        ({"redact_result": "no"}, "redact_result"),
        ({"redact_params": "x"}, "redact_params"),
        ({"redact_params": ["y"]}, "redact_params"),
        ({"redact_params": [1]}, "redact_params"),
        ({"redact_params": 7}, "redact_params"),
        ({"replay": "sometimes"}, "replay"),
        ({"on_error": "ignore"}, "on_error"),
        ({"execution_mode": "offloaded"}, "execution_mode"),
        ({"description": 5}, "description"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_option_names_the_tool_and_the_field(options: dict[str, Any], field: str) -> None:
    def act(x: int) -> str:
        return ""

    with pytest.raises(ConfigurationError) as caught:
        tool(**options)(act)
    assert "'act'" in caught.value.message
    assert field in caught.value.message
    if field != "colour":
        # the same mistake in a class, and the class is not made
        body = {**options, "execute": lambda self, x: "", "name": "act"}
        body["execute"].__annotations__ = {"x": int}
        with pytest.raises(ConfigurationError, match=field):
            type("Act", (Tool,), body)


@pytest.mark.parametrize("name", ["two words", "", "é", "x" * 65, "a.b", 7])
def test_a_wrong_name_is_refused(name: Any) -> None:
    def act() -> str:
        return ""

    if name == "":
        assert tool(name=name)(act).spec.name == "act"
        return
    with pytest.raises(ConfigurationError, match="tool name"):
        tool(name=name)(act)


def no_hint(x) -> str:  # type: ignore[no-untyped-def]
    return ""


def star(*args: int) -> str:
    return ""


def stars(**options: int) -> str:
    return ""


def positional(x: int, /) -> str:
    return ""


def two_contexts(a: ToolContext, b: ToolContext) -> str:
    return ""


class Opaque:
    pass


def opaque(x: Opaque) -> str:
    return ""


def underscore(_x: int) -> str:
    return ""


def unresolved(x: NoSuchType) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


@pytest.mark.parametrize(
    ("function", "about"),
    [
        (no_hint, "'x' has no type hint"),
        (star, "'args'"),
        (stars, "'options'"),
        (positional, "'x'"),
        (two_contexts, "'b' is a second ToolContext"),
        (opaque, "JSON Schema"),
        (underscore, "_x"),
        (unresolved, "NoSuchType"),
    ],
)
def test_a_signature_without_a_schema_names_tool_and_parameter(function: Any, about: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tool(function)
    assert f"'{function.__name__}'" in caught.value.message
    assert about in caught.value.message


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes a function"):
        tool(3)  # type: ignore[call-overload]


# --- arguments -------------------------------------------------------------------------------------------------


def searching(q: str, limit: int = 5, tags: list[str] | None = None) -> str:
    return ""


SEARCH = parameters(searching)


@pytest.mark.parametrize("raw", ["", " ", "\n\t"])
def test_T01_no_text_is_no_arguments(raw: str) -> None:
    def ping() -> str:
        return ""

    assert parameters(ping).decode(raw) == {}
    with pytest.raises(ArgumentError, match=r"\$\.q: Field required"):
        SEARCH.decode(raw)


@pytest.mark.parametrize(
    "raw",
    [
        "null",
        "[]",
        '"x"',
        "42",
        "true",
        "NaN",
        '{"q": NaN}',
        "{",
        "[1",
        "x" * 5_000_000,
        '{"q": "' + "y" * 5_000_000,
        "[" * 100_000,
        '{"q": ' + "1" * 10_000 + "}",
    ],
)
def test_T02_what_is_no_object_is_a_short_error(raw: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        SEARCH.decode(raw)
    text = str(caught.value)
    assert text.startswith("$")
    assert len(text) < 700
    if len(raw) > 1_000 and not raw.startswith('{"q": 1'):
        assert f"({len(raw)} characters)" in text


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("{}", "$.q: Field required"),
        ('{"q": 3}', "$.q: Input should be a valid string (got 3)"),
        ('{"q": "x", "limit": "5"}', "$.limit: Input should be a valid integer"),
        ('{"q": "x", "limit": true}', "$.limit"),
        ('{"q": "x", "nope": 1}', "$.nope: Extra inputs are not permitted"),
        ('{"q": "x", "tags": ["a", 2]}', "$.tags"),
    ],
)
def test_fields_that_do_not_fit_are_named_by_path(raw: str, problem: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        SEARCH.decode(raw)
    assert problem in str(caught.value)


def test_many_problems_are_cut() -> None:
    raw = "{" + ", ".join(f'"f{n}": {n}' for n in range(50)) + "}"
    with pytest.raises(ArgumentError) as caught:
        SEARCH.decode(raw)
    assert "more" in str(caught.value)
    assert len(str(caught.value)) < 1_500


def planning(
    plan: list[Step], note: str, options: dict[str, Any] | None = None, either: str | list[str] = ""
) -> str:
    return ""


PLAN = parameters(planning)
WHOLE = {"plan": [{"action": "go", "args": ["x"]}], "note": "[1]"}


@pytest.mark.parametrize(
    "raw",
    [
        '{"plan": [{"action": "go", "args": ["x"]}], "note": "[1]"}',
        '{"plan": "[{\\"action\\": \\"go\\", \\"args\\": [\\"x\\"]}]", "note": "[1]"}',
        '{"plan": [{"action": "go", "args": "[\\"x\\"]"}], "note": "[1]"}',
        '{"plan": ["{\\"action\\": \\"go\\", \\"args\\": [\\"x\\"]}"], "note": "[1]"}',
        '{"plan": "[{\\"action\\": \\"go\\", \\"args\\": \\"[\\\\\\"x\\\\\\"]\\"}]", "note": "[1]"}',
        '"{\\"plan\\": [{\\"action\\": \\"go\\", \\"args\\": [\\"x\\"]}], \\"note\\": \\"[1]\\"}"',
    ],
)
def test_T04_json_text_is_decoded_at_any_depth_where_the_schema_says_so(raw: str) -> None:
    assert PLAN.decode(raw) == WHOLE


def test_T04_text_fields_are_never_touched() -> None:
    def texts(a: str, b: str | None, c: str | list[int], d: Any, e: Literal["[1]"], f: dict[str, str]) -> str:
        return ""

    given = {"a": "[1]", "b": '{"x": 1}', "c": "[2]", "d": "[3]", "e": "[1]", "f": {"k": "[4]"}}
    import json

    assert parameters(texts).decode(json.dumps(given)) == given


class Said(BaseModel):
    kind: Literal["said"]
    value: str


class Listed(BaseModel):
    kind: Literal["listed"]
    value: list[int]


def test_T04_a_text_field_of_one_shape_is_not_decoded_for_the_sake_of_another() -> None:
    def union(item: Said | Listed) -> str:
        return ""

    def tagged(item: Annotated[Said | Listed, Field(discriminator="kind")]) -> str:
        return ""

    def listed(items: list[Said | Listed]) -> str:
        return ""

    said = '{"kind": "said", "value": "[1]"}'
    for function in (union, tagged):
        assert parameters(function).decode(f'{{"item": {said}}}') == {
            "item": {"kind": "said", "value": "[1]"}
        }
    assert parameters(listed).decode(f'{{"items": [{said}]}}')["items"][0]["value"] == "[1]"


class Other(BaseModel):
    kind: Literal["other"]
    size: int


def test_T04_shapes_without_a_text_in_the_same_place_are_decoded() -> None:
    def union(item: Listed | Other | None) -> str:
        return ""

    given = '{"item": "{\\"kind\\": \\"listed\\", \\"value\\": \\"[1]\\"}"}'
    assert parameters(union).decode(given) == {"item": {"kind": "listed", "value": [1]}}


class Node(BaseModel):
    name: str
    children: list[Node] = []


def test_T04_recursive_schemas() -> None:
    def tree(root: Node) -> str:
        return ""

    given = '{"root": {"name": "[a]", "children": "[{\\"name\\": \\"b\\", \\"children\\": \\"[]\\"}]"}}'
    expected = {"root": {"name": "[a]", "children": [{"name": "b", "children": []}]}}
    assert parameters(tree).decode(given) == expected


@pytest.mark.parametrize("plan", ['"[{\\"action\\": "', '"[1, 2"', '"{}"', '"go, then stop"', '"null"'])
def test_T04_text_that_is_no_such_json_is_an_error_that_says_what_to_send(plan: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        PLAN.decode(f'{{"plan": {plan}, "note": "x"}}')
    assert "$.plan" in str(caught.value)
    assert "send JSON, not a string" in str(caught.value)


def test_what_was_decoded_is_what_is_bound() -> None:
    decoded = PLAN.decode('{"plan": "[{\\"action\\": \\"go\\"}]", "note": "n"}')
    bound = PLAN.bind(decoded, CONTEXT)
    assert bound["plan"] == [Step(action="go")]


def test_a_tool_shows_the_name_that_the_model_uses() -> None:
    @tool
    def look(x: int) -> int:
        """Look."""
        return x

    assert repr(look) == "<tool 'look'>"
    assert repr(look.with_options(name="see")) == "<tool 'see'>"
