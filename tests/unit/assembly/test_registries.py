"""Registries give what was registered, once or anew, and never something by accident."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.assembly.capabilities import CapabilityRegistry, Provider, ProviderKind
from phronomy_ray.assembly.registry import Registry, ToolRegistry
from phronomy_ray.assembly.sources import AssemblySources, load_sources
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.errors import ConfigurationError, DefinitionUnavailableError, NotFoundError


class Mail(Tool):
    """Send a mail."""

    async def execute(self, to: str) -> str:
        return to


@tool(replay="safe")
def look(x: int) -> str:
    return str(x)


class Key(StrEnum):
    MAIL = "mail"


def test_a_factory_is_called_on_each_resolution_and_an_instance_is_given_again() -> None:
    registry: Registry[list[int]] = Registry()
    registry.register("fresh", factory=lambda: [1])
    ready = [2]
    registry.register("ready", ready)
    assert registry.resolve("fresh") == [1]
    assert registry.resolve("fresh") is not registry.resolve("fresh")
    assert registry.resolve("ready") is registry.resolve("ready") is ready


def test_a_class_given_for_an_instance_is_a_factory() -> None:
    registry = ToolRegistry()
    registry.register("mail", Mail)
    first, second = registry.resolve("mail"), registry.resolve("mail")
    assert isinstance(first, Mail)
    assert first is not second


def test_a_decorated_function_is_an_instance_although_it_can_be_called() -> None:
    registry = ToolRegistry()
    registry.register("look", look)
    assert registry.resolve("look") is look


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"item": look, "factory": lambda: look},
        {"factory": 3},
        {"item": 3},
        {"item": lambda: look},
        {"item": int},
        {"item": look, "optional": "yes"},
        {"item": look, "metadata": {"x": object()}},
        {"item": look, "plugin": ""},
    ],
)
def test_what_cannot_be_registered_is_refused_by_name(arguments: dict[str, Any]) -> None:
    registry = ToolRegistry()
    with pytest.raises(ConfigurationError, match=r"look|plugin"):
        registry.register("look", arguments.pop("item", None), **arguments)
    assert len(registry) == 0


@pytest.mark.parametrize("name", ["", " ", 3, None])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(ConfigurationError):
        ToolRegistry().register(name, look)


def test_an_async_factory_is_refused() -> None:
    async def make() -> Tool:
        return look

    with pytest.raises(ConfigurationError, match="plain function"):
        ToolRegistry().register("look", factory=make)  # type: ignore[arg-type]


def test_names_are_text_and_an_enum_counts_as_its_value() -> None:
    registry = ToolRegistry()
    registry.register(Key.MAIL, Mail)
    assert registry.names == ("mail",)
    assert type(registry.names[0]) is str
    assert "mail" in registry


def test_the_first_registration_wins_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    registry = ToolRegistry()
    first = registry.register("mail", Mail, plugin="one")
    with caplog.at_level(logging.WARNING):
        assert registry.register("mail", look, plugin="two") is first
    assert isinstance(registry.resolve("mail"), Mail)
    assert "'mail' is registered already (plugin 'one'): the registration by plugin 'two'" in caplog.text


def test_a_missing_name_is_not_found() -> None:
    registry = ToolRegistry()
    registry.register("mail", Mail)
    with pytest.raises(NotFoundError) as caught:
        registry.resolve("post")
    assert caught.value.details == {"name": "post", "known": ["mail"]}
    assert registry.find("post") is None


def test_entries_keep_their_order_and_go_by_plugin_only() -> None:
    registry = ToolRegistry()
    for number in range(5):
        registry.register(f"t{number}", look, plugin="odd" if number % 2 else None)
    assert registry.names == ("t0", "t1", "t2", "t3", "t4")
    assert registry.remove_plugin("odd") == 2
    assert registry.names == ("t0", "t2", "t4")
    assert registry.remove_plugin("odd") == 0
    assert registry.remove_plugin("never") == 0


def test_a_tool_s_side_effect_is_what_its_replay_rule_says() -> None:
    registry = ToolRegistry()
    registry.register("mail", Mail)
    registry.register("look", look)
    registry.register("made", factory=lambda: tool(replay="idempotent")(lambda: None))
    assert [registry.side_effect(name) for name in ("mail", "look", "unknown")] == [True, False, False]


def test_optional_is_false_unless_said_and_for_an_unknown_name() -> None:
    registry = ToolRegistry()
    registry.register("mail", Mail, optional=True, metadata={"note": "x"})
    registry.register("look", look)
    assert [registry.is_optional(name) for name in ("mail", "look", "unknown")] == [True, False, False]
    assert registry.entry("mail").metadata == {"note": "x", "optional": True}
    with pytest.raises(TypeError):
        registry.entry("mail").metadata["optional"] = False  # type: ignore[index]


def test_a_factory_that_gives_no_tool_is_an_error() -> None:
    registry = ToolRegistry()
    registry.register("odd", factory=lambda: 3, plugin="p")  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError) as caught:
        registry.resolve("odd")
    assert (caught.value.code, caught.value.details) == (
        "tool_factory",
        {"registry_key": "odd", "plugin": "p"},
    )


# --- providers -------------------------------------------------------------------------------------------------


async def _async_predicate() -> bool:
    return True


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "agent"},
        {"priority": True},
        {"priority": 1.5},
        {"priority": "1"},
        {"plugin": ""},
        {"availability": 3},
        {"availability": _async_predicate},
    ],
)
def test_a_provider_is_checked_when_it_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Provider("search", "web", **fields)


@pytest.mark.parametrize(("capability", "implementation"), [("", "web"), ("search", ""), (None, "web")])
def test_a_provider_has_names(capability: Any, implementation: Any) -> None:
    with pytest.raises(ConfigurationError):
        Provider(capability, implementation)


def test_reading_an_unknown_capability_leaves_it_unknown() -> None:
    registry = CapabilityRegistry()
    assert registry.providers("search") == ()
    assert registry.capabilities == ()


def test_plugins_are_removed_with_the_capabilities_that_they_leave_empty() -> None:
    registry = CapabilityRegistry()
    registry.register(Provider("search", "web", plugin="a"))
    registry.register(Provider("search", "local", plugin="b"))
    registry.register(Provider("mail", "smtp", plugin="a"))
    assert registry.remove_plugin("a") == 2
    assert registry.capabilities == ("search",)
    assert [provider.implementation for provider in registry.providers("search")] == ["local"]
    assert registry.remove_plugin("a") == 0


def test_a_workflow_is_registered_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    registry = CapabilityRegistry()
    with caplog.at_level(logging.WARNING):
        registry.register(Provider("report", "monthly", ProviderKind.WORKFLOW))
    assert "not exposed to agents yet" in caplog.text
    assert len(registry.providers("report")) == 1


# --- sources ---------------------------------------------------------------------------------------------------

BUILT: list[int] = []


def build() -> AssemblySources:
    BUILT.append(1)
    return AssemblySources()


def build_wrong() -> Any:
    return 3


def build_failing() -> AssemblySources:
    BUILT.append(1)
    raise KeyError("NO_SUCH_VARIABLE")


def build_leaving() -> AssemblySources:
    sys.exit("usage: build [OPTIONS]")


def test_registries_are_built_once_per_process() -> None:
    BUILT.clear()
    assert load_sources(build) is load_sources(build)
    assert BUILT == [1]


def test_a_registry_function_that_raises_is_tried_again() -> None:
    BUILT.clear()
    for _ in range(2):
        with pytest.raises(DefinitionUnavailableError, match="KeyError"):
            load_sources(build_failing)
    assert BUILT == [1, 1]


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("no-colon", DefinitionUnavailableError),
        ("no.such.module:build", DefinitionUnavailableError),
        ("phronomy_ray.errors:nothing", DefinitionUnavailableError),
        ("phronomy_ray.errors:MAX_CAUSES", ConfigurationError),
        (build_wrong, ConfigurationError),
        (build_leaving, DefinitionUnavailableError),
    ],
)
def test_a_reference_that_gives_no_registries_is_an_error(reference: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        load_sources(reference)


def test_a_module_that_is_a_script_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_script_of_tools.py").write_text("import sys\nsys.exit(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DefinitionUnavailableError, match="its module raised SystemExit: 2"):
        load_sources("a_script_of_tools:build")


def test_a_plugin_goes_from_both_registries() -> None:
    sources = AssemblySources()
    sources.tools.register("web", look, plugin="p")
    assert sources.capabilities is not None
    sources.capabilities.register(Provider("search", "web", plugin="p"))
    assert sources.remove_plugin("p") == 2
    assert len(sources.tools) == 0
