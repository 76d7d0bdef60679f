"""The host's actor as the plain class that it is: no Ray is started."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.actors import host_actor, ray_process
from phronomy_ray.actors.host_actor import HostActor
from phronomy_ray.definition.placement import Packed
from phronomy_ray.errors import HostClosedError, StoreUnavailableError
from phronomy_ray.hosting.wiring import AgentWiring, DefinitionSource, StoreConfig

STORE = StoreConfig("sqlite:////nowhere/x.db")


def wiring(number: int = 0) -> bytes:
    return pickle.dumps(AgentWiring(DefinitionSource(f"m:C{number}"), STORE))


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> HostActor:
    monkeypatch.setattr(ray_process, "node_id", lambda: "node")
    monkeypatch.setattr(ray_process, "cluster_name", lambda namespace: "cluster")
    return HostActor("host:0", Packed(), STORE)


async def test_a_store_that_was_away_at_the_first_call_is_asked_again(
    host: HostActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [StoreUnavailableError("away"), True]

    def is_host_closed(name: str) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(host._store, "is_host_closed", is_host_closed)
    with pytest.raises(StoreUnavailableError):
        await host.activate("a1", wiring())
    for _ in range(2):
        with pytest.raises(HostClosedError):
            await host.activate("a1", wiring())
    assert not answers


async def test_an_operator_counts_more_than_what_was_stored_before(
    host: HostActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host._store, "is_host_closed", lambda name: True)
    await host.reopen()
    await host._learn_admission()
    assert (await host.status())["closed"] is False


async def test_wirings_of_drivers_that_have_gone_are_forgotten(
    host: HostActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_actor, "MAX_WIRINGS", 2)
    first = host._wiring(wiring(0))
    host._wiring(wiring(1))
    assert host._wiring(wiring(0)) is first
    host._wiring(wiring(2))
    assert host._wiring(wiring(0)) is first, "the one that was used longest ago goes"
    assert len(host._wirings) == 2


async def test_a_host_that_grows_names_who_was_busy(
    host: HostActor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = [2**30, 2**30 + 2**29]
    monkeypatch.setattr(host_actor, "resident_bytes", lambda: sizes.pop(0))
    host._looked(0.0)
    host._body_begins("greedy")
    host._looked(0.0)
    assert "host:0 has grown by 512 MiB" in caplog.text
    assert "greedy (1)" in caplog.text
    sizes.append(2**31)
    growth = (await host.metrics())["last_growth"]
    assert growth["suspects"] == [{"agent_id": "greedy", "bodies": 1}]


async def test_a_host_drained_for_its_node_ends_when_its_last_agent_has_left(
    host: HostActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()
    monkeypatch.setattr(host_actor, "end_this_actor", ended.set)
    monkeypatch.setattr(host_actor, "EMPTY_LOOK_S", 0.001)
    monkeypatch.setattr(host_actor, "RETIRE_AGAIN_S", 0.01)
    monkeypatch.setattr(host_actor, "END_LINGER_S", 0.0)
    works = asyncio.Event()
    at_work = Worker(works, lambda: host._host._agents.pop("a1"))
    host._host._agents["a1"] = at_work  # type: ignore[assignment]
    assert (await host.drain_and_end(0.05))["left"] == ["a1"]
    assert not ended.is_set()
    assert at_work.retirements == 1, "one that goes on is joined"
    works.set()
    await asyncio.wait_for(ended.wait(), 5.0)


async def test_a_host_that_is_reopened_does_not_end(host: HostActor, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(host_actor, "end_this_actor", lambda: ended.append(1))
    monkeypatch.setattr(host_actor, "EMPTY_LOOK_S", 0.0)
    monkeypatch.setattr(host_actor, "END_LINGER_S", 0.0)
    works = asyncio.Event()
    host._host._agents["a1"] = Worker(works, lambda: host._host._agents.pop("a1"))  # type: ignore[assignment]
    await host.drain_and_end(0.01)
    ending = host._ending
    assert ending is not None
    await host.reopen()
    works.set()
    await asyncio.wait([ending], timeout=5.0)
    assert ending.cancelled()
    assert not ended


class Worker:
    """An agent that works."""

    agent_id = "a1"

    def __init__(self, works: asyncio.Event, on_left: Callable[[], object]) -> None:
        self._works, self._on_left = works, on_left
        self.retirements = 0

    def begin_retiring(self) -> None:
        return None

    async def retire(self) -> bool:
        self.retirements += 1
        await self._works.wait()
        self._on_left()
        return True
