"""Standing rules as a driver makes them: checked before they are stored, in blocking and async form."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.approvals import RuleEffect
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import InvalidInputError, NotFoundError
from phronomy_ray.runtime.bridge import Bridge
from phronomy_ray.runtime.rules import StandingRules
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.clock import ManualClock


@tool
async def pay(cents: int) -> str:
    return "paid"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rules(tmp_path: Path, clock: ManualClock) -> Iterator[StandingRules]:
    store = open_store(f"sqlite:///{tmp_path}/agents.db", create=True)
    bridge = Bridge()
    yield StandingRules(lambda: store, lambda: bridge, clock)
    bridge.close()
    store.close()


def test_rules_are_listed_until_they_end(rules: StandingRules, clock: ManualClock) -> None:
    allowed = rules.allow("pay", agent_id="a1", created_by="ann", reason="trusted")
    soon = rules.refuse(pay, created_by="ann", expires_at=clock.now() + timedelta(seconds=60))
    assert (allowed.effect, allowed.scope, allowed.created_at) == (RuleEffect.ALLOW, "agent:a1", clock.now())
    assert (soon.tool_name, soon.scope) == ("pay", "*")
    assert set(rules.list()) == {allowed, soon}
    clock.advance(60)
    assert rules.list() == [allowed]
    ended = rules.revoke(allowed.rule_id, revoked_by="bob")
    assert (ended.revoked_by, ended.revoked_at) == ("bob", clock.now())
    assert rules.list() == []
    assert set(rules.list(also_ended=True)) == {ended, soon}
    assert rules.revoke(allowed.rule_id, revoked_by="eve") == ended
    with pytest.raises(NotFoundError):
        rules.revoke("ru_nobody", revoked_by="bob")


async def test_the_async_forms(rules: StandingRules) -> None:
    made = await rules.allow_async("pay", definition_id="clerk", created_by="ann")
    assert await rules.list_async() == [made]
    await rules.revoke_async(made.rule_id, revoked_by="ann")
    assert await rules.list_async() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool": ""},
        {"tool": 7},
        {"created_by": ""},
        {"created_by": None},
        {"agent_id": ""},
        {"agent_id": "a1", "definition_id": "clerk"},
        {"reason": 7},
        {"expires_at": datetime(2030, 1, 1)},
        {"expires_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"expires_at": 60},
    ],
)
def test_a_wrong_rule_is_refused_before_it_is_stored(rules: StandingRules, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"tool": "pay", "created_by": "ann", **wrong}
    with pytest.raises(InvalidInputError):
        rules.allow(given.pop("tool"), **given)
    assert rules.list(also_ended=True) == []
