"""A turn in one message: what a driver does when the answer is late or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from phronomy_ray.errors import WaitTimeoutError
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.hosting.agent_port import NoAnswer
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.messages import Usage
from phronomy_ray.results import RunResult
from phronomy_ray.runtime.starting import run_execution


def result(status: ExecutionStatus) -> RunResult:
    return RunResult("a", "ex1", status, "done", Usage(), 1)


class Agent(AgentClient):
    """Answers in this order, and notes what it is asked."""

    def __init__(self, *answers: Any, later: Sequence[RunResult | None] = ()) -> None:
        self.answers = list(answers)
        self.later = list(later)
        self.asked: list[tuple[str, Any]] = []

    async def live(self) -> Any:
        return self

    async def ask(self, live: Any, method: str, *args: Any, timeout_s: float) -> Any:
        self.asked.append((method, args[1] if method == "invoke" else args[0]))
        return self.answers.pop(0)

    async def call(self, method: str, *args: Any, timeout_s: float = 0.0) -> Any:
        return await self.ask(self, method, *args, timeout_s=timeout_s)

    async def wait_once(self, execution_id: str, until: str, seconds: float) -> RunResult | None:
        self.asked.append((until, execution_id))
        return self.later.pop(0)


def run(agent: Agent, timeout_s: float | None = None) -> RunResult:
    return asyncio.run(
        run_execution(agent, "ex1", "hello", durable_context=None, on_busy=None, timeout_s=timeout_s)
    )


@pytest.mark.parametrize("status", [ExecutionStatus.COMPLETED, ExecutionStatus.SUSPENDED])
def test_a_short_turn_is_one_message(status: ExecutionStatus) -> None:
    agent = Agent(result(status).to_wire())
    assert run(agent).status is status
    assert agent.asked == [("invoke", "ex1")]


def test_a_long_turn_is_waited_for() -> None:
    agent = Agent(
        result(ExecutionStatus.ACTIVE).to_wire(), later=[None, None, result(ExecutionStatus.COMPLETED)]
    )
    assert run(agent).status is ExecutionStatus.COMPLETED
    assert agent.asked == [("invoke", "ex1"), *[("suspended", "ex1")] * 3]


@pytest.mark.parametrize("lost", list(NoAnswer))
def test_after_a_lost_answer_it_is_started_again_by_its_id(lost: NoAnswer) -> None:
    agent = Agent(lost, result(ExecutionStatus.ACTIVE).to_wire(), later=[result(ExecutionStatus.COMPLETED)])
    assert run(agent).status is ExecutionStatus.COMPLETED
    assert agent.asked == [("invoke", "ex1"), ("start", "ex1"), ("suspended", "ex1")]


def test_without_time_it_is_started_all_the_same() -> None:
    agent = Agent(result(ExecutionStatus.ACTIVE).to_wire())
    with pytest.raises(WaitTimeoutError, match="after 0 s"):
        run(agent, timeout_s=0)
    assert agent.asked == [("invoke", "ex1")]
