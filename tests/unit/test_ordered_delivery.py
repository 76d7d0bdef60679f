"""Values are handed over in order, none twice, none in silence; who submits never waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray import OrderedDelivery
from phronomy_ray.errors import (
    BackpressureError,
    EventLoopReentrancyError,
    InvalidInputError,
    OrderedDeliveryError,
    SerializationError,
)

GUARD_S = 20.0


class Sink:
    """A function that can be held and that fails at what it is told."""

    def __init__(self, *fails_at: Any) -> None:
        self.got: list[Any] = []
        self.fails_at = fails_at
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def __call__(self, value: Any) -> None:
        self.entered.set()
        assert self.gate.wait(GUARD_S)
        if value in self.fails_at:
            raise ValueError(f"not {value}")
        self.got.append(value)


@pytest.fixture
def held() -> Iterator[Sink]:
    sink = Sink()
    sink.gate.clear()
    yield sink
    sink.gate.set()


@given(st.lists(st.integers(), max_size=50))
def test_everything_arrives_in_order(values: list[int]) -> None:
    sink = Sink()
    with OrderedDelivery(sink, capacity=50) as delivery:
        for value in values:
            delivery.submit(value)
    assert sink.got == values
    report = delivery.close_and_wait(1)
    assert (report.delivered, report.is_whole) == (len(values), True)


def test_an_async_function_is_awaited() -> None:
    got: list[int] = []

    async def deliver(value: int) -> None:
        await asyncio.sleep(0)
        got.append(value)

    with OrderedDelivery(deliver) as delivery:
        for value in range(5):
            delivery.submit(value)
    assert got == list(range(5))


def test_values_of_one_thread_keep_their_order_among_those_of_others() -> None:
    sink = Sink()
    delivery = OrderedDelivery(sink, capacity=10_000)

    def submit(thread: int) -> None:
        for number in range(200):
            delivery.submit([thread, number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(submit, range(4)))
    assert delivery.close_and_wait(GUARD_S).is_whole
    for thread in range(4):
        assert [number for id_, number in sink.got if id_ == thread] == list(range(200))


def test_what_is_changed_after_its_submission_arrives_as_it_was(held: Sink) -> None:
    delivery = OrderedDelivery(held)
    value = {"a": [1]}
    delivery.submit(value)
    value["a"].append(2)
    held.gate.set()
    delivery.close_and_wait(GUARD_S)
    assert held.got == [{"a": [1]}]


def test_without_room_nothing_more_is_accepted_and_what_was_is_handed_over(held: Sink) -> None:
    delivery = OrderedDelivery(held, capacity=2)
    delivery.submit(0)
    assert held.entered.wait(GUARD_S)
    delivery.submit(1)
    delivery.submit(2)  # the one that is being handed over does not count
    with pytest.raises(BackpressureError):
        delivery.submit(3)
    held.gate.set()
    with pytest.raises(OrderedDeliveryError, match="values wait") as refused:
        delivery.submit(4)
    assert refused.value.code == "delivery_closed"
    report = delivery.close_and_wait(GUARD_S)
    assert held.got == [0, 1, 2]
    assert (report.delivered, report.waiting, report.is_over, report.is_whole) == (3, 0, True, False)
    assert isinstance(report.error, BackpressureError)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), {1: "no text key"}])
def test_what_is_no_plain_data_ends_the_acceptance(value: Any) -> None:
    sink = Sink()
    delivery = OrderedDelivery(sink)
    delivery.submit("first")
    with pytest.raises(SerializationError):
        delivery.submit(value)
    with pytest.raises(OrderedDeliveryError):
        delivery.submit("third")
    report = delivery.close_and_wait(GUARD_S)
    assert sink.got == ["first"]
    assert isinstance(report.error, SerializationError)


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(1), asyncio.CancelledError()])
def test_the_first_error_is_the_end_unless_somebody_handles_it(raised: BaseException) -> None:
    got: list[int] = []
    gate = threading.Event()

    def deliver(value: int) -> None:
        gate.wait(GUARD_S)
        if value == 1:
            raise raised
        got.append(value)

    delivery = OrderedDelivery(deliver)
    for value in range(4):
        delivery.submit(value)
    gate.set()
    report = delivery.close_and_wait(GUARD_S)
    assert got == [0]
    assert (report.delivered, report.failed, report.waiting, report.is_over) == (1, 1, 2, True)
    assert report.error is raised
    assert not report.is_whole


def test_a_handler_lets_it_go_on() -> None:
    sink = Sink(1, 2)
    handled: list[Any] = []
    delivery = OrderedDelivery(sink, on_error=lambda value, error: handled.append((value, str(error))))
    for value in range(4):
        delivery.submit(value)
    report = delivery.close_and_wait(GUARD_S)
    assert sink.got == [0, 3]
    assert handled == [(1, "not 1"), (2, "not 2")]
    assert (report.delivered, report.failed, report.error, report.is_whole) == (2, 2, None, False)


def test_a_handler_that_fails_is_the_end() -> None:
    def handle(value: Any, error: BaseException) -> None:
        raise RuntimeError("no more")

    sink = Sink(0)
    delivery = OrderedDelivery(sink, on_error=handle)
    delivery.submit(0)
    report = delivery.close_and_wait(GUARD_S)
    assert str(report.error) == "no more"


def test_a_timeout_ends_only_the_wait_and_many_may_wait(held: Sink) -> None:
    delivery = OrderedDelivery(held)
    delivery.submit(0)
    delivery.submit(1)
    early = delivery.close_and_wait(0.02)
    assert (early.is_over, early.is_whole, early.delivered) == (False, False, 0)
    with pytest.raises(OrderedDeliveryError):
        delivery.submit(2)
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(delivery.close_and_wait, GUARD_S) for _ in range(3)]
        held.gate.set()
        assert all(wait.result(GUARD_S).is_whole for wait in waits)
    assert held.got == [0, 1]
    delivery.close()
    assert delivery.report().is_whole


def test_the_block_raises_what_was_not_handed_over() -> None:
    with pytest.raises(OrderedDeliveryError, match="1 failed") as found:
        with OrderedDelivery(Sink(1)) as delivery:
            delivery.submit(1)
    assert found.value.code == "delivery_incomplete"
    assert isinstance(found.value.__cause__, ValueError)


def test_an_error_of_the_block_stays_the_one_that_counts(caplog: pytest.LogCaptureFixture) -> None:
    def block() -> None:
        with OrderedDelivery(Sink(1)) as delivery:
            delivery.submit(1)
            raise KeyError("mine")

    with caplog.at_level(logging.WARNING), pytest.raises(KeyError):
        block()
    assert "delivery_incomplete" in caplog.text


def test_a_block_waits_no_longer_than_it_may(held: Sink) -> None:
    with pytest.raises(OrderedDeliveryError, match=r"within 0\.02 s"):
        with OrderedDelivery(held, flush_timeout_s=0.02) as delivery:
            delivery.submit(1)


async def test_a_loop_must_not_be_blocked(held: Sink) -> None:
    delivery = OrderedDelivery(held)
    delivery.submit(1)
    with pytest.raises(EventLoopReentrancyError):
        delivery.close_and_wait(1)
    waiting = asyncio.ensure_future(delivery.close_and_wait_async(GUARD_S))
    await asyncio.sleep(0)
    held.gate.set()
    assert (await waiting).is_whole


def test_the_function_cannot_wait_for_itself() -> None:
    delivery: OrderedDelivery = OrderedDelivery(lambda value: delivery.close_and_wait(1))
    delivery.submit(1)
    report = delivery.close_and_wait(GUARD_S)
    assert isinstance(report.error, OrderedDeliveryError)
    assert report.error.code == "delivery_reentrancy"


def test_nothing_was_submitted() -> None:
    with OrderedDelivery(print) as delivery:
        pass
    assert delivery.report().is_whole


@pytest.mark.parametrize(
    "wrong", [{"capacity": 0}, {"capacity": True}, {"capacity": 1.5}, {"flush_timeout_s": 0}]
)
def test_what_cannot_be_used(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        OrderedDelivery(print, **wrong)
