"""Input, output and result filters in an execution, on every path that a value can take."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.assembly.registry import ToolRegistry
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.filters import FilterContext, FilterSite, block
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.definition.tool import Tool, ToolCompletion, tool
from phronomy_ray.errors import ConfigurationError, FilterBlockError, FilterError, ToolError
from phronomy_ray.events import EventType
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, Lifecycle, Phase, ToolCallStatus
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import ToolContext

Paired = Callable[[Any], None]


class Tag:
    """Adds its mark, and counts."""

    def __init__(self, mark: str = "!") -> None:
        self.mark = mark
        self.seen: list[Any] = []
        self.threads: list[str] = []

    def __call__(self, value: Any, context: FilterContext) -> Any:
        self.seen.append(value)
        self.threads.append(threading.current_thread().name)
        return f"{value}{self.mark}"


class AsyncTag(Tag):
    async def __call__(self, value: Any, context: FilterContext) -> Any:
        await asyncio.sleep(0)
        return Tag.__call__(self, value, context)


def no_secrets(value: Any, context: FilterContext) -> Any:
    if "secret" in str(value):
        block(f"a secret in the {context.site.value}")
    return value


def broken(value: Any, context: FilterContext) -> Any:
    raise ValueError("broken filter")


def self_cancelling(value: Any, context: FilterContext) -> Any:
    raise asyncio.CancelledError


def forgetful(value: Any, context: FilterContext) -> Any:
    value.upper()


async def usable(lab: Any, engine: Any) -> None:
    """The agent goes on after whatever happened."""
    result = await lab.run(engine, "hi", id="ex-after")
    assert result.output == "fine", result
    assert lab.store.load_root("a1").lifecycle is Lifecycle.IDLE


def turns(*steps: Any) -> Any:
    return lambda request: final("fine") if request.last_user == "hi" else steps[request.sequence - 1]


# --- input -----------------------------------------------------------------------------------------------------


async def test_the_input_is_filtered_before_anything_else_sees_it(lab: Any) -> None:
    seen: list[Any] = []
    first, second, third = Tag("1"), AsyncTag("2"), Tag("3")

    def instructions(value: Any) -> str:
        seen.append(value)
        return "Be brief."

    definition = lab.define([final("ok")], input_filters=[first, second], instructions=instructions)
    engine = lab.engine(definition, options=InstanceOptions(input_filters=[third]))
    result = await lab.run(engine, "hello")
    assert result.output == "ok"
    assert (first.seen, second.seen, third.seen) == (["hello"], ["hello1"], ["hello12"]), (
        "once each, class first"
    )
    assert seen == ["hello123"]
    assert lab.prompts()[0][-1]["content"] == "hello123"
    journal = lab.store.journal_of_execution("ex1")
    assert [r.content for r in journal if r.kind.value == "input_received"] == ["hello"], "recorded as given"
    assert lab.store.load_execution("ex1").input == "hello"
    main = threading.current_thread().name
    assert main not in first.threads + second.threads + third.threads


async def test_a_mapping_keeps_its_shape_through_the_filters(lab: Any) -> None:
    def drop(value: Any, context: FilterContext) -> Any:
        value["message"] = value["message"].replace("bad", "***")
        assert context.durable_context == {"tenant": "t1"}
        return value

    engine = lab.engine(lab.define([final("ok")], input_filters=[drop]))
    given = {"message": "a bad word", "n": 1}
    await lab.run(engine, given, durable_context={"tenant": "t1"})
    assert lab.prompts()[0][-1]["content"] == "a *** word"
    assert given["message"] == "a bad word"
    assert lab.store.load_execution("ex1").input["message"] == "a bad word"


@pytest.mark.parametrize("level", ["class", "instance"])
async def test_a_blocked_input_ends_as_blocked_and_no_model_sees_it(lab: Any, level: str) -> None:
    on_class = {"input_filters": [no_secrets]} if level == "class" else {}
    options = InstanceOptions(input_filters=[no_secrets] if level == "instance" else [])
    engine = lab.engine(lab.define(turns(final("no")), **on_class), options=options)
    result = await lab.run(engine, "my secret")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.BLOCKED, "filter_blocked")
    with pytest.raises(FilterBlockError, match="a secret in the input") as caught:
        result.raise_for_status()
    assert caught.value.details["site"] == "input"
    assert lab.prompts() == []
    assert lab.kinds() == ["input_received", "execution_blocked"]
    assert (await lab.read_events(engine))[-1].type is EventType.BLOCKED
    await usable(lab, engine)
    assert [m["content"] for m in lab.prompts()[-1]] == ["hi"], "what was blocked is in no later prompt"


@pytest.mark.parametrize("bad", [broken, self_cancelling, forgetful])
async def test_Y07_an_input_filter_that_fails_fails_the_execution(lab: Any, bad: Any) -> None:
    once: list[int] = []

    def first_only(value: Any, context: FilterContext) -> Any:
        once.append(1)
        return bad(value, context) if len(once) == 1 else value

    engine = lab.engine(lab.define(turns(final("no")), input_filters=[first_only]))
    result = await lab.run(engine, "hello")
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(FilterError) as caught:
        result.raise_for_status()
    assert (caught.value.code, caught.value.details["site"]) == ("filter_failed", "input")
    await usable(lab, engine)


async def test_Y07_a_filter_that_never_returns_is_given_up_and_the_loop_stays_free(lab: Any) -> None:
    def hang(value: Any, context: FilterContext) -> Any:
        if value != "hi":
            lab.release.wait(60)
        return value

    engine = lab.engine(lab.define(turns(final("no")), input_filters=[hang], hook_timeout_s=0.2))
    await engine.start("ex1", "hello")
    async with asyncio.timeout(0.1):
        await asyncio.sleep(0)
        assert engine.status()["phase"] == "preparing"
    result = await lab.end(engine)
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("FilterError", "filter_timeout")
    await usable(lab, engine)


async def test_cancelled_while_a_filter_runs_stays_cancelled(lab: Any) -> None:
    inside, late = threading.Event(), Tag()

    def slow(value: Any, context: FilterContext) -> Any:
        inside.set()
        while not context.is_cancelled():
            lab.release.wait(0.005)
        return value

    engine = lab.engine(lab.define([final("no")], input_filters=[slow, late]))
    await engine.start("ex1", "hello")
    await asyncio.to_thread(inside.wait, 5)
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine)
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    assert lab.prompts() == []
    assert late.seen == []


# --- output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_output_is_filtered_once_and_the_raw_text_is_nowhere(
    lab: Any, paired: Paired, stream: bool
) -> None:
    first, second = Tag("1"), AsyncTag("2")

    def mask(value: Any, context: FilterContext) -> Any:
        assert context.site is FilterSite.OUTPUT
        return value.replace("4711", "****")

    definition = lab.define([[final("card 4711")], [final("fine")]], output_filters=[mask, first])
    engine = lab.engine(definition, options=InstanceOptions(output_filters=[second]))
    result = await lab.run(engine, stream=stream)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "card ****12")
    assert (first.seen, second.seen) == (["card ****"], ["card ****1"])
    assert [m.content for m in result.messages] == ["hello", "card ****12"]
    events = await lab.read_events(engine)
    assert "4711" not in repr([event.payload for event in events])
    assert not any(event.type is EventType.TOKEN for event in events)
    assert "4711" not in repr(lab.facts())
    await lab.run(engine, "again", id="ex2")
    paired(lab.prompts()[-1])
    assert "4711" not in repr(lab.prompts()[-1])


async def test_a_blocked_output_is_in_no_message_and_no_later_prompt(lab: Any, paired: Paired) -> None:
    @tool(replay="safe")
    async def look(x: int) -> int:
        return x

    definition = lab.define(
        turns(calls(call("look", {"x": 1})), final("the secret is 7")), look, output_filters=[no_secrets]
    )
    engine = lab.engine(definition)
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.BLOCKED, None)
    assert result.error is not None
    assert result.error.details is not None
    assert result.error.details["site"] == "output"
    assert "is 7" not in repr(result)
    await usable(lab, engine)
    paired(lab.prompts()[-1])
    assert "is 7" not in repr(lab.prompts()[-1])


@pytest.mark.parametrize("bad", [broken, self_cancelling, forgetful])
async def test_an_output_filter_that_fails_fails_the_execution(lab: Any, bad: Any) -> None:
    def only_first(value: Any, context: FilterContext) -> Any:
        return value if value == "fine" else bad(value, context)

    engine = lab.engine(lab.define(turns(final("text")), output_filters=[only_first]))
    result = await lab.run(engine)
    assert (result.status, result.output, result.terminal_reason) == (
        ExecutionStatus.FAILED,
        None,
        "filter_failed",
    )
    await usable(lab, engine)


async def test_a_direct_result_passes_the_output_filters(lab: Any) -> None:
    tag = Tag("|out")

    @tool(replay="safe", return_direct=True)
    async def report(n: int) -> str:
        return f"report {n}"

    result = await lab.run(
        lab.engine(lab.define([calls(call("report", {"n": 1}))], report, output_filters=[tag]))
    )
    assert result.output == "report 1|out"
    assert tag.seen == ["report 1"]


async def test_a_cut_answer_that_no_filter_has_seen_is_not_given_out(lab: Any) -> None:
    engine = lab.engine(lab.define([final("half a sec", finish_reason="length")], output_filters=[Tag()]))
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.FAILED, None)
    assert [m.content for m in result.messages] == ["hello"]


async def test_output_filters_run_again_after_a_crash_and_only_they(lab: Any) -> None:
    tag = Tag()
    definition = lab.define([final("text")], output_filters=[tag])
    first = lab.engine(definition)
    write_plan(lab.faults, "a1", point="after_commit:output", action="fail")
    await first.start("ex1", "go")
    with pytest.raises(FaultInjectedError):
        await first.wait("ex1", until="terminal", timeout_s=5)
    assert lab.store.load_execution("ex1").phase is Phase.FILTERING_OUTPUT
    assert lab.store.load_execution("ex1").output is None
    second = lab.engine(definition)
    result = await lab.end(second)
    assert result.output == "text!"
    assert tag.seen == ["text"]
    assert len(lab.prompts()) == 1


# --- results ---------------------------------------------------------------------------------------------------


class Custom(Tool):
    """A tool that runs its calls itself."""

    name = "custom_look"
    replay = "safe"

    def execute(self, x: int) -> int:
        raise AssertionError("call_async stands in for the body")

    async def call_async(self, arguments: dict[str, Any], context: ToolContext) -> int:
        await asyncio.sleep(0)
        return int(arguments["x"])


class Outliving(Custom):
    """Its result comes before the end of its work."""

    name = "outliving_look"

    def call_async(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        async def value() -> int:
            return int(arguments["x"])

        return ToolCompletion(value(), asyncio.sleep(0))


def make_tools(own: Tag, bodies: list[str]) -> list[Any]:
    @tool(replay="safe", result_filters=[own])
    async def async_look(x: int) -> int:
        bodies.append("async")
        return x

    @tool(replay="safe", result_filters=[own])
    def sync_look(x: int) -> int:
        bodies.append("sync")
        return x

    @tool(replay="safe", result_filters=[own], execution_mode="blocking_io")
    async def threaded_look(x: int) -> int:
        bodies.append("threaded")
        return x

    custom = [cls().with_options(result_filters=[own]) for cls in (Custom, Outliving)]
    return [async_look, sync_look, threaded_look, *custom]


async def test_result_filters_run_exactly_once_in_every_mode(lab: Any) -> None:
    own, on_class, on_instance, bodies = Tag("t"), AsyncTag("c"), Tag("i"), list[str]()
    names = ["async_look", "sync_look", "threaded_look", "custom_look", "outliving_look"]
    definition = lab.define(
        [calls(*[call(name, {"x": 1}) for name in names]), final("done")],
        *make_tools(own, bodies),
        result_filters=[on_class],
    )
    engine = lab.engine(definition, options=InstanceOptions(result_filters=[on_instance]))
    await lab.run(engine)
    assert [row.result for row in lab.store.tool_calls("ex1")] == ["1tci"] * 5
    assert [row.model_text for row in lab.store.tool_calls("ex1")] == ["1tci"] * 5
    assert own.seen == [1] * 5, "the value itself, not its text"
    assert on_class.seen == ["1t"] * 5
    assert on_instance.seen == ["1tc"] * 5
    assert sorted(bodies) == ["async", "sync", "threaded"]
    assert threading.current_thread().name not in own.threads + on_class.threads + on_instance.threads


async def test_tools_from_a_registry_are_filtered_like_own_ones(lab: Any) -> None:
    tag, bodies = Tag(), list[str]()

    def sources() -> AssemblySources:
        tools = ToolRegistry()
        for item in make_tools(Tag("t"), bodies):
            tools.register(item.spec.name, item)
        return AssemblySources(tools)

    steps = [calls(call("async_look", {"x": 1}), call("sync_look", {"x": 1})), final("done")]
    definition = lab.define(steps, tool_sources=sources, result_filters=[tag])
    assert (await lab.run(lab.engine(definition))).output == "done"
    assert [row.result for row in lab.store.tool_calls("ex1")] == ["1t!"] * 2
    assert tag.seen == ["1t"] * 2


@pytest.mark.parametrize("on_error", ["suppress", "raise"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_result_filter_that_fails_fails_the_call_and_the_body_runs_once(
    lab: Any, on_error: str, is_async: bool
) -> None:
    ran: list[int] = []

    def body(x: int) -> str:
        ran.append(x)
        return "value of the body"

    async def async_body(x: int) -> str:
        return body(x)

    look = tool(name="look", replay="safe", retries=3, on_error=on_error, result_filters=[broken])(
        async_body if is_async else body
    )
    result = await lab.run(lab.engine(lab.define([calls(call("look", {"x": 1})), final("done")], look)))
    (row,) = lab.store.tool_calls("ex1")
    assert (row.status, row.result, ran) == (ToolCallStatus.FAILED, None, [1])
    assert row.error is not None
    assert row.error["code"] == "filter_failed"
    assert "value of the body" not in str(row.model_text)
    if on_error == "suppress":
        assert result.output == "done"
    else:
        with pytest.raises(ToolError):
            result.raise_for_status()


async def test_a_blocked_result_is_told_to_the_model_or_blocks_the_execution(lab: Any) -> None:
    @tool(name="look", replay="safe", on_error="suppress")
    async def told(x: int) -> str:
        return "the secret"

    @tool(name="look", replay="safe")
    async def ending(x: int) -> str:
        return "the secret"

    script = turns(calls(call("look", {"x": 1})), final("done"))
    engine = lab.engine(lab.define(script, told, result_filters=[no_secrets]))
    assert (await lab.run(engine)).output == "done"
    assert lab.prompts()[-1][-1]["content"] == "Error (filter_blocked): a secret in the result"
    engine = lab.engine(lab.define(script, ending, result_filters=[no_secrets]), "a2")
    result = await lab.run(engine, id="ex2")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.BLOCKED, "filter_blocked")
    with pytest.raises(FilterBlockError, match="a secret in the result"):
        result.raise_for_status()
    assert "the secret" not in repr(lab.facts("a2"))


async def test_cancelled_during_the_body_stays_cancelled_and_is_not_filtered(lab: Any) -> None:
    tag, inside = Tag(), threading.Event()

    @tool(replay="safe")
    def slow(x: int, context: ToolContext) -> str:
        inside.set()
        while not context.is_cancelled():
            lab.release.wait(0.005)
        return "late"

    engine = lab.engine(lab.define([calls(call("slow", {"x": 1}))], slow, result_filters=[tag]))
    await engine.start("ex1", "go")
    await asyncio.to_thread(inside.wait, 5)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.CANCELLED]
    assert tag.seen == []


async def test_after_a_crash_only_the_new_result_is_filtered(lab: Any) -> None:
    tag = Tag()

    @tool(replay="safe")
    async def look(x: int, context: ToolContext) -> str:
        return f"attempt {context.attempt}"

    definition = lab.define([calls(call("look", {"x": 1})), final("done")], look, result_filters=[tag])
    first = lab.engine(definition)
    write_plan(lab.faults, "a1", point="before_commit:results", action="fail")
    await first.start("ex1", "go")
    with pytest.raises(FaultInjectedError):
        await first.wait("ex1", until="terminal", timeout_s=5)
    second = lab.engine(definition)
    await lab.end(second)
    assert [row.result for row in lab.store.tool_calls("ex1")] == ["attempt 2!"]
    assert tag.seen == ["attempt 1", "attempt 2"]


# --- options of an instance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["allow", "reject"])
async def test_a_policy_of_the_instance_stands_in_for_that_of_the_class(lab: Any, verdict: str) -> None:
    @tool(replay="safe")
    async def look(x: int) -> str:
        return "seen"

    definition = lab.define(
        [calls(call("look", {"x": 1})), final("done")],
        look,
        tool_approval_policy=lambda request: "require_approval",
    )
    engine = lab.engine(definition, options=InstanceOptions(tool_approval_policy=lambda request: verdict))
    result = await lab.run(engine)
    ran = [row.status.value for row in lab.store.tool_calls("ex1")]
    assert (result.status.value, ran) == {
        "allow": ("completed", ["succeeded"]),
        "reject": ("rejected", ["rejected"]),
    }[verdict]
    assert list(engine.status()["options"]) == ["tool_approval_policy"]


async def test_an_execution_does_not_go_on_without_the_options_that_it_was_started_with(lab: Any) -> None:
    @tool(replay="safe", requires_approval=True)
    async def look(x: int) -> str:
        return "seen"

    definition = lab.define([calls(call("look", {"x": 1})), final("the secret")], look)
    options = InstanceOptions(output_filters=[no_secrets])
    first = lab.engine(definition, options=options)
    await first.start("ex1", "go")
    await lab.suspension(first)
    await first.seal()
    bare = lab.engine(definition)
    with pytest.raises(ConfigurationError, match="output_filters") as caught:
        await bare.activate()
    assert caught.value.code == "instance_options"
    equipped = lab.engine(definition, options=options)
    await lab.decide_all(equipped)
    assert (await lab.end(equipped)).status is ExecutionStatus.BLOCKED
    await equipped.seal()
    idle = lab.engine(definition)
    await idle.activate()
