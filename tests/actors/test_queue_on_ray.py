"""Requests that wait for a busy agent, and those that interrupt it, through the death of its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import Bench

from phronomy_ray.errors import AgentBusyError, CancellationError, InvalidInputError
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.testing import processes

Names = Callable[[str], str]


def test_requests_wait_through_the_death_of_their_agent(bench: Bench, new_id: Names) -> None:
    runtime = bench.runtime()
    agent = runtime.create(Puppet, new_id("queued"))
    held = agent.start(turn([("send", {"text": "x"})]))
    assert held.wait("suspended", timeout=PATIENCE_S).suspended
    with pytest.raises(AgentBusyError):
        agent.start("two")
    with pytest.raises(InvalidInputError, match="on_busy"):
        agent.start("two", on_busy="later")
    second = agent.start("two", on_busy="queue")
    third = agent.start("three", on_busy="queue")
    gone = agent.start("gone", on_busy="queue")
    assert second.status() is ExecutionStatus.QUEUED
    assert [item.input for item in agent.queued_requests()] == ["two", "three", "gone"]
    assert gone.cancel("not needed").status is ExecutionStatus.CANCELLED
    with pytest.raises(CancellationError, match="before it began"):
        gone.result()
    assert [event.type.value for event in gone.events()] == ["cancelled"]

    assert agent.unload(), "a human is waited for, whatever waits behind"
    assert runtime.execution(third.execution_id).view().status is ExecutionStatus.QUEUED
    pid = agent.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    fourth = agent.start("four", on_busy="interrupt")
    assert fourth.result(timeout=PATIENCE_S).output == "you said: four"
    assert held.wait(timeout=PATIENCE_S).terminal_reason == "interrupted"
    types = [event.type.value for event in third.events()]
    assert (types[0], types[-1]) == ("started", "completed")
    assert second.result(timeout=PATIENCE_S).output == "you said: two"
    assert third.result(timeout=PATIENCE_S).output == "you said: three"
    assert agent.queued_requests() == []
