"""How an agent listens to a pool, with a pool that is none of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from phronomy_ray.actors import pool_client
from phronomy_ray.actors.pool_client import PoolClient, PoolRun
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.tool_calls import CallKey, ToolOutcome
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_news import NewsList
from phronomy_ray.tools.pool_wire import item_of

FIRST, SECOND = ("tc1", 1), ("tc2", 1)


class Pool:
    """Answers each question for news with the next prepared list, and none after the last: it knows the listener no more."""

    def __init__(self, *lists: NewsList | None, known: Sequence[CallKey] = ()) -> None:
        self._lists = list(lists)
        self._known = frozenset(known)
        #: Keys that were acknowledged, in the order of the calls, with the call's name.
        self.told: list[tuple[str, list[CallKey]]] = []
        for name in ("news", "attach", "acknowledge", "ping"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))

    async def _news(self, listener: str, acknowledged: Sequence[CallKey]) -> NewsList | None:
        return self._lists.pop(0) if self._lists else None

    async def _attach(self, *_: Any) -> frozenset[CallKey]:
        return self._known

    def _acknowledge(self, keys: Sequence[CallKey]) -> None:
        self.told.append(("acknowledge", list(keys)))

    async def _ping(self) -> None:
        await asyncio.Event().wait()


class Listening(Pool):
    """Notes what questions for news take along."""

    async def _news(self, listener: str, acknowledged: Sequence[CallKey]) -> NewsList | None:
        self.told.append(("news", list(acknowledged)))
        return await super()._news(listener, acknowledged)


def client_of(pool: Pool) -> PoolClient:
    client = PoolClient("p", PoolConfig(), "ns")
    client._actor = pool
    return client


def run_of(*keys: CallKey) -> tuple[PoolRun, list[ToolOutcome]]:
    outcomes: list[ToolOutcome] = []
    run = PoolRun(
        "a",
        "ex",
        1,
        keys,
        on_started=lambda started: None,
        on_outcome=outcomes.append,
        on_late=lambda key, outcome: None,
    )
    return run, outcomes


def ended(*keys: CallKey, is_over: bool) -> NewsList:
    return NewsList([item_of(ToolOutcome(*key, ToolCallStatus.SUCCEEDED)) for key in keys], is_over)


async def test_what_is_stored_is_acknowledged_with_the_next_question() -> None:
    pool = Listening(ended(FIRST, is_over=False), ended(SECOND, is_over=True), known=[FIRST, SECOND])
    client = client_of(pool)
    run, outcomes = run_of(FIRST, SECOND)
    client.acknowledge([("earlier", 1)])
    await client.follow(run)
    client.flush()
    assert [outcome.key for outcome in outcomes] == [FIRST, SECOND]
    assert pool.told == [("news", [("earlier", 1)]), ("news", [])]


async def test_what_is_stored_is_acknowledged_soon_when_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_client, "ACKNOWLEDGE_AFTER_S", 0.0)
    pool = Listening()
    client = client_of(pool)
    client.acknowledge([FIRST])
    client.acknowledge([SECOND])
    while not pool.told:
        await asyncio.sleep(0)
    client.flush()
    assert pool.told == [("acknowledge", [FIRST, SECOND])]


async def test_a_pool_that_hangs_leaves_its_calls_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE_S", "PING_INTERVAL_S", "PING_TIMEOUT_S", "_RETRY_S"):
        monkeypatch.setattr(pool_client, name, 0.01)

    class Hung(Pool):
        async def _attach(self, *_: Any) -> frozenset[CallKey]:
            await asyncio.Event().wait()
            raise AssertionError("it never answers")

    monkeypatch.setattr(PoolClient, "_create", lambda self: Hung())
    run, outcomes = run_of(FIRST)
    await PoolClient("p", PoolConfig(), "ns").follow(run)
    assert [(outcome.key, outcome.status) for outcome in outcomes] == [(FIRST, ToolCallStatus.UNKNOWN)]


async def test_a_listener_that_was_forgotten_attaches_again() -> None:
    pool = Listening(ended(FIRST, is_over=False), None, ended(SECOND, is_over=True), known=[FIRST, SECOND])
    run, outcomes = run_of(FIRST, SECOND)
    await client_of(pool).follow(run)
    assert [outcome.key for outcome in outcomes] == [FIRST, SECOND]
    assert {outcome.status for outcome in outcomes} == {ToolCallStatus.SUCCEEDED}
