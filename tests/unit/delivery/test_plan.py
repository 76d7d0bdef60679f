"""What becomes of a delivery, with time and chance as arguments."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray.delivery.plan import (
    MAX_RETRY_AFTER_S,
    MAX_RETRY_S,
    Answer,
    LeaseWatch,
    Outcome,
    Pace,
    after_failure,
    backoff_s,
)
from phronomy_ray.subscriptions import Delivery, DeliveryError, Subscription, SubscriptionLease, Webhook
from phronomy_ray.testing.store_samples import START, event

HOOK = Webhook(url="https://example.org/x", max_age_s=100, max_attempts=5)
ERROR = DeliveryError("http_status", "503", 503)
BUSY = Answer(Outcome.UNAVAILABLE, ERROR)
NO = Answer(Outcome.REFUSED, DeliveryError("http_status", "400", 400))
OK = Answer(Outcome.DELIVERED)


def delivery(attempts: int = 0) -> Delivery:
    return Delivery(1, "s1", event("ex1", "alice", 1), attempts, START)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_grow_are_bounded_and_vary(failures: int, chance: float) -> None:
    pause = backoff_s(failures, chance)
    assert 0 < pause <= MAX_RETRY_S
    assert backoff_s(failures, 0) <= pause <= backoff_s(failures, 1)
    assert backoff_s(failures + 1, chance) >= pause
    assert backoff_s(1, 0) == 0.5
    assert backoff_s(4, 1) == 8.0


def test_a_failed_attempt_is_repeated_until_its_number_or_its_age_is_over() -> None:
    now = START + timedelta(seconds=10)
    again = after_failure(delivery(2), NO, HOOK, now=now, chance=1.0)
    assert (again.next_at, again.dead_at) == (now + timedelta(seconds=4), None)
    assert again.error.status == 400
    assert after_failure(delivery(4), NO, HOOK, now=now, chance=0.5).dead_at == now
    late = START + timedelta(seconds=100)
    dead = after_failure(delivery(0), BUSY, HOOK, now=late, chance=0.5)
    assert (dead.next_at, dead.dead_at) == (None, late)
    patient = replace(HOOK, max_attempts=None, max_age_s=1e6)
    assert after_failure(delivery(5_000), BUSY, patient, now=late, chance=0).next_at is not None


def test_who_says_gone_is_not_asked_again() -> None:
    gone = Answer(Outcome.GONE, DeliveryError("http_status", "410", 410))
    assert after_failure(delivery(), gone, HOOK, now=START, chance=0).dead_at == START


@pytest.mark.parametrize(("asked", "given_s"), [(60.0, 60.0), (0.1, 1.0), (1e9, MAX_RETRY_AFTER_S)])
def test_a_receiver_is_left_in_peace_as_long_as_it_asks(asked: float, given_s: float) -> None:
    answer = Answer(Outcome.UNAVAILABLE, ERROR, asked)
    failed = after_failure(delivery(), answer, replace(HOOK, max_age_s=1e6), now=START, chance=1.0)
    assert failed.next_at == START + timedelta(seconds=given_s)


def test_a_receiver_that_is_away_is_tried_by_one_event() -> None:
    pace = Pace(8)
    assert pace.room(3, 0.0) == 5
    pace.heard(BUSY, begun_s=9.5, now_s=10.0, chance=1.0)
    for _ in range(7):
        pace.heard(BUSY, begun_s=9.5, now_s=10.5, chance=1.0)  # those that were under way
    assert (pace.failures, pace.left_s(10.5), pace.room(0, 10.5)) == (1, 0.5, 0)
    assert pace.room(0, 11.0) == 1
    assert pace.room(1, 11.0) == 0
    pace.heard(BUSY, begun_s=11.0, now_s=11.0, chance=1.0)
    assert pace.left_s(11.0) == 2.0
    pace.heard(OK, begun_s=13.0, now_s=13.0, chance=1.0)
    assert pace.room(0, 13.0) == 8


def test_an_event_that_is_refused_slows_nobody_else() -> None:
    pace = Pace(8)
    for _ in range(20):
        pace.heard(NO, begun_s=1.0, now_s=1.0, chance=1.0)
    assert pace.room(0, 1.0) == 8


def test_what_cannot_be_sent_at_all_pauses_too() -> None:
    pace = Pace(8)
    pace.heard(Answer(Outcome.UNABLE, ERROR), begun_s=0.0, now_s=0.0, chance=1.0)
    assert (pace.failures, pace.room(0, 0.5), pace.room(0, 1.0)) == (1, 0, 1)


def test_retry_after_of_any_answer_counts() -> None:
    pace = Pace(8)
    pace.heard(BUSY, begun_s=0.0, now_s=0.0, chance=1.0)
    pace.heard(Answer(Outcome.UNAVAILABLE, ERROR, 50.0), begun_s=0.0, now_s=0.5, chance=1.0)
    assert pace.left_s(0.5) == 50.0


def test_what_was_sent_before_a_receiver_asked_for_peace_does_not_end_it() -> None:
    pace = Pace(8)
    pace.heard(Answer(Outcome.UNAVAILABLE, ERROR, 60.0), begun_s=9.0, now_s=10.0, chance=1.0)
    for late in (OK, NO):
        pace.heard(late, begun_s=9.0, now_s=10.1, chance=1.0)
    assert (pace.left_s(10.1), pace.failures) == (59.9, 1)
    pace.heard(OK, begun_s=70.0, now_s=70.1, chance=1.0)
    assert (pace.room(0, 70.1), pace.failures) == (8, 0)


def lease(holder: str = "other", epoch: int = 1, beats: int = 0, name: str = "s1") -> SubscriptionLease:
    return SubscriptionLease(Subscription(name, HOOK, START), holder, epoch, beats)


def test_a_lease_is_taken_when_nobody_has_it_or_its_holder_is_silent() -> None:
    watch = LeaseWatch(10.0)
    free = lease(holder="")
    assert watch.to_take([free, lease(name="s2")], [], 0.0) == [free]
    assert watch.to_take([lease(beats=1)], [], 4.0) == []
    assert watch.to_take([lease(beats=1)], [], 8.0) == []
    assert watch.to_take([lease(beats=2)], [], 12.0) == [], "it has moved"
    for now_s in (16.0, 20.0):
        assert watch.to_take([lease(beats=2)], [], now_s) == []
    assert watch.to_take([lease(beats=2)], [], 22.0) == [lease(beats=2)]
    assert watch.to_take([lease(beats=2)], ["s1"], 23.0) == [], "it is ours"


def test_the_silence_of_who_did_not_listen_counts_nothing() -> None:
    watch = LeaseWatch(10.0)
    assert watch.to_take([lease()], [], 0.0) == []
    assert watch.to_take([lease()], [], 100.0) == []
    assert watch.to_take([lease()], [], 104.0) == []
    assert watch.to_take([lease()], [], 108.0) == []
    assert watch.to_take([lease()], [], 110.0) == [lease()]
