"""What a handle asks of its agent, without Ray: the answers are given by the test."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from phronomy_ray.errors import NotFoundError
from phronomy_ray.hosting import agent_client
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.hosting.agent_port import NoAnswer
from phronomy_ray.journal import AgentRoot

CREATED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class World:
    """One stored agent, and a process whose answers are scripted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.root: AgentRoot | None = AgentRoot("a1", "clerk", "1", "", created_at=CREATED)
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.released = 0
        monkeypatch.setattr(agent_client, "RECONNECT_S", 0.0)
        self.client = AgentClient("a1", cast("Any", self), cast("Any", self), self.wiring)

    async def wiring(self) -> Any:
        return "wiring"

    # --- its directory

    async def wake(self, agent_id: str, wiring: Any) -> World:
        return self

    async def find(self, agent_id: str) -> None:
        return None

    # --- its store

    def load_root(self, agent_id: str) -> AgentRoot:
        if self.root is None:
            raise NotFoundError("none")
        return self.root

    # --- its process

    def release(self) -> None:
        self.released += 1

    async def ask(self, method: str, *args: Any, timeout_s: float) -> Any:
        self.asked.append((method, *args))
        answer = self.answers.pop(0)
        if answer is NoAnswer.GONE:  # it was deleted, the answer was lost, and somebody has made another one
            self.root = replace(cast("AgentRoot", self.root), created_at=CREATED.replace(year=2027))
        return answer


async def test_a_deletion_is_repeated_for_the_agent_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, NoAnswer.GONE, False)
    assert await world.client.purge() is False
    assert world.asked == [("purge", CREATED.isoformat())] * 2
    assert not world.released, "the process serves the other agent now"


async def test_a_deleted_agents_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, True)
    assert await world.client.purge() is True
    assert world.released == 1


async def test_an_agent_that_is_not_there_is_not_woken_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.root = None
    assert await world.client.purge() is False
    assert world.asked == []
