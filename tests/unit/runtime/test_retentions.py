"""Holds as a driver makes them: by agent or by execution, in blocking and async form, and what they prevent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phronomy_ray import Agent, InProcess, RetentionPolicy, Runtime
from phronomy_ray.errors import AgentRetainedError, InvalidInputError, NotFoundError
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.models.scripted import ScriptedModel, final
from phronomy_ray.retention import Collectable
from phronomy_ray.runtime.agent_handle import AgentHandle
from phronomy_ray.runtime.bridge import Bridge
from phronomy_ray.runtime.retentions import Retentions
from phronomy_ray.store.sql_store import SqlStore, open_store
from phronomy_ray.testing.clock import ManualClock
from phronomy_ray.testing.store_samples import Owner, owned


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = open_store(f"sqlite:///{tmp_path}/agents.db", create=True)
    yield opened
    opened.close()


@pytest.fixture
def owner(store: SqlStore) -> Owner:
    owner = owned(store)
    owner.change(owner.start("ex1"), status=ExecutionStatus.COMPLETED, phase=Phase.ENDED)
    return owner


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    made = Bridge()
    yield made
    made.close()


@pytest.fixture
def holds(store: SqlStore, bridge: Bridge) -> Retentions:
    return Retentions(lambda: store, lambda: bridge, ManualClock())


def test_an_execution_is_held_by_its_id_alone(holds: Retentions, owner: Owner) -> None:
    hold = holds.retain("report", execution_id="ex1")
    assert (hold.owner_key, hold.agent_id, hold.execution_id) == ("report", "alice", "ex1")
    assert holds.list() == holds.list(agent_id="alice") == holds.list(owner_key="report") == [hold]
    created_at = owner.store.load_root("alice").created_at
    assert created_at is not None
    with pytest.raises(AgentRetainedError, match="held by report"):
        owner.store.purge_agent("alice", epoch=owner.epoch, created_at=created_at)
    assert holds.release("report", execution_id="ex1") is True
    assert holds.release("report", execution_id="ex1") is False
    assert owner.store.purge_agent("alice", epoch=owner.epoch, created_at=created_at) is True


def test_a_handle_holds_its_agent(store: SqlStore, bridge: Bridge, owner: Owner) -> None:
    runtime: Any = SimpleNamespace(store=store, directory=None, _bridge=bridge, _open_scopes=None)
    handle = AgentHandle(runtime, owner.agent_id)
    whole = handle.retain("report")
    part = handle.retain("report", execution_id="ex1")
    assert handle.retentions() == [whole, part]
    assert handle.release("report") is True
    assert handle.retentions() == [part]


class Keeper(Agent):
    """Has work that somebody needs."""

    model = ScriptedModel([final("done")])
    definition_id = "keeper"


async def test_the_agent_s_own_methods_and_a_collection_of_the_runtime(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    with await asyncio.to_thread(Runtime, placement=InProcess(), store=url, supervisor=False) as runtime:
        agent = await runtime.create_async(Keeper, "k1")
        await agent.invoke_async("hello", execution_id="ex1")
        held = await agent._client.call("retain", "audit", "ex1")
        assert (held["owner_key"], held["execution_id"]) == ("audit", "ex1")
        assert await agent._client.call("retentions") == [held]
        with pytest.raises(AgentRetainedError, match="audit"):
            await agent.purge_async()
        now = RetentionPolicy(executions=timedelta(0), contents=None)
        assert (await runtime.collect_async(now)).rows[Collectable.EXECUTIONS] == 0
        assert await agent._client.call("release", "audit", "ex1") is True
        assert (await runtime.collect_async(now)).rows[Collectable.EXECUTIONS] == 1
        assert await agent.unload_async() is True
        assert await agent.purge_async() is True


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"owner_key": "", "agent_id": "alice"}, InvalidInputError),
        ({"owner_key": "report"}, InvalidInputError),
        ({"owner_key": "report", "agent_id": ""}, InvalidInputError),
        ({"owner_key": "report", "execution_id": "ex2"}, NotFoundError),
        ({"owner_key": "report", "agent_id": "bob"}, NotFoundError),
        ({"owner_key": "report", "agent_id": "bob", "execution_id": "ex1"}, NotFoundError),
    ],
)
async def test_a_wrong_hold_is_refused(
    holds: Retentions, owner: Owner, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await holds.retain_async(**arguments)
    assert await holds.list_async() == []
