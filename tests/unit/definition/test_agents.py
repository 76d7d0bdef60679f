"""Agents as users write them: inheritance, aliases, and that every mistake is found when the class is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.definition.agent import Agent, class_path_of, import_agent
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.errors import ConfigurationError, DefinitionUnavailableError
from phronomy_ray.models.scripted import ScriptedModel, final


@tool(replay="safe")
def read(path: str) -> str:
    """Read a file."""
    return path


@tool
def write(path: str) -> str:
    """Write a file."""
    return path


class SendMail(Tool):
    """Send a mail."""

    async def execute(self, to: str) -> str:
        return to


class Clerk(Agent):
    model = "openai/gpt-4o"
    instructions = "You file reports."
    tools = [read, SendMail]
    model_settings = {"temperature": 0.2}


def make(**attributes: Any) -> type[Agent]:
    return type("Wrong", (Agent,), {"model": "openai/gpt-4o", "__module__": __name__, **attributes})


def names(cls: type[Agent]) -> list[str]:
    return list(cls.definition().tools)


def test_what_an_agent_compiles_to() -> None:
    definition = Clerk.definition()
    assert definition.definition_id == f"{__name__}:Clerk"
    assert definition.definition_version == "1"
    assert definition.class_path == f"{__name__}:Clerk"
    assert definition.max_iterations == 10
    assert definition.model_settings == {"temperature": 0.2}
    assert names(Clerk) == ["read", "send_mail"]
    assert [item["function"]["name"] for item in definition.tool_set.definitions] == ["read", "send_mail"]
    assert import_agent(definition.class_path).__qualname__ == "Clerk"


def test_settings_inherit_and_can_be_replaced() -> None:
    class Junior(Clerk):
        max_iterations = 3

    class Silent(Junior):
        tools = ()
        instructions = "Say nothing."

    junior, silent = Junior.definition(), Silent.definition()
    assert (junior.model, junior.instructions, junior.max_iterations) == (
        "openai/gpt-4o",
        "You file reports.",
        3,
    )
    assert names(Junior) == ["read", "send_mail"]
    assert (silent.max_iterations, silent.tools) == (3, {})
    assert junior.definition_id != Clerk.definition().definition_id
    assert Clerk.definition().max_iterations == 10


def test_the_settings_of_a_definition_are_a_copy() -> None:
    settings = {"stop": ["a"]}
    cls = make(model_settings=settings)
    settings["stop"].append("b")
    assert cls.definition().model_settings == {"stop": ["a"]}


def test_aliases_by_mapping_by_name_and_inherited() -> None:
    assert names(make(tools={read: "load", write: None})) == ["load", "write"]

    class Base(Agent):
        tool_aliases = {"read": "load"}

    class One(Base):
        model = "m/m"
        tools = [read, write]

    class Two(One):
        tool_aliases = {"write": "store"}

    class Three(Two):
        tool_aliases = {"read": "open"}

    class Narrow(Two):
        tools = [write]

    assert names(One) == ["load", "write"]
    assert names(Two) == ["load", "store"]
    assert names(Three) == ["open", "store"]
    assert names(Narrow) == ["store"], "an inherited alias for a tool that is left out is no mistake"
    bound = One.definition().tools["load"]
    assert bound.spec.name == "load"
    assert bound.tool is read
    assert read.spec.name == "read", "the tool itself keeps its name"
    assert One.definition().tool_set.definitions[0]["function"]["name"] == "load"


def test_one_tool_under_two_names() -> None:
    class Again(SendMail):
        name = "send_again"

    assert names(make(tools=[SendMail, Again()])) == ["send_mail", "send_again"]


def test_instructions_in_every_form() -> None:
    def given(value: Any) -> str:
        return "x"

    class Plain(Agent):
        model = "m/m"

        def instructions(value: Any) -> str:  # type: ignore[override]
            return f"about {value}"

    class Static(Agent):
        model = "m/m"

        @staticmethod
        def instructions(value: Any) -> str:  # type: ignore[override]
            return f"about {value}"

    class Bound(Agent):
        model = "m/m"

        @classmethod
        def instructions(cls, value: Any) -> str:  # type: ignore[override]
            return f"about {value}"

    class Inherited(Static):
        pass

    for cls in (Plain, Static, Bound, Inherited):
        function = cls.definition().instructions
        assert callable(function)
        assert function("rain") == "about rain"
    assert make(instructions=given).definition().instructions is given


@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"model": 5}, "model"),
        ({"model": object()}, "model"),
        ({"model": ScriptedModel}, "model"),
        ({"instructions": 5}, "instructions"),
        ({"instructions": None}, "instructions"),
        ({"instructions": lambda: "x"}, "instructions"),
        ({"instructions": lambda a, b: "x"}, "instructions"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"max_iterations": None}, "max_iterations"),
        ({"max_iterations": True}, "max_iterations"),
        ({"max_iterations": 2.5}, "max_iterations"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": -5}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"context_window": 0}, "context_window"),
        ({"model_timeout_s": 0}, "model_timeout_s"),
        ({"model_timeout_s": float("nan")}, "model_timeout_s"),
        ({"quiescence_timeout_s": -1}, "quiescence_timeout_s"),
        ({"model_retries": -1}, "model_retries"),
        ({"model_retries": None}, "model_retries"),
        ({"empty_answer_retries": -1}, "empty_answer_retries"),
        ({"allow_empty_answer": "no"}, "allow_empty_answer"),
        ({"cache_instructions": 1}, "cache_instructions"),
        ({"definition_version": ""}, "definition_version"),
        ({"definition_version": 2}, "definition_version"),
        ({"definition_id": 2}, "definition_id"),
        ({"model_settings": "temperature"}, "model_settings"),
        ({"model_settings": {"x": object()}}, "model_settings"),
        ({"model_settings": {1: 2}}, "model_settings"),
        ({"model_settings": 7}, "model_settings"),
        ({"tools": "read"}, "tools"),
        ({"tools": 5}, "tools"),
        ({"tools": [print]}, "not a tool"),
        ({"tools": ["read"]}, "not a tool"),
        ({"tools": [read, read]}, "two tools are named 'read'"),
        ({"tools": {read: "same", write: "same"}}, "two tools are named 'same'"),
        ({"tools": {read: "two words"}}, "alias"),
        ({"tools": {read: 5}}, "alias"),
        ({"tools": [read], "tool_aliases": {"reed": "load"}}, "'reed'"),
        ({"tools": [read], "tool_aliases": {"read": "two words"}}, "alias"),
        ({"tools": [read], "tool_aliases": ["read"]}, "tool_aliases"),
    ],
)
def test_a_mistake_names_the_agent_and_the_field(attributes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**attributes)
    assert "agent Wrong" in caught.value.message
    assert field in caught.value.message


def test_an_undecorated_function_is_refused_with_a_hint() -> None:
    def plain(x: int) -> str:
        return ""

    with pytest.raises(ConfigurationError, match="@tool"):
        make(tools=[plain])


def test_a_class_without_a_model_is_a_base() -> None:
    class Base(Agent):
        max_iterations = 4

    with pytest.raises(ConfigurationError, match="agent Base: model is not set"):
        Base.definition()

    class Made(Base):
        model = ScriptedModel([final("x")])

    assert Made.definition().max_iterations == 4


def test_agents_are_not_made_by_calling_their_class() -> None:
    with pytest.raises(ConfigurationError, match=r"runtime\.create\(Clerk"):
        Clerk()


def test_classes_that_no_other_process_can_import_have_no_path() -> None:
    class Local(Agent):
        model = "m/m"

    assert class_path_of(Local) == ""
    assert Local.definition().class_path == ""


@pytest.mark.parametrize(
    "path",
    ["", "no_colon", "no.such.module:X", f"{__name__}:Missing", f"{__name__}:read", f"{__name__}:SendMail"],
)
def test_a_class_that_cannot_be_imported_is_an_error_of_its_own(path: str) -> None:
    with pytest.raises(DefinitionUnavailableError):
        import_agent(path)


def test_whatever_a_module_raises_is_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_a_variable.py").write_text("import os\nos.environ['THIS_NODE_HAS_NO_SUCH_VARIABLE']\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DefinitionUnavailableError, match="KeyError: 'THIS_NODE") as caught:
        import_agent("needs_a_variable:Clerk")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_iteration", "max_iterations"), ("tool", "tools"), ("tool_approval_polcy", "tool_approval_policy")],
)
def test_an_attribute_that_is_nearly_one_of_ours_is_refused(name: str, meant: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"agent Odd: unknown attribute '{name}'; did you mean '{meant}'"
    ):
        type("Odd", (Clerk,), {name: staticmethod(lambda request: "allow")})
    assert type(
        "Own", (Clerk,), {"tags": ["a"], "timeout_s": 3, "name": "x", "description": "", "helper": print}
    )
