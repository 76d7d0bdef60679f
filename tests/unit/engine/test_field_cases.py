"""Faults that users of other runtimes reported, on the engine: see tests/field_cases.toml for each id."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.canonical_json import dumps
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import EmptyResponseError, RateLimitError, StoreUnavailableError
from phronomy_ray.events import EventType
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.messages import Usage
from phronomy_ray.models.scripted import RawBody, Reply, attempts, call, calls, error, final, hang
from phronomy_ray.testing.faulty_store import FaultyStore

Paired = Callable[[Any], None]


@tool(replay="safe")
async def look(x: int = 0) -> str:
    """Look."""
    return f"seen {x}"


# --- L02 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before_commit:batch", "after_commit:batch", "before_dispatch"])
async def test_L02_cancel_between_the_answer_and_the_first_tool(lab: Any, paired: Paired, point: str) -> None:
    ran: list[int] = []

    @tool(replay="safe")
    async def t1(x: int) -> str:
        ran.append(x)
        return "done"

    definition = lab.define(
        lambda request: (
            final("fine") if request.last_user == "hi" else calls(call("t1", {"x": 1}), call("t1", {"x": 2}))
        ),
        t1,
    )
    engine = lab.engine(definition)
    wait = lab.pause(point)
    await engine.start("ex1", "go")
    release = await wait()
    cancelling = asyncio.ensure_future(engine.cancel("ex1", "stop it"))
    async with asyncio.timeout(20):
        while not engine.is_cancelled("ex1"):  # the wish is stored first
            await asyncio.sleep(0)
    release()
    await cancelling
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    assert result.terminal_reason == "stop it"
    assert ran == []
    rows = lab.store.tool_calls("ex1")
    assert [row.status for row in rows] == [ToolCallStatus.NOT_PERFORMED] * 2
    journal = lab.store.journal_of_execution("ex1")
    closed = [r for r in journal if r.kind.value in ("tool_result", "tool_message", "execution_cancelled")]
    assert [r.kind.value for r in closed] == ["tool_result", "tool_message"] * 2 + ["execution_cancelled"]
    assert len({r.occurred_at for r in closed}) == 1, "one commit closes the calls and ends the execution"
    after = await lab.run(engine, "hi", id="ex2")
    assert after.output == "fine"
    paired(lab.prompts()[-1])
    assert [m["role"] for m in lab.prompts()[-1]] == ["user", "assistant", "tool", "tool", "user"]


# --- L04 -------------------------------------------------------------------------------------------------------


async def test_L04_plain_and_streamed_runs_leave_the_same_journal(lab: Any, paired: Paired) -> None:
    definition = lab.define(
        [calls(call("look", {"x": 1}), call("look", {"x": 2}), text="I look"), final("x")], look
    )
    journals = {}
    for mode, stream in (("plain", False), ("streamed", True)):
        engine = lab.engine(definition, mode)
        first = await lab.run(engine, "one", id=f"{mode}-1", stream=stream)
        second = await lab.run(engine, "two", id=f"{mode}-2", stream=stream)
        assert (first.output, second.output) == ("x", "x")
        facts = dumps([fact[:5] + fact[5:6] for fact in lab.facts(mode)])
        journals[mode] = facts.replace(f"{mode}-", "run-")
        paired(lab.prompts()[-1])
    assert journals["plain"] == journals["streamed"]
    tokens = [
        e for e in (await engine.events("streamed-1", after=0, cursor=None, timeout_s=1))[0] if not e.durable
    ]
    assert "x" in "".join(e.payload.get("text", "") for e in tokens), "the second run really was streamed"
    prompts = lab.prompts()
    assert prompts[3] == prompts[7], "the second turn of both modes sees the same"


# --- L05 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["batch", "results", "terminal"])
async def test_L05_a_store_that_fails_in_a_streamed_run_ends_the_reader(lab: Any, step: str) -> None:
    store = FaultyStore(lab.store)
    definition = lab.define([calls(call("look", {"x": 1})), final("x")], look)
    engine = lab.engine(definition, store=store)
    store.always_fail(step)
    await engine.start("ex1", "go", stream=True)
    async with asyncio.timeout(5):
        events = await lab.read_events(engine)
    assert events[-1].type is EventType.ERROR
    assert events[-1].payload["error"]["code"] == "store_unavailable"
    assert engine.status()["lifecycle"] == "recovery_required"
    assert engine.status()["error"]["code"] == "store_unavailable"
    store.heal()
    result = await lab.end(engine)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "x")
    assert engine.status()["lifecycle"] == "idle"
    assert (await lab.run(engine, "again", id="ex2")).output == "x"


async def test_L05_a_store_that_is_away_altogether_ends_readers_and_waiters(lab: Any) -> None:
    store = FaultyStore(lab.store)
    gate = asyncio.Event()

    @tool(replay="safe")
    async def held() -> str:
        await gate.wait()
        return "x"

    engine = lab.engine(lab.define([calls(call("held", {})), final("x")], held), store=store)
    await engine.start("ex1", "go", stream=True)
    waiting = asyncio.ensure_future(engine.wait("ex1", until="terminal", timeout_s=20))
    events, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=5)
    while not any(e.type is EventType.TOOL_STARTED for e in events):
        events, cursor = await engine.events("ex1", after=0, cursor=cursor, timeout_s=5)
    store.always_fail("*")
    gate.set()
    with pytest.raises(StoreUnavailableError):
        await waiting
    # a reader that comes only now is told as well, instead of waiting or being given a bare exception
    async with asyncio.timeout(5):
        late, _ = await engine.events("ex1", after=events[-1].seq, cursor=cursor, timeout_s=5)
    assert [e.type for e in late][-1] is EventType.ERROR
    store.heal()
    assert (await lab.end(engine)).output == "x"


async def test_L05_a_commit_whose_outcome_is_lost_is_looked_up_not_repeated(lab: Any) -> None:
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define([calls(call("look", {"x": 1})), final("x")], look), store=store)
    for step in ("admit", "batch", "results", "terminal"):
        store.fail_after(step)
    result = await lab.run(engine)
    assert result.output == "x"
    assert store.calls.count("settle") == 4
    assert len({commit.commit_id for commit in store.executed}) == len(store.executed) == 4
    positions = [record.position for record in lab.journal()]
    assert positions == list(range(1, len(positions) + 1))


# --- L07 -------------------------------------------------------------------------------------------------------

EMPTY_ANSWERS = {
    "empty text": final(""),
    "white space": final(" \n"),
    "no content": final(None),
    "reasoning only": Reply(None, reasoning="I wonder"),
    "no choices": RawBody({"choices": []}),
}


@pytest.mark.parametrize("kind", EMPTY_ANSWERS)
@pytest.mark.parametrize("stream", [False, True])
async def test_L07_an_empty_answer_is_asked_for_again_a_bounded_number_of_times(
    lab: Any, paired: Paired, kind: str, stream: bool
) -> None:
    definition = lab.define(
        lambda request: (
            final("fine")
            if request.last_user == "hi"
            else calls(call("look", {"x": 1}))
            if request.sequence == 1
            else EMPTY_ANSWERS[kind]
        ),
        look,
        empty_answer_retries=2,
    )
    engine = lab.engine(definition)
    result = await lab.run(engine, "go", stream=stream)
    assert result.status is ExecutionStatus.FAILED
    assert result.output is None
    with pytest.raises(EmptyResponseError) as caught:
        result.raise_for_status()
    assert caught.value.code == "empty_response"
    assert caught.value.details["answers"] == 3
    assert len(lab.prompts()) == 1 + 3, "one call, then the first empty answer and two repetitions"
    assert lab.prompts()[1] == lab.prompts()[2] == lab.prompts()[3]
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    paired(lab.prompts()[-1])


async def test_L07_an_answer_after_an_empty_one_counts(lab: Any) -> None:
    definition = lab.define([calls(call("look", {"x": 1})), final(""), final("there"), final("no")], look)
    result = await lab.run(lab.engine(definition))
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "there")


async def test_L07_without_retries_the_first_empty_answer_fails(lab: Any) -> None:
    result = await lab.run(lab.engine(lab.define([final("")], empty_answer_retries=0)))
    assert result.error is not None
    assert result.error.code == "empty_response"
    assert len(lab.prompts()) == 1


async def test_L07_repetitions_count_as_iterations(lab: Any) -> None:
    definition = lab.define([final("")] * 20, empty_answer_retries=100, max_iterations=3)
    result = await lab.run(lab.engine(definition))
    assert result.error is not None
    assert result.error.code == "empty_response"
    assert len(lab.prompts()) == 3


async def test_L07_an_empty_answer_after_a_tool_can_be_allowed(lab: Any, paired: Paired) -> None:
    definition = lab.define(
        [[calls(call("look", {"x": 1})), final("")], [final("fine")]], look, allow_empty_answer=True
    )
    engine = lab.engine(definition)
    result = await lab.run(engine)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "")
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    paired(lab.prompts()[-1])


async def test_L07_it_is_not_allowed_where_no_tool_has_run(lab: Any) -> None:
    result = await lab.run(lab.engine(lab.define([final(""), final("")], allow_empty_answer=True)))
    assert result.status is ExecutionStatus.FAILED


# --- L17 -------------------------------------------------------------------------------------------------------


def rounds(*, tool_name: str) -> list[Any]:
    return [
        calls(call("look", {"x": 1}), usage=Usage(10, 1)),
        calls(call("look", {"x": 2}), usage=Usage(20, 2)),
        calls(call(tool_name, {}), usage=Usage(30, 3)),
        final("x", usage=Usage(40, 4)),
    ]


async def test_L17_usage_counts_every_round_of_a_run_whose_tool_raises(lab: Any) -> None:
    @tool(replay="safe")
    async def breaks() -> str:
        raise RuntimeError("broken")

    engine = lab.engine(lab.define(rounds(tool_name="breaks"), look, breaks))
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    assert result.usage == Usage(60, 6)
    assert lab.store.load_execution("ex1").state["usage"]["input_tokens"] == 60
    assert [c.usage["input_tokens"] for c in lab.store.model_calls("ex1")] == [10, 20, 30]


async def test_L17_usage_counts_the_rounds_before_a_cancellation(lab: Any) -> None:
    begun = asyncio.Event()

    @tool(replay="safe")
    async def waits() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    engine = lab.engine(lab.define(rounds(tool_name="waits"), look, waits))
    await engine.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    assert result.usage == Usage(60, 6)


async def test_L17_usage_counts_a_retried_call_once_and_keeps_its_attempts(lab: Any) -> None:
    definition = lab.define(
        [
            attempts(error(RateLimitError("slow down")), calls(call("look", {"x": 1}), usage=Usage(10, 1))),
            final("x", usage=Usage(20, 2)),
        ],
        look,
    )
    result = await lab.run(lab.engine(definition))
    assert result.usage == Usage(30, 3)
    first, second = lab.store.model_calls("ex1")
    assert [a["error"] and a["error"]["code"] for a in first.attempts] == ["model_rate_limit", None]
    assert len(second.attempts) == 1


async def test_L17_a_call_without_usage_is_unknown_not_free(lab: Any) -> None:
    definition = lab.define([calls(call("look", {"x": 1}), usage=None), final("x", usage=Usage(20, 2))], look)
    result = await lab.run(lab.engine(definition))
    assert result.usage == Usage(20, 2, unknown_calls=1)


async def test_L17_a_failed_model_call_keeps_its_attempts_and_the_earlier_usage(lab: Any) -> None:
    definition = lab.define(
        [calls(call("look", {"x": 1}), usage=Usage(10, 1)), error(RateLimitError("no"))], look
    )
    result = await lab.run(lab.engine(definition))
    assert result.status is ExecutionStatus.FAILED
    assert result.usage == Usage(10, 1)
    assert len(lab.store.model_calls("ex1")[1].attempts) == 3


@pytest.mark.parametrize(
    "point",
    [
        "after_commit:admit",
        "before_commit:batch",
        "after_commit:batch",
        "before_commit:results",
        "after_commit:results",
        "after_model",
        "before_commit:terminal",
    ],
)
async def test_L17_a_resumed_run_counts_nothing_twice(lab: Any, point: str) -> None:
    definition = lab.define(rounds(tool_name="look"), look)
    write_plan(lab.faults, "a1", point=point, action="fail")
    first = lab.engine(definition)
    with contextlib.suppress(FaultInjectedError):
        await first.start("ex1", "go")
        await first.wait("ex1", until="terminal", timeout_s=20)
    second = lab.engine(definition)
    await second.activate()
    result = await lab.end(second)
    assert result.usage == Usage(100, 10)


# --- L19 -------------------------------------------------------------------------------------------------------


async def test_L19_a_cancelled_cooperative_tool_is_not_tried_again(lab: Any) -> None:
    starts: list[int] = []
    begun = asyncio.Event()

    @tool(replay="safe", retries=5)
    async def waits() -> str:
        starts.append(1)
        begun.set()
        await asyncio.Event().wait()
        return ""

    engine = lab.engine(lab.define([calls(call("waits", {})), final("x")], waits))
    await engine.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    assert len(starts) == 1
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.CANCELLED]


async def test_L19_a_tool_that_turns_cancellation_into_an_error_is_not_tried_again(lab: Any) -> None:
    starts: list[int] = []
    begun = asyncio.Event()

    @tool(replay="safe", retries=5)
    async def converts() -> str:
        starts.append(1)
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("connection lost") from None
        return ""

    engine = lab.engine(lab.define([calls(call("converts", {})), final("x")], converts))
    await engine.start("ex1", "go")
    await asyncio.wait_for(begun.wait(), 20)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    assert len(starts) == 1


async def test_L19_a_cancelled_blocking_tool_is_not_tried_again(lab: Any) -> None:
    starts: list[int] = []
    begun = threading.Event()

    @tool(replay="safe", retries=5)
    def waits(context_free: int = 0) -> str:
        starts.append(1)
        begun.set()
        lab.release.wait(20)
        raise ConnectionError("connection lost")

    engine = lab.engine(lab.define([calls(call("waits", {})), final("x")], waits))
    await engine.start("ex1", "go")
    await asyncio.to_thread(begun.wait, 20)
    await engine.cancel("ex1", "enough")
    lab.release.set()
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    assert len(starts) == 1


async def test_L19_a_blocking_tool_that_was_given_up_is_not_tried_again_in_a_later_turn(lab: Any) -> None:
    """Its thread is still there when the next execution runs tools; that must not look like permission to go on."""
    starts: list[str] = []
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @tool(replay="safe", retries=5)
    def stubborn() -> str:
        starts.append("stubborn")
        begun.set()
        go_on.wait(20)
        ended.set()
        raise ConnectionError("connection lost")

    @tool(replay="safe")
    def quick() -> str:
        return "ok"

    definition = lab.define(
        lambda r: final("x") if r.sequence == 2 else calls(call("stubborn" if r.turn == 1 else "quick", {})),
        stubborn,
        quick,
        quiescence_timeout_s=0.05,
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    await asyncio.to_thread(begun.wait, 20)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.UNKNOWN]
    assert (await lab.run(engine, "next", id="ex2")).output == "x"
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 20)
    lab.executors[-1].close()
    await asyncio.to_thread(
        lab.executors[-1]._threads.shutdown, True
    )  # join: whatever it was going to do, it did
    assert starts == ["stubborn"]


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("blocking", [True, False])
async def test_L19_what_is_no_exception_is_never_tried_again(
    lab: Any, kind: type[BaseException], blocking: bool
) -> None:
    starts: list[int] = []

    def body() -> str:
        starts.append(1)
        raise kind

    async def async_body() -> str:
        return body()

    breaks = tool(name="breaks", replay="safe", retries=5, on_error="suppress")(
        body if blocking else async_body
    )
    engine = lab.engine(lab.define([calls(call("breaks", {})), final("x")], breaks))
    result = await lab.run(engine)
    assert result.output == "x"
    assert len(starts) == 1
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.FAILED]


async def test_L19_an_ordinary_failure_is_tried_as_often_as_declared(lab: Any) -> None:
    starts: list[int] = []

    @tool(replay="safe", retries=2)
    async def flaky() -> str:
        starts.append(1)
        if len(starts) < 3:
            raise ConnectionError("not yet")
        return "now"

    result = await lab.run(lab.engine(lab.define([calls(call("flaky", {})), final("x")], flaky)))
    assert result.output == "x"
    assert len(starts) == 3


async def test_L19_cancelling_a_model_call_makes_no_new_attempt(lab: Any) -> None:
    definition = lab.define([hang()], model_retries=5)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    await lab.until_prompted()
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    assert len(lab.prompts()) == 1
