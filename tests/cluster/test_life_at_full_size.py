"""Faults of other runtimes about the life of agents, on a real cluster: what tests/unit/runtime plays in one process, at full size."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from ray_testbed import drives, effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench
from ray_testbed.session import Session

from phronomy_ray import Dedicated, Packed
from phronomy_ray.testing import processes

pytestmark = pytest.mark.full

Names = Callable[[str], str]


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as lines:
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def test_R02_work_goes_on_when_the_driver_with_the_only_handles_is_gone(
    bench: Bench, shared: Session, new_id: Names
) -> None:
    other = shared.driver(2)
    agent_id, gate = new_id("forgotten"), new_id("gate")
    other.run(drives.create, bench.store, Puppet, agent_id)
    script = turn([("note", {"text": "first"})], [("note", {"text": "second"})], model_gates={2: gate})
    other.run(drives.start, bench.store, agent_id, script, f"ex-{agent_id}")
    until_recorded(agent_id, "note", text="first")
    other.kill()
    gc.collect()
    effects.open_gate(gate)
    until_recorded(agent_id, "note", text="second")  # nobody holds a handle, and nobody has asked
    assert bench.runtime().execution(f"ex-{agent_id}").result(timeout=PATIENCE_S).output == "done"
    root = bench.runtime().store.load_root(agent_id)
    assert root.epoch == 1, "its process has lived on"
    assert len(recorded(agent_id, "note")) == 2


def test_R13_idle_agents_free_their_processes_and_their_memory(bench: Bench, new_id: Names) -> None:
    dedicated = bench.runtime(placement=Dedicated(idle_unload_after_s=2.0))
    alone = [dedicated.create(Puppet, new_id("alone")) for _ in range(6)]
    pids = [agent.status()["pid"] for agent in alone]
    assert [agent.invoke("one").output for agent in alone] == ["you said: one"] * 6
    assert not processes.wait_dead(pids, timeout_s=PATIENCE_S), "their processes are gone"
    packed = bench.runtime(placement=Packed(hosts=1, idle_unload_after_s=2.0))
    agents = [packed.create(Puppet, new_id("packed")) for _ in range(300)]
    for agent in agents:
        agent.invoke("one")
    host = agents[-1].status()
    assert host["actor"] == "host:0"
    count = lambda: packed.metrics()["hosts"]["host:0"]["agents"]  # noqa: E731
    effects.until(lambda: count() == 0, "all agents to leave the host")
    before = resident_kib(host["pid"])
    for round_ in range(3):
        for agent in agents[:100]:
            assert agent.invoke(f"again {round_}").output == f"you said: again {round_}"
        effects.until(lambda: count() == 0, "all agents to leave the host")
    assert resident_kib(host["pid"]) < before + 32 * 1024, "300 more turns have left nothing behind"
    assert alone[0].invoke("two").output == "you said: two"
    assert alone[0].transcript_messages()[0].content == "one"
