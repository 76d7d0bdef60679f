"""A node that is cut off and comes back, and a node that is emptied before it goes away. At full size: each needs nodes of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ray_testbed import effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench, in_background
from ray_testbed.session import SPOT, Session

from phronomy_ray import Dedicated
from phronomy_ray.testing import processes

Names = Callable[[str], str]


@pytest.mark.full
def test_agents_leave_a_node_that_is_drained_and_wake_elsewhere(
    bench: Bench, shared: Session, new_id: Names
) -> None:
    runtime = bench.runtime(placement=Dedicated(resources={SPOT: 1}))
    names = [new_id("guest") for _ in range(3)]
    at = {name: runtime.create(Puppet, name).status() for name in names}
    homes = {shared.cluster.node_of_pid(status["pid"]).name for status in at.values()}
    assert len(homes) == 1, "Ray fills one node before it takes the next"
    [home] = homes
    idle, human, worker = names
    shared.add_worker()  # where they go
    asked_for = runtime.agent(human).start(turn([("send", {"text": "x"})]))
    assert asked_for.wait("suspended", timeout=PATIENCE_S).suspended
    gate = new_id("gate")
    working = runtime.agent(worker).start(turn([("linger", {"gate": gate})]))
    until_recorded(worker, "linger")
    node_id = shared.cluster.node(home).node_id
    first = runtime.drain_node(node_id[:12], timeout=6)
    assert first.left == (worker,), "the one that works is told of"
    assert {f"agent:{idle}", f"agent:{human}"} <= set(first.moved)
    assert first.ray_refusal == ""
    effects.open_gate(gate)
    assert working.result(timeout=PATIENCE_S).output == "done"
    assert runtime.agent(idle).invoke("where?", timeout=PATIENCE_S).output == "you said: where?"
    [request] = runtime.pending_approvals()
    runtime.approve(request.execution_id, request.approval_request_id)
    assert asked_for.result(timeout=PATIENCE_S).output == "done"
    for name in (idle, human):
        pid = runtime.agent(name).status()["pid"]
        assert shared.cluster.node_of_pid(pid).name != home
    effects.until(
        lambda: not processes.is_alive(at[worker]["pid"]), "the worker to leave when its work is done"
    )
    after = runtime.agent(worker).status()
    assert shared.cluster.node_of_pid(after["pid"]).name != home
    assert after["epoch"] > at[worker]["epoch"]


@pytest.mark.full
@pytest.mark.parametrize("engine", ["postgres"])
def test_R07_a_node_that_was_cut_off_and_comes_back_commits_nothing(
    bench: Bench, shared: Session, new_id: Names
) -> None:
    """The owner goes on working on its side of the cut, and offers its answer while another one has the agent."""
    runtime = bench.runtime(placement=Dedicated(resources={SPOT: 1}))
    agent = runtime.create(Puppet, new_id("alice"))
    before = agent.status()
    home = shared.cluster.node_of_pid(before["pid"]).name
    shared.add_worker()  # where the next owner can live
    gate = new_id("gate")
    handle = agent.start(turn([("pay", {"amount": 1})], model_gates={2: gate}))
    until_recorded(agent.agent_id, "pay")
    waiting = in_background(lambda: handle.result(PATIENCE_S))
    shared.cluster.cut_off(home)
    try:
        effects.until(
            lambda: runtime.store.load_root(agent.agent_id).epoch > before["epoch"], "the next owner"
        )
        assert processes.is_alive(before["pid"]), "the former one is there all the time"
        effects.open_gate(gate)  # now both have an answer to commit
        assert waiting.result(PATIENCE_S).output == "done"
        successor = agent.status()
        # the former one has heard that its commit was refused, and leaves: itself, and not the actor, which is its successor now
        assert not processes.wait_dead([before["pid"]], timeout_s=PATIENCE_S), "the stale owner ends"
        assert agent.status()["pid"] == successor["pid"]
        position = runtime.store.load_root(agent.agent_id).journal_position
    finally:
        shared.cluster.reconnect(home)
    root = runtime.store.load_root(agent.agent_id)
    assert root.journal_position == position
    assert (root.epoch, root.owner["pid"]) == (successor["epoch"], successor["pid"])
    assert len(recorded(agent.agent_id, "pay")) == 1
    finals = [message.content for message in agent.transcript_messages() if message.content == "done"]
    assert len(finals) == 1
    assert agent.invoke("still there?", timeout=PATIENCE_S).output == "you said: still there?"
