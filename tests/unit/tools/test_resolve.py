"""A worker runs the tool that the turn was bound to, and chooses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from phronomy_ray.assembly.registry import ToolRegistry
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import ConfigurationError, DefinitionUnavailableError
from phronomy_ray.tool_calls import ToolInvocation
from phronomy_ray.tools.resolve import resolve_tool


@tool(replay="safe")
def own(x: int) -> str:
    return str(x)


@tool(name="google", replay="safe")
def google(x: int) -> str:
    return str(x)


def registries() -> AssemblySources:
    tools = ToolRegistry()
    tools.register("web", google)
    tools.register("broken", factory=lambda: {}["x"])
    return AssemblySources(tools)


class Clerk(Agent):
    model = "m/m"
    tools = {own: "mine"}
    tool_sources = registries


class Plain(Agent):
    model = "m/m"


class Opted(Agent):
    model = "m/m"
    tools_allow = ()


def invocation(name: str, key: str = "") -> ToolInvocation:
    return ToolInvocation("tc", name, {}, "a1", "ex1", 1, registry_key=key)


HERE = DefinitionSource("", Clerk)


def keep(value: Any, context: Any) -> Any:
    return value


class Filtering(Agent):
    model = "m/m"
    tools = [own]
    tool_sources = registries
    tools_allow = ("web",)
    result_filters = [keep]


@pytest.mark.parametrize(("name", "key"), [("own", ""), ("search", "web")])
def test_the_filters_of_the_class_come_with_every_tool(name: str, key: str) -> None:
    bound = resolve_tool(DefinitionSource("", Filtering), invocation(name, key))
    assert bound.result_filters == (keep,)


def test_an_own_tool_is_that_of_the_class() -> None:
    assert resolve_tool(HERE, invocation("mine")).tool is own


def test_a_bound_tool_is_its_entry_s_under_the_name_of_the_turn() -> None:
    bound = resolve_tool(HERE, invocation("search", "web"))
    assert bound.tool is google
    assert (bound.spec.name, bound.registry_key) == ("search", "web")


def test_the_registry_of_the_runtime_serves_a_class_that_names_none() -> None:
    source = DefinitionSource("", Opted, f"{__name__}:registries")
    assert resolve_tool(source, invocation("search", "web")).tool is google


def test_an_agent_that_asked_for_no_registry_is_given_nothing_from_one() -> None:
    source = DefinitionSource("", Plain, f"{__name__}:registries")
    with pytest.raises(ConfigurationError):
        resolve_tool(source, invocation("search", "web"))


@pytest.mark.parametrize(
    ("name", "key", "code"),
    [
        ("gone", "", "definition_changed"),
        ("search", "gone", "definition_changed"),
        ("search", "broken", "tool_factory"),
    ],
)
def test_what_cannot_be_had_is_a_typed_error_of_that_call(name: str, key: str, code: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_tool(HERE, invocation(name, key))
    assert caught.value.code == code


def test_a_class_without_registries_has_no_entry() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_tool(DefinitionSource("", Plain), invocation("search", "web"))
    assert caught.value.code == "definition_changed"


def test_a_class_that_cannot_be_imported_is_unavailable() -> None:
    with pytest.raises(DefinitionUnavailableError):
        resolve_tool(DefinitionSource("no.such.module:Clerk"), invocation("mine"))


def test_each_call_gets_its_own_instance_from_a_factory() -> None:
    made: list[Any] = []

    def build() -> AssemblySources:
        tools = ToolRegistry()
        tools.register("web", factory=lambda: made.append(1) or tool(name="google")(lambda: None))
        return AssemblySources(tools)

    source = DefinitionSource(
        "", type("Own", (Agent,), {"model": "m/m", "tool_sources": staticmethod(build)})
    )
    first, second = (resolve_tool(source, invocation("search", "web")) for _ in range(2))
    assert first.tool is not second.tool
    assert made == [1, 1]
