"""The agent's actor as the plain class that it is: no Ray is started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.actors import ray_process
from phronomy_ray.actors.agent_actor import AgentActor
from phronomy_ray.errors import AgentUnloadedError
from phronomy_ray.hosting.wiring import AgentWiring, DefinitionSource, StoreConfig


class Engine:
    """Serves as soon as it is made."""

    is_active = False
    is_over = False

    async def activate(self) -> None:
        pass

    async def take_up_wish(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"lifecycle": "idle"}


async def test_an_unexpected_error_of_the_first_start_is_not_the_answer_to_every_later_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []

    def engine(self: AgentActor) -> Engine:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("the disk was away")
        return Engine()

    monkeypatch.setattr(AgentActor, "_engine", engine)
    monkeypatch.setattr(ray_process, "node_id", lambda: "node")
    monkeypatch.setattr(ray_process, "cluster_name", lambda namespace: "cluster")
    actor = AgentActor("a1", AgentWiring(DefinitionSource("m:C"), StoreConfig("sqlite:////nowhere/x.db")))
    assert await actor.activate() == {"lifecycle": "idle"}


async def test_what_has_left_does_not_say_that_it_lives_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_process, "node_id", lambda: "node")
    monkeypatch.setattr(ray_process, "cluster_name", lambda namespace: "cluster")
    monkeypatch.setattr(AgentActor, "_engine", lambda self: Engine())
    actor = AgentActor("a1", AgentWiring(DefinitionSource("m:C"), StoreConfig("sqlite:////nowhere/x.db")))
    assert await actor.status() == {"lifecycle": "idle"}
    monkeypatch.setattr(AgentActor, "is_lost", True)
    with pytest.raises(AgentUnloadedError):
        await actor.status()


async def test_who_still_works_when_the_time_of_a_drain_is_over_leaves_when_it_has_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_done, left = asyncio.Event(), asyncio.Event()

    class Working(Engine):
        async def retire(self, timeout_s: float | None) -> bool:
            try:
                await asyncio.wait_for(has_done.wait(), timeout_s)
            except TimeoutError:
                return False
            return True

    monkeypatch.setattr(ray_process, "node_id", lambda: "node")
    monkeypatch.setattr(ray_process, "cluster_name", lambda namespace: "cluster")
    monkeypatch.setattr(AgentActor, "_exit_soon", lambda self, after_s: left.set())
    actor = AgentActor("a1", AgentWiring(DefinitionSource("m:C"), StoreConfig("sqlite:////nowhere/x.db")))
    actor._engine_made = Working()  # type: ignore[assignment]
    assert await actor.drain(0.01) is False
    assert await actor.drain(0.01) is False
    has_done.set()
    await asyncio.wait_for(left.wait(), 10)
    assert await actor.drain(0.01) is True
