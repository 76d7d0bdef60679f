"""A supervisor on a real SQLite store, with processes that a test makes up."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.supervision.crowd import LiveOne
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.supervision.signs import Answer, Presence
from phronomy_ray.supervision.supervisor import Supervisor
from phronomy_ray.testing.clock import ManualClock
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.testing.store_samples import START, Owner, new_agent

CLUSTER = "east"


class FakePopulation:
    """Processes by name; waking an agent claims it as a real owner would."""

    def __init__(self, town: Town) -> None:
        self.cluster = CLUSTER
        self.max_live_agents: int | None = None
        self.answers: dict[str, Answer] = {}
        self.failures: dict[str, Exception] = {}
        self.live: list[LiveOne] = []
        self.asked: list[str] = []
        self.woken: list[str] = []
        self.ended: list[str] = []
        self.unloaded: list[str] = []
        self._town = town

    async def ask(self, process: str, *, timeout_s: float) -> Answer:
        self.asked.append(process)
        return self.answers.get(process, Answer(Presence.ABSENT))

    async def wake(self, agent_id: str) -> None:
        self.woken.append(agent_id)
        if agent_id in self.failures:
            raise self.failures[agent_id]
        root = self._town.claim(agent_id, f"new:{agent_id}", CLUSTER)
        self.answers[f"new:{agent_id}"] = Answer(Presence.ANSWERS, {agent_id: root.epoch})

    async def end(self, process: str) -> None:
        self.ended.append(process)
        self.answers.pop(process, None)

    async def crowd(self) -> list[LiveOne]:
        return self.live

    async def unload(self, agent_id: str) -> bool:
        self.unloaded.append(agent_id)
        return True


class Town:
    """A store, a population and a supervisor, with a time that stands still."""

    def __init__(self, url: str) -> None:
        self.store = FaultyStore(open_store(url))
        self.clock = ManualClock(START)
        self.time_s = 0.0
        self.population = FakePopulation(self)
        self.limits = SupervisionLimits(max_wakes=4, wakes_per_s=100.0, foreign_after_s=10.0)
        self.client = StoreClient(self.store, retry_s=0.02)
        self.supervisor = Supervisor(
            self.client,
            self.population,
            clock=self.clock,
            limits=self.limits,
            info={"node": "n1"},
            time=lambda: self.time_s,
        )

    def claim(self, agent_id: str, process: str, cluster: str = CLUSTER) -> Any:
        """A new owner."""
        return self.store.claim(
            agent_id, owner={"actor": process, "cluster": cluster}, now=self.clock.now()
        ).root

    def owner(self, agent_id: str, process: str, cluster: str = CLUSTER) -> Owner:
        """A stored agent whose owner is that process."""
        self.store.create_agent(new_agent(agent_id))
        owner = Owner(self.store, agent_id)
        root = self.claim(agent_id, process, cluster)
        owner.epoch, owner.revision = root.epoch, root.agent_revision
        return owner

    def running(self, agent_id: str, process: str, cluster: str = CLUSTER, *, age_s: float = 0.0) -> Owner:
        """The same in the middle of an execution."""
        owner = self.owner(agent_id, process, cluster)
        owner.start(f"ex-{agent_id}", created_at=START - timedelta(seconds=age_s))
        return owner

    async def round(self, after_s: float = 2.0) -> list[str]:
        """One round, and the wakes that it begins; who was woken."""
        self.time_s += after_s
        self.clock.advance(after_s)
        before = len(self.population.woken)
        await self.supervisor.sweep()
        while self.supervisor._wakes:
            await asyncio.wait(self.supervisor._wakes, timeout=10.0)
            await asyncio.sleep(0)
        return self.population.woken[before:]


@pytest.fixture
async def town(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Town]:
    shutil.copy(sqlite_template, tmp_path / "agents.db")
    made = Town(f"sqlite:///{tmp_path}/agents.db")
    yield made
    await made.supervisor.close()
    made.client.close()
