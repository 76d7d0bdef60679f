"""A node dies with everything on it, and an owner that was taken for dead comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray_testbed import effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench, in_background
from ray_testbed.session import SPOT, Session

from phronomy_ray import AgentHandle, Dedicated, Runtime
from phronomy_ray.errors import OwnershipLostError
from phronomy_ray.faults import write_plan
from phronomy_ray.hosting.assignment import agent_actor_name
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing import processes

Names = Callable[[str], str]


def test_a_batch_goes_on_after_its_node_is_lost_without_anybody_loading(
    bench: Bench, shared: Session, new_id: Names
) -> None:
    """The actor and its tools run on the node that dies; a handle that waits is all that is left."""
    runtime = bench.runtime(placement=Dedicated(resources={SPOT: 1}))
    agent = runtime.create(Puppet, new_id("alice"))
    before = agent.status()
    home = shared.cluster.node_of_pid(before["pid"])
    gate = new_id("gate")
    handle = agent.start(
        turn(
            [
                ("pay", {"amount": 1}),
                ("note", {"text": "early"}),
                ("hold", {"gate": gate}),
                ("linger", {"gate": gate}),
            ]
        )
    )
    until_recorded(agent.agent_id, "hold", attempt=1)
    until_recorded(agent.agent_id, "linger")
    effects.until(
        lambda: sum(row.status == "succeeded" for row in runtime.store.tool_calls(handle.execution_id)) == 2,
        "the quick results to be committed",
    )
    shared.add_worker()  # the only other node that may take the agent
    waiting = in_background(lambda: handle.result(PATIENCE_S))
    reading = in_background(lambda: [event for event in handle.events() if event.durable])
    killed = shared.cluster.kill_node(home.node_id)
    assert before["pid"] in killed.pids
    until_recorded(agent.agent_id, "linger", 2)
    effects.open_gate(gate)
    result = waiting.result(PATIENCE_S)
    events = reading.result(PATIENCE_S)
    assert result.output == "done"
    [recovery] = [event for event in events if event.type == "recovered"]
    assert recovery.payload["node"] != before["node"]
    after = agent.status()
    assert shared.cluster.node_of_pid(after["pid"]).node_id != home.node_id
    assert after["epoch"] > before["epoch"]
    answers = [message.content for message in result.messages if message.role == "tool"]
    assert answers == ["paid 1", "noted early", "held", "lingered"]
    assert len(recorded(agent.agent_id, "pay")) == 1, "a committed result is not run for again"
    assert len(recorded(agent.agent_id, "note")) == 1


@pytest.mark.parametrize("engine", [pytest.param("sqlite", marks=pytest.mark.full), "postgres"])
def test_R07_an_owner_that_was_stopped_and_comes_back_cannot_commit_and_ends(
    bench: Bench, runtime: Runtime, new_id: Names
) -> None:
    """The owner is stopped between two steps with work in hand; another one takes the agent and finishes its turn."""
    agent = runtime.create(Puppet, new_id("alice"))
    gate = new_id("gate")
    handle = agent.start(turn([("hold", {"gate": gate})], answer="by the second owner"))
    until_recorded(agent.agent_id, "hold", attempt=1)
    stale = agent.status()
    os.kill(stale["pid"], signal.SIGSTOP)
    try:
        second = second_owner(bench, agent)
        effects.until(
            lambda: (ray.get(second.status.remote(), timeout=PATIENCE_S)["epoch"] or 0) > stale["epoch"],
            "the second owner",
        )
        effects.open_gate(gate)
        assert (
            ray.get(second.result.remote(handle.execution_id), timeout=PATIENCE_S)["output"]
            == "by the second owner"
        )
        epoch = ray.get(second.status.remote(), timeout=PATIENCE_S)["epoch"]
        assert epoch > stale["epoch"]
    finally:
        os.kill(stale["pid"], signal.SIGCONT)
    # the old owner hears that the call is another's, or of its end; what it commits is refused, and it goes
    assert not processes.wait_dead([stale["pid"]], timeout_s=PATIENCE_S), "the stale owner is still there"
    root = runtime.store.load_root(agent.agent_id)
    assert root.epoch == epoch
    assert runtime.store.load_execution(handle.execution_id).output == "by the second owner"
    [row] = runtime.store.tool_calls(handle.execution_id)
    assert row.attempt == 1, "the second owner took the call that ran in the pool"
    assert len(recorded(agent.agent_id, "hold")) == 1
    ray.kill(second)
    assert agent.invoke("who owns you?", timeout=PATIENCE_S).output == "you said: who owns you?"


@pytest.mark.parametrize("engine", ["postgres"])
def test_R07_callers_of_a_stale_owner_are_told_and_served_by_its_successor(
    bench: Bench, runtime: Runtime, faults: Any, new_id: Names
) -> None:
    """The owner is paused with its commit in hand while the agent is claimed behind its back."""
    agent = runtime.create(Puppet, new_id("alice"))
    actor = agent.actor()
    pid = agent.status()["pid"]
    reached = write_plan(faults, agent.agent_id, point="before_commit:admit", action="pause")
    execution_id = "ex-" + new_id("paused")
    starting = actor.start.remote(execution_id, "hello")
    effects.until(reached.exists, "the owner to hold its commit")
    other = open_store(bench.store)
    try:
        other.claim(
            agent.agent_id, owner={"pid": os.getpid()}, now=runtime.store.load_root(agent.agent_id).updated_at
        )
    finally:
        other.close()
    reached.with_suffix(".release").touch()
    with pytest.raises((OwnershipLostError, ray.exceptions.RayActorError)):
        ray.get(starting, timeout=PATIENCE_S)
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    assert runtime.store.find_execution(execution_id) is None
    assert agent.start("hello", execution_id=execution_id).result(PATIENCE_S).output == "you said: hello"


def second_owner(bench: Bench, agent: AgentHandle) -> Any:
    """An actor that owns the same agent under another name: what a lost node or a torn network makes of one."""
    from phronomy_ray.actors.agent_actor import AgentActor
    from phronomy_ray.hosting.wiring import DefinitionSource

    wiring = bench.runtime().config.wiring(DefinitionSource(Puppet.definition().class_path))
    actor = (
        ray.remote(AgentActor)
        .options(
            name=f"second-{agent_actor_name(agent.agent_id)}",
            namespace="phronomy",
            lifetime="detached",  # else Ray drops it, in a process that was a driver of this cluster before
            num_cpus=0,
            max_concurrency=100,
        )
        .remote(agent.agent_id, wiring)
    )
    ray.get(actor.activate.remote(), timeout=PATIENCE_S)
    return actor
