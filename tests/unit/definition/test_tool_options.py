"""The options of a tool: one set for functions and classes, checked when the tool is made, and never lost on the way."""

from __future__ import annotations

import functools
import inspect
import pickle
from typing import Any

import pytest

from phronomy_ray.definition.tool import (
    ExecutionMode,
    FunctionTool,
    OnSchemaError,
    RayOptions,
    Replay,
    Tool,
    ToolOrigin,
    ToolSpec,
    tool,
)
from phronomy_ray.definition.tool_spec import OPTION_DEFAULTS
from phronomy_ray.errors import ConfigurationError


def ask(request: Any) -> bool:
    return True


def facts(arguments: dict[str, Any], context: dict[str, Any] | None) -> dict[str, Any]:
    return {}


def shorten(value: Any, context: Any) -> Any:
    return value


#: A value other than the default for every option but name, description and parameters.
CHANGED: dict[str, Any] = {
    "execution_mode": "cpu_bound",
    "replay": "safe",
    "requires_approval": ask,
    "approval_facts": facts,
    "approval_expires_s": 60.0,
    "approval_metadata": {"team": "ops"},
    "on_error": "suppress",
    "on_schema_error": "coerce",
    "timeout_s": 5.0,
    "retries": 2,
    "max_result_chars": 10,
    "return_direct": True,
    "result_filters": (shorten,),
    "pool": "slow",
    "ray_options": RayOptions(num_cpus=2, resources={"disk": 0.5}),
    "provider_options": {"function": {"strict": True}},
    "redact_params": ("x",),
    "redact_result": True,
    "version": "7",
    "tool_origin": "mcp",
}


def act(x: int) -> str:
    """Act on x."""
    return ""


class Act(Tool):
    """Act on x."""

    def execute(self, x: int) -> str:
        return f"{type(self).__name__} {x}"


def settings(spec: ToolSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in CHANGED}


# --- one set of options ----------------------------------------------------------------------------------------


def test_classes_functions_and_specs_have_the_same_options_and_defaults() -> None:
    assert set(CHANGED) | {"name", "description", "parameters"} == set(OPTION_DEFAULTS)
    of_class = {name: vars(Tool)[name] for name in OPTION_DEFAULTS}
    assert of_class == dict(OPTION_DEFAULTS)
    # the decorator's second signature is written out for type checkers; the names must be those
    source = inspect.getsource(inspect.getmodule(tool))  # type: ignore[arg-type]
    written = source.split("@overload")[2].split(") ->")[0]
    assert [name for name in OPTION_DEFAULTS if f"    {name}: " not in written] == []


@pytest.mark.parametrize("option", sorted(CHANGED))
def test_every_option_reaches_the_spec_in_both_forms(option: str) -> None:
    options: dict[str, Any] = {option: CHANGED[option]}
    if option == "retries":
        options["replay"] = "safe"
    by_function = tool(**options)(act).spec
    given = {key: staticmethod(value) if callable(value) else value for key, value in options.items()}
    by_class = type("Act", (Act,), {**given, "name": "act"})().spec
    assert getattr(by_function, option) == CHANGED[option]
    assert settings(by_class) == settings(by_function)


def test_defaults() -> None:
    for spec in (tool(act).spec, Act().spec):
        assert settings(spec) == {
            "execution_mode": ExecutionMode.BLOCKING_IO,
            "replay": Replay.NEVER,
            "requires_approval": False,
            "approval_facts": None,
            "approval_expires_s": None,
            "approval_metadata": {},
            "on_error": "raise",
            "on_schema_error": OnSchemaError.RETURN_ERROR,
            "timeout_s": 60.0,
            "retries": 0,
            "max_result_chars": None,
            "return_direct": False,
            "result_filters": (),
            "pool": "default",
            "ray_options": None,
            "provider_options": {},
            "redact_params": (),
            "redact_result": False,
            "version": "1",
            "tool_origin": ToolOrigin.LOCAL,
        }


# --- inheritance -----------------------------------------------------------------------------------------------


def with_all_options() -> type[Tool]:
    given = {key: staticmethod(value) if callable(value) else value for key, value in CHANGED.items()}
    return type("Act", (Act,), {**given, "name": "act", "description": "Does it."})


def test_a_subclass_without_a_word_keeps_every_setting() -> None:
    base = with_all_options()

    class Child(base):  # type: ignore[valid-type, misc]
        pass

    spec = Child().spec
    assert settings(spec) == CHANGED
    assert (spec.name, spec.description) == ("act", "Does it.")
    assert spec.parameters.hash == base().spec.parameters.hash


def test_a_copy_with_one_change_keeps_every_other_setting() -> None:
    for made in (with_all_options()(), tool(name="act", description="Does it.", **CHANGED)(act)):
        changed = made.with_options(timeout_s=9)
        assert settings(changed.spec) == {**CHANGED, "timeout_s": 9}
        assert (changed.spec.name, changed.spec.description) == ("act", "Does it.")
        assert made.spec.timeout_s == 5.0, "the original is as it was"
        assert type(changed) is type(made)
        assert changed.body({"x": 1}) == made.body({"x": 1})


def test_hidden_parameters_add_up_in_copies() -> None:
    def pay(account: str, cents: int) -> str:
        return ""

    made = tool(redact_params=["account"])(pay)
    assert made.with_options(redact_params=["cents"]).spec.redact_params == ("account", "cents")
    assert made.with_options(redact_params=[]).spec.redact_params == ("account",)


def test_decorating_a_tool_changes_a_copy_of_it() -> None:
    made = tool(timeout_s=5, replay="safe")(act)
    again = tool(retries=1)(made)
    assert isinstance(again, FunctionTool)
    assert (again.spec.timeout_s, again.spec.replay, again.spec.retries) == (5, Replay.SAFE, 1)
    of_class = tool(timeout_s=3)(Act)
    assert isinstance(of_class, Act)
    assert of_class.spec.timeout_s == 3
    assert Act().spec.timeout_s == 60


def test_a_copy_of_an_instance_keeps_its_state() -> None:
    class Greet(Tool):
        """Greet."""

        def __init__(self, word: str) -> None:
            self.word = word

        def execute(self, name: str) -> str:
            return f"{self.word} {name}"

    changed = Greet("Hello").with_options(name="hello")
    assert changed.spec.name == "hello"
    assert changed.body({"name": "you"}) == "Hello you"


def test_the_copy_is_checked_like_a_declaration() -> None:
    made = tool(act)
    for options, about in (
        ({"timeout_s": 0}, "timeout_s"),
        ({"retries": 1}, "replay"),
        ({"colour": "red"}, "colour"),
        ({"name": "no name"}, "no name"),
    ):
        with pytest.raises(ConfigurationError, match=about):
            made.with_options(**options)


# --- mistakes --------------------------------------------------------------------------------------------------


def takes_none() -> bool:
    return True


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"requires_approval": takes_none}, "requires_approval must be"),
        ({"requires_approval": 1}, "requires_approval must be"),
        ({"requires_approval": bool}, "requires_approval must be"),
        ({"approval_facts": {"a": 1}}, "approval_facts must be"),
        ({"approval_facts": ask}, "approval_facts must be"),
        ({"approval_expires_s": 0}, "approval_expires_s must be"),
        ({"approval_expires_s": "1h"}, "approval_expires_s must be"),
        ({"approval_metadata": ["a"]}, "approval_metadata must be"),
        ({"approval_metadata": {"a": object()}}, r"approval_metadata must be a JSON mapping: \$\.a"),
        ({"on_schema_error": "ignore"}, "on_schema_error must be one of 'return_error'"),
        ({"return_direct": "yes"}, "return_direct must be"),
        ({"result_filters": shorten}, "result_filters must be"),
        ({"result_filters": [shorten, 3]}, "result_filters: 3 cannot be called"),
        ({"result_filters": "shorten"}, "result_filters must be"),
        ({"pool": ""}, "pool must be"),
        ({"pool": "a b"}, "pool must be"),
        ({"pool": None}, "pool must be"),
        ({"version": ""}, "version must be"),
        ({"version": 2}, "version must be"),
        ({"tool_origin": "home"}, "tool_origin must be one of"),
        ({"provider_options": {1: 2}}, "provider_options must be a JSON mapping"),
        ({"provider_options": {"function": 3}}, r"provider_options\['function'\] must be a mapping"),
        ({"provider_options": {"function": {"name": "x"}}}, "must not set 'function.name'"),
        ({"provider_options": {"function": {"parameters": {}}}}, "must not set 'function.parameters'"),
        ({"provider_options": {"type": "x"}}, "must not set 'type'"),
        ({"ray_options": 3}, "ray_options must be"),
        ({"ray_options": {"cpus": 3}}, "ray_options has no field 'cpus'"),
        ({"ray_options": {"num_cpus": -1}}, "ray_options: num_cpus must be"),
        ({"ray_options": {"num_cpus": True}}, "ray_options: num_cpus must be"),
        ({"ray_options": {"num_gpus": 1.5}}, "ray_options: num_gpus must be a whole number"),
        ({"ray_options": {"memory_bytes": 1.5}}, "ray_options: memory_bytes must be"),
        ({"ray_options": {"resources": {"disk": "1"}}}, "ray_options: resources must be"),
        ({"ray_options": {"resources": {"CPU": 1}}}, "use num_cpus"),
        ({"ray_options": {"label_selector": {"zone": 1}}}, "ray_options: label_selector must be"),
        ({"ray_options": {"num_cpus": 1}, "execution_mode": "cooperative"}, "ray_options need"),
        ({"timeout": 3}, "unknown option 'timeout'; did you mean 'timeout_s'"),
    ],
)
def test_a_wrong_option_names_tool_and_field(options: dict[str, Any], about: str) -> None:
    with pytest.raises(ConfigurationError, match=about) as caught:
        tool(**options)(act)
    assert "'act'" in caught.value.message
    if "timeout" not in options:
        given = {key: staticmethod(value) if callable(value) else value for key, value in options.items()}
        with pytest.raises(ConfigurationError, match=about):
            type("Act", (Act,), {**given, "name": "act"})


def test_a_method_as_a_rule_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match="staticmethod"):

        class Gated(Act):
            def requires_approval(self, request: Any) -> bool:  # type: ignore[override]
                return True


def test_an_attribute_that_is_nearly_an_option_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="unknown attribute 'requires_aproval'; did you mean 'requires_approval'"
    ):
        type("Act", (Act,), {"requires_aproval": True})
    with pytest.raises(ConfigurationError, match="'redact_param'"):
        type("Act", (Act,), {"redact_param": ("x",)})
    assert type("Act", (Act,), {"names": ["a"], "timeout": 3, "limit": 1, "base_url": ""})().spec


def test_ray_options_are_values() -> None:
    resources = {"disk": 1.0}
    options = RayOptions(num_cpus=1, resources=resources, label_selector={"zone": "!b"})
    resources["disk"] = 9.0
    assert options.resources == {"disk": 1.0}
    assert options == RayOptions(num_cpus=1, resources={"disk": 1}, label_selector={"zone": "!b"})
    assert len({options, RayOptions(num_cpus=1, resources={"disk": 1}, label_selector={"zone": "!b"})}) == 1
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ConfigurationError, match="num_gpus"):
        RayOptions(num_gpus=float("nan"))


# --- what the model is shown -----------------------------------------------------------------------------------


def test_provider_options_are_merged_into_the_definition() -> None:
    made = tool(provider_options={"function": {"strict": True}, "cache_control": {"type": "ephemeral"}})(act)
    plain = tool(act)
    assert made.spec.definition() == {
        **plain.spec.definition(),
        "function": {**plain.spec.definition()["function"], "strict": True},
        "cache_control": {"type": "ephemeral"},
    }


def test_the_hash_covers_exactly_what_was_shown() -> None:
    plain = tool(act).spec
    assert plain.shown_hash == tool(timeout_s=1, version="2", requires_approval=True)(act).spec.shown_hash
    for option in (
        {"provider_options": {"function": {"strict": True}}},
        {"description": "Other."},
        {"name": "other"},
    ):
        assert tool(**option)(act).spec.shown_hash != plain.shown_hash  # type: ignore[call-overload]


# --- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my tool!", "x" * 65, "a.b", "größe", "a\n", 7])
def test_T17_an_explicit_bad_name_fails_at_definition(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="tool name"):
        tool(name=name)(act)
    with pytest.raises(ConfigurationError, match="tool name"):
        type("Act", (Act,), {"name": name})
    with pytest.raises(ConfigurationError, match="tool name"):
        tool(act).with_options(name=name)


def test_T17_a_derived_name_is_made_legal_and_stays_unique() -> None:
    from phronomy_ray.definition.tool_names import MAX_NAME_CHARS, derive_tool_name, is_tool_name

    texts = ["a.b", "a b", "a/b", "a_b", "größe", "grüße", "", "!!", "x" * 65, "x" * 66, "\ud800"]
    prefixes = ["", "server__", "p" * 60, "p" * 64, "my server/"]
    derived = {(prefix, text): derive_tool_name(text, prefix=prefix) for prefix in prefixes for text in texts}
    assert all(is_tool_name(name) and len(name) <= MAX_NAME_CHARS for name in derived.values())
    distinct = {prefix + text for prefix, text in derived}
    assert len(set(derived.values())) == len(distinct)
    assert derive_tool_name("read_file") == "read_file"
    assert derive_tool_name("read", prefix="files__") == "files__read"
    assert derive_tool_name("a.b").startswith("a_b_")


def test_T17_long_and_foreign_names_of_classes_and_functions_are_derived() -> None:
    from phronomy_ray.definition.tool_names import is_tool_name

    first = type("Read" + "Very" * 20 + "Long", (Act,), {})().spec.name
    second = type("Read" + "Very" * 20 + "Longer", (Act,), {})().spec.name
    assert first != second
    assert is_tool_name(first)
    assert is_tool_name(second)

    def größe(x: int) -> str:
        return ""

    assert is_tool_name(tool(größe).spec.name)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="name="):
        tool(lambda: "x")
    assert tool(name="x")(lambda: "x").spec.name == "x"


# --- callables of every kind -----------------------------------------------------------------------------------


def test_a_partial_hides_what_it_fixes() -> None:
    def send(to: str, body: str, sender: str) -> str:
        """Send it.

        Args:
            body: the text
        """
        return f"{sender}>{to}: {body}"

    made = tool(functools.partial(send, "me", sender="us"))
    assert made.spec.name == "send"
    assert made.spec.description == "Send it."
    assert made.spec.parameters.schema["properties"] == {
        "body": {"type": "string", "description": "the text"}
    }
    assert made.body({"body": "x"}) == "us>me: x"


def test_an_object_that_can_be_called_is_a_tool() -> None:
    class CountWords:
        """Counts."""

        async def __call__(self, text: str) -> int:
            """Count the words."""
            return len(text.split())

    made = tool(CountWords())
    assert made.spec.name == "count_words"
    assert made.spec.description == "Count the words."
    assert made.spec.execution_mode is ExecutionMode.COOPERATIVE
    assert list(made.spec.parameters.schema["properties"]) == ["text"]


def test_T22_generators_are_refused_at_definition() -> None:
    async def stream(x: int) -> Any:
        yield x

    def numbers(x: int) -> Any:
        yield x

    class Streams(Tool):
        pass

    for function, about in ((stream, "an async generator"), (numbers, "a generator")):
        with pytest.raises(ConfigurationError, match=about):
            tool(function)
        with pytest.raises(ConfigurationError, match=about):
            tool(functools.partial(function, 1))
        with pytest.raises(ConfigurationError, match=about):
            type("Streams", (Streams,), {"execute": staticmethod(function)})
