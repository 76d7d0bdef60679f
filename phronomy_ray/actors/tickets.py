"""Cancellations that arrive before the calls that they are for: a call may be on its way, or not be sent yet, when it is cancelled."""

from __future__ import annotations

from collections import OrderedDict

#: Tickets that are remembered; the oldest are forgotten first.
MAX_REMEMBERED = 10_000


class CancelledTickets:
    """Tickets of calls that must not begin."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._tickets: OrderedDict[str, None] = OrderedDict()

    def add(self, ticket: str) -> None:
        """Remember a ticket whose call has not arrived, or is over."""
        self._tickets[ticket] = None
        while len(self._tickets) > self._limit:
            self._tickets.popitem(last=False)

    def take(self, ticket: str) -> bool:
        """Whether the arriving call was cancelled; it is asked about once."""
        if ticket not in self._tickets:
            return False
        del self._tickets[ticket]
        return True
