"""The calls of one worker on their threads, in this process: no Ray is started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import Tool, ToolCompletion, tool
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import ToolContext, ToolInvocation, ToolOutcome
from phronomy_ray.tools import pool_wire
from phronomy_ray.tools.envelope import run_sync
from phronomy_ray.tools.pool_wire import ItemKind, News, PoolItem, StartedCalls
from phronomy_ray.tools.process import Process
from phronomy_ray.tools.warm_threads import WarmThreads
from phronomy_ray.tools.worker_calls import WorkerCalls


def news_of(*bodies: Any, cancel: bool = False) -> Iterator[News]:
    """What one worker reports of these bodies, each called once, until all of them are over."""
    tools = type("Clerk", (Agent,), {"model": "m/m", "tools": list(bodies)}).definition().tools
    calls = WorkerCalls("here")
    calls.submit(
        [(ToolInvocation(f"tc_{name}", name, {}, "a1", "ex1", 1), bound) for name, bound in tools.items()]
    )
    if cancel:
        calls.cancel([(f"tc_{name}", 1) for name in tools])
    waiting = set(tools)
    for group in calls.serve():
        for item in group:
            yield item
            if isinstance(item, PoolItem) and item.kind not in (
                ItemKind.GIVEN_UP,
                ItemKind.GOES_ON,
                ItemKind.PROGRESS,
            ):
                waiting.discard(item.key[0].removeprefix("tc_"))
        if not waiting:
            return


def outcome_of(body: Any) -> ToolOutcome:
    """The first outcome of one body."""
    return next(pool_wire.outcome_of(item) for item in news_of(body) if isinstance(item, PoolItem))


def test_a_cancellation_that_overtakes_its_call_is_not_lost() -> None:
    ran: list[str] = []

    @tool
    def first() -> str:
        ran.append("first")
        return "done"

    @tool
    def second() -> str:
        ran.append("second")
        return "done"

    tools = type("Clerk", (Agent,), {"model": "m/m", "tools": [first, second]}).definition().tools
    calls = WorkerCalls("here")
    calls.cancel([("tc_first", 1)])
    calls.submit([(ToolInvocation(f"tc_{name}", name, {}, "a1", "ex1", 1), tools[name]) for name in tools])
    seen: dict[str, ToolCallStatus] = {}
    begun: list[Any] = []
    for group in calls.serve():
        for item in group:
            if isinstance(item, PoolItem):
                seen[item.key[0]] = pool_wire.outcome_of(item).status
            elif isinstance(item, StartedCalls):
                begun += item.keys
        if len(seen) == 2:
            break
    assert seen == {"tc_first": ToolCallStatus.NOT_PERFORMED, "tc_second": ToolCallStatus.SUCCEEDED}
    assert (ran, begun) == (["second"], [("tc_second", 1)])


def test_the_wait_before_another_attempt_is_not_the_body_s_time() -> None:
    ran: list[int] = []

    @tool(replay="safe", retries=1, timeout_s=0.05)  # shorter than the wait
    def flaky() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise ValueError("the first time")
        return "went well"

    outcome = outcome_of(flaky)
    assert (outcome.status, outcome.result) == (ToolCallStatus.SUCCEEDED, "went well")


@pytest.mark.parametrize("failures", [0, 1])
def test_every_attempt_has_the_whole_time_and_no_more(failures: int) -> None:
    ran: list[int] = []
    release = threading.Event()

    @tool(replay="safe", retries=2, timeout_s=0.05)
    def stuck() -> str:
        ran.append(1)
        if len(ran) <= failures:
            raise ValueError("not yet")
        release.wait(20)
        return "too late"

    try:
        outcome = outcome_of(stuck)
    finally:
        release.set()
    assert outcome.status is ToolCallStatus.TIMED_OUT
    assert len(ran) == failures + 1


def test_bodies_run_side_by_side_and_come_back_as_lists() -> None:
    barrier = threading.Barrier(3)

    def body(name: str) -> Any:
        def meet() -> str:
            barrier.wait(20)
            return name

        return tool(replay="safe", name=name)(meet)

    news = list(news_of(*(body(name) for name in ("a", "b", "c"))))
    assert isinstance(news[0], StartedCalls)
    assert news[0].keys == (("tc_a", 1), ("tc_b", 1), ("tc_c", 1))
    assert sorted(item.status for item in news[1:] if isinstance(item, PoolItem)) == ["succeeded"] * 3


def test_a_body_that_was_given_up_is_reported_again_when_it_ends() -> None:
    release = threading.Event()

    @tool(replay="safe", timeout_s=0.05)
    def slow() -> str:
        release.wait(20)
        return "in the end"

    kinds = []
    for item in news_of(slow):
        if isinstance(item, PoolItem):
            kinds.append((item.kind, item.status))
            release.set()
    assert kinds == [(ItemKind.GIVEN_UP, "timed_out"), (ItemKind.LATE, "succeeded")]


def test_a_body_sees_that_it_should_stop() -> None:
    @tool(replay="safe", timeout_s=20)
    def polite(context: ToolContext) -> str:
        while not context.is_cancelled():
            threading.Event().wait(0.005)
        return "stopped"

    [outcome] = [item for item in news_of(polite, cancel=True) if isinstance(item, PoolItem)]
    assert (outcome.kind, pool_wire.outcome_of(outcome).result) == (ItemKind.OUTCOME, "stopped")


def test_work_that_outlives_its_result_is_reported_twice_and_not_told_to_stop() -> None:
    seen: list[bool] = []
    release = threading.Event()

    class Publish(Tool):
        """Answer at once and go on."""

        replay = "safe"
        execution_mode = "blocking_io"

        def execute(self) -> str:
            raise AssertionError("not called")

        def call_async(self, arguments: dict[str, Any], context: ToolContext) -> ToolCompletion:
            async def result() -> str:
                return "accepted"

            async def finished() -> None:
                await asyncio.to_thread(release.wait, 20)
                seen.append(context.is_cancelled())

            return ToolCompletion(result(), finished())

    kinds = []
    for item in news_of(Publish()):
        if isinstance(item, PoolItem):
            kinds.append((item.kind, item.status))
            release.set()
    assert kinds == [(ItemKind.GOES_ON, "succeeded"), (ItemKind.LATE, "succeeded")]
    assert seen == [False]


def test_a_program_ends_with_its_call() -> None:
    def sleeper(timeout_s: float) -> Any:
        def wait() -> Process:
            """Wait."""
            return Process(["sleep", "60"])

        return tool(replay="safe", execution_mode="external_process", timeout_s=timeout_s)(wait)

    [late] = [item for item in news_of(sleeper(0.3)) if isinstance(item, PoolItem)]
    assert (late.kind, late.status) == (ItemKind.OUTCOME, "timed_out"), "it is over, not given up"
    [stopped] = [item for item in news_of(sleeper(30), cancel=True) if isinstance(item, PoolItem)]
    assert (stopped.kind, stopped.status) == (ItemKind.OUTCOME, "cancelled")


def test_a_program_s_end_is_the_result() -> None:
    @tool(replay="safe", execution_mode="external_process")
    def fail_softly(words: list[str]) -> Process:
        """Run a program that fails."""
        return Process(["sh", "-c", "cat; exit 3"], stdin=" ".join(words).encode())

    bound = (
        type("Clerk", (Agent,), {"model": "m/m", "tools": [fail_softly]}).definition().tools["fail_softly"]
    )
    outcome = run_sync(
        bound,
        ToolInvocation("tc_1", "fail_softly", {"words": ["a", "b"]}, "a1", "ex1", 1),
        is_cancelled=lambda: False,
    )
    assert outcome.status is ToolCallStatus.SUCCEEDED
    assert (outcome.result["exit_code"], outcome.result["stdout"]) == (3, "a b")


def test_progress_comes_before_the_outcome() -> None:
    @tool
    def counts(context: ToolContext) -> str:
        for done in range(3):
            context.report_progress({"done": done})
        return "all"

    items = [item for item in news_of(counts) if isinstance(item, PoolItem)]
    assert [item.kind for item in items] == [*[ItemKind.PROGRESS] * 3, ItemKind.OUTCOME]
    assert [pool_wire.progress_of(item).value for item in items[:3]] == [
        {"done": 0},
        {"done": 1},
        {"done": 2},
    ]


def test_threads_are_used_again() -> None:
    threads = WarmThreads()
    seen: list[int] = []
    for _ in range(5):
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            seen.append(threading.get_ident())
            done.set()

        before = threading.active_count()
        threads.run(work)
        assert done.wait(20)
        while not threads.has_idle():
            threading.Event().wait(0.001)
        assert threading.active_count() <= before + 1
    assert len(set(seen)) == 1
