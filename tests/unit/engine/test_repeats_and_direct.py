"""Calls that repeat, within a batch and step after step, and results that are the turn's output."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import MaxIterationsError, RepeatedToolCallError
from phronomy_ray.events import EventType
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, Lifecycle, ToolCallStatus
from phronomy_ray.kernel.inputs import Decide, Resolve
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import Resolution

Paired = Callable[[Any], None]


@tool(replay="safe")
async def search(q: str, n: int = 1) -> str:
    return f"{n} of {q}"


@tool(replay="safe")
async def count(n: int) -> int:
    return n


@tool(replay="safe", requires_approval=True)
async def guarded(q: str, n: int) -> str:
    return f"{n} of {q}"


def shuffled(name: str, step: int) -> Any:
    """The same call with its keys in a random order."""
    items = [("q", "secret-word"), ("n", 1)]
    random.Random(step).shuffle(items)
    return call(name, dict(items))


def warnings_in(prompt: list[dict[str, Any]]) -> list[str]:
    return [m["content"] for m in prompt if m["role"] == "tool" and "[Notice:" in m["content"]]


# --- L10 -------------------------------------------------------------------------------------------------------


async def test_L10_the_same_call_again_and_again_is_warned_about_and_then_ended(
    lab: Any, paired: Paired
) -> None:
    def answer(request: Any) -> Any:
        return final("fine") if request.last_user == "hi" else calls(shuffled("search", request.sequence))

    engine = lab.engine(lab.define(answer, search, max_iterations=20))
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(RepeatedToolCallError) as caught:
        result.raise_for_status()
    assert (caught.value.code, caught.value.details["repeats"]) == ("repeated_tool_call", 3)
    assert caught.value.details["tool_names"] == ["search"]
    rows = lab.store.tool_calls("ex1")
    assert [row.status for row in rows] == [ToolCallStatus.SUCCEEDED] * 3 + [ToolCallStatus.NOT_PERFORMED]
    assert [len(warnings_in(prompt)) for prompt in lab.prompts()] == [0, 0, 0, 1]
    (warning,) = warnings_in(lab.prompts()[-1])
    notice = warning.partition("[Notice:")[2]
    assert "search ran 3 times" in notice
    assert "secret-word" not in notice
    assert "secret-word" not in caught.value.message
    repeated = [e for e in await lab.read_events(engine) if e.type is EventType.TOOL_REPEATED]
    assert [event.payload for event in repeated] == [{"tool_names": ["search"], "repeats": 3}]
    again = await lab.run(engine, "hi", id="ex2")
    assert again.output == "fine"
    paired(lab.prompts()[-1])
    assert lab.store.load_root("a1").lifecycle is Lifecycle.IDLE


async def test_L10_parallel_calls_count_as_one_step_in_whatever_order_they_come(lab: Any) -> None:
    def answer(request: Any) -> Any:
        both = [shuffled("search", request.sequence), call("count", {"n": 1})]
        random.Random(request.sequence).shuffle(both)
        return calls(*both)

    engine = lab.engine(lab.define(answer, search, count, max_iterations=20))
    result = await lab.run(engine)
    assert result.terminal_reason == "repeated_tool_call"
    assert sum(row.attempt for row in lab.store.tool_calls("ex1")) == 6


async def test_L10_other_arguments_and_work_in_between_do_not_trip_it(lab: Any) -> None:
    steps = [calls(call("count", {"n": n})) for n in range(8)]
    steps += [
        calls(call("search", {"q": "a"})),
        calls(call("search", {"q": "a"})),
        calls(call("count", {"n": 1})),
    ]
    steps += [calls(call("search", {"q": "a"}), call("count", {"n": n})) for n in range(8)]
    engine = lab.engine(lab.define([*steps, final("done")], search, count, max_iterations=50))
    result = await lab.run(engine)
    assert result.output == "done"
    assert warnings_in(lab.prompts()[-1]) == []


async def test_L10_an_approved_call_counts_once_and_nobody_is_asked_about_the_one_too_many(lab: Any) -> None:
    engine = lab.engine(
        lab.define(lambda r: calls(shuffled("guarded", r.sequence)), guarded, max_iterations=20)
    )
    await engine.start("ex1", "go")
    asked = 0
    while (result := await lab.end_or_question(engine)).suspended:
        asked += 1
        await engine.decide(Decide("ex1", result.approvals[0].approval_request_id, True))
    assert (asked, result.terminal_reason) == (3, "repeated_tool_call")


async def test_L10_refused_calls_neither_count_nor_break_the_row(lab: Any) -> None:
    steps = [calls(call("search", {"q": "a"})), calls(call("search", {"wrong": 1}))] * 4
    engine = lab.engine(lab.define([*steps, final("done")], search, max_iterations=50))
    result = await lab.run(engine)
    assert result.terminal_reason == "repeated_tool_call"
    ran = [row for row in lab.store.tool_calls("ex1") if row.attempt]
    assert len(ran) == 3


@pytest.mark.parametrize("limit", [0, 1])
async def test_a_detector_that_is_off_lets_an_agent_poll(lab: Any, limit: int) -> None:
    engine = lab.engine(
        lab.define(
            lambda r: calls(call("search", {"q": "a"})), search, max_iterations=7, max_tool_repeats=limit
        )
    )
    with pytest.raises(MaxIterationsError):
        (await lab.run(engine)).raise_for_status()


async def test_the_count_survives_a_crash_of_the_owner(lab: Any) -> None:
    definition = lab.define(lambda r: calls(shuffled("search", r.sequence)), search, max_iterations=20)
    first = lab.engine(definition)
    write_plan(lab.faults, "a1", point="after_commit:results", action="fail", occurrence=2)
    await first.start("ex1", "go")
    with pytest.raises(FaultInjectedError):
        await first.wait("ex1", until="terminal", timeout_s=5)
    second = lab.engine(definition)
    result = await lab.end(second)
    assert result.terminal_reason == "repeated_tool_call"
    assert sum(row.attempt for row in lab.store.tool_calls("ex1")) == 3


# --- T08 -------------------------------------------------------------------------------------------------------


async def test_T08_twins_in_one_batch_both_run_and_the_event_says_so(lab: Any) -> None:
    step = calls(
        call("search", {"q": "a", "n": 2}), call("count", {"n": 1}), call("search", {"n": 2, "q": "a"})
    )
    engine = lab.engine(lab.define([step, final("done")], search, count))
    assert (await lab.run(engine)).output == "done"
    rows = lab.store.tool_calls("ex1")
    assert [row.attempt for row in rows] == [1, 1, 1]
    marks = [
        event.payload.get("duplicate_of")
        for event in await lab.read_events(engine)
        if event.type is EventType.TOOL_CALL
    ]
    assert marks == [None, None, rows[0].tool_call_id]


async def test_T08_deduplication_gives_both_ids_the_one_result(lab: Any, paired: Paired) -> None:
    step = calls(
        call("search", {"q": "a", "n": 2}), call("count", {"n": 1}), call("search", {"n": 2, "q": "a"})
    )
    definition = lab.define(
        [[step, final("done")], [final("fine")]], search, count, deduplicate_tool_calls=True
    )
    engine = lab.engine(definition)
    assert (await lab.run(engine)).output == "done"
    rows = lab.store.tool_calls("ex1")
    assert [row.attempt for row in rows] == [1, 1, 0]
    assert [row.model_text for row in rows] == ["2 of a", "1", "2 of a"]
    assert {row.status for row in rows} == {ToolCallStatus.SUCCEEDED}
    assert rows[2].attempts[0]["answered_by"] == rows[0].tool_call_id
    events = await lab.read_events(engine)
    assert sum(event.type is EventType.TOOL_RESULT for event in events) == 3
    await lab.run(engine, "hi", id="ex2")
    paired(lab.prompts()[-1])


async def test_T08_a_twin_waits_for_the_word_about_its_unknown_original(lab: Any) -> None:
    @tool
    async def pay(x: int) -> str:
        await asyncio.sleep(3600)
        return "never"

    definition = lab.define(
        [calls(call("pay", {"x": 1}), call("pay", {"x": 1})), final("done")], pay, deduplicate_tool_calls=True
    )
    first = lab.engine(definition)
    write_plan(lab.faults, "a1", point="after_dispatch", action="fail")
    with contextlib.suppress(FaultInjectedError):
        await first.start("ex1", "go")
        await first.wait("ex1", until="terminal", timeout_s=5)
    await first._work.stop()
    second = lab.engine(definition)
    waiting = await lab.suspension(second)
    assert len(waiting.unresolved) == 1
    await second.resolve(Resolve("ex1", waiting.unresolved[0].tool_call_id, Resolution.SUCCEEDED, "paid"))
    assert (await lab.end(second)).output == "done"
    assert [row.model_text for row in lab.store.tool_calls("ex1")] == ["paid", "paid"]


# --- return_direct ---------------------------------------------------------------------------------------------


@tool(replay="safe", return_direct=True, max_result_chars=10)
async def report(text: str) -> str:
    if text == "fail":
        raise ValueError("no report")
    return text * 30


@tool(replay="safe", return_direct=True, on_error="suppress")
async def shaky(text: str) -> dict[str, str]:
    if text == "fail":
        raise ValueError("no report")
    return {"text": text}


async def test_a_direct_result_ends_the_turn_without_another_model_call(lab: Any, paired: Paired) -> None:
    definition = lab.define(
        [[calls(call("report", {"text": "ab"}), call("count", {"n": 1}))], [final("fine")]], report, count
    )
    engine = lab.engine(definition)
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "ab" * 30), (
        "whole, not as a model sees it"
    )
    assert len(lab.prompts()) == 1
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    paired(lab.prompts()[-1])


async def test_the_last_direct_call_that_succeeded_wins(lab: Any) -> None:
    step = calls(call("shaky", {"text": "1"}), call("shaky", {"text": "2"}), call("shaky", {"text": "fail"}))
    result = await lab.run(lab.engine(lab.define([step], shaky)))
    assert result.output == '{"text":"2"}'


async def test_a_failed_direct_call_leaves_the_turn_to_the_model(lab: Any) -> None:
    result = await lab.run(
        lab.engine(lab.define([calls(call("shaky", {"text": "fail"})), final("sorry")], shaky))
    )
    assert result.output == "sorry"
    failed = await lab.run(
        lab.engine(lab.define([calls(call("report", {"text": "fail"}))], report), "a2"), id="ex2"
    )
    assert failed.terminal_reason == "tool_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_A17_the_contract_is_kept_with_the_pause(lab: Any, stream: bool) -> None:
    @tool(name="ship", replay="safe", return_direct=True, requires_approval=True)
    async def ship(text: str) -> str:
        return f"shipped {text}"

    @tool(name="ship", replay="safe", requires_approval=True)
    async def changed(text: str) -> str:
        return f"shipped {text}"

    steps = [calls(call("ship", {"text": "a"})), final("overwritten")]
    first = lab.engine(lab.define(steps, ship))
    await first.start("ex1", "go", stream=stream)
    await lab.suspension(first)
    await first.seal()
    second = lab.engine(lab.define(steps, changed))
    await lab.decide_all(second)
    result = await lab.end(second)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "shipped a")
    assert len(lab.prompts()) == 1
