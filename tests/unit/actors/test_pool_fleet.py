"""What a pool does about the nodes of its workers, with a cluster that is none of Ray's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from phronomy_ray.actors import pool_fleet
from phronomy_ray.actors.pool_fleet import RayFleet
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_wire import WorkerSetup


class Cluster:
    """Nodes that are there or lost, and workers that never come up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *nodes: str) -> None:
        self.alive = dict.fromkeys(nodes, True)
        self.killed: list[object] = []
        monkeypatch.setattr(pool_fleet, "runtime_env_text", lambda: "{}")
        monkeypatch.setattr(pool_fleet, "remove_placement_group", lambda group: None)
        monkeypatch.setattr(pool_fleet, "START_RETRY_S", 0.0)
        monkeypatch.setattr(ray, "nodes", self._nodes)
        monkeypatch.setattr(ray, "kill", lambda worker, **_: self.killed.append(worker))
        monkeypatch.setattr(RayFleet, "_create", self._create)

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node, "Alive": alive, "Resources": {"CPU": 1.0}} for node, alive in self.alive.items()
        ]

    def _create(self, *_: Any) -> tuple[object, Any]:
        async def news() -> Any:
            await asyncio.Event().wait()
            yield []

        method = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=news))
        return object(), SimpleNamespace(news=method)


class Core:
    """Notes which workers are gone."""

    def __init__(self) -> None:
        self.gone: asyncio.Queue[str] = asyncio.Queue()

    def on_gone(self, worker_id: str, reason: str, *, code: str) -> None:
        self.gone.put_nowait(worker_id)


async def test_a_worker_that_starts_on_a_lost_node_is_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, "n1", "n2")
    fleet, core = RayFleet("p", PoolConfig(), "ns"), Core()
    fleet.connect(core)  # type: ignore[arg-type]
    setup = WorkerSetup("", ())
    fleet.start("w1", setup, "n1")
    fleet.start("w2", setup, "n2")
    while fleet.nodes_every_s == pool_fleet.NODES_EVERY_S or len(fleet._starts) < 2:
        await asyncio.sleep(0.01)
    await fleet.look_at_nodes()
    assert core.gone.empty()
    cluster.alive["n1"] = False
    await fleet.look_at_nodes()
    assert await asyncio.wait_for(core.gone.get(), 10) == "w1"
    assert fleet.nodes == ["n2"]
    assert core.gone.empty(), "the other one may still come up"
    assert len(cluster.killed) == 1
