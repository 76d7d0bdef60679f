"""Agents with a process of their own, and packed into hosts: the placement suite on Ray, and what only hosts do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray_testbed import effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import Bench, in_background
from ray_testbed.placement_suite import PlacementSuite
from ray_testbed.session import Session

from phronomy_ray import AgentHandle, Dedicated, Packed, Runtime
from phronomy_ray.errors import AgentBusyError, HostClosedError, NotFoundError
from phronomy_ray.hosting.assignment import host_names
from phronomy_ray.hosting.rendezvous import ranked

Names = Callable[[str], str]


class Clerk(Puppet):
    placement = Packed(hosts=3)


def _in_host(new_id: Names, host: str) -> str:
    """An id that belongs to one of the hosts of `Clerk`."""
    return next(
        name
        for name in (new_id("clerk") for _ in range(1_000))
        if ranked(name, host_names(Packed(hosts=3)))[0] == host
    )


class RayPlace:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def lose(self, agent: AgentHandle) -> AgentHandle:
        os.kill(agent.status()["pid"], signal.SIGKILL)
        return agent


class OnRay(PlacementSuite):
    def wait_for(self, reference: Any) -> dict[str, object]:
        answer: dict[str, object] = ray.get(reference, timeout=PATIENCE_S)
        return answer


@pytest.fixture(scope="module")
def module_bench(shared: Session) -> Iterator[Bench]:
    shared.connect()
    made = Bench(shared, "sqlite")
    yield made
    made.close()


@pytest.mark.full
class TestDedicated(OnRay):
    """At full size only: the files beside this one say the same of dedicated agents, and an actor each costs seconds."""

    @pytest.fixture
    def home(self, module_bench: Bench) -> RayPlace:
        return RayPlace(module_bench.runtime(placement=Dedicated()))


class TestPacked(OnRay):
    @pytest.fixture
    def home(self, module_bench: Bench) -> RayPlace:
        return RayPlace(module_bench.runtime(placement=Packed(hosts=2)))

    def test_moving_draining_and_sharing(self, home: RayPlace, module_bench: Bench, new_id: Names) -> None:
        runtime = home.runtime
        agents = [runtime.create(Puppet, new_id("many")) for _ in range(8)]
        homes = [agent.status()["actor"] for agent in agents]
        assert set(homes) == {"host:0", "host:1"}
        # a runtime that would give it an actor to itself uses it where it lives
        other = module_bench.runtime(placement=Dedicated())
        assert other.load(Puppet, agents[0].agent_id).status()["actor"] == homes[0]
        # one that works cannot be moved, and goes nowhere
        gate = new_id("gate")
        busy = agents[1].start(turn([("linger", {"gate": gate})]))
        effects.until_recorded(agents[1].agent_id, "linger")
        with pytest.raises(AgentBusyError):
            runtime.move(agents[1].agent_id, "dedicated")
        runtime.move(agents[0].agent_id, "dedicated")
        own = agents[0].status()
        assert own["actor"] == f"agent:{agents[0].agent_id}"
        runtime.move(agents[0].agent_id, None)
        assert agents[0].status()["actor"] == homes[0]
        # a host is emptied: who works stays until it has done, the others go elsewhere
        host = homes[1]
        report = runtime.drain_host(host, timeout=0.5)
        assert report.left == (agents[1].agent_id,)
        movers = [agent for agent, where in zip(agents, homes, strict=True) if where == host]
        movers.remove(agents[1])
        assert {agent.status()["actor"] for agent in movers} <= {"host:0", "host:1"} - {host}
        effects.open_gate(gate)
        assert busy.result(timeout=PATIENCE_S).output == "done"
        assert runtime.drain_host(host, timeout=PATIENCE_S).left == ()
        runtime.move(agents[2].agent_id, host)
        with pytest.raises(HostClosedError):
            agents[2].status()
        runtime.reopen_host(host)
        assert agents[2].status()["actor"] == host
        with pytest.raises(NotFoundError):
            runtime.drain_host("dedicated")
        # one whose class has hosts that this runtime has not, after the loss of its host: whoever knows but its id starts that host
        clerk = other.create(Clerk, _in_host(new_id, "host:2"))
        assert clerk.status()["actor"] == "host:2"
        os.kill(clerk.status()["pid"], signal.SIGKILL)
        assert other.agent(clerk.agent_id).status()["actor"] == "host:2"
        found = runtime.get(clerk.agent_id)
        assert found is not None
        assert found.status()["actor"] == "host:2"
        runtime.move(clerk.agent_id, "dedicated")
        assert other.agent(clerk.agent_id).status()["actor"] == f"agent:{clerk.agent_id}"


def test_a_namespace_is_shut_down_and_goes_on_later(module_bench: Bench, new_id: Names) -> None:
    namespace = new_id("space")
    runtime = module_bench.runtime(placement=Packed(), namespace=namespace)
    packed = runtime.create(Puppet, new_id("packed"))
    alone = module_bench.runtime(namespace=namespace).create(Puppet, new_id("alone"))
    gate = new_id("gate")
    handles = [agent.start(turn([("hold", {"gate": gate})])) for agent in (packed, alone)]
    for agent in (packed, alone):
        effects.until_recorded(agent.agent_id, "hold")
    result = in_background(lambda: runtime.shutdown(drain=PATIENCE_S))
    effects.until(lambda: runtime.is_shut_down, "admission to be closed")
    effects.open_gate(gate)
    assert result.result(PATIENCE_S).is_clean
    assert [handle.view().output for handle in handles] == ["done", "done"]

    def still_there() -> list[str]:
        actors = ray.util.list_named_actors(all_namespaces=True)
        return [entry["name"] for entry in actors if entry["namespace"] == namespace]

    effects.until(lambda: not still_there(), "every actor of the namespace to end")
    assert (
        module_bench.runtime(namespace=namespace).load(Puppet, alone.agent_id).invoke("on").output
        == "you said: on"
    )
    assert module_bench.runtime(namespace=namespace).shutdown(drain=PATIENCE_S).is_clean
