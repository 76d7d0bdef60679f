"""Executions that end otherwise than with an answer: each end is typed, and the agent goes on after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    ContextBudgetExceededError,
    MaxIterationsError,
    ModelError,
    OutputTruncatedError,
)
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.messages import Message, ToolCallRequest, Usage
from phronomy_ray.models.port import FinishReason, ModelAnswer
from phronomy_ray.models.scripted import Reply, ScriptedModel, call, calls, final

Paired = Callable[[Any], None]


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


async def test_max_iterations_is_a_typed_end_that_keeps_the_results(lab: Any) -> None:
    engine = lab.engine(lab.define(lab.first_turn(calls(call("look", {"x": 1}))), look, max_iterations=3))
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(MaxIterationsError):
        result.raise_for_status()
    assert len(lab.prompts()) == 3
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.SUCCEEDED] * 3
    await lab.still_usable(engine)
    assert [m["role"] for m in lab.prompts()[-1]].count("tool") == 3


async def test_an_answer_cut_by_the_token_limit_keeps_its_text(lab: Any) -> None:
    engine = lab.engine(lab.define(lab.first_turn(final("half an ans", finish_reason="length"))))
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.FAILED, "half an ans")
    with pytest.raises(OutputTruncatedError):
        result.raise_for_status()
    await lab.still_usable(engine)


async def test_calls_of_a_cut_answer_are_not_run(lab: Any) -> None:
    ran: list[int] = []

    @tool(replay="safe")
    async def act() -> str:
        ran.append(1)
        return ""

    engine = lab.engine(lab.define(lab.first_turn(calls(call("act", {}), finish_reason="length")), act))
    result = await lab.run(engine)
    assert result.error is not None
    assert result.error.code == "output_truncated"
    assert ran == []
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.NOT_PERFORMED]
    await lab.still_usable(engine)


@pytest.mark.parametrize("text", ["I may not", None])
async def test_a_content_filter_is_a_typed_end(lab: Any, text: str | None) -> None:
    engine = lab.engine(lab.define(lab.first_turn(final(text, finish_reason="content_filter"))))
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.FAILED, text)
    with pytest.raises(ModelError) as caught:
        result.raise_for_status()
    assert caught.value.code == "content_filter"
    assert len(lab.prompts()) == 1, "the same question would be filtered again"
    await lab.still_usable(engine)


async def test_an_answer_whose_whole_budget_went_into_reasoning_is_a_cut_one(lab: Any) -> None:
    engine = lab.engine(lab.define(lab.first_turn(Reply(None, reasoning="hm" * 50, finish_reason="length"))))
    result = await lab.run(engine)
    assert result.error is not None
    assert result.error.code == "output_truncated"
    assert len(lab.prompts()) == 1
    await lab.still_usable(engine)


async def test_a_question_that_does_not_fit_is_a_typed_end(lab: Any) -> None:
    engine = lab.engine(lab.define(lab.first_turn(final("never")), context_window=200))
    result = await lab.run(engine, "x" * 5_000)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(ContextBudgetExceededError) as caught:
        result.raise_for_status()
    assert caught.value.details["budget_tokens"] == 200
    assert lab.prompts() == []
    await lab.still_usable(engine)


async def test_results_that_do_not_fit_are_a_typed_end(lab: Any) -> None:
    @tool(replay="safe")
    async def big() -> str:
        return "y" * 10_000

    engine = lab.engine(lab.define(lab.first_turn(calls(call("big", {}))), big, context_window=400))
    result = await lab.run(engine)
    assert result.error is not None
    assert result.error.code == "context_budget_exceeded"
    assert lab.store.tool_calls("ex1")[0].result == "y" * 10_000, "what was done is kept"
    await lab.still_usable(engine)


@pytest.mark.parametrize("by_name", [False, True])
async def test_the_budget_is_what_the_model_says_less_the_answer(lab: Any, by_name: bool) -> None:
    model = ScriptedModel([final("x")], max_input_tokens=300)
    definition = lab.define("some/model" if by_name else model, max_output_tokens=100)
    result = await lab.run(lab.engine(definition, model=model), "x" * 5_000)
    assert result.error is not None
    assert result.error.details is not None
    assert result.error.details["budget_tokens"] == 200


async def test_the_newest_whole_exchanges_that_fit_are_sent(lab: Any, paired: Paired) -> None:
    engine = lab.engine(lab.define(lambda request: final("answer"), context_window=100))
    for number in range(12):
        await lab.run(engine, f"question {number} {'z' * 30}", id=f"ex{number}")
    prompt = lab.prompts()[-1]
    paired(prompt)
    assert 3 <= len(prompt) < 23
    assert prompt[-1]["content"].startswith("question 11")
    assert prompt[0]["role"] == "user"


async def test_a_port_that_raises_what_is_no_exception_ends_the_execution_only(lab: Any) -> None:
    class Broken(ScriptedModel):
        async def complete(self, request: Any) -> Any:
            if request.messages[-1]["content"] == "hi":
                return await super().complete(request)
            raise {"exit": SystemExit(3), "cancel": asyncio.CancelledError(), "base": BaseException("odd")}[
                request.messages[-1]["content"]
            ]

    engine = lab.engine(lab.define(Broken([final("fine")], log_path=lab.prompt_log)))
    for kind in ("exit", "cancel", "base"):
        result = await lab.run(engine, kind, id=f"ex-{kind}")
        assert result.status is ExecutionStatus.FAILED, kind
        assert result.error is not None
    await lab.still_usable(engine)


async def test_call_ids_that_a_port_leaves_empty_or_repeats_are_made_unique(lab: Any, paired: Paired) -> None:
    class Careless(ScriptedModel):
        async def complete(self, request: Any) -> Any:
            if request.sequence == 2:
                return await super().complete(request)
            wanted = [("", 1), ("", 2), ("same", 3), ("same", 4)]
            made = tuple(ToolCallRequest(given, "look", f'{{"x": {x}}}') for given, x in wanted)
            return ModelAnswer(Message.assistant(None, made), FinishReason.TOOL_CALLS, Usage(1, 1))

    engine = lab.engine(lab.define(Careless([final("no"), final("x")], log_path=lab.prompt_log), look))
    result = await lab.run(engine)
    assert result.output == "x"
    paired(lab.prompts()[-1])
    assert [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"] == [
        "seen 1",
        "seen 2",
        "seen 3",
        "seen 4",
    ]
