"""Observers that are slow, fail or hang: readers of the buffer, and ``on_event`` in the process that owns the agent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.definition.tool import tool
from phronomy_ray.engine import event_hub, event_listener
from phronomy_ray.engine.event_hub import EventHub, Place
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.events import Event, EventType
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.testing.faulty_store import FaultyStore

GUARD_S = 20.0


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


def many(count: int) -> Any:
    return calls(*(call("look", {"x": n}) for n in range(count)))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not holds():
            await asyncio.sleep(0.002)


def live(seq: int) -> Event:
    return Event("ex1", seq, EventType.TOOL_STARTED, {}, False)


def durable(seq: int) -> Event:
    return Event("ex1", seq, EventType.TOOL_RESULT, {})


# --- readers ---------------------------------------------------------------------------------------------------


async def test_a_gap_counts_the_live_events_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "BUFFER_EVENTS", 3)
    hub = EventHub()
    hub.publish(durable(1))
    first = hub.read("ex1", Place())
    assert (first.place, first.gap_until) == (Place(1, 0), None)
    for event in (live(1), durable(2), live(2), live(2), durable(3), live(3), durable(4)):
        hub.publish(event)
    behind = hub.read("ex1", first.place)
    assert [event.seq for event in behind.events] == [3, 3, 4]
    assert (behind.lost_live, behind.gap_until) == (3, 2)
    assert behind.place == Place(8, 4)
    assert hub.read("ex1", behind.place).events == []


@pytest.mark.parametrize("cursor_kept", [True, False])
async def test_Y05_a_slow_reader_loses_live_events_only_and_is_told_how_many(
    lab: Any, monkeypatch: pytest.MonkeyPatch, cursor_kept: bool
) -> None:
    monkeypatch.setattr(event_hub, "BUFFER_EVENTS", 8)
    engine = lab.engine(lab.define([many(20), final("x")], look))
    await engine.start("ex1", "go")
    seen, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=GUARD_S)
    await lab.end(engine)
    after = seen[-1].seq
    if not cursor_kept:
        cursor = None
    while not seen[-1].is_terminal:
        found, cursor = await engine.events("ex1", after=after, cursor=cursor, timeout_s=GUARD_S)
        assert found
        seen += found
        after = max(after, found[-1].seq)
    kept = [event.seq for event in seen if event.durable]
    assert kept == list(range(1, 43)), "started, 20 calls, 20 results, completed"
    started = sum(event.type is EventType.TOOL_STARTED for event in seen)
    lost = [event.payload["events"] for event in seen if event.type is EventType.LOST]
    if cursor_kept:
        assert started + sum(lost) == 20
        assert len(lost) == 1


async def test_R16_a_reader_over_pages_of_the_store_is_told_once(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More durable events are missing than one page holds; the live ones that are gone are told at the end of it."""
    monkeypatch.setattr(event_hub, "BUFFER_EVENTS", 8)
    engine = lab.engine(lab.define([many(30), final("x")], look))
    store: Any = engine.store.store
    whole = store.events
    monkeypatch.setattr(
        store, "events", lambda id_, *, after=0, limit=1000: whole(id_, after=after, limit=min(limit, 7))
    )
    await engine.start("ex1", "go")
    seen, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=GUARD_S)
    await lab.end(engine)
    while not seen[-1].is_terminal:
        after = max(event.seq for event in seen)
        found, cursor = await engine.events("ex1", after=after, cursor=cursor, timeout_s=GUARD_S)
        seen += found
    assert [event.seq for event in seen if event.durable] == list(range(1, 63))
    lost = [event.payload["events"] for event in seen if event.type is EventType.LOST]
    assert sum(event.type is EventType.TOOL_STARTED for event in seen) + sum(lost) == 30
    assert len(lost) == 1


async def test_R17_a_reader_of_a_lost_process_goes_on_behind_its_last_event(lab: Any) -> None:
    """Nothing is told twice and nothing skipped, and no effect is repeated for a reader's sake."""
    done: list[int] = []

    @tool(replay="never")
    async def pay(n: int) -> str:
        done.append(n)
        return f"paid {n}"

    definition = lab.define([calls(*(call("pay", {"n": n}) for n in range(4))), final("x")], pay)
    first = lab.engine(definition)
    stuck = lab.pause("before_model", 2)
    await first.start("ex1", "go", stream=True)
    release = await stuck()
    seen, cursor = await first.events("ex1", after=0, cursor=None, timeout_s=GUARD_S)
    after = max(event.seq for event in seen)
    second = await lab.restarted(definition)
    release()
    while not seen[-1].is_terminal:
        found, cursor = await second.events("ex1", after=after, cursor=cursor, timeout_s=GUARD_S)
        seen += found
        after = max(after, found[-1].seq)
    kept = [event.seq for event in seen if event.durable]
    assert kept == list(range(1, len(kept) + 1))
    assert sorted(done) == [0, 1, 2, 3]


# --- on_event --------------------------------------------------------------------------------------------------


def listening(lab: Any, hook: Any, script: Any, **attributes: Any) -> Any:
    return lab.engine(lab.define(script, look, on_event=hook, **attributes))


@pytest.mark.parametrize("is_async", [False, True])
async def test_on_event_hears_every_durable_event_in_order_off_the_loop(lab: Any, is_async: bool) -> None:
    heard: list[Event] = []
    threads: set[str] = set()

    def plain(event: Event) -> None:
        heard.append(event)
        threads.add(threading.current_thread().name)

    async def waiting(event: Event) -> None:
        await asyncio.sleep(0)
        plain(event)

    engine = listening(lab, waiting if is_async else plain, [many(3), final("x y")])
    await engine.start("ex1", "go", stream=True)
    await lab.end(engine)
    await until(lambda: bool(heard) and heard[-1].is_terminal)
    assert heard == await engine.stored_events("ex1", 0)
    assert all(event.durable for event in heard)
    assert threads == {"phronomy-on-event"}
    assert engine.status()["on_event"] == [
        {"heard": len(heard), "failed": 0, "lost_live": 0, "lost_durable": 0}
    ]


async def test_on_event_hears_tokens_if_it_asks_and_may_keep_what_it_is_given(lab: Any) -> None:
    heard: list[Event] = []

    def spoil(event: Event) -> None:
        heard.append(Event(event.execution_id, event.seq, event.type, dict(event.payload), event.durable))
        event.payload.clear()

    engine = listening(lab, spoil, [final("x y z")], on_event_live=True)
    await engine.start("ex1", "go", stream=True)
    await lab.end(engine)
    await until(lambda: bool(heard) and heard[-1].is_terminal)
    assert "".join(event.payload["text"] for event in heard if event.type is EventType.TOKEN) == "x y z"
    assert await lab.read_events(engine), "what readers get is their own"
    assert (await engine.stored_events("ex1", 0))[-1].payload == heard[-1].payload


async def test_the_class_and_the_instance_both_listen(lab: Any) -> None:
    of_class: list[Event] = []
    of_instance: list[Event] = []
    definition = lab.define([final("x")], look, on_event=of_class.append)
    engine = lab.engine(definition, options=InstanceOptions(on_event=of_instance.append))
    await lab.run(engine)
    await until(lambda: len(of_class) == len(of_instance) == 2)
    row = lab.store.load_execution("ex1")
    assert row.state.get("options", {}) == {}, "an execution goes on without somebody who only watched"


@pytest.mark.parametrize("raised", [RuntimeError("no"), asyncio.CancelledError(), SystemExit(1)])
async def test_Y07_on_event_that_raises_stops_nothing(
    lab: Any, caplog: pytest.LogCaptureFixture, raised: BaseException
) -> None:
    heard: list[EventType] = []
    good: list[Event] = []

    def bad(event: Event) -> None:
        heard.append(event.type)
        raise raised

    definition = lab.define([many(2), final("x")], look, on_event=bad)
    engine = lab.engine(definition, options=InstanceOptions(on_event=good.append))
    with caplog.at_level(logging.WARNING, "phronomy_ray.engine"):
        assert (await lab.run(engine)).output == "x"
        await until(lambda: EventType.COMPLETED in heard and len(good) == len(heard))
        await until(lambda: engine.status()["on_event"][0]["failed"] == 6)
    lines = [record.getMessage() for record in caplog.records if "on_event" in record.getMessage()]
    assert len(lines) == 3, "the first, second and fourth failure"
    assert all("on_event_failed" in line for line in lines)
    assert (await lab.run(engine, id="ex2")).output == "x"


@pytest.mark.parametrize("at", ["started", "completed"])
async def test_Y07_on_event_that_hangs_stops_nothing_and_is_not_called_twice_at_once(
    lab: Any, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    release, running, most = threading.Event(), 0, 0
    heard: list[str] = []

    def hang(event: Event) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if event.type.value == at:
            release.wait(GUARD_S)
        heard.append(event.type.value)
        running -= 1

    engine = listening(lab, hang, [many(2), final("x")], hook_timeout_s=0.05)
    with caplog.at_level(logging.WARNING, "phronomy_ray.engine"):
        assert (await lab.run(engine)).output == "x"
        await until(lambda: engine.status()["on_event"][0]["failed"] == 1)
    assert "on_event_timeout" in caplog.text
    release.set()
    await until(lambda: len(heard) == 6)
    assert most == 1
    assert heard[-1] == "completed"


async def test_R16_on_event_that_is_slow_is_told_what_it_lost_and_hears_the_rest_from_the_store(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_listener, "MAX_WAITING", 4)
    release = threading.Event()
    heard: list[Event] = []

    def slow(event: Event) -> None:
        release.wait(GUARD_S)
        heard.append(event)

    engine = listening(lab, slow, [many(20), final("x")], on_event_live=True)
    assert (await lab.run(engine)).output == "x"
    release.set()
    await until(lambda: bool(heard) and heard[-1].is_terminal)
    kept = [event.seq for event in heard if event.durable]
    assert kept == list(range(1, 43))
    lost = sum(event.payload["events"] for event in heard if event.type is EventType.LOST)
    assert lost == engine.status()["on_event"][0]["lost_live"] > 0
    assert sum(event.type is EventType.TOOL_STARTED for event in heard) + lost == 20


async def test_what_cannot_be_read_again_is_counted_and_logged(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_listener, "MAX_WAITING", 2)
    release = threading.Event()
    heard: list[Event] = []

    def slow(event: Event) -> None:
        release.wait(GUARD_S)
        heard.append(event)

    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define([many(5), final("x")], look, on_event=slow), store=store)
    assert (await lab.run(engine)).output == "x"
    store.always_fail("events")
    with caplog.at_level(logging.WARNING, "phronomy_ray.engine"):
        release.set()
        await until(lambda: engine.status()["on_event"][0]["lost_durable"] > 0)
    counts = engine.status()["on_event"][0]
    assert counts["heard"] + counts["lost_durable"] == 12
    assert "on_event_lost" in caplog.text
    store.heal()
    await lab.run(engine, id="ex2")
    await until(lambda: heard[-1].execution_id == "ex2" and heard[-1].is_terminal)


async def test_an_agent_that_leaves_lets_on_event_hear_the_end(lab: Any) -> None:
    heard: list[Event] = []

    async def slow(event: Event) -> None:
        await asyncio.sleep(0.02)
        heard.append(event)

    engine = listening(lab, slow, [many(3), final("x")])
    await lab.run(engine)
    await engine.seal()
    assert heard[-1].type is EventType.COMPLETED
    assert [event.seq for event in heard] == list(range(1, 9))


async def test_an_agent_that_leaves_does_not_wait_for_one_that_hangs(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_listener, "LAST_WORDS_S", 0.1)
    release = threading.Event()
    engine = listening(lab, lambda event: release.wait(GUARD_S), [many(3), final("x")])
    await lab.run(engine)
    with caplog.at_level(logging.WARNING, "phronomy_ray.engine"):
        async with asyncio.timeout(5):
            await engine.seal()
    release.set()
    assert "on_event_lost" in caplog.text


@pytest.mark.parametrize("given", [3, "print", lambda: None, lambda a, b: None])
def test_what_cannot_listen_is_refused_with_the_class(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="on_event"):
        type("Clerk", (Agent,), {"model": "openai/x", "on_event": given})
    with pytest.raises(ConfigurationError, match="on_event"):
        InstanceOptions(on_event=given)


def test_instance_listeners_are_named_but_not_needed() -> None:
    options = InstanceOptions(on_event=print, on_event_live=True)
    assert list(options.names()) == ["on_event"]
    assert options.needed_names() == {}
    with pytest.raises(ConfigurationError, match="on_event_live"):
        InstanceOptions(on_event_live="yes")  # type: ignore[arg-type]


def test_a_subclass_inherits_its_listener_and_may_replace_it() -> None:
    class Clerk(Agent):
        model = "openai/x"

        def on_event(event: Event) -> None:
            raise AssertionError

    class Deaf(Clerk):
        on_event = None

    class Other(Clerk):
        @staticmethod
        def on_event(event: Event) -> None:
            raise AssertionError

    assert Clerk.definition().on_event is Clerk.on_event
    assert Deaf.definition().on_event is None
    assert Other.definition().on_event is Other.on_event
