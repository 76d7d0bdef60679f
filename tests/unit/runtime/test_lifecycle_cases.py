"""Faults of other runtimes about the life of agents, played with drivers whose agents live in their own process.

Two such drivers on one store are what two clusters on one store are: owners that know nothing of each other.
"""

from __future__ import annotations

import gc
import shutil
import sqlite3
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the environment that agents are declared with
from ray_testbed import checks, effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.families import Boss
from ray_testbed.session import fresh_name

from phronomy_ray import ExecutionHandle, InProcess, Runtime
from phronomy_ray.errors import AgentBusyError
from phronomy_ray.store.sql_store import open_store

ROUNDS = 15


class Contested(Puppet):
    """Is taken from its owners on purpose."""

    definition_id = "contested-case"
    max_starts_without_progress = 10_000


class Site:
    """A store, and drivers on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self._made: list[Runtime] = []

    def driver(self, placement: InProcess | None = None) -> Runtime:
        made = Runtime(placement=placement or InProcess(), store=self.url)
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()
        store = open_store(self.url)
        for root in store.list_agents():
            checks.check_agent(store, root.agent_id)
        store.close()


@pytest.fixture
def site(sqlite_template: Path, tmp_path: Path) -> Iterator[Site]:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    made = Site(tmp_path / "agents.db")
    yield made
    made.close()


def test_L14_of_two_drivers_that_start_together_one_is_admitted(site: Site) -> None:
    drivers = [site.driver(), site.driver()]
    agent_id = fresh_name("shared")
    drivers[0].create(Contested, agent_id)
    outputs = []
    with ThreadPoolExecutor(2) as threads:
        for number in range(ROUNDS):
            gate = fresh_name("gate")

            def start(driver: Runtime, gate: str = gate, number: int = number) -> ExecutionHandle | None:
                message = turn(model_gates={1: gate}, answer=f"round {number}")
                try:
                    return driver.agent(agent_id).start(message)
                except AgentBusyError:
                    return None

            both = list(threads.map(start, drivers))
            effects.open_gate(gate)
            (admitted,) = [handle for handle in both if handle is not None]
            outputs.append(admitted.result(timeout=PATIENCE_S).output)
    assert outputs == [f"round {number}" for number in range(ROUNDS)]
    said = [message.content for message in drivers[1].agent(agent_id).transcript_messages()]
    assert said[1::2] == outputs, "one turn after the other, none mixed into another"


def test_L16_an_owner_whose_agent_was_changed_under_it_stops(site: Site) -> None:
    runtime = site.driver()
    agent = runtime.create(Contested, fresh_name("changed"))
    gate = fresh_name("gate")
    handle = agent.start(turn([("note", {"text": "once"})], model_gates={1: gate}))
    first = agent.status()["epoch"]
    with sqlite3.connect(site.path) as other:
        other.execute(
            "UPDATE agents SET agent_revision = agent_revision + 1 WHERE agent_id = ?", (agent.agent_id,)
        )
    other.close()
    effects.open_gate(gate)
    effects.until(lambda: agent.status()["lifecycle"] != "active", "the owner to stop")
    assert handle.result(timeout=PATIENCE_S).output == "done"
    assert agent.status()["epoch"] > first, "it did not go on: a new owner has read everything anew"
    assert len(effects.recorded(agent.agent_id, "note")) == 1
    kinds = [event.type.value for event in handle.events()]
    assert kinds.count("recovered") == 1


def test_O02_nothing_is_left_in_memory_of_agents_that_have_left(site: Site) -> None:
    runtime = site.driver()
    host = runtime._home._process.host  # type: ignore[attr-defined]
    alive: list[weakref.ref[object]] = []

    def live_once() -> None:
        agent = runtime.create(Puppet, fresh_name("passing"))
        alive.append(weakref.ref(host._agents[agent.agent_id]))
        handle = agent.start(turn([("pay", {"amount": 1})]))
        alive.extend((weakref.ref(agent), weakref.ref(handle)))
        handle.result(timeout=PATIENCE_S)
        agent.unload()

    for _ in range(40):
        live_once()

    def left() -> int:
        gc.collect()
        return sum(reference() is not None for reference in alive)

    # each thread of a pool keeps what it did last until it does something else
    effects.until(lambda: left() <= 10, "agents and handles but the last ones to be forgotten", timeout_s=20)
    assert host.status()["agents"] == 0


def test_R13_idle_agents_free_what_they_hold(site: Site) -> None:
    runtime = site.driver(InProcess(idle_unload_after_s=0.5))
    agents = [runtime.create(Puppet, fresh_name("idle")) for _ in range(20)]
    for agent in agents:
        agent.invoke("one")
    count: Callable[[], int] = lambda: runtime.metrics()["hosts"]["in-process"]["agents"]  # noqa: E731
    effects.until(lambda: count() == 0, "all of them to leave")
    assert agents[7].invoke("two").output == "you said: two"
    assert agents[7].transcript_messages()[0].content == "one"


def test_R02_work_goes_on_without_any_handle_and_a_later_driver_finds_it(site: Site) -> None:
    gates = [fresh_name("gate"), fresh_name("gate")]
    agent_id = fresh_name("forgotten")
    runtime = site.driver()

    def begin() -> str:
        batches = [[("note", {"text": "first"})], [("note", {"text": "second"})]]
        script = turn(*batches, model_gates={2: gates[0], 3: gates[1]})
        return runtime.create(Puppet, agent_id).start(script).execution_id

    execution_id = begin()
    gc.collect()
    effects.open_gate(gates[0])
    effects.until_recorded(agent_id, "note", text="second")
    runtime.close()  # in the middle of the next model call
    effects.open_gate(gates[1])
    assert site.driver().execution(execution_id).result(timeout=PATIENCE_S).output == "done"
    assert [entry["text"] for entry in effects.recorded(agent_id, "note")] == ["first", "second"]


def test_R14_agents_that_wait_for_tools_and_children_take_no_place_of_theirs(site: Site) -> None:
    """One thread for all tools, and four agents that each wait for a child with a batch of its own."""
    runtime = site.driver(InProcess(threads=1))
    below = turn([("note", {"text": str(number)}) for number in range(3)], answer="helped")
    script = turn([("helper", {"input": below}), ("note", {"text": "a"}), ("note", {"text": "b"})])
    handles = [runtime.create(Boss, fresh_name("boss")).start(script) for _ in range(4)]
    assert [handle.result(timeout=PATIENCE_S).output for handle in handles] == ["done"] * 4
