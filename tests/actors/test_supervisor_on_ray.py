"""The supervisor on a real cluster: it replaces an owner that hangs, wakes what nobody owns, and comes back itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray
from ray_testbed import effects
from ray_testbed.agents import Puppet, asked, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import Bench, kill_actor

from phronomy_ray import AgentHandle, Callback, Dedicated, Packed
from phronomy_ray.actors.ray_population import RayPopulation
from phronomy_ray.hosting.wiring import DefinitionSource
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.supervision.crowd import LiveOne
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.testing import processes

#: Impatient, so that the test is short.
LIMITS = SupervisionLimits(look_every_s=0.2, hung_after_s=1.5, answer_timeout_s=0.4, first_retry_s=0.2)


def test_a_hung_owner_is_replaced_and_what_nobody_owns_is_woken_also_by_a_new_supervisor(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    runtime = bench.runtime(supervisor=LIMITS)
    store = runtime.store
    gate = new_id("gate")

    def interrupted(word: str) -> tuple[AgentHandle, str, dict[str, Any]]:
        """An agent in the middle of a model call, which waits for the gate."""
        agent = runtime.create(Puppet, new_id(word))
        handle = agent.start(turn(answer=f"by {word}", model_gates={1: gate}))
        effects.until(lambda: bool(asked(agent.agent_id)), "the model call")
        return agent, handle.execution_id, agent.status()

    def goes_on(agent: AgentHandle, before: dict[str, Any]) -> None:
        """Wait for the next owner, without asking for it."""
        effects.until(lambda: store.load_root(agent.agent_id).epoch > before["epoch"], "the next owner")
        assert store.load_root(agent.agent_id).owner["pid"] != before["pid"]

    def ended(execution_id: str) -> None:
        effects.until(
            lambda: store.load_execution(execution_id).status is ExecutionStatus.COMPLETED, "the end"
        )

    try:
        hung, hung_execution, stale = interrupted("hung")
        os.kill(stale["pid"], signal.SIGSTOP)
        try:
            goes_on(hung, stale)
        finally:
            if processes.is_alive(stale["pid"]):
                os.kill(stale["pid"], signal.SIGCONT)
        assert not processes.wait_dead([stale["pid"]], timeout_s=PATIENCE_S)
        [report] = runtime.supervisor_report() or []
        assert report["counts"]["ended_processes"] == 1
        assert report["cluster"] == store.load_root(hung.agent_id).owner["cluster"]

        processes.kill_hard([report["pid"]])
        lost, lost_execution, before = interrupted("lost")
        kill_actor(lost.agent_id)  # for good: Ray does not start it again
        goes_on(lost, before)
        effects.until(lambda: bool(runtime.supervisor_report()), "the next supervisor")
        [again] = runtime.supervisor_report() or []
        assert again["pid"] != report["pid"]

        effects.open_gate(gate)
        ended(hung_execution)
        ended(lost_execution)
        places = replace(runtime.config.wiring(DefinitionSource("")), placement=Dedicated(max_live_agents=1))
        crowd = {one.agent_id: one for one in asyncio.run(crowd_of(RayPopulation(places, store)))}
        assert crowd[hung.agent_id].may_leave
        assert crowd[hung.agent_id].idle_s > 0
        hung.unload()
        supervisor = ray.get_actor("supervisor", namespace="phronomy")
        where = ray.get(supervisor.activate.remote(hung.agent_id), timeout=PATIENCE_S)
        actor = ray.get_actor(where["actor"], namespace="phronomy")
        assert ray.get(actor.status.remote())["lifecycle"] == "idle"
        taken = {
            event.payload["epoch"] for event in store.events(hung_execution) if event.type == "recovered"
        }
        assert taken == {stale["epoch"] + 1}, "one new owner has gone on with it"
    finally:
        asyncio.run(no_supervisor())


async def crowd_of(population: RayPopulation) -> list[LiveOne]:
    return await population.crowd() or []


async def no_supervisor() -> None:
    """Leave none behind: it would wake what other tests leave."""
    try:
        ray.kill(ray.get_actor("supervisor", namespace="phronomy"))
    except ValueError:
        return


def test_agents_of_a_host_that_dies_go_on(bench: Bench, new_id: Callable[[str], str]) -> None:
    """Ray starts the host again, and it knows of nobody: only the store does. Somebody wants to hear of their ends."""
    patient = replace(
        LIMITS, hung_after_s=60.0
    )  # the new process of the host may take its time on a busy machine
    runtime = bench.runtime(supervisor=patient, placement=Packed(hosts=1))
    gate = new_id("gate")
    executions, agents = [], []
    hook = runtime.subscriptions.add(Callback(function="ray_testbed.effects:told", events=["completed"]))
    try:
        for word in ("ann", "ben"):
            agent = runtime.create(Puppet, new_id(word))
            agents.append(agent.agent_id)
            executions.append(agent.start(turn(answer="done", model_gates={1: gate})).execution_id)
            effects.until(lambda name=agent.agent_id: bool(asked(name)), "the model call")
        effects.until(lambda: bool(runtime.supervisor_report()), "the supervisor")
        processes.kill_hard([agent.status()["pid"]])
        effects.open_gate(gate)
        effects.until(
            lambda: all(runtime.store.load_execution(name).output == "done" for name in executions), "the end"
        )
        [report] = runtime.supervisor_report() or []
        assert report["counts"]["wakes"] == 2
        assert report["counts"]["ended_processes"] == 0
        for agent_id in agents:
            [told] = effects.until_recorded(agent_id, "told")
            assert (told["type"], told["pid"]) == ("completed", report["pid"]), "the supervisor delivers"
    finally:
        runtime.subscriptions.remove(hook.subscription_id)
        asyncio.run(no_supervisor())
        kill_host()


def kill_host() -> None:
    """End the host: it is of this test's store."""
    try:
        ray.kill(ray.get_actor("host:0", namespace="phronomy"))
    except ValueError:
        return
