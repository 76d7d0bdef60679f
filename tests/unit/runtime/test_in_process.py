"""Agents in the driver's own process: the placement suite, and what only such a driver can do. No Ray is started."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session
from ray_testbed import checks, effects
from ray_testbed.agents import Puppet, Swimmer, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import in_background
from ray_testbed.placement_suite import PlacementSuite

from phronomy_ray import AgentHandle, InProcess, Packed, Runtime
from phronomy_ray.errors import (
    AgentBusyError,
    ExecutionRehydrationRequiredError,
    NotFoundError,
    RuntimeShutdownError,
)
from phronomy_ray.store.sql_store import open_store

Names = Callable[[str], str]


class PackedPuppet(Puppet):
    """Wants to live in a host."""

    definition_id = "packed-puppet"
    placement = Packed()


class InThisProcess:
    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[Runtime] = []
        self.runtime = self.open()

    def open(self, **options: Any) -> Runtime:
        made = Runtime(placement=InProcess(**options), store=self.url)
        self._made.append(made)
        return made

    def lose(self, agent: AgentHandle) -> AgentHandle:
        """Another driver takes it: the first owner's commits are refused from now on."""
        return self.open().load(Puppet, agent.agent_id)

    def close(self) -> None:
        for made in self._made:
            made.close()
        store = open_store(self.url)
        for root in store.list_agents():
            checks.check_agent(store, root.agent_id)
        store.close()


@pytest.fixture
def home(sqlite_template: Path, tmp_path: Path) -> Iterator[InThisProcess]:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    made = InThisProcess(f"sqlite:///{tmp_path}/agents.db")
    yield made
    made.close()


@pytest.fixture
def new_id() -> Names:
    return ray_testbed.session.fresh_name


class TestInProcess(PlacementSuite):
    def wait_for(self, reference: Any) -> dict[str, object]:
        answer: dict[str, object] = reference.result(PATIENCE_S)
        return answer


def test_work_for_the_cpu_and_programs_run_in_process_too(home: InThisProcess, new_id: Names) -> None:
    agent = home.runtime.create(Swimmer, new_id("modes"))
    batch = [("count_primes", {"limit": 50}), ("program", {"name": new_id("program"), "seconds": 0})]
    result = agent.invoke(turn(batch))
    told = [str(message.content) for message in result.messages if message.role.value == "tool"]
    assert told[0] == "15"
    assert "begun" in told[1]


def test_what_runs_when_the_driver_leaves_goes_on_with_the_next(home: InThisProcess, new_id: Names) -> None:
    agent = home.runtime.create(Puppet, new_id("left"))
    gate = new_id("gate")
    handle = agent.start(turn([("linger", {"gate": gate})], answer="went on"))
    effects.until_recorded(agent.agent_id, "linger")
    home.runtime.close()
    with pytest.raises(RuntimeShutdownError):
        agent.status()
    effects.open_gate(gate)
    assert home.open().execution(handle.execution_id).result(timeout=PATIENCE_S).output == "went on"


def test_a_driver_that_is_killed_loses_nothing(home: InThisProcess, new_id: Names) -> None:
    agent_id, gate = new_id("killed"), new_id("gate")
    script = f"""
from phronomy_ray import InProcess, Runtime
from ray_testbed.agents import Puppet, Swimmer, turn
runtime = Runtime(placement=InProcess(), store={home.url!r})
agent = runtime.create(Puppet, {agent_id!r})
agent.invoke("first")
agent.invoke(turn([("hold_never", {{"gate": {gate!r}}}), ("note", {{"text": "n"}})]), execution_id="ex-{agent_id}")
"""
    importable = str(Path(__file__).resolve().parents[2] / "actors" / "importable")
    path = os.pathsep.join([importable, *filter(None, [os.environ.get("PYTHONPATH")])])
    driver = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path})
    try:
        effects.until_recorded(agent_id, "hold_never")
        effects.until_recorded(agent_id, "note")
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    agent = home.runtime.load(Puppet, agent_id)
    handle = agent.execution(f"ex-{agent_id}")
    waiting = handle.wait("suspended", timeout=PATIENCE_S)
    (unknown,) = waiting.unresolved
    assert unknown.tool_name == "hold_never", "the note is told or noted again, the other one is asked about"
    agent.resolve(handle.execution_id, unknown.tool_call_id, "succeeded", result="it was held")
    assert handle.result(timeout=PATIENCE_S).output == "done"
    assert len(effects.recorded(agent_id, "hold_never")) == 1
    assert agent.transcript_messages()[1].content == "you said: first"


def test_whoever_waits_at_an_owner_that_has_lost_the_agent_goes_on_waiting(
    home: InThisProcess, new_id: Names
) -> None:
    agent = home.runtime.create(Puppet, new_id("taken"))
    gate = new_id("gate")
    handle = agent.start(turn([("linger", {"gate": gate})], answer="waited for"))
    waiting = in_background(lambda: handle.result(PATIENCE_S))
    events = in_background(lambda: [event.type.value for event in handle.events()])
    effects.until_recorded(agent.agent_id, "linger")
    other = home.open().load(Puppet, agent.agent_id)
    effects.until_recorded(agent.agent_id, "linger", 2)
    effects.open_gate(gate)
    assert other.execution(handle.execution_id).result(timeout=PATIENCE_S).output == "waited for"
    assert waiting.result(PATIENCE_S).output == "waited for"
    assert events.result(PATIENCE_S)[-1] == "completed"
    assert agent.invoke("mine again").output == "you said: mine again"


def test_the_least_recently_used_leave_when_there_are_too_many(home: InThisProcess, new_id: Names) -> None:
    runtime = home.open(max_live_agents=3)
    agents = [runtime.create(Puppet, new_id("crowd")) for _ in range(6)]
    effects.until(
        lambda: sum(runtime.get(agent.agent_id) is not None for agent in agents) <= 3, "three to have left"
    )
    assert runtime.get(agents[-1].agent_id) is not None
    assert runtime.get(agents[0].agent_id) is None
    assert agents[0].invoke("still there?").output == "you said: still there?"


def test_an_unused_agent_leaves_by_itself(home: InThisProcess, new_id: Names) -> None:
    runtime = home.open(idle_unload_after_s=0.4)
    agent = runtime.create(Puppet, new_id("unused"))
    effects.until(lambda: runtime.get(agent.agent_id) is None, "it to leave")
    assert agent.invoke("back").output == "you said: back"


def test_a_shutdown_waits_for_what_works_and_for_nothing_else(home: InThisProcess, new_id: Names) -> None:
    runtime = home.runtime
    idle, human, worker = (runtime.create(Puppet, new_id(word)) for word in ("idle", "human", "worker"))
    waiting = human.start(turn([("send", {"text": "x"})]))
    waiting.wait("suspended", timeout=PATIENCE_S)
    gate = new_id("gate")
    handle = worker.start(turn([("linger", {"gate": gate})]))
    effects.until_recorded(worker.agent_id, "linger")
    queued = worker.start("later", on_busy="queue")
    told: list[str] = []

    async def hook() -> None:
        told.append("clean")

    runtime.on_shutdown(hook)
    result = in_background(lambda: runtime.shutdown(drain=PATIENCE_S))
    effects.until(lambda: runtime.is_shut_down and runtime.get(idle.agent_id) is None, "idle agents to leave")
    assert not result.done(), "it waits for the one that works"
    with pytest.raises(RuntimeShutdownError):
        worker.start("more")
    with pytest.raises(RuntimeShutdownError):
        runtime.create(Puppet, new_id("late"))
    effects.open_gate(gate)
    assert result.result(PATIENCE_S).is_clean
    assert told == ["clean"]
    assert runtime.shutdown(drain=0) == result.result()
    assert runtime.get(worker.agent_id) is None
    assert handle.view().output == "done"
    assert queued.status().value == "queued", "it is left to the next runtime"
    with pytest.raises(ExecutionRehydrationRequiredError):
        queued.result(timeout=PATIENCE_S)
    (request,) = runtime.pending_approvals()
    later = home.open()
    later.approve(request.execution_id, request.approval_request_id)
    assert later.execution(waiting.execution_id).result(timeout=PATIENCE_S).output == "done"
    later.load(Puppet, worker.agent_id)
    assert later.execution(queued.execution_id).result(timeout=PATIENCE_S).output == "you said: later"


def test_a_shutdown_says_what_has_not_ended_in_time(home: InThisProcess, new_id: Names) -> None:
    agent = home.runtime.create(Puppet, new_id("slow"))
    gate = new_id("gate")
    agent.start(turn([("linger", {"gate": gate})]))
    effects.until_recorded(agent.agent_id, "linger")
    result = home.runtime.shutdown(drain=0.05)
    assert result.left == (f"agent {agent.agent_id}",)
    assert not result.is_clean
    effects.open_gate(gate)


def test_a_shutdown_is_one_from_every_thread_and_loop(home: InThisProcess, new_id: Names) -> None:
    agent = home.runtime.create(Puppet, new_id("slow"))
    gate = new_id("gate")
    agent.start(turn([("linger", {"gate": gate})]))
    effects.until_recorded(agent.agent_id, "linger")

    async def give_up() -> None:
        await asyncio.wait_for(home.runtime.shutdown_async(drain=PATIENCE_S), 0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())  # its loop ends, the shutdown does not
    blocked = in_background(lambda: home.runtime.shutdown(drain=0))
    other_loop = in_background(lambda: asyncio.run(home.runtime.shutdown_async(drain=0)))
    effects.open_gate(gate)
    assert blocked.result(PATIENCE_S) is other_loop.result(PATIENCE_S)
    assert blocked.result().is_clean


def test_a_class_that_wants_hosts_lives_in_process_all_the_same(home: InThisProcess, new_id: Names) -> None:
    agent = home.runtime.create(PackedPuppet, new_id("packed"))
    assert agent.status()["actor"] == "in-process"
    with pytest.raises(NotFoundError, match="in the driver's own process"):
        home.runtime.drain_host("host:0")


def test_ray_is_not_even_imported(home: InThisProcess) -> None:
    script = (
        "import sys; from phronomy_ray import InProcess, Runtime\n"
        f"with Runtime(placement=InProcess(), store={home.url!r}): pass\n"
        "assert not {'ray', 'litellm'} & set(sys.modules), 'too much is imported'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_former_owner_does_not_say_that_nothing_runs(home: InThisProcess, new_id: Names) -> None:
    agent = home.runtime.create(Puppet, new_id("taken"))
    other = home.open().load(Puppet, agent.agent_id)
    gate = new_id("gate")
    handle = other.start(turn([("linger", {"gate": gate})]))
    effects.until_recorded(agent.agent_id, "linger")
    assert agent.unload() is False, "there was nothing left of it here"
    with pytest.raises(AgentBusyError):
        other.unload()
    effects.open_gate(gate)
    assert handle.result(timeout=PATIENCE_S).output == "done"
    assert other.unload() is True
