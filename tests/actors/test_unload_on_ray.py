"""Agents that nobody uses give up their processes by themselves, and are woken by whoever comes next."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import Bench

from phronomy_ray import Dedicated, Runtime
from phronomy_ray.testing import processes

Names = Callable[[str], str]


@pytest.fixture
def runtime(bench: Bench) -> Runtime:
    return bench.runtime(placement=Dedicated(idle_unload_after_s=1.0, suspended_unload_after_s=0.4))


def test_an_unused_agent_goes_and_comes_back(runtime: Runtime, new_id: Names) -> None:
    agent = runtime.create(Puppet, new_id("idle"))
    assert agent.invoke("one").output == "you said: one"
    pid = agent.status()["pid"]
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    assert runtime.get(agent.agent_id) is None
    handle = agent.start(turn([("send", {"text": "x"})]))
    assert handle.wait("suspended", timeout=PATIENCE_S).suspended
    second = agent.status()["pid"]
    assert second != pid
    assert not processes.wait_dead([second], timeout_s=PATIENCE_S), "it waits for a human without a process"
    later = agent.start("two", on_busy="queue")
    (request,) = agent.pending_approvals()
    agent.approve(handle.execution_id, request.approval_request_id)
    assert handle.result(timeout=PATIENCE_S).output == "done"
    assert later.result(timeout=PATIENCE_S).output == "you said: two"
