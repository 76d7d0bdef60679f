"""Fixtures that every folder of Ray tests takes into its conftest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
import ray

from phronomy_ray import AgentHandle, Runtime
from phronomy_ray.faults import FAULTS_ENV
from phronomy_ray.hosting.assignment import agent_actor_name, host_name
from phronomy_ray.store.sql_store import open_store
from ray_testbed import checks, drives, session
from ray_testbed.agents import Puppet

T = TypeVar("T")


def disconnect_after(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave the cluster when the next module does not use it: it may start a Ray of its own in this process."""
    users = {other.path for other in item.session.items if "shared" in getattr(other, "fixturenames", ())}
    if item.path in users and (nextitem is None or nextitem.path not in users):
        session.shared(item.config).disconnect()


class Bench:
    """One store and its runtimes; on leaving it every agent in it is checked and freed."""

    def __init__(self, shared: session.Session, engine: str) -> None:
        self.session = shared
        self.store = shared.new_store(engine)
        self._runtimes: list[Runtime] = []

    def runtime(self, **options: Any) -> Runtime:
        """A runtime on this store, closed with the bench."""
        made = Runtime(**({"store": self.store} | options))
        self._runtimes.append(made)
        return made

    def close(self) -> None:
        store = open_store(self.store)
        try:
            agents = [root.agent_id for root in store.list_agents(limit=10_000)]
            for agent_id in agents:
                kill_actor(agent_id)
            kill_hosts()
            for agent_id in agents:
                checks.check_processes_gone(store, agent_id)  # a dying one may still report late bodies
                checks.check_agent(store, agent_id)
        finally:
            store.close()
            for made in self._runtimes:
                made.close()
            self.session.forget(drives.forget, self.store)
            if self.store.startswith("postgresql"):
                self.session.postgres.drop_database(self.store)


def in_background(function: Callable[[], T]) -> Future[T]:
    """Run `function` on a thread that nobody has to wait for when a test fails."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # the test asks for it
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def kill_actor(agent_id: str) -> None:
    """End the agent's actor for good, if there is one."""
    try:
        ray.kill(ray.get_actor(agent_actor_name(agent_id), namespace="phronomy"))
    except ValueError:
        return


def kill_hosts() -> None:
    """End every host for good; agents of other benches are woken again."""
    number = 0
    while True:
        try:
            ray.kill(ray.get_actor(host_name(number), namespace="phronomy"))
        except ValueError:
            return
        number += 1


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> session.Session:
    return session.shared(request.config)


@pytest.fixture
def faults(shared: session.Session, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Folder of fault plans; runtimes made after this give it to their agents."""
    monkeypatch.setenv(FAULTS_ENV, str(shared.faults))
    return shared.faults


@pytest.fixture
def connected(shared: session.Session) -> str:
    """Address of the cluster, with this process connected to it."""
    return shared.connect()


@pytest.fixture
def engine() -> str:
    """Database engine of the test's store; parametrize it to run on another, or on both."""
    return "sqlite"


@pytest.fixture
def bench(shared: session.Session, connected: str, faults: Any, engine: str) -> Iterator[Bench]:
    made = Bench(shared, engine)
    yield made
    made.close()


@pytest.fixture
def runtime(bench: Bench) -> Runtime:
    return bench.runtime()


@pytest.fixture
def new_id() -> Callable[[str], str]:
    """A name that no other test uses."""
    return fresh_id


def fresh_id(word: str = "agent") -> str:
    return session.fresh_name(word)


@pytest.fixture(scope="module")
def shared_bench(shared: session.Session) -> Iterator[Bench]:
    """One store for the tests of a module."""
    shared.connect()
    made = Bench(shared, "sqlite")
    yield made
    made.close()


@pytest.fixture
def puppet(shared_bench: Bench, connected: str) -> AgentHandle:
    """An idle agent, alive since an earlier test of the module or, when that test left it busy, a new one."""
    known: list[AgentHandle] = shared_bench.__dict__.setdefault("puppets", [])
    if known and known[-1].status()["execution_id"] is None:
        return known[-1]
    known.append(shared_bench.runtime().create(Puppet, fresh_id("puppet")))
    return known[-1]


__all__ = [
    "Bench",
    "bench",
    "connected",
    "disconnect_after",
    "engine",
    "faults",
    "fresh_id",
    "in_background",
    "kill_actor",
    "new_id",
    "puppet",
    "runtime",
    "shared",
    "shared_bench",
]
