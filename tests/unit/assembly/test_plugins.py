"""A plugin is loaded whole or not at all, and provides what was declared for it."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from phronomy_ray.assembly.plugins import PluginStage, load_plugin
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.errors import ConfigurationError


def test_a_plugin_is_registered_under_its_id_and_goes_with_it(bench: Any, named_tool: Any) -> None:
    def register(stage: PluginStage) -> None:
        stage.tool("web", named_tool("google"), optional=True, metadata={"vendor": "acme"})
        stage.tool("local", factory=lambda: named_tool("local"))
        stage.capability("search", "web", priority=3, availability=lambda: True)

    load_plugin(bench.sources, "acme", register, provides=["search"])
    assert [(entry.name, entry.plugin) for entry in bench.tools] == [("web", "acme"), ("local", "acme")]
    assert bench.tools.entry("web").metadata == {"vendor": "acme", "optional": True}
    (provider,) = bench.capabilities.providers("search")
    assert (provider.plugin, provider.priority) == ("acme", 3)
    assert bench.sources.remove_plugin("acme") == 3
    assert (len(bench.tools), bench.capabilities.capabilities) == (0, ())


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: 1 / 0,
        lambda stage: sys.exit(2),
        lambda stage: stage.tool("x", 3),
        lambda stage: stage.capability("search", ""),
    ],
)
def test_nothing_is_registered_by_a_plugin_that_raises(bench: Any, named_tool: Any, mistake: Any) -> None:
    def register(stage: PluginStage) -> None:
        stage.tool("web", named_tool("google"))
        stage.capability("search", "web")
        mistake(stage)

    with pytest.raises(ConfigurationError) as caught:
        load_plugin(bench.sources, "acme", register, provides=["search"])
    assert (caught.value.code, caught.value.details) == ("plugin_failed", {"plugin": "acme"})
    assert (len(bench.tools), bench.capabilities.capabilities) == (0, ())


def test_a_capability_that_was_not_declared_is_ignored_with_a_warning(
    bench: Any, named_tool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def register(stage: PluginStage) -> None:
        stage.tool("web", named_tool("google"))
        stage.capability("search", "web")
        stage.capability("mail", "web")

    with caplog.at_level(logging.WARNING):
        load_plugin(bench.sources, "acme", register, provides=["search"])
    assert bench.capabilities.capabilities == ("search",)
    assert "'mail', which was not declared" in caplog.text


def test_an_earlier_registration_of_the_same_name_stays(bench: Any, named_tool: Any) -> None:
    bench.tools.register("web", named_tool("ours"))
    load_plugin(bench.sources, "acme", lambda stage: stage.tool("web", named_tool("theirs")))
    assert bench.tools.entry("web").plugin is None


def test_a_system_without_capabilities_loads_a_plugin_s_tools(named_tool: Any) -> None:
    sources = AssemblySources(capabilities=None)

    def register(stage: PluginStage) -> None:
        stage.tool("web", named_tool("google"))
        stage.capability("search", "web")

    load_plugin(sources, "acme", register, provides=["search"])
    assert sources.tools.names == ("web",)
