"""Deliverers against a real receiver: order, repetition, patience, and who may deliver."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from delivery_lab import Got, Post, Receiver, until

from phronomy_ray import Callback, DeliveredEvent, verify_webhook
from phronomy_ray.clock import utc_now
from phronomy_ray.delivery import senders
from phronomy_ray.delivery.deliverer import Deliverer
from phronomy_ray.delivery.plan import Outcome
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.faulty_store import FaultyStore

AGE = 1e12


async def test_events_arrive_signed_once_and_in_order(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLERK_SECRET", "sk-canary-7")
    post.subscribe(receiver, secret_env="CLERK_SECRET")
    with caplog.at_level(logging.DEBUG):
        post.tell("alice", 1)
        post.tell("bob", 1, 2)
        post.deliverer()
        post.tell("alice", 2, 3)
        await post.until_done()
    for agent_id, seqs in (("alice", [1, 2, 3]), ("bob", [1, 2])):
        assert [seq for id_, seq in receiver.keys if id_ == f"ex-{agent_id}"] == seqs
    for got in receiver.got:
        found = verify_webhook(got.headers, got.body, secret="sk-canary-7", now=utc_now())
        assert found == got.headers["webhook-id"] == got.data["event_id"]
        assert got.headers["phronomy-attempt"] == "1"
        assert got.headers["content-type"] == "application/json"
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 5
    assert "sk-canary-7" not in caplog.text


async def test_only_the_types_that_are_wanted_arrive(post: Post, receiver: Receiver) -> None:
    post.subscribe(receiver, events=["completed"])
    post.subscribe(receiver, "other", events=["tool_result"])
    post.deliverer()
    post.tell("alice", 1)
    await post.until_done("other")
    assert receiver.keys == [("ex-alice", 1)]


@pytest.mark.parametrize("wrong", [0, 500, 503, 404, 302])
async def test_a_failed_delivery_is_repeated_with_the_same_id_before_what_follows(
    post: Post, receiver: Receiver, wrong: int
) -> None:
    async def react(got: Got, number: int) -> int | None:
        return wrong if number in (2, 3) else None

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE)
    post.tell("alice", 1, 2, 3)
    post.deliverer()
    await post.until_done()
    assert receiver.keys == [("ex-alice", seq) for seq in (1, 2, 2, 2, 3)]
    ids = [got.headers["webhook-id"] for got in receiver.got]
    assert len(set(ids[1:4])) == 1
    assert [got.headers["phronomy-attempt"] for got in receiver.got] == ["1", "1", "2", "3", "1"]


async def test_retry_after_is_honoured_for_the_whole_subscription(post: Post, receiver: Receiver) -> None:
    times: list[float] = []

    async def react(got: Got, number: int) -> web.Response | None:
        times.append(time.monotonic())
        return web.Response(status=429, headers={"Retry-After": "1"}) if number == 1 else None

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE)
    for agent_id in ("alice", "bob", "carol"):
        post.tell(agent_id, 1)
    deliverer = post.deliverer(max_parallel=1)
    await post.until_done()
    assert times[1] - times[0] >= 0.99
    assert len(times) == 4
    wanted = {"delivered": 3, "failed": 1, "dead": 0}
    await until(lambda: deliverer.report()[0]["counts"] == wanted)


async def test_a_receiver_that_is_away_is_not_stormed_and_gets_everything_when_it_is_back(
    post: Post, receiver: Receiver
) -> None:
    gone = True

    async def react(got: Got, number: int) -> int | None:
        return 503 if gone else None

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE)
    for number in range(30):
        post.tell(f"agent{number:02}", 1, 2)
    post.deliverer(max_parallel=4)
    await until(lambda: len(receiver.got) >= 8)
    assert receiver.most <= 4
    first = len(receiver.got)
    # after the first wave it is one event at a time, with growing pauses
    assert first <= 4 + 8
    gone = False
    await post.until_done()
    delivered = Counter(receiver.keys)
    assert len(delivered) == 60


async def test_an_event_that_is_refused_holds_up_its_own_agent_only(post: Post, receiver: Receiver) -> None:
    async def react(got: Got, number: int) -> int | None:
        return 400 if got.key == ("ex-alice", 1) else None

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE)
    post.tell("alice", 1, 2)
    for seq in range(1, 6):
        post.tell("bob", seq)
    post.deliverer()
    await until(lambda: post.waiting() == 2)
    assert ("ex-alice", 2) not in receiver.keys
    assert [seq for id_, seq in receiver.keys if id_ == "ex-bob"] == [1, 2, 3, 4, 5]


async def test_a_dead_letter_can_be_seen_and_delivered_again(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    refuses = True

    async def react(got: Got, number: int) -> int | None:
        return 422 if refuses and got.key == ("ex-alice", 1) else None

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE, max_attempts=3)
    post.tell("alice", 1, 2)
    with caplog.at_level(logging.WARNING, "phronomy_ray.delivery"):
        post.deliverer()
        await post.until_done()
    assert receiver.keys == [("ex-alice", 1)] * 3 + [("ex-alice", 2)]
    [dead] = post.store.dead_letters()
    assert dead.error is not None
    assert (dead.attempts, dead.error.status, dead.error.code) == (3, 422, "http_status")
    assert "was given up" in caplog.text
    assert "thanks" not in caplog.text + repr(dead), "what a receiver says is nobody's business"
    refuses = False
    assert post.store.redeliver(now=utc_now(), subscription_id="s1") == 1
    await until(lambda: len(receiver.got) == 5)
    assert receiver.got[4].headers["webhook-id"] == receiver.got[0].headers["webhook-id"]
    await post.until_done()
    assert post.store.dead_letters() == []


async def test_gone_is_given_up_at_once(post: Post, receiver: Receiver) -> None:
    async def react(got: Got, number: int) -> int | None:
        return 410

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE)
    post.tell("alice", 1, 2)
    post.deliverer()
    await post.until_done()
    assert receiver.keys == [("ex-alice", 1), ("ex-alice", 2)]
    assert len(post.store.dead_letters()) == 2


async def test_an_event_that_is_too_old_has_one_attempt(post: Post, receiver: Receiver) -> None:
    async def react(got: Got, number: int) -> int | None:
        return 500 if number == 1 else None

    receiver.react = react
    post.subscribe(receiver, max_age_s=60)  # the samples are of a fixed day
    post.tell("alice", 1, 2)
    post.deliverer()
    await post.until_done()
    assert receiver.keys == [("ex-alice", 1), ("ex-alice", 2)]
    assert len(post.store.dead_letters()) == 1


async def test_a_slow_receiver_is_a_failed_attempt(post: Post, receiver: Receiver) -> None:
    async def react(got: Got, number: int) -> int | None:
        if number == 1:
            await asyncio.sleep(5)
        return None

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE, timeout_s=0.5)
    post.tell("alice", 1)
    deliverer = post.deliverer()
    await post.until_done()
    assert set(receiver.keys) == {("ex-alice", 1)}
    assert len(receiver.got) >= 2
    assert "timeout" in deliverer.report()[0]["error"]


async def test_an_answer_whose_body_never_ends_is_an_answer(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "LEAVE_S", 0.05)

    async def react(got: Got, number: int) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.headers["Content-Length"] = "1000000"
        return answer

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE)
    post.tell("alice", 1, 2)
    post.deliverer()
    await post.until_done()
    assert receiver.keys == [("ex-alice", 1), ("ex-alice", 2)]


async def test_nobody_listens_and_then_somebody_does(post: Post, receiver: Receiver) -> None:
    url, receiver.url = receiver.url, "http://127.0.0.1:9/in"  # the discard port: refused
    post.subscribe(receiver, "dead", max_age_s=AGE)
    receiver.url = url
    post.subscribe(receiver, max_age_s=AGE)
    post.tell("alice", 1)
    deliverer = post.deliverer()
    await post.until_done()
    await until(lambda: "unreachable" in str(deliverer.report()))
    assert "127.0.0.1" not in str(deliverer.report())
    assert post.waiting("dead") == 1


async def test_a_missing_secret_is_said_and_waited_for(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.subscribe(receiver, secret_env="LATE_SECRET", max_age_s=60, max_attempts=1)
    post.tell("alice", 1)
    deliverer = post.deliverer()
    await until(lambda: "LATE_SECRET" in str(deliverer.report()))
    assert receiver.got == [], "nothing is sent without the signature that was asked for"
    monkeypatch.setenv("LATE_SECRET", "x")
    await post.until_done()
    assert [got.headers["phronomy-attempt"] for got in receiver.got] == ["1"]
    assert post.store.dead_letters() == [], "what was not tried is not given up"


# --- functions -------------------------------------------------------------------------------------------------

MODULE = """
import asyncio
from phronomy_ray import DeliveredEvent

taken: list[DeliveredEvent] = []
wrong = 2

def take(event):
    global wrong
    if event.seq == 2 and wrong:
        wrong -= 1
        raise ValueError("not this one")
    taken.append(event)

async def take_async(event):
    await asyncio.sleep(0)
    taken.append(event)
"""


@pytest.fixture
def takers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import sys

    (tmp_path / "event_takers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("event_takers", None)
    import event_takers  # type: ignore[import-not-found]

    return event_takers


@pytest.mark.parametrize("name", ["take", "take_async"])
async def test_a_function_takes_events_in_order(post: Post, takers: Any, name: str) -> None:
    post.subscribe(Callback(function=f"event_takers:{name}", max_age_s=AGE))
    post.tell("alice", 1, 2, 3)
    post.deliverer()
    await post.until_done()
    assert [event.seq for event in takers.taken] == [1, 2, 3]
    assert [event.attempt for event in takers.taken] == ([1, 3, 1] if name == "take" else [1, 1, 1])
    assert takers.taken[0].agent_id == "alice"


async def test_a_function_that_is_not_there_is_waited_for(post: Post, takers: Any) -> None:
    post.subscribe(Callback(function="event_takers:later", max_attempts=1))
    post.tell("alice", 1)
    deliverer = post.deliverer()
    await until(lambda: "callback_unavailable" in str(deliverer.report()))
    takers.later = takers.take
    await post.until_done()
    assert [event.attempt for event in takers.taken] == [1]


async def test_a_function_that_hangs_holds_a_bounded_number_of_threads(takers: Any, post: Post) -> None:
    gate = threading.Event()
    begun: list[int] = []

    def stuck(event: Any) -> None:
        begun.append(event.seq)
        gate.wait(20)

    takers.stuck = stuck
    sender = senders.CallbackSender(Callback(function="event_takers:stuck", timeout_s=0.01))
    post.subscribe(Callback(function="event_takers:stuck", max_age_s=AGE))
    post.tell("alice", 1)
    event = DeliveredEvent.of(post.store.deliveries_of("s1", "alice", limit=1)[0])
    answers = [await sender.send(event) for _ in range(senders.MAX_OVERDUE + 3)]
    assert len(begun) == senders.MAX_OVERDUE
    codes = [answer.error.code for answer in answers if answer.error is not None]
    assert codes == ["timeout"] * senders.MAX_OVERDUE + ["callback_stuck"] * 3
    gate.set()
    await until(lambda: not sender._overdue)
    assert (await sender.send(event)).outcome is Outcome.DELIVERED


# --- who delivers ----------------------------------------------------------------------------------------------


async def test_of_many_deliverers_one_delivers_and_another_takes_over_at_its_end(
    post: Post, receiver: Receiver
) -> None:
    post.subscribe(receiver, max_age_s=AGE)
    deliverers = [post.deliverer() for _ in range(3)]
    for seq in range(1, 11):
        post.tell("alice", seq)
    await post.until_done()
    assert receiver.keys == [("ex-alice", seq) for seq in range(1, 11)]
    [busy] = [one for one in deliverers if one.report()]
    await busy.close()
    await until(lambda: any(one.report() for one in deliverers if one is not busy))
    post.tell("alice", 11)
    await post.until_done()
    assert receiver.keys[10:] == [("ex-alice", 11)]


async def test_a_deliverer_that_was_stopped_is_replaced_and_delivers_nothing_more(
    post: Post, receiver: Receiver
) -> None:
    post.subscribe(receiver, max_age_s=AGE)
    frozen = FaultyStore(open_store(post.url))
    first = post.deliverer(store=frozen, takeover_after_s=0.3)
    post.tell("alice", 1)
    await post.until_done()
    held = asyncio.Event()

    async def react(got: Got, number: int) -> int | None:
        if number == 2:
            await held.wait()
        return None

    receiver.react = react
    post.tell("alice", 2, 3)
    await until(lambda: len(receiver.got) == 2)
    frozen.always_fail()  # its process hangs in the middle of a delivery: neither a beat nor a record comes through
    second = post.deliverer(takeover_after_s=0.3)
    await until(lambda: bool(second.report()))
    await until(lambda: post.waiting() == 0)
    frozen.heal()
    held.set()
    await until(lambda: first.report() == [])
    post.tell("alice", 4)
    await post.until_done()
    assert receiver.keys[:2] == [("ex-alice", 1), ("ex-alice", 2)]
    assert receiver.keys[2:] == [("ex-alice", 2), ("ex-alice", 3), ("ex-alice", 4)]
    twice = [got.headers["webhook-id"] for got in receiver.got if got.key == ("ex-alice", 2)]
    assert len(twice) == 2
    assert len(set(twice)) == 1
    frozen.inner.close()


async def test_a_delivery_whose_record_is_lost_comes_again_with_the_same_id(
    post: Post, receiver: Receiver
) -> None:
    post.subscribe(receiver, max_age_s=AGE)
    faulty = FaultyStore(open_store(post.url))
    faulty.always_fail("delivery_done")
    post.tell("alice", 1, 2)
    post.deliverer(store=faulty)
    await until(lambda: len(receiver.got) >= 2)
    faulty.heal()
    await post.until_done()
    assert receiver.keys[-1] == ("ex-alice", 2)
    firsts = {got.headers["webhook-id"] for got in receiver.got if got.key == ("ex-alice", 1)}
    assert len(firsts) == 1
    faulty.inner.close()


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 8))])
async def test_whatever_fails_and_whoever_crashes_everything_arrives_and_first_times_are_in_order(
    post: Post, receiver: Receiver, seed: int
) -> None:
    chance = random.Random(seed)
    taken: list[tuple[str, int]] = []

    async def react(got: Got, number: int) -> int | None:
        what = chance.random()
        if what < 0.1:
            return 0  # it dies without an answer, and has not taken it
        if what < 0.2:
            return chance.choice([400, 500, 503])
        taken.append(got.key)
        if what < 0.3:
            return 0  # it has taken it, and nobody is told
        return None

    receiver.react = react
    post.subscribe(receiver, max_age_s=AGE)
    agents = [f"agent{number}" for number in range(4)]
    for agent_id in agents:
        post.tell(agent_id, 1, 2, 3)
    for first in (4, 7, 10):
        deliverer = post.deliverer(takeover_after_s=0.2)
        seen = len(taken)
        await until(lambda seen=seen: len(taken) >= seen + 6)
        post.crash(deliverer)
        for agent_id in agents:
            post.tell(agent_id, first, first + 1, first + 2)
    post.deliverer(takeover_after_s=0.2)
    await post.until_done()
    for agent_id in agents:
        of_agent = [seq for id_, seq in taken if id_ == f"ex-{agent_id}"]
        assert list(dict.fromkeys(of_agent)) == list(range(1, 13))
    assert post.store.dead_letters() == []


async def test_a_subscription_that_is_removed_gets_nothing_more(post: Post, receiver: Receiver) -> None:
    post.subscribe(receiver, max_age_s=AGE)
    deliverer: Deliverer = post.deliverer()
    post.tell("alice", 1)
    await post.until_done()
    post.store.remove_subscription("s1")
    await until(lambda: deliverer.report() == [])
    post.tell("alice", 2)
    post.subscribe(receiver, max_age_s=AGE)
    post.tell("alice", 3)
    await post.until_done()
    assert receiver.keys == [("ex-alice", 1), ("ex-alice", 3)]


async def test_a_store_that_is_away_for_a_while_ends_nothing(post: Post, receiver: Receiver) -> None:
    post.subscribe(receiver, max_age_s=AGE)
    faulty = FaultyStore(open_store(post.url))
    post.deliverer(store=faulty)
    post.tell("alice", 1)
    await post.until_done()
    faulty.always_fail()
    post.tell("alice", 2)
    await until(lambda: faulty.calls.count("due_agents") > 0)
    before = len(faulty.calls)
    await until(lambda: len(faulty.calls) > before + 5)
    faulty.heal()
    await post.until_done()
    assert receiver.keys == [("ex-alice", 1), ("ex-alice", 2)]
    faulty.inner.close()


async def test_a_subscription_of_a_newer_release_is_left_to_its_deliverers_and_stops_no_other(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    post.subscribe(receiver, "newer")
    post.subscribe(receiver)
    with sqlite3.connect(post.url.removeprefix("sqlite:///")) as connection:
        row = connection.execute(
            "SELECT target FROM subscriptions WHERE subscription_id = 'newer'"
        ).fetchone()
        target = json.dumps({**json.loads(row[0]), "v": 999})
        connection.execute("UPDATE subscriptions SET target = ? WHERE subscription_id = 'newer'", (target,))
    connection.close()
    post.tell("alice", 1)
    post.deliverer()
    await until(lambda: receiver.keys == [("ex-alice", 1)])
    assert "subscription newer is left to others" in caplog.text
