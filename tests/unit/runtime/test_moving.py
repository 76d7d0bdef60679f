"""`move` with a store and an owner of the test: what it says is so."""

from __future__ import annotations

from typing import Any

import pytest

from phronomy_ray.errors import AgentBusyError
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.runtime.hosts import move
from phronomy_ray.whereabouts import Whereabouts


class FakeStore:
    def __init__(self, where: Whereabouts) -> None:
        self.where = where
        self.pins: list[str | None] = []

    def load_root(self, agent_id: str) -> None:
        return None

    def whereabouts(self, agent_id: str) -> Whereabouts:
        return self.where

    def pin_agent(self, agent_id: str, pin: str | None, *, now: object) -> None:
        self.pins.append(pin)


class Owner:
    def __init__(self, actor: str) -> None:
        self.actor = actor

    async def ask(self, method: str, *args: Any, timeout_s: float) -> dict[str, Any]:
        assert method == "status", "it was not found in time to be unloaded"
        return {"epoch": 3, "actor": self.actor}


class LateDirectory:
    """Finds nobody at first."""

    def __init__(self, actor: str | None) -> None:
        self.answers = [None, Owner(actor) if actor else None]

    async def find(self, agent_id: str) -> Owner | None:
        return self.answers.pop(0)


async def nothing() -> Any:
    raise AssertionError("nobody is woken")


def client(store: FakeStore, actor: str | None) -> AgentClient:
    return AgentClient("alice", LateDirectory(actor), store, nothing)  # type: ignore[arg-type]


async def test_an_agent_that_still_lives_where_it_lived_was_not_moved() -> None:
    store = FakeStore(Whereabouts(last="host:3", pin="host:3"))
    with pytest.raises(AgentBusyError, match="host:3"):
        await move(store, client(store, "host:3"), "dedicated")  # type: ignore[arg-type]
    assert store.pins == ["dedicated", "host:3"], "the pin is as it was"


@pytest.mark.parametrize("actor", [None, "agent:alice"])
async def test_an_agent_that_nobody_serves_or_that_woke_in_its_new_place_was_moved(
    actor: str | None,
) -> None:
    store = FakeStore(Whereabouts(last="host:3"))
    await move(store, client(store, actor), "dedicated")  # type: ignore[arg-type]
    assert store.pins == ["dedicated"]
