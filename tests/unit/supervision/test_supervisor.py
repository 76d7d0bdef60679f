"""A supervisor with a real store and made-up processes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from phronomy_ray.errors import (
    DefinitionChangedError,
    StoreUnavailableError,
    WaitTimeoutError,
)
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.parking import ParkReason
from phronomy_ray.supervision.crowd import LiveOne, too_many
from phronomy_ray.supervision.signs import Answer, Presence
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START

SILENT = Answer(Presence.SILENT)


async def test_whatever_was_interrupted_goes_on_and_nothing_else_is_touched(town: Any) -> None:
    town.running("young", "agent:young", age_s=1)
    town.running("old", "agent:old", age_s=9)
    served = town.running("served", "host:0", age_s=5)
    town.population.answers["host:0"] = Answer(Presence.ANSWERS, {"served": served.epoch})
    town.owner("idle", "agent:idle")
    waiting = town.running("waiting", "agent:waiting")
    waiting.change(
        samples.execution("ex-waiting", "waiting", created_at=START),
        status=ExecutionStatus.SUSPENDED,
        phase=Phase.APPROVAL,
    )
    queued = town.owner("queued", "agent:queued")
    queued.append(step="queue", new_requests=(samples.queued_request("q1", agent_id="queued"),))
    assert await town.round() == ["old", "young", "queued"]
    assert sorted(town.population.asked) == ["agent:old", "agent:queued", "agent:young", "host:0"]
    assert await town.round() == [], "they are live now"
    report = await town.supervisor.report()
    assert (report["counts"]["wakes"], report["failing"], report["error"]) == (3, [], "")


async def test_a_request_that_nobody_answers_expires_without_a_process(town: Any) -> None:
    owner = town.running("a", "agent:a")
    call = samples.tool_call("ex-a", "a")
    expiring = samples.approval(call, expires_at=START + timedelta(seconds=5))
    owner.append(new_tool_calls=(call,), new_approvals=(expiring,))
    owner.change(
        samples.execution("ex-a", "a", created_at=START),
        status=ExecutionStatus.SUSPENDED,
        phase=Phase.APPROVAL,
    )
    assert await town.round(2.0) == []
    assert await town.round(2.0) == []
    assert await town.round(2.0) == ["a"]


async def test_a_hung_owner_is_ended_and_replaced(town: Any) -> None:
    town.running("a", "agent:a")
    town.population.answers["agent:a"] = SILENT
    rounds = 0
    while not town.population.ended:
        assert await town.round(5.0) == []
        rounds += 1
        assert rounds < 20
    assert town.population.ended == ["agent:a"]
    assert town.time_s == town.limits.hung_after_s + 5.0
    assert await town.round(5.0) == ["a"]
    assert await town.round(5.0) == []


async def test_a_process_that_cannot_be_asked_stops_nobody_elses_supervision(
    town: Any, monkeypatch: Any
) -> None:
    town.running("odd", "agent:odd")
    town.running("lost", "agent:lost")
    ask = town.population.ask

    async def asked(process: str, *, timeout_s: float) -> Answer:
        if process == "agent:odd":
            raise AttributeError("it has no method 'serving'")
        answer: Answer = await ask(process, timeout_s=timeout_s)
        return answer

    monkeypatch.setattr(town.population, "ask", asked)
    assert await town.round() == ["lost"]


async def test_a_wake_that_fails_is_told_and_tried_again(town: Any) -> None:
    town.running("slow", "agent:slow", age_s=2)
    town.running("changed", "agent:changed", age_s=1)
    town.population.failures = {
        "slow": WaitTimeoutError("nobody answered"),
        "changed": DefinitionChangedError("stored as version 1"),
    }
    assert await town.round() == ["slow", "changed"]
    report = await town.supervisor.report()
    told = {item["agent_id"]: item for item in report["failing"]}
    assert told["changed"]["parked"] == "definition_changed"
    assert "version 1" in told["changed"]["message"]
    assert told["slow"]["parked"] == ""
    for _ in range(20):
        assert "changed" not in await town.round()
    town.population.failures.clear()
    town.supervisor.use(town.population)
    assert "changed" in await town.round(), "another driver may have brought what was missing"
    await town.round(300.0)
    assert (await town.supervisor.report())["failing"] == []


async def test_parked_agents_are_reported_and_left_alone(town: Any) -> None:
    owner = town.running("a", "agent:a")
    reason = ParkReason("no_progress", "it crashes", START, 5, "ex-a", "calling_model")
    town.store.park_agent("a", epoch=owner.epoch, reason=reason)
    assert await town.round() == []
    [parked] = (await town.supervisor.report())["parked"]
    assert (parked["agent_id"], parked["code"], parked["message"]) == ("a", "no_progress", "it crashes")
    town.store.unpark_agent("a", now=START)
    assert await town.round() == ["a"]


async def test_a_lost_cluster_is_taken_over_and_forgotten(town: Any) -> None:
    town.running("a", "agent:a", "west")
    town.store.beat("west", info={}, now=START)
    assert await town.round() == []
    for _ in range(4):
        town.store.beat("west", info={}, now=START)
        assert await town.round(4.0) == [], "it is alive: its agents are its own affair"
    assert await town.round(9.0) == []
    assert await town.round(1.0) == ["a"]
    assert town.population.asked == [], "its processes cannot be asked from here"
    await town.round()
    assert [beat.cluster for beat in town.store.beat("east", info={}, now=START)] == ["east"]


async def test_a_store_that_is_away_costs_rounds_and_nothing_else(town: Any) -> None:
    town.running("a", "agent:a")
    town.store.always_fail("open_work", error=StoreUnavailableError("away"))
    loop = asyncio.get_running_loop()
    town.supervisor._time = loop.time
    town.supervisor.start()
    async with asyncio.timeout(20):
        while not town.supervisor._counts["failed_rounds"]:
            await asyncio.sleep(0.005)
        assert "away" in (await town.supervisor.report())["error"]
        town.store.heal()
        while town.population.woken != ["a"]:
            town.supervisor._changed.set()
            await asyncio.sleep(0.005)


async def test_a_thousand_are_woken_a_few_at_a_time(town: Any) -> None:
    under_way, most = 0, 0
    claim = town.population.wake

    async def wake(agent_id: str) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        await claim(agent_id)
        under_way -= 1

    town.population.wake = wake
    for number in range(40):
        town.running(f"a{number}", f"agent:a{number}", age_s=number)
    woken: list[str] = []
    while len(woken) < 40:
        woken += await town.round()
        assert town.time_s < 100
    assert woken == [f"a{number}" for number in reversed(range(40))]
    assert most == town.limits.max_wakes


async def test_the_least_recently_used_leave_when_a_node_holds_too_many(town: Any) -> None:
    town.population.max_live_agents = 2
    town.population.live = [
        LiveOne("busy", "n1", 900.0, may_leave=False),
        LiveOne("old", "n1", 500.0, may_leave=True),
        LiveOne("older", "n1", 700.0, may_leave=True),
        LiveOne("new", "n1", 1.0, may_leave=True),
        LiveOne("alone", "n2", 9_000.0, may_leave=True),
    ]
    await town.round()
    assert town.population.unloaded == ["older", "old"]


def test_who_may_not_leave_stays_however_many_there_are() -> None:
    live = [LiveOne(f"a{number}", "n1", float(number), may_leave=number == 3) for number in range(5)]
    assert [one.agent_id for one in too_many(live, 1)] == ["a3"]
    assert too_many(live, 5) == []
