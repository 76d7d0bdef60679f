"""Finding and waking agents, without Ray: actors are values of the test, and what they answer as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from phronomy_ray.actors import directory as directory_module
from phronomy_ray.actors.directory import DedicatedAgent, HostedAgent, RayDirectory
from phronomy_ray.definition.placement import Dedicated, Packed, Placement
from phronomy_ray.errors import HostClosedError
from phronomy_ray.hosting.wiring import AgentWiring, DefinitionSource, StoreConfig
from phronomy_ray.whereabouts import Whereabouts

AGENT = "alice"


@dataclass
class FakeStore:
    where: Whereabouts = field(default_factory=Whereabouts)
    closed: set[str] = field(default_factory=set)

    def whereabouts(self, agent_id: str) -> Whereabouts:
        return self.where

    def is_host_closed(self, host: str) -> bool:
        return host in self.closed


class Cluster:
    """Actors by name; which hosts have the agent, and what they do when they are to serve it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: set[str] = set()
        self.with_agent: set[str] = set()
        self.serves: dict[str, Callable[[], None]] = {}
        self.started: list[str] = []
        self.tried: list[str] = []
        self.store = FakeStore()
        monkeypatch.setattr(directory_module, "find_actor", self.find)
        monkeypatch.setattr(directory_module, "ask", self.ask)
        monkeypatch.setattr(RayDirectory, "_get_or_start_host", lambda _, name, wiring: self.start(name))
        monkeypatch.setattr(RayDirectory, "_get_or_start_actor", lambda _, name, who, how: self.start(name))
        monkeypatch.setattr(RayDirectory, "_serve_in_host", self.serve_in_host)
        monkeypatch.setattr(RayDirectory, "_serve_alone", self.serve_alone)

    def find(self, name: str, namespace: str) -> str | None:
        return name if name in self.actors else None

    async def ask(self, handle: str, method: str, *args: Any, timeout_s: float) -> Any:
        if method == "has":
            return handle in self.with_agent
        return {"epoch": 1, "actor": handle}

    def start(self, name: str) -> str:
        if name not in self.actors:
            self.actors.add(name)
            self.started.append(name)
        return name

    async def serve_in_host(self, handle: str, agent_id: str, *_: Any) -> HostedAgent:
        self.tried.append(handle)
        self.serves.get(handle, lambda: None)()
        return HostedAgent(handle, agent_id)

    async def serve_alone(self, handle: Any, *_: Any) -> DedicatedAgent:
        self.tried.append(handle)
        self.serves.get(handle, lambda: None)()
        return DedicatedAgent(handle)

    def directory(self, placement: Placement) -> RayDirectory:
        return RayDirectory("phronomy", placement, self.store)  # type: ignore[arg-type]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def wiring(placement: Placement, *, own: Placement | None = None, knows_own: bool = True) -> AgentWiring:
    return AgentWiring(
        DefinitionSource("m:C"),
        StoreConfig("sqlite:////nowhere/x.db"),
        placement=placement,
        own_placement=own,
        knows_own_placement=knows_own,
    )


def refuse() -> None:
    raise HostClosedError("drained")


# --- finding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", [Dedicated(), Packed(hosts=2)])
async def test_an_agent_in_a_host_that_this_runtime_has_not_is_found(
    cluster: Cluster, placement: Placement
) -> None:
    cluster.actors = {"host:0", "host:1", "host:3"}
    cluster.with_agent = {"host:3"}
    cluster.store.where = Whereabouts(last="host:3")
    found = await cluster.directory(placement).find(AGENT)
    assert isinstance(found, HostedAgent)
    cluster.with_agent.clear()
    assert await cluster.directory(placement).find(AGENT) is None


# --- woken by its id -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["host:3", "agent:alice"])
async def test_whoever_does_not_know_the_class_starts_the_agent_where_it_lived(
    cluster: Cluster, last: str
) -> None:
    default: Placement = Dedicated() if last == "host:3" else Packed(hosts=2)
    cluster.store.where = Whereabouts(last=last)
    await cluster.directory(default).wake(AGENT, wiring(default, knows_own=False))
    assert cluster.started == [last]


async def test_a_host_that_restarts_is_waited_for_where_the_others_are_of_another_placement(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.store.where = Whereabouts(last="host:3")
    restarting = [lost, lost]
    cluster.serves["host:3"] = lambda: restarting.pop()() if restarting else None
    await cluster.directory(Dedicated()).wake(AGENT, wiring(Dedicated(), knows_own=False))
    assert cluster.tried == ["host:3"] * 3
    monkeypatch.setattr(directory_module, "HOME_PATIENCE_S", 0.0)
    cluster.tried.clear()
    cluster.serves["host:3"] = lost
    await cluster.directory(Dedicated()).wake(AGENT, wiring(Dedicated(), knows_own=False))
    assert cluster.tried == ["host:3", "agent:alice"], "but not for ever"


async def test_whoever_knows_the_class_does_as_it_says(cluster: Cluster) -> None:
    cluster.store.where = Whereabouts(last="agent:alice")
    await cluster.directory(Dedicated()).wake(AGENT, wiring(Dedicated(), own=Packed(hosts=1)))
    assert cluster.started == ["host:0"]


# --- an agent that lives elsewhere than it should -------------------------------------------------------------------


def lost() -> None:
    raise ActorDiedError()


@pytest.mark.parametrize("how", [refuse, lost])
async def test_a_host_outside_the_placement_that_is_closed_or_lost_meanwhile_is_left_for_the_others(
    cluster: Cluster, how: Callable[[], None]
) -> None:
    cluster.actors = {"host:7"}
    cluster.with_agent = {"host:7"}
    cluster.store.where = Whereabouts(last="host:7")
    cluster.store.closed = {"host:7"}

    def leaves() -> None:
        cluster.actors.discard("host:7")
        how()

    cluster.serves["host:7"] = leaves
    await cluster.directory(Packed(hosts=1)).wake(AGENT, wiring(Packed(hosts=1)))
    assert cluster.tried == ["host:7", "host:0"]
    assert cluster.started == ["host:0"]


async def test_a_host_outside_the_placement_is_never_started(cluster: Cluster) -> None:
    cluster.actors = {"host:7"}
    cluster.with_agent = {"host:7"}
    cluster.store.where = Whereabouts(last="host:7")
    died: list[str] = []

    def both_lost_at_first() -> None:
        died.append("")
        if len(died) < 4:
            cluster.actors.discard("host:7")
            raise ActorDiedError()

    cluster.serves = {"host:7": both_lost_at_first, "host:0": both_lost_at_first}
    await cluster.directory(Packed(hosts=1)).wake(AGENT, wiring(Packed(hosts=1)))
    assert set(cluster.started) == {"host:0"}
    assert cluster.tried == ["host:7", "host:0", "host:0", "host:0"]


# --- a host that takes nobody --------------------------------------------------------------------------------------


async def test_a_host_that_only_leaves_its_node_is_waited_for(cluster: Cluster) -> None:
    left = [refuse, refuse, refuse]
    cluster.serves["host:0"] = lambda: left.pop()() if left else None
    await cluster.directory(Packed(hosts=1)).wake(AGENT, wiring(Packed(hosts=1)))
    assert cluster.tried == ["host:0"] * 4


async def test_a_host_that_an_operator_has_closed_is_not_waited_for(cluster: Cluster) -> None:
    cluster.serves["host:0"] = refuse
    cluster.store.closed = {"host:0"}
    with pytest.raises(HostClosedError):
        await cluster.directory(Packed(hosts=1)).wake(AGENT, wiring(Packed(hosts=1)))
    assert cluster.tried == ["host:0"]
