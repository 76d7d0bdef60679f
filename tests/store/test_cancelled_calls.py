"""Calls of the store whose callers are cancelled: no connection is lost, and none is left inside a transaction."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the environment that agents are declared with
from ray_testbed import checks, effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.session import fresh_name

from phronomy_ray import InProcess, Runtime
from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.hosting.stores import HOST_THREADS
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import owned

SESSIONS = (
    "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name"
)


def sessions(database: Any, name: str) -> list[str]:
    """What the server's side of each of our connections does."""
    return [state for (state,) in database.sql(SESSIONS, name=name)]


@pytest.fixture
def runtime(lent_postgres: Any) -> Iterator[Runtime]:
    made = Runtime(placement=InProcess(), store=lent_postgres.url)
    yield made
    made.close()


async def test_S04_calls_that_are_cancelled_at_any_point_leak_no_connection(lent_postgres: Any) -> None:
    chance = random.Random(4)
    store = lent_postgres.open(application_name="cancelled", options=StoreOptions(pool_size=2))
    owner = owned(store)
    shared = SharedStore(store, threads=1)
    calls = {
        "write": lambda: StoreClient(shared).run(store.create_agent, samples.new_agent(fresh_name("made"))),
        "read": lambda: StoreClient(shared).run(store.read_journal, "alice"),
        "slow": lambda: StoreClient(shared).run(
            store._transactions.read, lambda connection: connection.exec_driver_sql("SELECT pg_sleep(0.01)")
        ),
    }
    ended = 0
    for _ in range(200):
        task = asyncio.ensure_future(calls[chance.choice(list(calls))]())
        await asyncio.sleep(chance.choice([0, 0.0005, 0.002, 0.004]))
        task.cancel()
        await asyncio.wait([task])
        ended += not task.cancelled()
    assert ended < 200, "some were cancelled indeed"
    commit = owner.commit("afterwards")
    await StoreClient(shared).commit(commit)
    assert [record.content for record in store.read_journal("alice")] == ["afterwards"]
    await asyncio.wait_for(shared.call(store.load_root, "alice"), 10)  # behind whatever was begun
    states = sessions(lent_postgres, "cancelled")
    assert len(states) <= 2
    assert set(states) == {"idle"}, "none of them is left inside a transaction"
    shared.close()


async def interrupt_at_random(runtime: Runtime, *, rounds: int) -> None:
    """Each execution is ended by the next one, or its caller is cancelled, somewhere between its first and its last commit."""
    chance = random.Random(rounds)
    agents = [await runtime.create_async(Puppet, fresh_name("interrupted")) for _ in range(4)]
    script = turn([("note", {"text": "a"}), ("pay", {"amount": 1})], [("note", {"text": "b"})])
    callers = []
    for number in range(rounds):
        agent = agents[number % 4]
        callers.append(asyncio.ensure_future(agent.invoke_async(script, on_busy="interrupt")))
        await asyncio.sleep(chance.uniform(0, 0.02))
        if chance.random() < 0.5:
            callers[-1].cancel()
    await asyncio.wait(callers, timeout=PATIENCE_S)
    for agent in agents:
        done = await agent.invoke_async("still there?", on_busy="interrupt", timeout=PATIENCE_S)
        assert done.output == "you said: still there?"
        checks.check_agent(runtime.store, agent.agent_id)
    rows = await runtime.executions_async(limit=10_000)
    assert {row.status.value for row in rows} >= {"cancelled", "completed"}
    assert all(row.status.is_terminal for row in rows)


def check_connections(database: Any) -> None:
    """The driver has one, its agents have as many as there are threads, and nobody has left one in a transaction."""
    effects.until(lambda: set(sessions(database, "phronomy-ray")) <= {"idle"}, "every transaction to be over")
    assert len(sessions(database, "phronomy-ray")) <= 1 + HOST_THREADS + 1


async def test_S04_executions_that_are_cancelled_at_random_leave_the_pool_whole(
    runtime: Runtime, lent_postgres: Any
) -> None:
    await interrupt_at_random(runtime, rounds=24)
    await asyncio.to_thread(check_connections, lent_postgres)


@pytest.mark.full
async def test_S04_full_size(runtime: Runtime, lent_postgres: Any) -> None:
    await interrupt_at_random(runtime, rounds=200)
    await asyncio.to_thread(check_connections, lent_postgres)
