"""What a pool's listeners are told, when, and when they are forgotten."""

from __future__ import annotations

import asyncio

import pytest

from phronomy_ray.tools import pool_news
from phronomy_ray.tools.pool_news import FORGOTTEN_AFTER_S, Listeners, NewsList, Subscription
from phronomy_ray.tools.pool_wire import ItemKind, PoolItem

FIRST, SECOND, THIRD = ("tc1", 1), ("tc2", 1), ("tc3", 1)


class Time:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def end(subscription: Subscription, *keys: tuple[str, int]) -> None:
    for key in keys:
        subscription.tell(PoolItem(ItemKind.OUTCOME, key))
        subscription.drop(key)


def subscribe(*keys: tuple[str, int]) -> Subscription:
    subscription = Subscription()
    subscription.open.update(keys)
    return subscription


def keys_in(told: NewsList) -> list[tuple[str, int]]:
    return [item.key for item in told.news if isinstance(item, PoolItem)]


async def test_lists_keep_a_distance_and_the_last_one_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_news, "LISTS_PER_CALL_S", 60.0)
    monkeypatch.setattr(pool_news, "LISTS_EVERY_S", 60.0)
    subscription = subscribe(FIRST, SECOND, THIRD)
    end(subscription, FIRST)
    assert keys_in(await subscription.next()) == [FIRST]
    following = asyncio.ensure_future(subscription.next())
    end(subscription, SECOND)
    done, _ = await asyncio.wait({following}, timeout=0.05)
    assert not done, "it waits for company"
    end(subscription, THIRD)
    found = await asyncio.wait_for(following, 10)
    assert keys_in(found) == [SECOND, THIRD]
    assert found.is_over


async def test_a_listener_that_has_nothing_to_hear_is_told_so_at_once() -> None:
    assert await Subscription().next() == ([], True)


async def test_a_listener_that_has_heard_all_is_known_no_longer() -> None:
    listeners = Listeners(Time())
    subscription = listeners.add("one")
    subscription.open.add(FIRST)
    end(subscription, FIRST)
    told = await listeners.next("one")
    assert told is not None
    assert told.is_over
    assert await listeners.next("one") is None
    assert len(listeners) == 0


async def test_a_listener_whose_calls_another_one_took_is_let_go() -> None:
    listeners = Listeners(Time())
    subscription = listeners.add("former owner")
    subscription.open.add(FIRST)
    asking = asyncio.ensure_future(listeners.next("former owner"))
    await asyncio.sleep(0)
    subscription.drop(FIRST)
    assert await asking == ([], True)


async def test_a_silent_listener_is_forgotten_and_one_that_asks_is_not() -> None:
    time = Time()
    listeners = Listeners(time)
    for name in ("silent", "asking"):
        listeners.add(name).open.add(FIRST)
    asking = asyncio.ensure_future(listeners.next("asking"))
    await asyncio.sleep(0)
    time.now += FORGOTTEN_AFTER_S
    listeners.forget_silent()
    assert await listeners.next("silent") is None
    assert len(listeners) == 1
    asking.cancel()


async def test_news_for_a_forgotten_listener_are_not_kept() -> None:
    time = Time()
    listeners = Listeners(time)
    subscription = listeners.add("silent")
    subscription.open.add(FIRST)
    time.now += FORGOTTEN_AFTER_S
    listeners.forget_silent()
    end(subscription, FIRST)
    assert await subscription.next() == ([], True)
