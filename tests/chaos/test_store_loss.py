"""The database goes away in the middle of a turn, and calls are lost on their way: the turn goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray_testbed import effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench

from phronomy_ray import Runtime
from phronomy_ray.errors import AgentAlreadyExistsError
from phronomy_ray.faults import write_plan
from phronomy_ray.ids import new_execution_id
from phronomy_ray.store.migrate import Migrations
from phronomy_ray.testing.postgres import PostgresServer

Names = Callable[[str], str]

#: How long the database is away, in seconds; less than an owner keeps trying.
AWAY_S = 3.0


class OwnServer:
    """A private server that can be stopped and started again, with one database."""

    def __init__(self) -> None:
        self._postgres = PostgresServer().start()
        self.url = self._postgres.create_database()
        Migrations(self.url).upgrade()

    def stop(self) -> None:
        self._postgres._server.stop()

    def start(self) -> None:
        self._postgres._server.start()

    def close(self) -> None:
        self._postgres.stop()


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnServer]:
    monkeypatch.delenv("PHRONOMY_TEST_POSTGRES_URL", raising=False)  # a given server is not ours to stop
    server = OwnServer()
    yield server
    server.close()


def test_a_database_that_is_away_for_seconds_costs_only_time(
    bench: Bench, own_server: OwnServer, new_id: Names
) -> None:
    runtime = bench.runtime(store=own_server.url)
    agent = runtime.create(Puppet, new_id("alice"))
    gates = [new_id("gate"), new_id("gate")]
    handle = agent.start(
        turn([("hold", {"gate": gates[0]}), ("wire", {"amount": 1})], [("hold", {"gate": gates[1]})])
    )
    until_recorded(agent.agent_id, "hold", gate=gates[0])
    effects.until(
        lambda: any(row.status == "succeeded" for row in runtime.store.tool_calls(handle.execution_id)),
        "the first result to be committed",
    )
    before = agent.status()
    own_server.stop()
    effects.open_gate(gates[0])  # its result finds no database
    until_recorded(agent.agent_id, "held", gate=gates[0])
    time.sleep(AWAY_S)
    assert agent.status()["journal_position"] == before["journal_position"], (
        "nothing is believed that is not stored"
    )
    assert not recorded(agent.agent_id, "hold", gate=gates[1]), "no result is used before it is stored"
    own_server.start()
    until_recorded(agent.agent_id, "hold", gate=gates[1])
    effects.open_gate(gates[1])
    assert handle.result(PATIENCE_S).output == "done"
    assert agent.status()["epoch"] == before["epoch"], "the owner stayed the owner"
    assert len(recorded(agent.agent_id, "wire")) == 1
    check_and_free(bench, runtime, agent.agent_id)


@pytest.mark.parametrize("engine", ["postgres"])
def test_connections_that_are_cut_between_and_in_steps_lose_nothing(
    bench: Bench, runtime: Runtime, new_id: Names
) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    gates = [new_id("gate") for _ in range(4)]
    handle = agent.start(turn(*([("hold", {"gate": gate}), ("wire", {"amount": 1})] for gate in gates)))
    before = agent.status()
    for gate in gates:
        until_recorded(agent.agent_id, "hold", gate=gate)
        bench.session.postgres.admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{bench.store.rpartition('/')[2].partition('?')[0]}' AND pid <> pg_backend_pid()"
        )
        effects.open_gate(gate)
    assert handle.result(PATIENCE_S).output == "done"
    assert agent.status()["epoch"] == before["epoch"]
    assert len(recorded(agent.agent_id, "wire")) == len(gates)


def test_a_start_that_died_before_its_admission_is_admitted_once(
    runtime: Runtime, faults: Path, new_id: Names
) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    reached = write_plan(faults, agent.agent_id, point="before_commit:admit", action="kill")
    execution_id = new_execution_id()
    handle = agent.start(turn([("wire", {"amount": 1})]), execution_id=execution_id)
    assert reached.exists()
    assert handle.result(PATIENCE_S).output == "done"
    assert [row.execution_id for row in runtime.executions(agent_id=agent.agent_id)] == [execution_id]
    assert [event.type for event in runtime.store.events(execution_id)].count("started") == 1
    assert len(recorded(agent.agent_id, "wire")) == 1


@pytest.mark.parametrize("time", [1, 2])
def test_a_creation_whose_process_died_is_one_creation(
    runtime: Runtime, faults: Path, new_id: Names, time: int
) -> None:
    """The first claim of a new process finds nothing; the second one follows the root's insertion."""
    agent_id = new_id("alice")
    reached = write_plan(faults, agent_id, point="before_claim", action="kill", occurrence=time)
    agent = runtime.create(Puppet, agent_id, knowledge=["only once"])
    assert reached.exists()
    assert [record["content"]["content"] for record in agent.transcript()] == ["only once"]
    assert agent.invoke("hello", timeout=PATIENCE_S).output == "you said: hello"
    with pytest.raises(AgentAlreadyExistsError):
        runtime.create(Puppet, agent_id)


def check_and_free(bench: Bench, runtime: Runtime, agent_id: str) -> None:
    """What leaving a bench does, for an agent in a store of its own."""
    from ray_testbed.checks import check_agent
    from ray_testbed.fixtures import kill_actor

    kill_actor(agent_id)
    check_agent(runtime.store, agent_id)
    runtime.close()
