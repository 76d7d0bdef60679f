"""Cancellations that come before their calls."""

from __future__ import annotations

from phronomy_ray.actors.tickets import CancelledTickets


def test_a_cancellation_holds_for_the_call_that_comes_after_it_and_for_no_other() -> None:
    tickets = CancelledTickets()
    tickets.add("a")
    assert not tickets.take("b")
    assert tickets.take("a")
    assert not tickets.take("a")


def test_the_oldest_are_forgotten_first() -> None:
    tickets = CancelledTickets(limit=2)
    for ticket in ("a", "b", "c"):
        tickets.add(ticket)
    assert [tickets.take(ticket) for ticket in ("a", "b", "c")] == [False, True, True]
