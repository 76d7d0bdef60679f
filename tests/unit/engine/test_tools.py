"""Tools in an execution: whatever a body does there is one recorded outcome for it, and its siblings are unharmed."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import PhronomyError, ToolError, ToolTimeoutError
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import ToolContext, ToolInvocation, ToolOutcome
from phronomy_ray.tools.cooperative import CooperativeRuns
from phronomy_ray.tools.local_executor import LocalToolExecutor

Paired = Callable[[Any], None]


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("cannot travel")
        self.lock = threading.Lock()


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BadCode(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("no code")


class Base(BaseException):
    pass


RAISED: list[Callable[[], BaseException]] = [
    lambda: ValueError("plain"),
    lambda: Base("base"),
    lambda: SystemExit(3),
    lambda: KeyboardInterrupt(),
    lambda: GeneratorExit(),
    lambda: asyncio.CancelledError(),
    lambda: StopIteration(1),
    lambda: StopAsyncIteration(1),
    lambda: Unpicklable(),
    lambda: BadText(),
    lambda: BadCode("odd"),
    lambda: PhronomyError("ours", details={"when": dt.datetime.now(dt.UTC), "what": object()}),
    lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
    lambda: RecursionError("deep"),
    lambda: MemoryError(),
    lambda: ValueError("bad \ud835 text"),
    lambda: ValueError("long " * 10_000),
]


@pytest.mark.parametrize("make", RAISED)
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "suppress"])
async def test_a_tool_that_raises_has_one_outcome_and_harms_nobody(
    lab: Any, paired: Paired, make: Callable[[], BaseException], blocking: bool, on_error: Any
) -> None:
    def body() -> str:
        raise make()

    async def async_body() -> str:
        raise make()

    breaks = tool(name="breaks", on_error=on_error)(body if blocking else async_body)
    script = lambda r: (  # noqa: E731
        final("fine")
        if r.last_user == "hi" or r.sequence == 2
        else calls(call("look", {"x": 1}), call("breaks", {}), call("look", {"x": 3}))
    )
    engine = lab.engine(lab.define(script, look, breaks))
    result = await lab.run(engine, "go")
    rows = lab.store.tool_calls("ex1")
    assert [row.status for row in rows] == [
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
        ToolCallStatus.SUCCEEDED,
    ]
    assert [row.result for row in rows] == ["seen 1", None, "seen 3"]
    assert len(rows[1].attempts) == 1
    assert rows[1].error is not None
    text = rows[1].model_text
    assert text is not None
    assert text.startswith("Error (")
    assert len(text) <= 600
    if on_error == "suppress":
        assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "fine")
    else:
        assert result.status is ExecutionStatus.FAILED
        with pytest.raises(ToolError) as caught:
            result.raise_for_status()
        assert caught.value.code == "tool_error"
        assert caught.value.details["tool_name"] == "breaks"
        assert caught.value.__cause__ is not None
        pickle.loads(pickle.dumps(caught.value))
    order = [
        record.content["content"]
        for record in lab.store.journal_of_execution("ex1")
        if record.kind.value == "tool_message"
    ]
    assert [order[0], order[2]] == ["seen 1", "seen 3"], "every outcome is journaled, in request order"
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    paired(lab.prompts()[-1])


async def test_results_are_shown_in_request_order_whatever_ended_first(lab: Any) -> None:
    gates = [asyncio.Event() for _ in range(4)]
    ended: list[int] = []

    @tool(replay="safe")
    async def step(n: int) -> str:
        await gates[n].wait()
        ended.append(n)
        if n:
            gates[n - 1].set()
        return f"step {n}"

    engine = lab.engine(lab.define([calls(*(call("step", {"n": n}) for n in range(4))), final("x")], step))
    await engine.start("ex1", "go")
    gates[3].set()
    assert (await lab.end(engine)).output == "x"
    assert ended == [3, 2, 1, 0]
    assert [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"] == [f"step {n}" for n in range(4)]


async def test_the_batch_is_committed_before_the_first_body_runs(lab: Any) -> None:
    seen: list[Any] = []

    @tool(replay="safe")
    def check(context: ToolContext) -> str:
        rows = lab.store.tool_calls(context.execution_id)
        seen.append([(row.status.value, row.attempt) for row in rows])
        return "checked"

    engine = lab.engine(
        lab.define([calls(call("check", {}), call("look", {}), call("nope", {})), final("x")], check, look)
    )
    await lab.run(engine)
    assert seen[0][0] == ("dispatched", 1)
    assert len(seen[0]) == 3


# --- time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "suppress"])
async def test_a_timeout_is_an_outcome_of_its_own(lab: Any, blocking: bool, on_error: Any) -> None:
    def body() -> str:
        lab.release.wait(20)
        return "late"

    async def async_body() -> str:
        await asyncio.Event().wait()
        return "never"

    slow = tool(name="slow", timeout_s=0.05, on_error=on_error)(body if blocking else async_body)
    script = [calls(call("slow", {}), call("look", {"x": 1})), final("x")]
    engine = lab.engine(lab.define(script, slow, look, quiescence_timeout_s=0.1))
    result = await lab.run(engine)
    assert [row.status for row in lab.store.tool_calls("ex1")] == [
        ToolCallStatus.TIMED_OUT,
        ToolCallStatus.SUCCEEDED,
    ]
    if on_error == "suppress":
        assert result.output == "x"
        told, _ = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
        assert "tool_timeout" in told
    else:
        with pytest.raises(ToolTimeoutError):
            result.raise_for_status()


async def test_a_timeout_that_the_body_raises_itself_is_its_failure(lab: Any) -> None:
    @tool(on_error="suppress")
    async def inner() -> str:
        raise TimeoutError("the remote side took too long")

    await lab.run(lab.engine(lab.define([calls(call("inner", {})), final("x")], inner)))
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.FAILED]


async def test_the_wait_before_another_attempt_is_not_the_body_s_time(lab: Any) -> None:
    ran: list[int] = []

    @tool(replay="safe", retries=1, timeout_s=0.05)  # shorter than the wait
    def flaky() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise ValueError("the first time")
        return "went well"

    engine = lab.engine(lab.define([calls(call("flaky", {})), final("x")], flaky))
    assert (await lab.run(engine)).output == "x"
    assert lab.store.tool_calls("ex1")[0].result == "went well"


async def test_a_blocking_body_that_timed_out_is_not_tried_again(lab: Any) -> None:
    starts: list[int] = []

    @tool(replay="safe", retries=3, timeout_s=0.05, on_error="suppress")
    def slow() -> str:
        starts.append(1)
        lab.release.wait(20)
        raise ConnectionError("late failure")

    engine = lab.engine(lab.define([calls(call("slow", {})), final("x")], slow, quiescence_timeout_s=0.1))
    assert (await lab.run(engine)).output == "x"
    lab.release.set()
    await asyncio.to_thread(lab.executors[-1]._threads.shutdown, True)  # join what is still there
    assert starts == [1]
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.TIMED_OUT]


async def test_the_clock_of_a_blocking_body_starts_with_its_thread(lab: Any) -> None:
    """One thread, three bodies that take most of their time: none of them times out in the queue."""
    turn = threading.Event()

    @tool(replay="safe", timeout_s=0.4)
    def takes() -> str:
        turn.wait(0.25)
        return "done"

    executor = LocalToolExecutor(threads=1)
    engine = lab.engine(
        lab.define([calls(*(call("takes", {}) for _ in range(3))), final("x")], takes), tools=executor
    )
    assert (await lab.run(engine)).output == "x"
    assert [row.status for row in lab.store.tool_calls("ex1")] == [ToolCallStatus.SUCCEEDED] * 3


async def test_a_queued_blocking_body_is_called_off_by_a_cancellation(lab: Any) -> None:
    ran: list[int] = []
    begun = threading.Event()

    @tool()
    def takes(n: int) -> str:
        ran.append(n)
        begun.set()
        lab.release.wait(20)
        return "done"

    executor = LocalToolExecutor(threads=1)
    definition = lab.define(
        [calls(call("takes", {"n": 0}), call("takes", {"n": 1})), final("x")],
        takes,
        quiescence_timeout_s=0.05,
    )
    engine = lab.engine(definition, tools=executor)
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    assert [row.status for row in lab.store.tool_calls("ex1")] == [
        ToolCallStatus.UNKNOWN,
        ToolCallStatus.NOT_PERFORMED,
    ]
    lab.release.set()
    await asyncio.to_thread(executor._threads.shutdown, True)
    assert ran == [0], "an effect after the end of its execution"


async def test_a_cooperative_body_that_is_stopped_before_its_first_step_has_an_outcome(lab: Any) -> None:
    runs = CooperativeRuns()
    items: list[Any] = []
    bound = lab.define([final("x")], look).tools["look"]
    runs.start(ToolInvocation("tc", "look", {}, "a", "ex", 1), bound, items.append)
    await runs.stop(1.0)
    await asyncio.sleep(0)
    assert [item.status for item in items if isinstance(item, ToolOutcome)] == [ToolCallStatus.NOT_PERFORMED]


# --- results ---------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: list[int]


def generator() -> Any:
    yield 1


def recursive() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda: None, None),
        (lambda: "text", "text"),
        (lambda: [1, 2.5, True, None, "x"], [1, 2.5, True, None, "x"]),
        (lambda: (1, {"a": (2,)}), [1, {"a": [2]}]),
        (lambda: {3, 1, 2}, [1, 2, 3]),
        (lambda: decimal.Decimal("1.1"), "1.1"),
        (lambda: dt.date(2026, 1, 2), "2026-01-02"),
        (lambda: Color.RED, "red"),
        (lambda: Point(1, [2]), {"x": 1, "y": [2]}),
        (lambda: 10**400, 10**400),
        (lambda: "\ud835 and \ud83c\udf78", "\ufffd and \U0001f378"),
    ],
)
async def test_T11_results_are_encoded_by_the_table(lab: Any, make: Callable[[], Any], kept: Any) -> None:
    @tool(replay="safe")
    async def gives() -> Any:
        return make()

    result = await lab.run(lab.engine(lab.define([calls(call("gives", {})), final("x")], gives)))
    assert result.output == "x"
    (row,) = lab.store.tool_calls("ex1")
    assert (row.status, row.result) == (ToolCallStatus.SUCCEEDED, kept)
    record = next(r for r in lab.store.journal_of_execution("ex1") if r.kind.value == "tool_result")
    assert record.content == kept
    expected = {"tool_name": "gives", "status": "succeeded", "result_status": "ok", "error": None}
    assert record.metadata == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"\xff",
        lambda: object(),
        lambda: float("nan"),
        lambda: {"deep": [float("inf")]},
        lambda: 10**5_000,
        generator,
        recursive,
        lambda: {1: "x"},
        lambda: [threading.Lock()],
    ],
)
@pytest.mark.parametrize("blocking", [False, True])
async def test_T11_what_has_no_json_form_is_a_tool_error(
    lab: Any, make: Callable[[], Any], blocking: bool
) -> None:
    def body() -> Any:
        return make()

    async def async_body() -> Any:
        return make()

    gives = tool(name="gives", on_error="suppress")(body if blocking else async_body)
    result = await lab.run(lab.engine(lab.define([calls(call("gives", {})), final("x")], gives)))
    assert result.output == "x"
    (row,) = lab.store.tool_calls("ex1")
    assert row.status is ToolCallStatus.FAILED
    assert row.error is not None
    assert row.error["code"] == "unsupported_result"


async def test_T14_a_large_result_is_kept_whole_and_shown_cut(lab: Any) -> None:
    text = "".join(f"{number:07d}\n" for number in range(250_000))

    @tool(replay="safe", max_result_chars=1_000)
    async def big() -> str:
        return text

    definition = lab.define([calls(*(call("big", {}) for _ in range(4))), final("x")], big)
    engine = lab.engine(definition)
    assert (await lab.run(engine)).output == "x"
    shown = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
    assert len(shown) == 4
    for item in shown:
        assert len(item) < 1_300
        assert item.startswith("0000000\n")
        assert item.endswith("0249999\n")
        assert "1999000 of 2000000 characters left out" in item
    assert [row.result == text for row in lab.store.tool_calls("ex1")] == [True] * 4
    lab.store.close()  # the log is written back into the file
    size = sum(file.stat().st_size for file in lab.directory.glob("agents.db*"))
    assert len(text) < size < 1.5 * len(text), "the value is stored once: four results, in ledger and journal"
    events = (await engine.events("ex1", after=0, cursor=None, timeout_s=1))[0]
    assert max(len(str(event.payload)) for event in events) < 1_000, "events carry a preview only"


async def test_T14_a_result_above_the_hard_limit_is_an_error(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.tool_results.MAX_RESULT_CHARS", 10_000)

    @tool(on_error="suppress")
    async def huge() -> str:
        return "z" * 10_001

    result = await lab.run(lab.engine(lab.define([calls(call("huge", {})), final("x")], huge)))
    assert result.output == "x"
    (row,) = lab.store.tool_calls("ex1")
    assert row.error is not None
    assert row.error["code"] == "result_too_large"
    assert len(row.attempts) == 1


# --- arguments -------------------------------------------------------------------------------------------------


async def test_T01_empty_arguments_reach_the_tool_and_the_next_prompt(lab: Any, paired: Paired) -> None:
    @tool(replay="safe")
    async def ping() -> str:
        return "pong"

    @tool(replay="safe")
    async def needs(x: int) -> str:
        return str(x)

    script = [
        [calls(call("ping", raw=""), call("ping", raw="   "), call("needs", raw="")), final("x")],
        [final("y")],
    ]
    engine = lab.engine(lab.define(script, ping, needs))
    await lab.run(engine)
    tools = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
    assert tools[:2] == ["pong", "pong"]
    assert tools[2].startswith("Error (invalid_arguments): $.x: Field required")
    assert (await lab.run(engine, "again", id="ex2")).output == "y"
    paired(lab.prompts()[-1])


@pytest.mark.parametrize("raw", ["null", "[]", '"x"', "42", "true", '{"x": ' + "1" * 5_000_000])
async def test_T02_arguments_that_are_no_object_fail_their_call_only(
    lab: Any, paired: Paired, raw: str
) -> None:
    script = [[calls(call("look", raw=raw), call("look", {"x": 2})), final("x")], [final("y")]]
    engine = lab.engine(lab.define(script, look))
    assert (await lab.run(engine)).output == "x"
    told, other = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
    assert told.startswith("Error (invalid_arguments): $")
    assert len(told) < 700
    assert other == "seen 2"
    assert (await lab.run(engine, "again", id="ex2")).output == "y"
    paired(lab.prompts()[-1])


async def test_T04_nested_json_text_is_decoded_before_a_human_sees_it(lab: Any) -> None:
    got: list[Any] = []

    @tool(requires_approval=True)
    async def plan(steps: list[dict[str, int]], note: str) -> str:
        got.append((steps, note))
        return "planned"

    definition = lab.define([calls(call("plan", {"steps": '[{"s": 1}]', "note": "[1]"})), final("x")], plan)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert waiting.approvals[0].arguments == {"steps": [{"s": 1}], "note": "[1]"}
    await lab.decide_all(engine)
    await lab.end(engine)
    assert got == [([{"s": 1}], "[1]")]
