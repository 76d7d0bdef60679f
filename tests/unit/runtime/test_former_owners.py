"""What a driver is told by an owner that has lost its agent without knowing it: nothing of the past. No Ray is started."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S

from phronomy_ray import AgentHandle, InProcess, Runtime
from phronomy_ray.journal import ExecutionStatus


class Drivers:
    """The former owner of an agent, and the one that has taken it since; the former one has heard of nothing."""

    def __init__(self, url: str) -> None:
        self.runtimes = [Runtime(placement=InProcess(), store=url) for _ in range(2)]
        self.agent_id = ray_testbed.session.fresh_name("taken")
        self.former = self.runtimes[0].create(Puppet, self.agent_id)

    def take(self) -> AgentHandle:
        """The present owner's handle."""
        return self.runtimes[1].load(Puppet, self.agent_id)

    def close(self) -> None:
        for runtime in self.runtimes:
            runtime.close()


@pytest.fixture
def drivers(sqlite_template: Path, tmp_path: Path) -> Iterator[Drivers]:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    made = Drivers(f"sqlite:///{tmp_path}/agents.db")
    yield made
    made.close()


def test_a_cancellation_at_a_former_owner_is_one(drivers: Drivers) -> None:
    """It knows nothing of the execution, so it must not say that there is nothing to cancel."""
    waiting = drivers.take().start(turn([("send", {"text": "x"})]))
    assert waiting.wait("suspended", PATIENCE_S).suspended
    result = drivers.former.cancel(waiting.execution_id, "changed my mind")
    assert result.status is ExecutionStatus.CANCELLED
    assert drivers.runtimes[1].store.load_execution(waiting.execution_id).status is ExecutionStatus.CANCELLED


def test_a_former_owner_does_not_unload_the_agent(drivers: Drivers) -> None:
    """Its memory says that nothing works: it frees itself, and says that there was no process of the agent to free."""
    present = drivers.take()
    assert not drivers.former.unload()
    assert present.unload()


def test_whoever_waits_at_a_former_owner_hears_of_the_end(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.hosting.agent_client.SLICE_S", 0.2)
    monkeypatch.setattr("phronomy_ray.runtime.execution_handle.SLICE_S", 0.2, raising=False)
    handle = drivers.former.start(turn([("send", {"text": "x"})]))
    request = handle.wait("suspended", PATIENCE_S).approvals[0]
    present = drivers.take()
    present.approve(handle.execution_id, request.approval_request_id)
    assert present.execution(handle.execution_id).result(PATIENCE_S).output == "done"
    assert handle.result(PATIENCE_S).output == "done"


def test_a_former_owner_does_not_say_that_a_human_is_waited_for(drivers: Drivers) -> None:
    handle = drivers.former.start(turn([("send", {"text": "x"})]))
    request = handle.wait("suspended", PATIENCE_S).approvals[0]
    present = drivers.take()
    present.approve(handle.execution_id, request.approval_request_id)
    assert present.execution(handle.execution_id).result(PATIENCE_S).output == "done"
    assert not drivers.former.resume(handle.execution_id).suspended
    assert handle.wait("suspended", PATIENCE_S).output == "done"


def test_a_former_owner_does_not_say_that_there_is_no_such_request(drivers: Drivers) -> None:
    handle = drivers.former.start(turn([("send", {"text": "x"})], [("send", {"text": "y"})]))
    first = handle.wait("suspended", PATIENCE_S).approvals[0]
    present = drivers.take()
    present.approve(handle.execution_id, first.approval_request_id)
    second = present.execution(handle.execution_id).wait("suspended", PATIENCE_S).approvals[0]
    drivers.former.approve(handle.execution_id, second.approval_request_id)
    assert present.execution(handle.execution_id).result(PATIENCE_S).output == "done"
