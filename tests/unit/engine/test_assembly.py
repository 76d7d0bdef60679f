"""Assembled tools in an execution: chosen once, stored, and the same ones after every crash."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime
from typing import Any

import pytest

from phronomy_ray.approvals import RuleEffect, StandingRule
from phronomy_ray.assembly.capabilities import CapabilityRegistry, Provider
from phronomy_ray.assembly.registry import ToolRegistry
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.tool import FunctionTool, Tool, tool
from phronomy_ray.errors import (
    CapabilityAmbiguous,
    CapabilityError,
    CapabilityUnavailable,
    DefinitionChangedError,
    DefinitionUnavailableError,
    OwnershipLostError,
    ToolError,
    ToolNameCollisionError,
)
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import ToolContext


def says(name: str, **options: Any) -> FunctionTool:
    @tool(name=name, **{"replay": "safe", **options})
    async def body(x: int = 0) -> str:
        return f"{name} {x}"

    return body


def sources(*providers: Provider, **tools: Tool) -> AssemblySources:
    registry, capabilities = ToolRegistry(), CapabilityRegistry()
    for key, item in tools.items():
        registry.register(key, item)
    for provider in providers:
        capabilities.register(provider)
    return AssemblySources(registry, capabilities)


def searching(lab: Any, given: AssemblySources, *steps: Any, **attributes: Any) -> Any:
    script = steps or (calls(call("search", {"x": 7})), final("x"))
    attributes = {"capabilities": ["search"], "tools_allow": [], "tool_sources": lambda: given, **attributes}
    return lab.define(list(script), **attributes)


def events_of(lab: Any, id: str = "ex1") -> list[str]:
    return [row.type for row in lab.store.events(id)]


async def test_a_capability_is_called_by_its_own_name_and_its_choice_is_stored(lab: Any) -> None:
    given = sources(Provider("search", "web", plugin="p"), web=says("google"), other=says("other"))
    result = await lab.run(lab.engine(searching(lab, given)))
    assert result.output == "x"
    (row,) = lab.store.tool_calls("ex1")
    assert (row.tool_name, row.status, row.result) == ("search", ToolCallStatus.SUCCEEDED, "google 7")
    assert events_of(lab)[:2] == ["started", "capability_resolved"]
    stored = lab.store.load_execution("ex1").state
    binding = Progress.from_wire(stored).binding
    assert stored["v"] == 2
    assert [(item.name, item.registry_key) for item in binding.choices] == [("search", "web")]
    shown = lab.store.read_content(lab.store.model_calls("ex1")[0].manifest["tools"])
    assert '"search"' in shown
    assert "google" not in shown
    assert "web" not in shown


async def test_a_person_who_inspects_the_execution_is_shown_what_was_chosen(lab: Any) -> None:
    from rich.console import Console

    from phronomy_ray.cli.inspecting import render_story
    from phronomy_ray.cli.timeline import read_story

    given = sources(
        Provider("search", "web", plugin="acme"),
        Provider("search", "down", priority=9, availability=lambda: False),
        Provider("report", "monthly", kind="workflow"),  # type: ignore[arg-type]
        Provider("browse", "web"),
        web=says("google"),
    )
    await lab.run(lab.engine(searching(lab, given, capabilities=["search", "report", "browse"])))
    console = Console(width=200, record=True, file=io.StringIO())
    render_story(console, read_story(lab.store, "ex1"))
    text = console.export_text()
    assert "capability search by web of acme" in text
    assert "not down: not available" in text
    assert "capability report by monthly: workflows are not exposed" in text
    assert "capability browse by web: 'web' is exposed as 'search' already" in text


async def test_an_agent_without_registries_pays_nothing(lab: Any) -> None:
    definition = lab.define([final("x")], says("own"))
    await lab.run(lab.engine(definition, registry=lambda: pytest.fail("nobody asked for registries")))
    stored = lab.store.load_execution("ex1").state
    assert (stored["v"], stored.get("binding")) == (1, None)
    assert lab.store.load_root("a1").agent_revision == 2, "admission and the end"


async def test_an_agent_uses_the_registry_of_the_runtime_unless_it_names_its_own(lab: Any) -> None:
    ours = sources(Provider("search", "web"), web=says("ours"))
    theirs = sources(Provider("search", "web"), web=says("theirs"))
    script = [[calls(call("search", {})), final("x")], [calls(call("search", {})), final("y")]]
    definition = searching(lab, ours, *script, tool_sources="")
    await lab.run(lab.engine(definition, registry=lambda: theirs))
    own = lab.engine(searching(lab, ours, *script), registry=lambda: theirs)
    await lab.run(own, "again", id="ex2")
    assert [lab.store.tool_calls(turn)[0].result for turn in ("ex1", "ex2")] == ["theirs 0", "ours 0"]


async def test_a_predicate_that_never_returns_is_given_up(lab: Any) -> None:
    given = sources(Provider("search", "web", availability=lambda: lab.release.wait(60)), web=says("google"))
    result = await lab.run(lab.engine(searching(lab, given, hook_timeout_s=0.2)))
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("HookError", "hook_timeout")
    assert "predicate" in result.error.message


FAILURES = [
    (sources(), CapabilityUnavailable, ["capability_failed"]),
    (
        sources(Provider("search", "a"), Provider("search", "b"), a=says("a"), b=says("b")),
        CapabilityAmbiguous,
        ["capability_failed"],
    ),
    (
        sources(Provider("search", "ghost")),
        CapabilityError,
        ["capability_resolved", "capability_failed"],
    ),
    (
        sources(Provider("search", "web"), web=says("web"), plain=says("search")),
        ToolNameCollisionError,
        ["capability_resolved"],
    ),
]


@pytest.mark.parametrize(("given", "error", "events"), FAILURES)
async def test_a_turn_that_cannot_have_its_tools_fails_before_the_model_is_asked(
    lab: Any, given: AssemblySources, error: type[Exception], events: list[str]
) -> None:
    definition = searching(lab, given, tools_allow=None)
    engine = lab.engine(definition)
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(error) as caught:
        result.raise_for_status()
    assert type(caught.value) is error
    assert lab.prompts() == []
    assert events_of(lab) == ["started", *events, "failed"]
    (failed,) = [row for row in lab.store.events("ex1") if row.type == "capability_failed"] or [None]
    if failed is not None:
        assert failed.payload["agent_id"] == "a1"
        assert failed.payload["execution_id"] == "ex1"
        assert failed.payload["code"] == caught.value.code
    assert (await lab.run(engine, "again", id="ex2")).status is ExecutionStatus.FAILED, "and is not stuck"


async def test_a_registry_that_cannot_be_had_fails_the_turn(lab: Any) -> None:
    def broken() -> AssemblySources:
        raise KeyError("SEARCH_URL")

    definition = lab.define([final("x")], capabilities=["search"], tool_sources=broken)
    result = await lab.run(lab.engine(definition))
    with pytest.raises(DefinitionUnavailableError, match="SEARCH_URL"):
        result.raise_for_status()


async def test_a_denied_implementation_gives_the_turn_the_next_one(lab: Any) -> None:
    given = sources(
        Provider("search", "web", priority=9),
        Provider("search", "local"),
        web=says("web"),
        local=says("local"),
    )
    await lab.run(lab.engine(searching(lab, given, tools_deny=["web"])))
    assert lab.store.tool_calls("ex1")[0].result == "local 7"


async def test_TA46_a_call_under_an_alias_has_the_rules_of_its_implementation(lab: Any) -> None:
    given = sources(
        Provider("search", "web"), web=says("google", replay="idempotent", requires_approval=True)
    )
    engine = lab.engine(searching(lab, given))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert [request.tool_name for request in waiting.approvals] == ["search"]
    (row,) = lab.store.tool_calls("ex1")
    assert (row.replay, row.requires_approval) == ("idempotent", True)
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "x"


@pytest.mark.parametrize(
    ("effect", "named", "outcome"),
    [
        (RuleEffect.ALLOW, "web", "succeeded"),
        (RuleEffect.ALLOW, "search", "awaiting_approval"),
        (RuleEffect.ALLOW, "google", "awaiting_approval"),
        (RuleEffect.REFUSE, "web", "rejected"),
        (RuleEffect.REFUSE, "search", "rejected"),
    ],
)
async def test_a_standing_permission_is_for_an_implementation_and_not_for_a_name(
    lab: Any, effect: RuleEffect, named: str, outcome: str
) -> None:
    given = sources(Provider("search", "web"), web=says("google", requires_approval=True))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    lab.store.add_rule(StandingRule("ru1", effect, named, "ann", now))
    engine = lab.engine(searching(lab, given))
    await engine.start("ex1", "go")
    await lab.end_or_question(engine)
    assert lab.store.tool_calls("ex1")[0].status.value == outcome


# --- after a crash ---------------------------------------------------------------------------------------------


def providers(best: str) -> list[Provider]:
    return [Provider("search", key, priority=9 if key == best else 1) for key in ("web", "local")]


async def is_replaced(engine: Any) -> None:
    """Wait until an engine has learnt that another one owns its agent."""
    with pytest.raises(OwnershipLostError):
        await engine.wait("ex1", until="terminal", timeout_s=20)


async def test_a_resumed_turn_uses_the_implementation_that_was_chosen(lab: Any) -> None:
    tools = {key: says(key, requires_approval=True) for key in ("web", "local")}
    steps = (calls(call("search", {"x": 1})), calls(call("search", {"x": 2})), final("x"))
    first = lab.engine(searching(lab, sources(*providers("web"), **tools), *steps))
    await first.start("ex1", "go")
    await lab.suspension(first)
    second = lab.engine(searching(lab, sources(*providers("local"), **tools), *steps))
    await lab.decide_all(second)
    await lab.decide_all(second)
    assert (await lab.end(second)).output == "x"
    assert [row.result for row in lab.store.tool_calls("ex1")] == ["web 1", "web 2"]
    assert events_of(lab).count("capability_resolved") == 1, "nothing is chosen again within a turn"
    await second.start("ex2", "again")
    await lab.decide_all(second, id="ex2")
    await lab.decide_all(second, id="ex2")
    await lab.end(second, "ex2")
    assert lab.store.tool_calls("ex2")[0].result == "local 1", "the next turn chooses for itself"


async def test_an_implementation_that_vanished_is_the_failure_of_its_call(lab: Any) -> None:
    begun, hold = asyncio.Event(), asyncio.Event()

    @tool(name="google", replay="safe")
    async def hangs(x: int = 0) -> str:
        begun.set()
        await hold.wait()
        return "too late"

    steps = (calls(call("search", {"x": 1}), call("local", {"x": 2})), final("x"))
    before = sources(Provider("search", "web"), web=hangs, local=says("local"))
    after = sources(Provider("search", "local"), local=says("local"))
    first = lab.engine(searching(lab, before, *steps, tools_allow=["local"]))
    await first.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    second = lab.engine(searching(lab, after, *steps, tools_allow=["local"]))
    result = await lab.end(second)
    with pytest.raises(ToolError, match="'search'"):
        result.raise_for_status()
    gone, there = lab.store.tool_calls("ex1")
    assert (gone.status, gone.error["code"]) == (ToolCallStatus.FAILED, "definition_changed")
    assert there.result == "local 2", "its sibling is unharmed"
    hold.set()
    await is_replaced(first)


async def test_what_vanished_while_a_human_was_asked_cannot_be_approved(lab: Any) -> None:
    steps = (calls(call("search", {"x": 1})), final("x"))
    before = sources(Provider("search", "web"), web=says("web", requires_approval=True))
    first = lab.engine(searching(lab, before, *steps))
    await first.start("ex1", "go")
    await lab.suspension(first)
    second = lab.engine(searching(lab, sources(), *steps))
    with pytest.raises(DefinitionChangedError):
        await lab.decide_all(second)
    assert (await lab.decide_all(second, approved=False)).status is ExecutionStatus.REJECTED


async def test_a_crash_before_the_choice_was_stored_chooses_again(lab: Any) -> None:
    tools = {key: says(key) for key in ("web", "local")}
    wait = lab.pause("before_commit:prepared")
    first = lab.engine(searching(lab, sources(*providers("web"), **tools)))
    await first.start("ex1", "go")
    release = await wait()
    second = lab.engine(searching(lab, sources(*providers("local"), **tools)), fault_directory=None)
    assert (await lab.end(second)).output == "x"
    release()
    await is_replaced(first)
    assert lab.store.tool_calls("ex1")[0].result == "local 7"
    assert events_of(lab).count("capability_resolved") == 1


async def test_registries_that_cannot_be_had_stop_a_recovery_until_they_can(lab: Any) -> None:
    given = [sources(Provider("search", "web"), web=says("web", requires_approval=True))]

    def registry() -> AssemblySources:
        return given[0]

    first = lab.engine(searching(lab, given[0]))
    await first.start("ex1", "go")
    await lab.suspension(first)
    kept = given.pop()
    definition = lab.define(
        [calls(call("search", {"x": 7})), final("x")],
        capabilities=["search"],
        tools_allow=[],
        tool_sources=registry,
    )
    second = lab.engine(definition)
    with pytest.raises(DefinitionUnavailableError):
        await second.activate()
    given.append(kept)
    await lab.decide_all(second)
    assert (await lab.end(second)).output == "x"


# --- one turn's context never reaches another ------------------------------------------------------------------


async def test_TA29_a_shared_instance_serves_two_turns_at_once_each_with_its_own_context(lab: Any) -> None:
    both = asyncio.Barrier(2)

    class Whoami(Tool):
        """Say whose call this is."""

        replay = "safe"

        async def execute(self, context: ToolContext) -> dict[str, Any]:
            before = (context.agent_id, context.execution_id, dict(context.durable_context or {}))
            await both.wait()  # both turns are inside the one instance
            after = (context.agent_id, context.execution_id, dict(context.durable_context or {}))
            assert before == after
            assert not vars(self), "nothing of a turn stands on the instance"
            return {"agent": context.agent_id, "tenant": (context.durable_context or {})["tenant"]}

    ready = Whoami()
    given = sources(Provider("search", "who"), who=ready)
    definition = searching(lab, given, calls(call("search", {})), final("x"))
    engines = [lab.engine(definition, agent_id) for agent_id in ("a1", "a2")]
    await asyncio.gather(
        *(
            lab.run(engine, id=f"ex-{engine.agent_id}", durable_context={"tenant": f"t-{engine.agent_id}"})
            for engine in engines
        )
    )
    assert all(engine.state.execution is None for engine in engines)
    results = [lab.store.tool_calls(f"ex-{name}")[0].result for name in ("a1", "a2")]
    assert results == [{"agent": "a1", "tenant": "t-a1"}, {"agent": "a2", "tenant": "t-a2"}]


async def test_TA30_a_tool_that_asks_for_no_context_is_given_none(lab: Any) -> None:
    given = sources(Provider("search", "web"), web=says("web"))
    await lab.run(lab.engine(searching(lab, given)), durable_context={"x": 99})
    assert lab.store.tool_calls("ex1")[0].result == "web 7", "and a context's value never becomes an argument"


async def test_TA31_a_turn_without_a_context_gives_its_tools_none(lab: Any) -> None:
    seen: list[Any] = []

    @tool(replay="safe")
    async def look(context: ToolContext) -> str:
        seen.append(context.durable_context)
        return "seen"

    given = sources(Provider("search", "web"), web=look)
    await lab.run(lab.engine(searching(lab, given, calls(call("search", {})), final("x"))))
    assert seen == [None]


async def test_TA82_a_tool_that_was_bound_again_gets_the_context_of_its_call(lab: Any) -> None:
    seen: list[Any] = []

    @tool(replay="safe", requires_approval=True)
    async def look(context: ToolContext) -> str:
        seen.append((context.execution_id, context.durable_context))
        return "seen"

    steps = (calls(call("search", {})), final("x"))
    definition = searching(lab, sources(Provider("search", "web"), web=look), *steps)
    first = lab.engine(definition)
    await first.start("ex1", "go", durable_context={"image": "u"})
    await lab.suspension(first)
    second = lab.engine(definition)
    await lab.decide_all(second)
    await lab.end(second)
    assert seen == [("ex1", {"image": "u"})]
