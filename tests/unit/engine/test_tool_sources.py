"""Tool sources in executions: asked once per turn, kept by hash, and made again from what was kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phronomy_ray.assembly.binding import Binding, Choice, Origin
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.definition.tool_source import ToolSource
from phronomy_ray.errors import ConfigurationError, DefinitionChangedError, ToolError
from phronomy_ray.models.scripted import call, calls, final


class Shelf(ToolSource):
    """Offers tools by name; what it offers can be changed, and asking it can fail."""

    def __init__(self, name: str, *names: str, optional: bool = False, **options: Any) -> None:
        self.name = name
        self.names = list(names)
        self.optional = optional
        self.options = options
        self.asked = 0
        self.error: Exception | None = None

    @property
    def source_name(self) -> str:
        return self.name

    @property
    def is_optional(self) -> bool:
        return self.optional

    async def fetch(self) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return json.dumps(self.names)

    def tools_from(self, text: str) -> tuple[Tool, ...]:
        return tuple(self._make(name) for name in json.loads(text))

    def _make(self, name: str) -> Tool:
        @tool(name=name, **self.options)
        async def body(x: int = 0) -> str:
            return f"{self.name}:{name} {x}"

        return body


def answers(result: Any) -> list[str]:
    return [str(message.content) for message in result.messages if message.role == "tool"]


@tool
async def own(x: int) -> str:
    return f"own {x}"


async def test_a_source_is_asked_once_per_execution_and_its_tools_run_beside_the_own_ones(lab: Any) -> None:
    shelf = Shelf("shelf", "red", "blue")
    script = [calls(call("own", {"x": 1}), call("red", {"x": 2})), calls(call("blue", {"x": 3})), final("x")]
    engine = lab.engine(lab.define(script, own, shelf))
    result = await lab.run(engine)
    assert answers(result) == ["own 1", "shelf:red 2", "shelf:blue 3"]
    assert shelf.asked == 1


async def test_each_execution_has_what_the_source_offers_when_it_starts(lab: Any) -> None:
    shelf = Shelf("shelf", "red")
    engine = lab.engine(lab.define([calls(call("red", {}), call("blue", {})), final("x")], shelf))
    red, blue = answers(await lab.run(engine))
    assert red == "shelf:red 0"
    assert "no tool 'blue'" in blue
    shelf.names = ["blue"]
    red, blue = answers(await lab.run(engine, id="ex2"))[-2:]
    assert "no tool 'red'" in red
    assert blue == "shelf:blue 0"


async def test_a_resumed_turn_has_the_tools_that_were_kept_and_asks_nobody(lab: Any) -> None:
    shelf = Shelf("shelf", "red", requires_approval=True)
    script = [calls(call("red", {"x": 5})), final("x")]
    first = lab.engine(lab.define(script, shelf))
    await first.start("ex1", "go")
    await lab.suspension(first)
    shelf.names = ["green"]
    shelf.error = ToolError("the source is down")
    second = lab.engine(lab.define(script, shelf))
    await second.activate()
    await lab.decide_all(second)
    assert answers(await lab.end(second)) == ["shelf:red 5"]
    assert shelf.asked == 1


async def test_a_tool_of_a_source_that_is_declared_no_more_cannot_be_approved(lab: Any) -> None:
    shelf = Shelf("shelf", "red", requires_approval=True)
    script = [calls(call("red", {})), final("x")]
    first = lab.engine(lab.define(script, shelf))
    await first.start("ex1", "go")
    await lab.suspension(first)
    second = lab.engine(lab.define(script, Shelf("another", "red")))
    await second.activate()
    with pytest.raises(DefinitionChangedError, match="'red' is gone"):
        await lab.decide_all(second)


async def test_a_source_that_cannot_be_asked_fails_the_execution_with_its_error(lab: Any) -> None:
    shelf = Shelf("shelf", "red")
    shelf.error = ToolError("no answer", code="mcp_timeout")
    result = await lab.run(lab.engine(lab.define([final("x")], shelf)))
    assert result.error is not None
    assert result.error.code == "mcp_timeout"


async def test_an_optional_source_that_cannot_be_asked_is_left_out_and_an_event_says_so(lab: Any) -> None:
    shelf = Shelf("shelf", "red", optional=True)
    shelf.error = ToolError("no answer", code="mcp_timeout")
    engine = lab.engine(lab.define([calls(call("own", {"x": 1})), final("x")], own, shelf))
    result = await lab.run(engine)
    assert answers(result) == ["own 1"]
    events = [event for event in lab.store.events("ex1") if event.type == "capability_skipped"]
    assert [event.payload["capability"] for event in events] == ["shelf"]


async def test_what_was_left_out_is_told_also_when_another_source_fails_the_turn(lab: Any) -> None:
    left_out, needed = Shelf("left-out", "red", optional=True), Shelf("needed", "blue")
    left_out.error = needed.error = ToolError("no answer", code="mcp_timeout")
    result = await lab.run(lab.engine(lab.define([final("x")], left_out, needed)))
    assert result.error is not None
    events = [event for event in lab.store.events("ex1") if event.type == "capability_skipped"]
    assert [event.payload["capability"] for event in events] == ["left-out"]


@pytest.mark.parametrize("other", [own, Shelf("b", "own")], ids=["own-tool", "other-source"])
async def test_P04_two_tools_of_one_name_are_an_error_that_names_both(lab: Any, other: Any) -> None:
    definition = lab.define([final("x")], Shelf("a", "own"), other)
    result = await lab.run(lab.engine(definition))
    assert result.error is not None
    assert result.error.code == "tool_name_collision"
    assert "source 'a'" in result.error.message
    assert "prefix" in result.error.message


async def test_aliases_and_the_deny_list_hold_for_offered_tools(lab: Any) -> None:
    shelf = Shelf("shelf", "red", "blue")
    script = [calls(call("crimson", {}), call("blue", {})), final("x")]
    definition = lab.define(script, shelf, tool_aliases={"red": "crimson"}, tools_deny=["blue"])
    told = answers(await lab.run(lab.engine(definition)))
    assert told[0] == "shelf:red 0"
    assert "no tool 'blue'" in told[1]


def test_sources_are_checked_when_the_class_is_made() -> None:
    with pytest.raises(ConfigurationError, match="two tool sources are named 'a'"):
        type("Clerk", (Agent,), {"model": "m/m", "tools": [Shelf("a"), Shelf("a")]})
    with pytest.raises(ConfigurationError, match="cannot have an alias"):
        type("Clerk", (Agent,), {"model": "m/m", "tools": {Shelf("a"): "b"}})


def test_a_binding_without_offers_is_written_as_before_and_one_with_them_is_read_back() -> None:
    plain = Binding((Choice("search", Origin.OWN),))
    assert plain.to_wire()["v"] == 1
    offered = Binding((Choice("red", Origin.SOURCE, source="shelf"),), (("shelf", "sha256:1"),))
    assert offered.to_wire()["v"] == 2
    assert Binding.from_wire(json.loads(json.dumps(offered.to_wire()))) == offered
    assert offered.registry_key("red") == ""
