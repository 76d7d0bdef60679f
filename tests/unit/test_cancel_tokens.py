"""Tokens and deadlines, and how they compose."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest

from phronomy_ray.cancel_tokens import CancellationToken, Deadline
from phronomy_ray.errors import (
    CancellationError,
    ConfigurationError,
    DeadlineExceededError,
    InvalidInputError,
)
from phronomy_ray.worker_inputs import check_worker_input


class Ticks:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_counts_down_to_nothing() -> None:
    clock = Ticks()
    deadline = Deadline.after(5.0, clock=clock)
    clock.now += 3.5
    assert (deadline.remaining_s, deadline.is_over) == (1.5, False)
    clock.now += 2.0
    assert (deadline.remaining_s, deadline.is_over) == (0.0, True)


def test_the_earlier_one_counts() -> None:
    clock = Ticks()
    early, late = Deadline.after(1.0, clock=clock), Deadline.after(2.0, clock=clock)
    assert early.earlier(late) is early
    assert late.earlier(early) is early
    assert late.earlier(None) is late


def test_what_travels_is_the_time_that_is_left() -> None:
    clock = Ticks()  # a clock that no other process has
    deadline = Deadline.after(50.0, clock=clock)
    clock.now += 20.0
    assert deadline.to_wire() == {"budget_s": 30.0}
    for arrived in (pickle.loads(pickle.dumps(deadline)), Deadline.from_wire(deadline.to_wire())):
        assert 29.0 < arrived.remaining_s <= 30.0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), True, "1", None])
def test_a_deadline_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(InvalidInputError):
        Deadline.after(wrong)


def test_the_first_word_counts_and_is_told_once() -> None:
    token, heard = CancellationToken(), []
    token.on_cancel(heard.append)
    take_back = token.on_cancel(lambda reason: heard.append("not " + reason))
    take_back()
    assert not token.is_cancelled
    assert token.cancel("enough") is True
    assert token.cancel("again") is False
    token.on_cancel(heard.append)
    assert (token.reason, heard) == ("enough", ["enough", "enough"])
    with pytest.raises(CancellationError) as caught:
        token.raise_if_cancelled()
    assert not isinstance(caught.value, TimeoutError)
    assert caught.value.details == {"reason": "enough"}


def test_a_child_follows_its_parents_and_never_the_other_way_round() -> None:
    one, two = CancellationToken(), CancellationToken()
    child, heard = one.linked(two), []
    child.on_cancel(heard.append)
    grandchild = child.linked()
    sibling = one.linked()
    sibling.cancel("mine")
    assert [item.is_cancelled for item in (one, two, child)] == [False, False, False]
    two.cancel("stop")
    assert (child.reason, grandchild.reason, heard) == ("stop", "stop", ["stop"])
    assert not one.is_cancelled


def test_a_parent_keeps_nobody_alive() -> None:
    parent = CancellationToken()
    child = parent.linked()
    child.on_cancel(lambda reason: None)()
    assert not parent._callbacks
    child.on_cancel(lambda reason: None)
    child.cancel()
    assert not parent._callbacks


def test_time_is_told_apart_from_a_word() -> None:
    clock = Ticks()
    token = CancellationToken(deadline=Deadline.after(1.0, clock=clock))
    child = token.linked(timeout_s=1_000.0)
    assert not child.is_cancelled
    clock.now += 2.0
    for item in (token, child):
        assert item.reason == "deadline_exceeded"
        with pytest.raises(DeadlineExceededError):
            item.raise_if_cancelled()
    token.cancel("too late")
    assert token.reason == "deadline_exceeded"


def test_the_end_of_the_time_is_told() -> None:
    told, heard = threading.Event(), []
    token = CancellationToken().with_timeout(0.02)

    def listen(reason: str) -> None:
        heard.append(reason)
        told.set()

    token.on_cancel(listen)
    assert told.wait(20)
    assert heard == ["deadline_exceeded"]


def test_a_long_time_is_looked_at_again_before_it_counts_as_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phronomy_ray.cancel_tokens._MAX_TIMER_S", 0.01)
    told = threading.Event()
    token = CancellationToken(timeout_s=0.1)
    took_s: list[float] = []

    def listen(reason: str) -> None:
        took_s.append(time.monotonic() - begun_s)
        told.set()

    begun_s = time.monotonic()
    token.on_cancel(listen)
    assert told.wait(20)
    assert took_s[0] >= 0.09


def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    token, heard = CancellationToken(), []

    def fail(reason: str) -> None:
        raise ValueError("listener")

    token.on_cancel(fail)
    token.on_cancel(heard.append)
    token.cancel()
    assert heard == ["cancelled"]
    assert "listener" in caplog.text


def test_a_token_does_not_travel() -> None:
    with pytest.raises(ConfigurationError):
        check_worker_input({"token": CancellationToken()}, where="input")
