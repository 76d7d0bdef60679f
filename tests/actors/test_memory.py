"""Tools that eat memory, on a small cluster of their own: the call has a typed outcome and no agent dies for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray_testbed.agents import Swimmer, turn
from ray_testbed.effects import PATIENCE_S, recorded
from ray_testbed.session import Session

from phronomy_ray import RunResult, Runtime
from phronomy_ray.actors.memory_watch import (
    MARGIN,
    MUCH_BYTES,
    THRESHOLD_ENV,
    MemoryWatch,
    node_bytes,
    own_bytes,
)
from phronomy_ray.testing.local_cluster import LocalCluster
from phronomy_ray.tools.pool_config import PoolConfig

GIB = 2**30
#: How much a tool may eat before it is noticed: what else runs on the machine comes and goes meanwhile.
ROOM_BYTES = 3 * GIB


@pytest.fixture(scope="module")
def small_cluster(shared: Session) -> Iterator[LocalCluster]:
    """One node, whose memory counts as nearly used up when a tool has eaten `ROOM_BYTES`."""
    used, total = node_bytes()
    env = dict(shared.environment)
    if total:
        env[THRESHOLD_ENV] = f"{min(0.95, (used + ROOM_BYTES) / total + MARGIN):.4f}"
    config = {"memory_monitor_refresh_ms": 250}
    with LocalCluster(workers=0, num_cpus=2, env=env, system_config=config) as cluster:
        yield cluster


@pytest.fixture
def small(
    shared: Session, small_cluster: LocalCluster, tmp_path: Path, new_id: Callable[[str], str]
) -> Iterator[Callable[..., Runtime]]:
    """Makes a runtime on the small cluster, with pools of its own."""
    shared.disconnect()
    made: list[Runtime] = []

    def make(*, pools: dict[str, PoolConfig] | None = None) -> Runtime:
        store = f"sqlite:///{tmp_path / 'store.db'}"
        made.append(Runtime(small_cluster.address, store=store, namespace=new_id("memory"), pools=pools))
        return made[-1]

    yield make
    for runtime in made:
        runtime.close()
    ray.shutdown()


def answers(result: RunResult) -> list[str]:
    return [str(message.content) for message in result.messages if message.role == "tool"]


def test_R05_a_worker_over_its_pool_s_limit_is_a_typed_outcome_of_its_call(
    small: Callable[..., Runtime], new_id: Callable[[str], str]
) -> None:
    runtime = small(pools={"default": PoolConfig(worker_memory_bytes=400 * 2**20)})
    agent = runtime.create(Swimmer, new_id("glutton"))
    before = agent.status()["pid"]
    batch = [(name, {"pool_bytes": 2 * GIB}) for name in ("devour", "devour_alone")]
    handle = agent.start(turn([*batch, ("wire", {"amount": 1})]))
    waiting = handle.wait("suspended", PATIENCE_S)
    rows = runtime.store.tool_calls(handle.execution_id)
    assert [row.status for row in rows] == ["unknown", "unknown", "succeeded"]
    assert [(row.error or {}).get("code") for row in rows] == ["out_of_memory", "out_of_memory", None]
    for call in waiting.unresolved:
        agent.resolve(handle.execution_id, call.tool_call_id, "succeeded", result="it ate")
    assert handle.result(PATIENCE_S).output == "done"
    result = agent.invoke(turn([("nibble", {"pool_bytes": 2 * GIB})]), timeout=PATIENCE_S)
    [row] = runtime.store.tool_calls(result.execution_id)
    assert (row.status, (row.error or {})["code"], row.attempt) == ("failed", "out_of_memory", 3)
    assert answers(result)[0].startswith("Error (out_of_memory)")
    assert agent.status()["pid"] == before


@pytest.mark.skipif(node_bytes()[1] == 0, reason="the machine's memory cannot be read")
def test_a_tool_that_uses_its_node_up_costs_no_agent_its_life(
    small: Callable[..., Runtime], new_id: Callable[[str], str]
) -> None:
    runtime = small()
    agents = [runtime.create(Swimmer, new_id("bystander")) for _ in range(2)]
    assert agents[0].invoke(turn([("note", {"text": "warm"})]), timeout=PATIENCE_S).output == "done"
    before = [agent.status()["pid"] for agent in agents]
    handle = agents[0].start(turn([("devour", {"pool_bytes": 4 * ROOM_BYTES})]))
    waiting = handle.wait("suspended", PATIENCE_S)
    [row] = runtime.store.tool_calls(handle.execution_id)
    assert (row.status, (row.error or {})["code"]) == ("unknown", "out_of_memory")
    assert [agent.status()["pid"] for agent in agents] == before
    [call] = waiting.unresolved
    agents[0].resolve(handle.execution_id, call.tool_call_id, "succeeded", result="it ate")
    assert handle.result(PATIENCE_S).output == "done"
    assert len(recorded(agents[0].agent_id, "eat")) == 1


def test_R05_only_a_process_that_has_grown_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = MemoryWatch(lambda reason: None)
    monkeypatch.setattr("phronomy_ray.actors.memory_watch.node_bytes", lambda: (99 * GIB, 100 * GIB))
    assert watch.excess() == "", "it is not this process that eats"
    eaten = b"x" * (MUCH_BYTES + 2**24)
    assert "about to run out of memory" in watch.excess()
    monkeypatch.setattr("phronomy_ray.actors.memory_watch.node_bytes", lambda: (50 * GIB, 100 * GIB))
    assert watch.excess() == ""
    assert len(eaten) < own_bytes()
    assert "its pool allows" in MemoryWatch(lambda reason: None, limit_bytes=2**20).excess()
