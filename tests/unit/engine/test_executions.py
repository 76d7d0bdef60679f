"""One execution from start to end on a real store: admission, and what it is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    AgentBusyError,
    InvalidInputError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.models.scripted import call, calls, final, hang
from phronomy_ray.tool_calls import ToolContext


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


# --- admission ----------------------------------------------------------------------------------------------


async def test_the_same_start_twice_is_one_execution(lab: Any) -> None:
    engine = lab.engine(lab.define([calls(call("look", {"x": 1})), final("x")], look))
    first, second = await asyncio.gather(
        engine.start("ex1", {"message": "go"}), engine.start("ex1", {"message": "go"})
    )
    assert first.execution_id == second.execution_id == "ex1"
    assert (await lab.end(engine)).output == "x"
    third = await engine.start("ex1", {"message": "go"})
    assert (third.status, third.output) == (ExecutionStatus.COMPLETED, "x")
    assert len(lab.prompts()) == 2
    assert lab.kinds().count("input_received") == 1


@pytest.mark.parametrize("after_its_end", [False, True])
async def test_the_same_id_with_another_input_is_a_conflict(lab: Any, after_its_end: bool) -> None:
    engine = lab.engine(lab.define([final("x")] if after_its_end else [hang()]))
    await engine.start("ex1", "go", durable_context={"user": 1})
    if after_its_end:
        await lab.end(engine)
    for other in (
        {"input": "other", "durable_context": {"user": 1}},
        {"input": "go", "durable_context": {"user": 2}},
        {"input": "go"},
    ):
        with pytest.raises(StateConflictError, match="another input or durable context"):
            await engine.start("ex1", other.pop("input"), **other)


async def test_an_id_of_another_agent_is_a_conflict(lab: Any) -> None:
    definition = lab.define([final("x")])
    await lab.run(lab.engine(definition, "a1"))
    with pytest.raises(StateConflictError, match="one of agent"):
        await lab.engine(definition, "a2").start("ex1", "hello")


async def test_a_second_execution_is_refused_at_once(lab: Any) -> None:
    engine = lab.engine(lab.define([hang()]))
    await engine.start("ex1", "go")
    with pytest.raises(AgentBusyError) as caught:
        await engine.start("ex2", "go")
    assert caught.value.details == {"agent_id": "a1", "execution_id": "ex1"}
    assert lab.store.find_execution("ex2") is None
    await engine.cancel("ex1", "done")
    await lab.end(engine)
    with pytest.raises(NotFoundError):
        await engine.view("ex2")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"input": ""}, InvalidInputError),
        ({"input": "  "}, InvalidInputError),
        ({"input": {}}, InvalidInputError),
        ({"input": ["x"]}, InvalidInputError),
        ({"input": {"message": object()}}, InvalidInputError),
        ({"input": {"n": float("nan")}}, InvalidInputError),
        ({"input": "x", "durable_context": ["no"]}, InvalidInputError),
        ({"input": "x", "durable_context": {"when": object()}}, InvalidInputError),
    ],
)
async def test_a_wrong_input_is_refused_before_any_execution_exists(
    lab: Any, arguments: Any, error: Any
) -> None:
    engine = lab.engine(lab.define([final("x")]))
    with pytest.raises(error):
        await engine.start("ex1", **arguments)
    with pytest.raises(InvalidInputError):
        await engine.start("", "x")
    assert lab.store.list_executions() == []
    assert (await lab.run(engine)).output == "x"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hi", "hi"),
        ({"message": "hi", "other": 1}, "hi"),
        ({"query": "hi"}, "hi"),
        ({"user": "hi"}, "hi"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
    ],
)
async def test_the_message_of_an_input(lab: Any, given: Any, message: str) -> None:
    await lab.run(lab.engine(lab.define([final("x")])), given)
    assert lab.prompts()[-1] == [{"role": "user", "content": message}]
    assert lab.journal()[0].content == given


# --- instructions and context -------------------------------------------------------------------------------


async def test_instructions_may_be_functions_of_the_input(lab: Any) -> None:
    def plain(given: Any) -> str:
        return f"About {given['topic']}."

    async def later(given: Any) -> str:
        await asyncio.sleep(0)
        return f"Later about {given['topic']}."

    for number, function in enumerate((plain, later)):
        engine = lab.engine(lab.define([final("x")], instructions=staticmethod(function)), f"a{number}")
        await lab.run(engine, {"message": "go", "topic": "rain"}, id=f"ex{number}")
    assert [prompt[0]["content"] for prompt in lab.prompts()] == ["About rain.", "Later about rain."]


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("raised", [ValueError("bad topic"), Odd(), SystemExit(1), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [False, True])
async def test_instructions_that_raise_end_the_execution_only(
    lab: Any, raised: BaseException, is_async: bool
) -> None:
    def plain(given: Any) -> str:
        if given == "go":
            raise raised
        return "Be brief."

    async def later(given: Any) -> str:
        return plain(given)

    engine = lab.engine(lab.define([final("fine")], instructions=staticmethod(later if is_async else plain)))
    result = await lab.run(engine, "go")
    assert result.status is ExecutionStatus.FAILED
    assert result.error is not None
    assert type(raised).__name__ in f"{result.error.type}: {result.error.message}"
    assert lab.prompts() == []
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    assert len(lab.prompts()[-1]) == 2, "the lost question is not shown"


@pytest.mark.parametrize("is_async", [False, True])
async def test_instructions_that_never_return_are_given_up(lab: Any, is_async: bool) -> None:
    def plain(given: Any) -> str:
        if given == "go":
            lab.release.wait(60)
        return "Be brief."

    async def later(given: Any) -> str:
        return plain(given)

    function = staticmethod(later if is_async else plain)
    engine = lab.engine(lab.define([final("fine")], instructions=function, hook_timeout_s=0.2))
    result = await lab.run(engine, "go")
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("HookError", "hook_timeout")
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"


async def test_instructions_that_are_no_text_are_a_typed_end(lab: Any) -> None:
    result = await lab.run(lab.engine(lab.define([final("x")], instructions=staticmethod(lambda given: 7))))
    assert result.error is not None
    assert result.error.code == "configuration"


@pytest.mark.parametrize("dynamic", [False, True])
async def test_T13_lone_surrogates_are_replaced_where_they_come_in(lab: Any, dynamic: bool) -> None:
    @tool(replay="safe", on_error="suppress")
    async def scraped(text: str) -> str:
        if text == "raise":
            raise ValueError("bad \ud835 text")
        return f"got {text} \ud835 and \ud83c\udf78"

    instructions: Any = "Be \ud835 brief."
    if dynamic:
        instructions = staticmethod(lambda given: "Be \ud835 brief.")
    engine = lab.engine(
        lab.define(
            [
                calls(
                    call("scraped", raw='{"text": "\\ud835 \\ud83c\\udf78"}'),
                    call("scraped", {"text": "raise"}),
                    call("no\ud835tool", {}),
                    text="hm \ud835",
                ),
                final("x \ud835 \ud83c\udf78"),
            ],
            scraped,
            instructions=instructions,
        )
    )
    result = await lab.run(engine, "in \ud835 \ud83c\udf78", durable_context={"k\ud835": "\ud835"})
    assert result.status is ExecutionStatus.COMPLETED, result.error
    assert result.output == "x \ufffd \U0001f378"
    assert lab.store.tool_calls("ex1")[0].result == "got \ufffd \U0001f378 \ufffd and \U0001f378"
    for prompt in lab.prompts():
        for message in prompt:
            (message["content"] or "").encode("utf-8")
    fresh = lab.engine(engine.definition)
    await fresh.activate()
    assert fresh.state.conversation == engine.state.conversation, "memory and store hold the same text"


async def test_durable_context_reaches_tools_and_nobody_can_change_it(lab: Any) -> None:
    seen: list[Any] = []

    @tool(replay="safe")
    async def peek(context: ToolContext) -> str:
        assert context.durable_context is not None
        seen.append(dict(context.durable_context))
        context.durable_context["user"] = "mallory"
        context.durable_context["list"].append("more")
        return "ok"

    @tool(replay="safe")
    def peek_blocking(context: ToolContext) -> str:
        assert context.durable_context is not None
        seen.append(dict(context.durable_context))
        context.durable_context["user"] = "mallory"
        return "ok"

    engine = lab.engine(
        lab.define(
            [calls(call("peek", {}), call("peek_blocking", {})), calls(call("peek", {})), final("x")],
            peek,
            peek_blocking,
        )
    )
    mine = {"user": "alice", "list": [1]}
    await engine.start("ex1", "go", durable_context=mine)
    mine["user"] = "bob"
    mine["list"].append(2)  # type: ignore[attr-defined]
    await lab.end(engine)
    assert [item["user"] for item in seen] == ["alice"] * 3
    assert lab.store.load_execution("ex1").durable_context == {"user": "alice", "list": [1]}


async def test_instructions_cannot_change_the_input(lab: Any) -> None:
    def greedy(given: dict[str, Any]) -> str:
        given["message"] = "something else"
        return "Be brief."

    engine = lab.engine(lab.define([final("x")], instructions=staticmethod(greedy)))
    given = {"message": "go"}
    await lab.run(engine, given)
    assert given == {"message": "go"}
    assert lab.prompts()[-1][-1]["content"] == "go"
