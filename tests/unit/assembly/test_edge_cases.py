"""Edge cases of capability resolution and tool assembly, each a test named after its number.

The numbers and words of all cases, those of the envelope and the ledger included, stand in
``tests/tool_assembly_cases.toml``. Here: TA01 to TA28, and of those that the original system leaves untested TA75, TA76,
TA77, TA80 and TA81. They follow the specs of Insika's capability registry and ToolAssembly.

===== ==================================================================================================
TA01  providers keep the order of their registration
TA02  a provider of an unknown kind is refused
TA03  a workflow is registered with a warning
TA04  the highest priority wins, whatever was registered first
TA05  a provider that is not available is out before priorities count
TA06  the deny list empties the candidates: unavailable
TA07  the allow list does not matter: listing the capability is the grant
TA08  an unknown capability is unavailable
TA09  equal claims of different plugins: the earliest
TA10  equal claims of one plugin: ambiguous, with the candidates
TA11  equal claims without plugins: ambiguous, with the candidates
TA12  one without a plugin and one of a plugin: not ambiguous
TA13  no priority ranks below a negative one
TA14  two without priority, of two plugins: the earliest
TA15  the event: capability, chosen, candidates left, whose turn
TA16  nobody has to listen for the events
TA17  removing a plugin leaves the others' providers
TA18  removing an unknown plugin changes nothing
TA19  a denied implementation leaves the capability to the next candidate
TA20  an ambiguous capability has no resolved event
TA21  no capability registry: own tools only
TA22  no capabilities listed: none
TA23  a capability is bound to its implementation
TA24  an implementation that is not registered fails the turn
TA25  a workflow is skipped
TA26  without capabilities the tools are what they would be without any of this
TA27  direct tools first, then capabilities
TA28  dropped by registry key before it is made, whatever the instance calls itself
TA75  the first capability to claim an implementation has it, and the other one leaves an event
TA76  a capability listed twice
TA77  names that would collide are refused
TA80  a predicate that raises makes its provider unavailable
TA81  the order of the tools is the same each time
===== ==================================================================================================
"""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from phronomy_ray.assembly.assembly import Assembled, AssemblyFailed, ToolAssembly
from phronomy_ray.assembly.binding import Binding, Choice, Origin
from phronomy_ray.assembly.capabilities import CapabilityEventKind, Turn
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.errors import (
    CapabilityAmbiguous,
    CapabilityError,
    CapabilityUnavailable,
    ConfigurationError,
    PhronomyError,
    ToolNameCollisionError,
)

RESOLVED, SHADOWED = CapabilityEventKind.RESOLVED, CapabilityEventKind.SHADOWED
SKIPPED, FAILED = CapabilityEventKind.SKIPPED, CapabilityEventKind.FAILED


def assemble(bench: Any, definition: AgentDefinition, turn: Turn) -> Assembled:
    done = ToolAssembly(definition, bench.sources).assemble(turn)
    assert isinstance(done, Assembled), done
    return done


def refused(bench: Any, definition: AgentDefinition, turn: Turn) -> AssemblyFailed:
    done = ToolAssembly(definition, bench.sources).assemble(turn)
    assert isinstance(done, AssemblyFailed), done
    again = pickle.loads(pickle.dumps(done.error))
    assert (type(again), again.details) == (type(done.error), done.error.details)
    return done


def shown(done: Assembled) -> list[str]:
    """Names as the model sees them, in its order."""
    names = [definition["function"]["name"] for definition in done.tools.definitions]
    assert names == list(done.tools.tools) == [choice.name for choice in done.binding.choices]
    return names


def chosen(bench: Any, turn: Turn, **options: Any) -> str:
    return str(bench.capabilities.resolve("search", turn=turn, **options).provider.implementation)


# --- resolution ------------------------------------------------------------------------------------------------


def test_TA01_providers_keep_their_order(bench: Any) -> None:
    for implementation in ("c", "a", "b"):
        bench.provide("search", implementation)
    assert [provider.implementation for provider in bench.capabilities.providers("search")] == ["c", "a", "b"]


def test_TA02_an_unknown_kind_is_refused(bench: Any) -> None:
    with pytest.raises(ConfigurationError, match="'tool' or 'workflow'"):
        bench.provide("search", "web", kind="agent")
    assert bench.capabilities.capabilities == ()


def test_TA03_a_workflow_is_registered_with_a_warning(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bench.provide("report", "monthly", kind="workflow")
    assert "workflow 'monthly'" in caplog.text
    assert len(bench.capabilities.providers("report")) == 1


def test_TA04_the_highest_priority_wins(bench: Any, turn: Turn) -> None:
    for implementation, priority in (("low", 1), ("high", 9), ("middle", 5)):
        bench.provide("search", implementation, priority=priority)
    assert chosen(bench, turn) == "high"


def test_TA05_what_is_not_available_is_out_before_priorities_count(bench: Any, turn: Turn) -> None:
    available = [False]
    bench.provide("search", "best", priority=9, availability=lambda: available[0])
    bench.provide("search", "other", priority=1)
    assert chosen(bench, turn) == "other"
    available[0] = True
    assert chosen(bench, turn) == "best", "asked anew each time"


def test_TA06_the_deny_list_can_leave_nobody(bench: Any, turn: Turn) -> None:
    bench.provide("search", "web")
    with pytest.raises(CapabilityUnavailable) as caught:
        chosen(bench, turn, denied=("web",))
    assert caught.value.code == "capability_unavailable"
    assert caught.value.details["dropped"][0]["reason"] == "tools_deny names it"
    assert caught.value.details["candidates"] == []


def test_TA07_the_allow_list_does_not_matter_to_a_capability(bench: Any, turn: Turn) -> None:
    bench.tool("web", optional=True)
    bench.provide("search", "web")
    done = assemble(bench, bench.agent(capabilities=["search"], tools_allow=[]), turn)
    assert shown(done) == ["search"]


def test_TA08_an_unknown_capability_is_unavailable(bench: Any, turn: Turn) -> None:
    with pytest.raises(CapabilityUnavailable, match="none is registered"):
        chosen(bench, turn)
    assert bench.capabilities.capabilities == ()
    failure = refused(bench, bench.agent(capabilities=["search"]), turn)
    assert isinstance(failure.error, CapabilityUnavailable)
    (event,) = failure.events
    assert (event.kind, event.capability) == (FAILED, "search")
    assert event.payload()["code"] == "capability_unavailable"


def test_TA09_equal_claims_of_different_plugins_go_by_order(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first", plugin="a", priority=3)
    bench.provide("search", "second", plugin="b", priority=3)
    assert chosen(bench, turn) == "first"


def _is_ambiguous(bench: Any, turn: Turn, *implementations: str) -> None:
    with pytest.raises(CapabilityAmbiguous) as caught:
        chosen(bench, turn)
    assert caught.value.code == "capability_ambiguous"
    candidates = [item["implementation"] for item in caught.value.details["candidates"]]
    assert candidates == list(implementations)


def test_TA10_equal_claims_of_one_plugin_are_ambiguous(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first", plugin="a", priority=3)
    bench.provide("search", "second", plugin="a", priority=3)
    bench.provide("search", "low", plugin="a", priority=1)
    _is_ambiguous(bench, turn, "first", "second")


def test_TA10_one_plugin_with_two_makes_a_tie_ambiguous_even_behind_another(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first", plugin="a")
    bench.provide("search", "second", plugin="b")
    bench.provide("search", "third", plugin="b")
    _is_ambiguous(bench, turn, "first", "second", "third")


def test_TA11_equal_claims_without_plugins_are_ambiguous(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first")
    bench.provide("search", "second")
    _is_ambiguous(bench, turn, "first", "second")


def test_TA12_with_and_without_a_plugin_is_not_ambiguous(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first")
    bench.provide("search", "second", plugin="a")
    assert chosen(bench, turn) == "first"


def test_TA13_no_priority_ranks_below_a_negative_one(bench: Any, turn: Turn) -> None:
    bench.provide("search", "none")
    bench.provide("search", "negative", priority=-1_000)
    assert chosen(bench, turn) == "negative"


def test_TA13_a_priority_of_zero_is_one(bench: Any, turn: Turn) -> None:
    bench.provide("search", "none")
    bench.provide("search", "zero", priority=0)
    assert chosen(bench, turn) == "zero"


def test_TA14_two_without_priority_of_two_plugins_go_by_order(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first", plugin="a")
    bench.provide("search", "second", plugin="b")
    assert chosen(bench, turn) == "first"


def test_TA15_the_event_says_what_was_chosen_from_what_and_for_whom(bench: Any, turn: Turn) -> None:
    bench.provide("search", "gone", availability=lambda: False)
    bench.provide("search", "low", plugin="a", priority=1)
    bench.provide("search", "high", plugin="b", priority=2)
    event = bench.capabilities.resolve("search", turn=turn).event
    low = {"implementation": "low", "plugin": "a", "priority": 1, "kind": "tool"}
    high = {"implementation": "high", "plugin": "b", "priority": 2, "kind": "tool"}
    gone = {"implementation": "gone", "plugin": None, "priority": None, "kind": "tool"}
    assert event.kind is RESOLVED
    assert event.payload() == {
        "agent_id": "a1",
        "execution_id": "ex1",
        "capability": "search",
        "chosen": high,
        "candidates": [low, high],
        "dropped": [{**gone, "reason": "not available"}],
    }


def test_TA16_nobody_has_to_listen(bench: Any, turn: Turn) -> None:
    bench.provide("search", "web")
    assert chosen(bench, turn) == "web", "events are values: there is no stream that could be missing"


def test_TA17_removing_a_plugin_leaves_the_others(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first", plugin="a")
    bench.provide("search", "second", plugin="b")
    bench.capabilities.remove_plugin("a")
    assert chosen(bench, turn) == "second"


def test_TA18_removing_an_unknown_plugin_changes_nothing(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first", plugin="a")
    assert bench.capabilities.remove_plugin("z") == 0
    assert chosen(bench, turn) == "first"


def test_TA19_a_denied_implementation_leaves_it_to_the_next(bench: Any, turn: Turn) -> None:
    bench.tool("web")
    bench.tool("local")
    bench.provide("search", "web", priority=9)
    bench.provide("search", "local", priority=1)
    done = assemble(bench, bench.agent(capabilities=["search"], tools_allow=[], tools_deny=["web"]), turn)
    assert done.binding.registry_key("search") == "local"


def test_TA20_an_ambiguous_capability_has_no_resolved_event(bench: Any, turn: Turn) -> None:
    bench.provide("search", "first")
    bench.provide("search", "second")
    failure = refused(bench, bench.agent(capabilities=["search"]), turn)
    assert isinstance(failure.error, CapabilityAmbiguous)
    (event,) = failure.events
    assert event.kind is FAILED
    payload = event.payload()
    assert (payload["agent_id"], payload["execution_id"], payload["code"]) == (
        "a1",
        "ex1",
        "capability_ambiguous",
    )
    assert [item["implementation"] for item in payload["candidates"]] == ["first", "second"]


# --- assembly --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sources", [None, "without capabilities"])
def test_TA21_without_a_capability_registry_there_are_no_capabilities(
    bench: Any, turn: Turn, named_tool: Any, sources: Any
) -> None:
    if sources is not None:
        sources = AssemblySources(bench.tools, None)
    definition = bench.agent(named_tool("own"), capabilities=["search"])
    done = ToolAssembly(definition, sources).assemble(turn)
    assert isinstance(done, Assembled)
    assert shown(done) == ["own"]
    (event,) = done.events
    assert (event.kind, event.capability) == (SKIPPED, "search"), "not silently"


@pytest.mark.parametrize("capabilities", [None, ()])
def test_TA22_capabilities_are_opt_in(bench: Any, turn: Turn, capabilities: Any) -> None:
    bench.tool("web")
    bench.provide("search", "web")
    done = assemble(bench, bench.agent(capabilities=capabilities, tools_allow=()), turn)
    assert (shown(done), done.events) == ([], ())


def test_TA23_a_capability_is_bound_to_its_implementation(bench: Any, turn: Turn) -> None:
    bench.tool("web", name="google", plugin="p")
    bench.provide("search", "web", plugin="q")
    done = assemble(bench, bench.agent(capabilities=["search"], tools_allow=[]), turn)
    assert done.binding == Binding((Choice("search", Origin.CAPABILITY, "web", "p"),))
    assert done.tools.tools["search"].registry_key == "web"
    assert "web" not in str(done.tools.definitions), "the implementation is never shown"
    assert [event.kind for event in done.events] == [RESOLVED]


def test_TA24_an_implementation_that_is_not_registered_fails_the_turn(bench: Any, turn: Turn) -> None:
    bench.tool("local")
    bench.provide("search", "ghost", priority=2)
    bench.provide("search", "local", priority=1)
    failure = refused(bench, bench.agent(capabilities=["search"]), turn)
    assert type(failure.error) is CapabilityError
    assert "'search' resolved to 'ghost'" in failure.error.message
    assert [event.kind for event in failure.events] == [RESOLVED, FAILED]
    assert failure.events[1].payload()["chosen"]["implementation"] == "ghost"
    assert bench.made == [], "nothing of the turn is made"


def test_TA25_a_workflow_is_skipped_with_an_event(bench: Any, turn: Turn) -> None:
    bench.tool("web")
    bench.provide("report", "monthly", kind="workflow")
    bench.provide("search", "web")
    done = assemble(bench, bench.agent(capabilities=["report", "search"], tools_allow=[]), turn)
    assert shown(done) == ["search"]
    assert [(event.kind, event.capability) for event in done.events] == [
        (RESOLVED, "report"),
        (SKIPPED, "report"),
        (RESOLVED, "search"),
    ]


def test_TA26_without_capabilities_the_tools_are_the_plain_ones(
    bench: Any, turn: Turn, named_tool: Any
) -> None:
    own = (named_tool("one"), named_tool("two"))
    definition = bench.agent(*own)
    done = assemble(bench, definition, turn)
    assert done.tools.tools == definition.tools
    assert done.tools.content == definition.tool_set.content
    assert not bench.agent(*own, tool_sources="").wants_assembly


def test_TA27_direct_tools_come_first_then_capabilities(bench: Any, turn: Turn, named_tool: Any) -> None:
    for key in ("b", "web", "a", "mail_impl"):
        bench.tool(key)
    bench.provide("search", "web")
    bench.provide("mail", "mail_impl")
    definition = bench.agent(named_tool("own"), capabilities=["mail", "search"])
    assert shown(assemble(bench, definition, turn)) == ["own", "b", "a", "mail", "search"]


def test_TA28_a_claimed_tool_is_dropped_by_its_key_before_it_is_made(bench: Any, turn: Turn) -> None:
    bench.tool("web", name="google")
    bench.tool("google", name="other")
    bench.provide("search", "web")
    done = assemble(bench, bench.agent(capabilities=["search"]), turn)
    assert shown(done) == ["other", "search"]
    assert bench.made == ["google", "web"], "made once each, the claimed one for its capability only"


def test_TA28_a_class_that_lists_what_the_registry_holds_has_it_once(
    bench: Any, turn: Turn, named_tool: Any
) -> None:
    class Mail(Tool):
        async def execute(self) -> None: ...

    ready = named_tool("google")
    bench.tools.register("web", ready)
    bench.tools.register("post", Mail)
    bench.provide("search", "web")
    definition = bench.agent(ready, Mail, capabilities=["search"])
    assert shown(assemble(bench, definition, turn)) == ["mail", "search"]


# --- not covered there -----------------------------------------------------------------------------------------


def test_TA75_the_first_capability_to_claim_an_implementation_has_it(bench: Any, turn: Turn) -> None:
    bench.tool("web")
    bench.provide("search", "web")
    bench.provide("browse", "web")
    done = assemble(bench, bench.agent(capabilities=["browse", "search"], tools_allow=[]), turn)
    assert shown(done) == ["browse"]
    assert [(event.kind, event.capability) for event in done.events] == [
        (RESOLVED, "browse"),
        (RESOLVED, "search"),
        (SHADOWED, "search"),
    ]
    payload = done.events[2].payload()
    assert (payload["claimed_by"], payload["chosen"]["implementation"]) == ("browse", "web")
    assert (payload["agent_id"], payload["execution_id"]) == ("a1", "ex1")


def test_TA76_a_capability_listed_twice_is_a_mistake_of_the_class(bench: Any) -> None:
    with pytest.raises(ConfigurationError, match="capabilities names 'search' twice"):
        bench.agent(capabilities=["search", "search"])


COLLISIONS = [
    ("an own tool", {"tools": ["search"]}, ["own tool", "capability 'search'"]),
    ("a registry tool", {"registry": [("x", "search")]}, ["registry's tool 'x'", "capability 'search'"]),
    ("two registry tools", {"registry": [("x", "same"), ("y", "same")]}, ["tool 'x'", "tool 'y'"]),
    ("own and registry", {"tools": ["same"], "registry": [("y", "same")]}, ["own tool", "tool 'y'"]),
    ("a framework tool", {"framework": ["search"]}, ["capability 'search'", "framework"]),
]


@pytest.mark.parametrize(("what", "given", "sources"), COLLISIONS)
def test_TA77_a_name_that_two_tools_would_have_is_refused(
    bench: Any, turn: Turn, named_tool: Any, what: str, given: dict[str, Any], sources: list[str]
) -> None:
    bench.tool("web")
    bench.provide("search", "web")
    for key, name in given.get("registry", ()):
        bench.tool(key, name=name)
    own = [named_tool(name) for name in given.get("tools", ())]
    framework = [named_tool(name) for name in given.get("framework", ())]
    definition = bench.agent(*own, capabilities=["search"])
    failure = ToolAssembly(definition, bench.sources, framework=framework).assemble(turn)
    assert isinstance(failure, AssemblyFailed)
    assert isinstance(failure.error, ToolNameCollisionError), what
    assert failure.error.code == "tool_name_collision"
    for part, found in zip(sources, failure.error.details["sources"], strict=True):
        assert part in found


def test_TA77_a_capability_that_cannot_be_a_tool_s_name_is_a_mistake_of_the_class(bench: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'web\.search' cannot be a tool's name"):
        bench.agent(capabilities=["web.search"])


@pytest.mark.parametrize("raised", [ConnectionError, SystemExit])
def test_TA80_a_predicate_that_raises_makes_its_provider_unavailable(
    bench: Any, turn: Turn, caplog: pytest.LogCaptureFixture, raised: type[BaseException]
) -> None:
    def broken() -> bool:
        raise raised("password=hunter2 was refused")

    bench.provide("search", "web", priority=9, availability=broken)
    bench.provide("search", "local")
    resolution = bench.capabilities.resolve("search", turn=turn)
    assert resolution.provider.implementation == "local"
    (dropped,) = resolution.event.payload()["dropped"]
    assert raised.__name__ in dropped["reason"]
    assert "hunter2" not in str(dropped) + caplog.text
    with pytest.raises(CapabilityUnavailable, match=raised.__name__):
        chosen(bench, turn, denied=["local"])


@pytest.mark.parametrize("raised", [StopIteration, SystemExit])
def test_TA80_a_factory_that_raises_fails_the_turn_by_name(
    bench: Any, turn: Turn, raised: type[BaseException]
) -> None:
    def broken() -> Tool:
        raise raised("nothing there")

    bench.tools.register("web", factory=broken, plugin="p")
    failure = refused(bench, bench.agent(), turn)
    assert (failure.error.code, failure.error.details) == (
        "tool_factory",
        {"registry_key": "web", "plugin": "p"},
    )


def test_TA81_the_tools_stand_in_the_same_order_each_time(bench: Any, turn: Turn, named_tool: Any) -> None:
    for key in ("z", "m", "a", "impl"):
        bench.tool(key)
    bench.provide("cap", "impl")
    definition = bench.agent(named_tool("own"), capabilities=["cap"])
    contents = {assemble(bench, definition, turn).tools.content for _ in range(5)}
    assert len(contents) == 1


# --- lists, framework tools, stored bindings -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "deny", "names"),
    [
        (None, [], ["own", "a", "b"]),
        ([], [], ["own"]),
        (["b", "unknown"], [], ["own", "b"]),
        (["a", "extra"], [], ["own", "a", "extra"]),
        (None, ["a"], ["own", "b"]),
        (["a", "b"], ["a"], ["own", "b"]),
        (None, ["own"], ["a", "b"]),
    ],
)
def test_allow_and_deny_lists(
    bench: Any, turn: Turn, named_tool: Any, allow: Any, deny: list[str], names: list[str]
) -> None:
    bench.tool("a")
    bench.tool("extra", optional=True)
    bench.tool("b")
    definition = bench.agent(named_tool("own"), tools_allow=allow, tools_deny=deny)
    assert shown(assemble(bench, definition, turn)) == names


def test_an_own_tool_is_denied_also_by_the_key_of_its_entry(bench: Any, turn: Turn, named_tool: Any) -> None:
    ready = named_tool("google")
    bench.tools.register("web", ready)
    assert shown(assemble(bench, bench.agent(ready, tools_deny=["web"]), turn)) == []


def test_tools_of_the_framework_stand_last_and_no_list_applies(
    bench: Any, turn: Turn, named_tool: Any
) -> None:
    bench.tool("a")
    definition = bench.agent(named_tool("own"), tools_deny=["remember"])
    assembly = ToolAssembly(definition, bench.sources, framework=[named_tool("remember")])
    done = assembly.assemble(turn)
    assert isinstance(done, Assembled)
    assert shown(done) == ["own", "a", "remember"]
    assert [bound.is_framework for bound in done.tools.tools.values()] == [False, False, True]
    again = assembly.rebind(done.binding).tools
    assert again.content == done.tools.content
    assert again.tools["remember"].is_framework


def test_a_stored_binding_gives_the_same_tools_and_chooses_nothing(
    bench: Any, turn: Turn, named_tool: Any
) -> None:
    available = [True]
    bench.tool("web")
    bench.tool("local")
    bench.tool("plain")
    bench.provide("search", "web", priority=9, availability=lambda: available[0])
    bench.provide("search", "local")
    definition = bench.agent(named_tool("own"), capabilities=["search"], tools_deny=["local"])
    assembly = ToolAssembly(definition, bench.sources)
    done = assembly.assemble(turn)
    assert isinstance(done, Assembled)
    available[0] = False
    bench.tool("new")
    stored = Binding.from_wire(done.binding.to_wire())
    assert stored == done.binding
    rebound = assembly.rebind(stored)
    assert rebound.missing == ()
    assert rebound.tools.content == done.tools.content
    assert rebound.tools.tools["search"].registry_key == "web"


def test_what_is_gone_since_is_left_out_and_named(bench: Any, turn: Turn, named_tool: Any) -> None:
    bench.tool("web", plugin="p")
    bench.tool("plain")
    bench.provide("search", "web")
    own = named_tool("own")
    done = assemble(bench, bench.agent(own, named_tool("old"), capabilities=["search"]), turn)
    bench.tools.remove_plugin("p")
    rebound = ToolAssembly(bench.agent(own, capabilities=["search"]), bench.sources).rebind(done.binding)
    assert list(rebound.tools.tools) == ["own", "plain"]
    assert [name for name, _ in rebound.missing] == ["old", "search"]
    assert "'web'" in rebound.missing[1][1]
    assert list(ToolAssembly(bench.agent(own), None).rebind(done.binding).tools.tools) == ["own"]


def test_a_newer_binding_is_not_read() -> None:
    with pytest.raises(PhronomyError, match="tool binding has format 99"):
        Binding.from_wire({"v": 99, "tools": []})


def test_TA47_an_alias_changes_the_name_and_nothing_else(bench: Any, turn: Turn) -> None:
    @tool(name="google", description="Ask the web.", replay="idempotent", requires_approval=True, timeout_s=3)
    async def google(query: str, limit: int = 5) -> str:
        return query * limit

    bench.tools.register("web", google)
    bench.provide("search", "web")
    bound = assemble(bench, bench.agent(capabilities=["search"]), turn).tools.tools["search"]
    assert bound.spec.name == "search"
    assert bound.tool is google
    before = google.spec.definition()
    before["function"]["name"] = "search"
    assert bound.spec.definition() == before
    assert (bound.spec.replay, bound.spec.requires_approval, bound.spec.timeout_s) == ("idempotent", True, 3)


@pytest.mark.parametrize(
    "attributes",
    [
        {"capabilities": "search"},
        {"capabilities": [""]},
        {"capabilities": [3]},
        {"tools_allow": "a"},
        {"tools_deny": None},
        {"tools_deny": ["a", "a"]},
        {"tool_sources": 3},
    ],
)
def test_a_mistake_in_the_lists_is_one_of_the_class(bench: Any, attributes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(attributes))):
        bench.agent(**attributes)
