"""One execution from start to end on a real store: admission, typed ends, approvals, cancellation, the given context."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnloadedError,
    ContextBudgetExceededError,
    InvalidInputError,
    MaxIterationsError,
    ModelError,
    NotFoundError,
    OutputTruncatedError,
    StateConflictError,
)
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus, Lifecycle, ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.messages import Message, ToolCallRequest, Usage
from phronomy_ray.models.port import FinishReason, ModelAnswer
from phronomy_ray.models.scripted import Reply, ScriptedModel, call, calls, final, hang
from phronomy_ray.tool_calls import ToolContext

Paired = Callable[[Any], None]


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


@tool(requires_approval=True)
async def write(text: str) -> str:
    return f"wrote {text}"


# --- admission -------------------------------------------------------------------------------------------------


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


# --- typed ends ------------------------------------------------------------------------------------------------


async def still_usable(lab: Any, engine: Any, paired: Paired) -> None:
    again = await lab.run(engine, "hi", id="ex-after")
    assert (again.status, again.output) == (ExecutionStatus.COMPLETED, "fine")
    paired(lab.prompts()[-1])
    assert lab.store.load_root("a1").lifecycle is Lifecycle.IDLE


def first_turn(*steps: Any) -> Any:
    return lambda request: (
        final("fine") if request.last_user == "hi" else steps[min(request.sequence, len(steps)) - 1]
    )


async def test_max_iterations_is_a_typed_end_that_keeps_the_results(lab: Any, paired: Paired) -> None:
    engine = lab.engine(lab.define(first_turn(calls(call("look", {"x": 1}))), look, max_iterations=3))
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(MaxIterationsError):
        result.raise_for_status()
    assert len(lab.prompts()) == 3
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.SUCCEEDED] * 3
    await still_usable(lab, engine, paired)
    assert [m["role"] for m in lab.prompts()[-1]].count("tool") == 3


async def test_an_answer_cut_by_the_token_limit_keeps_its_text(lab: Any, paired: Paired) -> None:
    engine = lab.engine(lab.define(first_turn(final("half an ans", finish_reason="length"))))
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.FAILED, "half an ans")
    with pytest.raises(OutputTruncatedError):
        result.raise_for_status()
    await still_usable(lab, engine, paired)


async def test_calls_of_a_cut_answer_are_not_run(lab: Any, paired: Paired) -> None:
    ran: list[int] = []

    @tool(replay="safe")
    async def act() -> str:
        ran.append(1)
        return ""

    engine = lab.engine(lab.define(first_turn(calls(call("act", {}), finish_reason="length")), act))
    result = await lab.run(engine)
    assert result.error is not None
    assert result.error.code == "output_truncated"
    assert ran == []
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.NOT_PERFORMED]
    await still_usable(lab, engine, paired)


@pytest.mark.parametrize("text", ["I may not", None])
async def test_a_content_filter_is_a_typed_end(lab: Any, paired: Paired, text: str | None) -> None:
    engine = lab.engine(lab.define(first_turn(final(text, finish_reason="content_filter"))))
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.FAILED, text)
    with pytest.raises(ModelError) as caught:
        result.raise_for_status()
    assert caught.value.code == "content_filter"
    assert len(lab.prompts()) == 1, "the same question would be filtered again"
    await still_usable(lab, engine, paired)


async def test_an_answer_whose_whole_budget_went_into_reasoning_is_a_cut_one(
    lab: Any, paired: Paired
) -> None:
    engine = lab.engine(lab.define(first_turn(Reply(None, reasoning="hm" * 50, finish_reason="length"))))
    result = await lab.run(engine)
    assert result.error is not None
    assert result.error.code == "output_truncated"
    assert len(lab.prompts()) == 1
    await still_usable(lab, engine, paired)


async def test_a_question_that_does_not_fit_is_a_typed_end(lab: Any, paired: Paired) -> None:
    engine = lab.engine(lab.define(first_turn(final("never")), context_window=200))
    result = await lab.run(engine, "x" * 5_000)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(ContextBudgetExceededError) as caught:
        result.raise_for_status()
    assert caught.value.details["budget_tokens"] == 200
    assert lab.prompts() == []
    await still_usable(lab, engine, paired)


async def test_results_that_do_not_fit_are_a_typed_end(lab: Any, paired: Paired) -> None:
    @tool(replay="safe")
    async def big() -> str:
        return "y" * 10_000

    engine = lab.engine(lab.define(first_turn(calls(call("big", {}))), big, context_window=400))
    result = await lab.run(engine)
    assert result.error is not None
    assert result.error.code == "context_budget_exceeded"
    assert lab.store.tool_calls("ex1")[0].result == "y" * 10_000, "what was done is kept"
    await still_usable(lab, engine, paired)


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


async def test_a_port_that_raises_what_is_no_exception_ends_the_execution_only(
    lab: Any, paired: Paired
) -> None:
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
    await still_usable(lab, engine, paired)


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


# --- instructions and context ----------------------------------------------------------------------------------


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
    assert type(raised).__name__ in result.error.type
    assert lab.prompts() == []
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    assert len(lab.prompts()[-1]) == 2, "the lost question is not shown"


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


# --- approvals -------------------------------------------------------------------------------------------------


async def test_a_batch_with_gated_calls_starts_nothing_until_all_are_decided(lab: Any) -> None:
    ran: list[str] = []

    @tool(replay="safe")
    async def free(x: int) -> str:
        ran.append(f"free {x}")
        return "f"

    @tool(requires_approval=True)
    async def gated(x: int) -> str:
        ran.append(f"gated {x}")
        return "g"

    script = [
        calls(call("gated", {"x": 1}), call("free", {"x": 2}), call("nope", {}), call("gated", {"x": 3})),
        final("x"),
    ]
    engine = lab.engine(lab.define(script, free, gated))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert [request.arguments for request in waiting.approvals] == [{"x": 1}, {"x": 3}]
    assert ran == []
    assert lab.store.load_root("a1").lifecycle is Lifecycle.SUSPENDED
    first, second = waiting.approvals
    still = await engine.decide(Decide("ex1", second.approval_request_id, True))
    assert still.suspended
    assert [request.approval_request_id for request in still.approvals] == [first.approval_request_id]
    assert ran == []
    await engine.decide(Decide("ex1", first.approval_request_id, True, "bob"))
    assert (await lab.end(engine)).output == "x"
    assert sorted(ran) == ["free 2", "gated 1", "gated 3"]
    assert [m["content"][:5] for m in lab.prompts()[-1] if m["role"] == "tool"] == ["g", "f", "Error", "g"]


async def test_repeated_and_contradictory_decisions(lab: Any) -> None:
    held = asyncio.Event()

    @tool(requires_approval=True)
    async def slow() -> str:
        await held.wait()
        return "s"

    engine = lab.engine(
        lab.define([calls(call("slow", {})), calls(call("write", {"text": "t"})), final("x")], slow, write)
    )
    await engine.start("ex1", "go")
    request = (await lab.suspension(engine)).approvals[0].approval_request_id
    yes, no = Decide("ex1", request, True), Decide("ex1", request, False)
    await engine.decide(yes)
    for _ in range(2):
        assert (await engine.decide(yes)).status is ExecutionStatus.ACTIVE
    with pytest.raises(StateConflictError, match="already approved"):
        await engine.decide(no)
    held.set()
    later = await lab.suspension(engine)
    assert later.approvals[0].approval_request_id != request
    # its batch is over, and the execution is not: the same answer again is still harmless, the other still refused
    assert (await engine.decide(yes)).suspended
    with pytest.raises(StateConflictError, match="already approved"):
        await engine.decide(no)
    with pytest.raises(NotFoundError):
        await engine.decide(Decide("ex1", "ap_unknown", True))
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "x"
    assert (await engine.decide(yes)).output == "x"
    with pytest.raises(StateConflictError):
        await engine.decide(no)
    with pytest.raises((StateConflictError, NotFoundError)):
        await engine.decide(Decide("ex1", "ap_unknown", True))
    with pytest.raises((StateConflictError, NotFoundError)):
        await engine.decide(Decide("ex-unknown", request, True))


async def test_a_batch_that_is_rejected_whole_ends_the_execution_and_the_next_prompt_has_no_open_call(
    lab: Any, paired: Paired
) -> None:
    ran: list[int] = []

    @tool(replay="safe")
    async def free() -> str:
        ran.append(1)
        return "f"

    script = first_turn(calls(call("free", {}), call("write", {"text": "a"}), call("write", {"text": "b"})))
    engine = lab.engine(lab.define(script, free, write))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    first, second = (request.approval_request_id for request in waiting.approvals)
    still = await engine.decide(Decide("ex1", first, False, "ann", "too early"))
    assert still.suspended, "every gated call is decided first"
    result = await engine.decide(Decide("ex1", second, False, "bob", "not today"))
    assert result.status is ExecutionStatus.REJECTED
    assert result.rejected
    assert result.raise_for_status() is result
    assert ran == []
    statuses = [row.status for row in lab.store.tool_calls("ex1")]
    assert statuses == [ToolCallStatus.NOT_PERFORMED, ToolCallStatus.REJECTED, ToolCallStatus.REJECTED]
    approvals = {item.approval_request_id: item for item in lab.store.approvals(execution_id="ex1")}
    assert approvals[second].status is ApprovalStatus.REJECTED
    assert (approvals[second].decided_by, approvals[second].reason) == ("bob", "not today")
    assert (approvals[first].status, approvals[first].decided_by) == (ApprovalStatus.REJECTED, "ann")
    assert lab.store.approvals(pending_only=True) == [], "nothing of an ended execution waits for an answer"
    await still_usable(lab, engine, paired)
    assert [m["role"] for m in lab.prompts()[-1]] == ["user", "user"]
    public = [message.role.value for message in result.messages]
    assert public == ["user", "assistant", "tool", "tool", "tool"], "the public transcript keeps it"


# --- cancellation ----------------------------------------------------------------------------------------------


async def test_cancel_while_preparing(lab: Any, paired: Paired) -> None:
    begun = threading.Event()

    def slow(given: Any) -> str:
        if given == "go":
            begun.set()
            lab.release.wait(20)
        return "Be brief."

    engine = lab.engine(lab.define([final("fine")], instructions=staticmethod(slow)))
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    result = await engine.cancel("ex1", "enough")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    await still_usable(lab, engine, paired)
    lab.release.set()


async def test_cancel_while_the_model_is_called(lab: Any, paired: Paired) -> None:
    engine = lab.engine(lab.define(first_turn(hang())))
    await engine.start("ex1", "go")
    await lab.until_prompted()
    during = await engine.cancel("ex1", "enough")
    assert during.status in (ExecutionStatus.ACTIVE, ExecutionStatus.CANCELLED)
    assert lab.store.load_execution("ex1").cancel_requested_at is not None, "the intent is durable"
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    assert [c.status for c in lab.store.model_calls("ex1")] == ["cancelled"]
    again = await engine.cancel("ex1", "another reason")
    assert again.terminal_reason == "enough"
    await still_usable(lab, engine, paired)


@pytest.mark.parametrize("blocking", [False, True])
async def test_cancel_while_tools_run_waits_for_them_and_closes_every_call(
    lab: Any, paired: Paired, blocking: bool
) -> None:
    begun = threading.Event()

    @tool(replay="safe")
    def polls(context: ToolContext) -> str:
        begun.set()
        while not context.is_cancelled():
            if lab.release.wait(0.002):
                break
        return "stopped in time"

    @tool(replay="safe")
    async def waits() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    name = "polls" if blocking else "waits"
    script = first_turn(calls(call("look", {"x": 1}), call(name, {}), call("nope", {})))
    engine = lab.engine(lab.define(script, look, polls, waits))
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    expected = ToolCallStatus.SUCCEEDED if blocking else ToolCallStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [
        ToolCallStatus.SUCCEEDED,
        expected,
        ToolCallStatus.FAILED,
    ]
    await still_usable(lab, engine, paired)


async def test_cancel_does_not_wait_for_ever_for_a_cooperative_tool_that_ignores_it(
    lab: Any, paired: Paired
) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def stubborn() -> str:
        begun.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    engine = lab.engine(
        lab.define(first_turn(calls(call("stubborn", {}))), stubborn, quiescence_timeout_s=0.05)
    )
    await engine.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    await engine.cancel("ex1", "enough")
    try:
        result = await asyncio.wait_for(lab.end(engine), 10)
    finally:
        free.set()
    assert result.status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.UNKNOWN]
    await still_usable(lab, engine, paired)


async def test_cancel_while_suspended(lab: Any, paired: Paired) -> None:
    engine = lab.engine(
        lab.define(first_turn(calls(call("write", {"text": "a"}), call("write", {"text": "b"}))), write)
    )
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    await engine.decide(Decide("ex1", waiting.approvals[0].approval_request_id, True))
    result = await engine.cancel("ex1", "enough")
    assert result.status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.NOT_PERFORMED] * 2
    assert [item.status for item in lab.store.approvals(execution_id="ex1")] == [
        ApprovalStatus.APPROVED,
        ApprovalStatus.VOID,
    ]
    assert lab.store.approvals(pending_only=True) == []
    await still_usable(lab, engine, paired)


async def test_cancel_that_comes_too_late_leaves_the_end_as_it_is(lab: Any) -> None:
    engine = lab.engine(lab.define([final("x")]))
    wait = lab.pause("before_commit:terminal")
    await engine.start("ex1", "go")
    release = await wait()
    cancelling = asyncio.ensure_future(engine.cancel("ex1", "too late"))
    await asyncio.sleep(0)
    release()
    assert (await cancelling).status is ExecutionStatus.COMPLETED
    assert (await lab.end(engine)).output == "x"
    with pytest.raises(NotFoundError):
        await engine.cancel("ex-unknown", "x")


# --- unloading -------------------------------------------------------------------------------------------------


async def test_a_busy_engine_cannot_be_sealed_and_a_sealed_one_does_nothing(lab: Any) -> None:
    engine = lab.engine(lab.define(lambda r: hang() if r.last_user == "wait" else final("x")))
    await engine.start("ex1", "wait")
    with pytest.raises(AgentBusyError):
        await engine.seal()
    await engine.cancel("ex1", "x")
    await lab.end(engine)
    await engine.seal()
    for operation in (
        engine.start("ex2", "go"),
        engine.view("ex1"),
        engine.cancel("ex1", "x"),
        engine.wait("ex1", until="terminal", timeout_s=1),
        engine.events("ex1", after=0, cursor=None, timeout_s=1),
    ):
        with pytest.raises(AgentUnloadedError):
            await operation
    assert (await lab.run(lab.engine(engine.definition), "go", id="ex2")).output == "x"


async def test_a_start_that_is_being_committed_keeps_the_engine_from_being_sealed(lab: Any) -> None:
    engine = lab.engine(lab.define([final("x")]))
    await engine.activate()
    wait = lab.pause("before_commit:admit")
    starting = asyncio.ensure_future(engine.start("ex1", "go"))
    release = await wait()
    sealing = asyncio.ensure_future(engine.seal())
    await asyncio.sleep(0)
    release()
    with pytest.raises(AgentBusyError):
        await sealing
    await starting
    assert (await lab.end(engine)).output == "x"


async def test_unloading_while_suspended_wakes_waiters_and_the_next_engine_goes_on(lab: Any) -> None:
    engine = lab.engine(lab.define([calls(call("write", {"text": "a"})), final("x")], write))
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    waiting = asyncio.ensure_future(engine.wait("ex1", until="terminal", timeout_s=20))
    await asyncio.sleep(0)
    await engine.seal()
    with pytest.raises(AgentUnloadedError):
        await waiting
    second = lab.engine(engine.definition)
    await lab.decide_all(second)
    assert (await lab.end(second)).output == "x"
