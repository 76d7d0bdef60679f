"""A hosted run on a cluster: the agent's process goes with the detach, and another one goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ray_testbed import effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S

from phronomy_ray import CancellationToken, RunResult, Runtime
from phronomy_ray.errors import DeadlineExceededError
from phronomy_ray.testing import processes

Names = Callable[[str], str]


@pytest.mark.full
def test_an_execution_changes_hands_twice(runtime: Runtime, new_id: Names) -> None:
    agent = runtime.create(Puppet, new_id("hosted"))
    message = turn([("send", {"text": "one"})], [("send", {"text": "two"})], answer="both sent")
    run = runtime.start_hosted(agent.reserve(), message)
    pids = []
    for _ in range(2):
        state = agent.execution(run.execution_id).wait("suspended", timeout=PATIENCE_S)
        assert state.approval is not None
        pids.append(agent.status()["pid"])
        wait = run.detach(state.approval.approval_request_id)
        assert not processes.wait_dead([pids[-1]], timeout_s=PATIENCE_S)
        assert runtime.get(agent.agent_id) is None
        assert runtime.approval_wait(agent.agent_id, run.execution_id) == wait == run.result()
        run = runtime.agent(agent.agent_id).approve_hosted(wait.execution_id, wait.approval_request_id)
    result = run.result(timeout=PATIENCE_S)
    assert isinstance(result, RunResult)
    assert result.output == "both sent"
    assert len(set(pids)) == 2
    assert [item["text"] for item in effects.recorded(agent.agent_id, "send")] == ["one", "two"]
    with pytest.raises(DeadlineExceededError):
        agent.invoke(
            turn([("hold", {"gate": new_id("gate")})]), cancellation=CancellationToken(timeout_s=0.5)
        )
