"""Assembled tools on real processes: the actor and the workers build their own registries and use the same tools."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ray_testbed import effects
from ray_testbed.agents import turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench
from ray_testbed.registries import BETTER_GATE, Capable

from phronomy_ray import RunResult


def answers(result: RunResult) -> list[str]:
    return [str(message.content) for message in result.messages if message.role == "tool"]


def test_a_capability_runs_in_a_worker_and_stays_the_same_when_its_actor_is_killed(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    gate = new_id("gate")
    runtime = bench.runtime(registry="ray_testbed.registries:registries")
    agent = runtime.create(Capable, new_id("capable"))
    batches = [
        [("work", {"text": "one", "gate": gate}), ("note", {"text": "noted"})],
        [("work", {"text": "two", "gate": gate})],
    ]
    handle = agent.start(turn(*batches), durable_context={"tenant": "t1"})
    until_recorded(agent.agent_id, "first", text="one")
    pid = agent.status()["pid"]
    assert all(item["pid"] != pid for item in recorded(agent.agent_id, "first")), "it runs in a worker"
    effects.open_gate(BETTER_GATE)
    os.kill(pid, signal.SIGKILL)
    effects.open_gate(gate)
    result = handle.result(timeout=PATIENCE_S)
    assert answers(result) == ["first one for t1", "noted noted", "first two for t1"]
    assert recorded(agent.agent_id, "better") == []
    traces = runtime.tool_traces(execution_id=handle.execution_id)
    assert [(trace.tool_name, trace.ok) for trace in traces] == [
        ("work", True),
        ("note", True),
        ("work", True),
    ]
    events = [row.type for row in runtime.store.events(handle.execution_id)]
    assert events.count("capability_resolved") == 1
    after = agent.invoke(turn([("work", {"text": "three", "gate": gate})]), timeout=PATIENCE_S)
    assert answers(after) == ["better three for None"], "the next turn chooses for itself"
