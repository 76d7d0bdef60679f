"""A batch of 64 in the middle of which a worker, the pool's node or the agent's actor dies: exactly the ledger's outcomes.

Sixteen calls of each replay kind wait for a gate, and sixteen take longer than their time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray_testbed import effects
from ray_testbed.agents import Swimmer, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench
from ray_testbed.session import SPOT

from phronomy_ray import AgentHandle, ExecutionHandle
from phronomy_ray.actors.pool_actor import PoolActor, pool_options
from phronomy_ray.definition.placement import Dedicated
from phronomy_ray.journal import ToolCallRow
from phronomy_ray.testing import processes
from phronomy_ray.tools.pool_config import PoolConfig

EACH = 16
KINDS = ("hold", "hold_idempotent", "hold_never")
HEAD = {"node:__internal_head__": 0.001}


class Batch:
    """The calls of one turn, all begun."""

    def __init__(self, agent: AgentHandle, gate: str) -> None:
        self.agent = agent
        self.gates = {(kind, number): f"{gate}-{kind}-{number}" for kind in KINDS for number in range(EACH)}
        self.late_gate = f"{gate}-late"
        calls: list[tuple[str, dict[str, Any]]] = []
        for number in range(EACH):  # mixed, as a model would ask
            calls += [(kind, {"gate": self.gates[kind, number]}) for kind in KINDS]
            calls.append(("overdue", {"gate": self.late_gate, "number": number}))
        self.handle: ExecutionHandle = agent.start(turn(calls))
        for kind in KINDS:
            until_recorded(agent.agent_id, kind, EACH)
        until_recorded(agent.agent_id, "overdue", EACH)

    def pids(self, kind: str) -> dict[str, int]:
        """Process of each call of a kind, by its gate: of the last attempt that has begun."""
        return {item["gate"]: item["pid"] for item in recorded(self.agent.agent_id, kind)}

    def open(self) -> None:
        """Let all calls end but those that are to time out."""
        for gate in self.gates.values():
            effects.open_gate(gate)

    def rows(self, bench: Bench) -> dict[str, list[ToolCallRow]]:
        found: dict[str, list[ToolCallRow]] = {}
        for row in bench.runtime().store.tool_calls(self.handle.execution_id):
            found.setdefault(row.tool_name, []).append(row)
        return found

    def runs(self, kind: str) -> Counter[str]:
        """How often each call's body began."""
        return Counter(item["gate"] for item in recorded(self.agent.agent_id, kind))


def start(bench: Bench, new_id: Callable[[str], str], **placement: Any) -> Batch:
    runtime = bench.runtime(**placement)
    return Batch(runtime.create(Swimmer, new_id("swimmer")), new_id("gate"))


def finish(batch: Batch, unknown: int) -> None:
    """Say what became of unknown calls, and see the turn end."""
    if unknown:
        result = batch.handle.wait("suspended", PATIENCE_S)
        assert len(result.unresolved) == unknown
        for call in result.unresolved:
            batch.agent.resolve(
                batch.handle.execution_id, call.tool_call_id, "succeeded", result="somebody looked"
            )
    assert batch.handle.result(PATIENCE_S).output == "done"


def test_a_killed_worker_makes_its_own_calls_unknown_and_no_others(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    batch = start(bench, new_id)
    before = batch.pids("hold_never")
    victim = Counter(before.values()).most_common(1)[0][0]
    lost = {gate for gate, pid in before.items() if pid == victim}
    others = set(batch.pids("hold").values()) | set(batch.pids("hold_idempotent").values())
    assert victim not in others, "calls that may run again share a worker with calls that must not"
    os.kill(victim, signal.SIGKILL)
    batch.open()
    unresolved = batch.handle.wait("suspended", PATIENCE_S).unresolved
    rows = batch.rows(bench)
    asked = {call.tool_call_id for call in unresolved}
    assert {row.arguments["gate"] for row in rows["hold_never"] if row.tool_call_id in asked} == lost
    assert len(asked) == len(lost)
    assert Counter(row.status for row in rows["hold_never"]) == {
        "unknown": len(lost),
        "succeeded": EACH - len(lost),
    }
    for kind in ("hold", "hold_idempotent"):
        assert [(row.status, row.attempt) for row in rows[kind]] == [("succeeded", 1)] * EACH
    finish(batch, len(lost))
    assert set(batch.runs("hold_never").values()) == {1}, "a call that must not run twice did"
    check_overdue(batch, bench, attempts={1})


def test_a_killed_worker_s_replayable_calls_run_again(bench: Bench, new_id: Callable[[str], str]) -> None:
    batch = start(bench, new_id)
    before = batch.pids("hold")
    victim = Counter(before.values()).most_common(1)[0][0]
    lost = {gate for gate, pid in before.items() if pid == victim}
    os.kill(victim, signal.SIGKILL)
    effects.until(lambda: sum(batch.runs("hold").values()) >= EACH + len(lost), "the lost calls to run again")
    batch.open()
    finish(batch, 0)
    rows = batch.rows(bench)
    assert [row.status for row in rows["hold_never"]] == ["succeeded"] * EACH
    assert set(batch.runs("hold_never").values()) == {1}
    attempts = {row.arguments["gate"]: row.attempt for row in rows["hold"]}
    assert attempts == {gate: 2 if gate in lost else 1 for gate in before}
    keys = {(item["gate"], item["key"]) for item in recorded(batch.agent.agent_id, "hold_idempotent")}
    assert len(keys) == EACH, "every attempt of a call has the same key"
    check_overdue(batch, bench, attempts={1, 2})


def test_a_new_owner_of_the_agent_attaches_to_the_running_calls(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    batch = start(bench, new_id)
    owner = batch.agent.status()
    processes_before = {kind: batch.pids(kind) for kind in KINDS}
    os.kill(owner["pid"], signal.SIGKILL)
    effects.until(lambda: batch.agent.status()["pid"] != owner["pid"], "a new owner")
    batch.open()
    finish(batch, 0)
    rows = batch.rows(bench)
    for kind in KINDS:
        assert [(row.status, row.attempt) for row in rows[kind]] == [("succeeded", 1)] * EACH
        assert set(batch.runs(kind).values()) == {1}, "a call ran beside itself"
        assert batch.pids(kind) == processes_before[kind]
    check_overdue(batch, bench, attempts={1})


def test_outcomes_that_were_not_committed_when_the_owner_died_are_collected(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    batch = start(bench, new_id)
    owner = batch.agent.status()["pid"]
    os.kill(owner, signal.SIGSTOP)  # it hears of no outcome any more
    batch.open()
    agent_id = batch.agent.agent_id
    effects.until(lambda: len(recorded(agent_id, "held")) == EACH, "the bodies to end")
    effects.until(lambda: len(recorded(agent_id, "held_never")) == EACH, "the bodies to end")
    os.kill(owner, signal.SIGKILL)
    finish(batch, 0)
    rows = batch.rows(bench)
    for kind in KINDS:
        assert [(row.status, row.attempt) for row in rows[kind]] == [("succeeded", 1)] * EACH
        assert set(batch.runs(kind).values()) == {1}


def test_the_pool_s_death_loses_what_ran_in_it(bench: Bench, new_id: Callable[[str], str]) -> None:
    batch = start(bench, new_id)
    pool = ray.get_actor("pool:default", namespace="phronomy")
    workers = {pid for kind in KINDS for pid in batch.pids(kind).values()}
    os.kill(ray.get(pool.metrics.remote())["pid"], signal.SIGKILL)
    check_lost_pool(batch, bench, workers)


@pytest.mark.usefixtures("connected")
def test_the_death_of_the_pool_s_node_loses_what_ran_in_it(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    bench.session.add_worker()
    cluster = bench.session.cluster
    end_pool()
    options = pool_options("default", "phronomy") | {"resources": {SPOT: 1}}
    pool = ray.remote(PoolActor).options(**options).remote("default", PoolConfig(), "phronomy")
    pid = ray.get(pool.metrics.remote(), timeout=PATIENCE_S)["pid"]
    batch = start(bench, new_id, placement=Dedicated(resources=HEAD))
    node = cluster.node_of_pid(pid)
    workers = {pid for kind in KINDS for pid in batch.pids(kind).values()}
    cluster.kill_node(node.node_id)
    try:
        check_lost_pool(batch, bench, workers)
    finally:
        bench.session.add_worker()


@pytest.mark.usefixtures("connected")
def test_a_node_that_joins_is_used_and_one_that_is_lost_is_forgotten(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    cluster = bench.session.cluster
    agent = bench.runtime(placement=Dedicated(resources=HEAD)).create(Swimmer, new_id("swimmer"))
    assert agent.invoke(turn([("note", {"text": "warm"})]), timeout=PATIENCE_S).output == "done"
    pool = ray.get_actor("pool:default", namespace="phronomy")

    def bound() -> int:
        return int(ray.get(pool.metrics.remote(), timeout=PATIENCE_S)["max_workers"])

    def sees_the_cluster() -> bool:
        cpus = sum(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        return bound() == max(2, round(2 * cpus))

    effects.until(sees_the_cluster, "the pool to know of what earlier tests did to the cluster")
    before = bound()
    joined = cluster.node(bench.session.add_worker())
    effects.until(lambda: bound() > before and sees_the_cluster(), "the pool to see the new node")
    gates = [new_id("gate") for _ in range(bound() - 1)]
    handle = agent.start(turn([("hold_never", {"gate": gate}) for gate in gates]))
    until_recorded(agent.agent_id, "hold_never", len(gates))
    there = {item["gate"] for item in recorded(agent.agent_id, "hold_never") if item["pid"] in joined.pids()}
    assert there, "no call ran on the node that joined"
    cluster.kill_node(joined.node_id)
    for gate in gates:
        effects.open_gate(gate)
    result = handle.wait("suspended", PATIENCE_S)
    assert len(result.unresolved) == len(there)
    for call in result.unresolved:
        agent.resolve(handle.execution_id, call.tool_call_id, "succeeded", result="somebody looked")
    assert handle.result(PATIENCE_S).output == "done"
    effects.until(lambda: bound() == before, "the pool to forget the lost node")
    again = agent.invoke(turn([("wire", {"amount": n}) for n in range(before)]), timeout=PATIENCE_S)
    assert again.output == "done"


def end_pool() -> None:
    """End the session's pool for good, so that the next user starts another one."""
    try:
        pool = ray.get_actor("pool:default", namespace="phronomy")
    except ValueError:
        return
    pid = ray.get(pool.metrics.remote(), timeout=PATIENCE_S)["pid"]
    ray.kill(pool, no_restart=True)
    processes.wait_dead([pid], timeout_s=PATIENCE_S)


def check_lost_pool(batch: Batch, bench: Bench, workers: set[int]) -> None:
    """All calls that had no outcome are lost: run again, or asked about, by their replay rules."""
    for kind in ("hold", "hold_idempotent"):
        effects.until(lambda kind=kind: sum(batch.runs(kind).values()) >= 2 * EACH, f"{kind} to run again")  # type: ignore[misc]
    assert not processes.wait_dead(workers, timeout_s=PATIENCE_S), "a worker outlived its pool"
    batch.open()
    unresolved = batch.handle.wait("suspended", PATIENCE_S).unresolved
    assert {call.tool_name for call in unresolved} == {"hold_never"}
    rows = batch.rows(bench)
    assert [row.status for row in rows["hold_never"]] == ["unknown"] * EACH
    for kind in ("hold", "hold_idempotent"):
        assert [(row.status, row.attempt) for row in rows[kind]] == [("succeeded", 2)] * EACH
    finish(batch, EACH)
    assert set(batch.runs("hold_never").values()) == {1}
    check_overdue(batch, bench, attempts={1, 2})


def check_overdue(batch: Batch, bench: Bench, *, attempts: set[int]) -> None:
    rows = batch.rows(bench)["overdue"]
    assert [row.status for row in rows] == ["timed_out"] * EACH
    assert {row.attempt for row in rows} <= attempts
    effects.open_gate(batch.late_gate)
