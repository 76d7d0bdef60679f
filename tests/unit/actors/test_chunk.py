"""The calls of one chunk on their threads, in this process: no Ray is started."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from phronomy_ray.actors.tool_tasks import _Chunk
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import tool
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import ToolInvocation, ToolOutcome


@pytest.fixture(autouse=True)
def no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked whether the chunk should stop."""
    monkeypatch.setattr(_Chunk, "_ask_owner", lambda self: None)


def outcome_of(body: Any) -> ToolOutcome:
    tools = type("Clerk", (Agent,), {"model": "m/m", "tools": [body]}).definition().tools
    (name,) = tools
    invocation = ToolInvocation("tc_1", name, {}, "a1", "ex1", 1)
    chunk = _Chunk({"tc_1": tools[name]}, [invocation], "phronomy", "here")
    items = [item for group in chunk.run() for item in group]
    (outcome,) = [item for item in items if isinstance(item, ToolOutcome)]
    return outcome


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
