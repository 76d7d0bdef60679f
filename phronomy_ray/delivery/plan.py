"""What becomes of a delivery after an attempt, how fast a subscription may go, and when to take one over. Pure: no clock, loop or HTTP.

Two things are told apart. An event that its receiver refuses holds up the events of its own agent, which must stay in order, and
nobody else's. A receiver that cannot be reached or says that it is busy is left in peace altogether: after a pause a single event
tries whether it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from phronomy_ray.subscriptions import Delivery, DeliveryError, SubscriptionLease, Target

#: First pause after a failed attempt, in seconds; it doubles up to `MAX_RETRY_S`.
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 300.0
#: Longest that a receiver's own word (``Retry-After``) is obeyed, in seconds.
MAX_RETRY_AFTER_S = 3600.0


class Outcome(StrEnum):
    """What an attempt has shown."""

    DELIVERED = "delivered"
    #: The receiver cannot be reached, or has no time: no event would fare better.
    UNAVAILABLE = "unavailable"
    #: Nothing could be sent, for a reason on this side (a secret that is not set): no attempt was made.
    UNABLE = "unable"
    #: The receiver is there and does not take this event.
    REFUSED = "refused"
    #: It says that it will never take it.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one attempt."""

    outcome: Outcome
    error: DeliveryError | None = None
    #: How long the receiver asks to be left in peace, in seconds.
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """What is to be recorded of an attempt that did not deliver."""

    error: DeliveryError
    #: When to try again; ``None`` when it is given up.
    next_at: datetime | None
    #: When it was given up.
    dead_at: datetime | None = None


def backoff_s(failures: int, chance: float) -> float:
    """How long to wait after so many failures in a row: doubling, bounded, with jitter by `chance` (0 to 1)."""
    return min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * chance)


def pause_s(failures: int, answer: Answer, chance: float) -> float:
    """The same, or as long as the receiver asks for."""
    return max(backoff_s(failures, chance), min(answer.retry_after_s or 0.0, MAX_RETRY_AFTER_S))


def after_failure(
    delivery: Delivery, answer: Answer, target: Target, *, now: datetime, chance: float
) -> Failed:
    """Whether a delivery whose attempt has failed is tried again, and when."""
    error = answer.error or DeliveryError(answer.outcome.value, answer.outcome.value)
    attempts = delivery.attempts + 1
    is_over = (
        answer.outcome is Outcome.GONE
        or (target.max_attempts is not None and attempts >= target.max_attempts)
        or (now - delivery.since).total_seconds() >= target.max_age_s
    )
    if is_over:
        return Failed(error, None, now)
    return Failed(error, now + timedelta(seconds=pause_s(attempts, answer, chance)))


class Pace:
    """How many events of one subscription may be under way."""

    def __init__(self, max_parallel: int) -> None:
        self._max_parallel = max_parallel
        #: Failures in a row that say that no event would fare better.
        self.failures = 0
        self._paused_until_s = 0.0
        self._pause_began_s = 0.0

    def heard(self, answer: Answer, *, begun_s: float, now_s: float, chance: float) -> None:
        """Take in the end of an attempt that began at `begun_s`."""
        if answer.outcome not in (Outcome.UNAVAILABLE, Outcome.UNABLE):
            if begun_s < self._pause_began_s and now_s < self._paused_until_s:
                return  # it went out before the receiver asked to be left in peace
            self.failures = 0
            self._paused_until_s = 0.0
            return
        if now_s < self._paused_until_s and not answer.retry_after_s:
            return  # one of those that were under way when the pause began
        self.failures += 1
        self._pause_began_s = now_s
        until_s = now_s + pause_s(self.failures, answer, chance)
        self._paused_until_s = max(self._paused_until_s, until_s)

    def left_s(self, now_s: float) -> float:
        """How long it is to be left in peace yet, in seconds."""
        return max(0.0, self._paused_until_s - now_s)

    def room(self, under_way: int, now_s: float) -> int:
        """How many more agents' events may be begun."""
        if self.left_s(now_s) > 0:
            return 0
        return max(0, (1 if self.failures else self._max_parallel) - under_way)


class LeaseWatch:
    """Whose lease has shown no sign of life. Nobody compares clocks: what counts is how long nothing has moved as seen from here."""

    def __init__(self, takeover_after_s: float) -> None:
        self._takeover_after_s = takeover_after_s
        self._seen: dict[str, tuple[tuple[str, int, int], float]] = {}
        self._looked_at_s: float | None = None

    def to_take(
        self, leases: Iterable[SubscriptionLease], own: Collection[str], now_s: float
    ) -> list[SubscriptionLease]:
        """Leases that nobody has, or whose holder is silent; those of `own` are left out."""
        before, self._looked_at_s = self._looked_at_s, now_s
        if before is not None and now_s - before > self._takeover_after_s / 2:
            self._seen.clear()  # nobody has looked meanwhile: the silence was ours
        found: list[SubscriptionLease] = []
        seen: dict[str, tuple[tuple[str, int, int], float]] = {}
        for lease in leases:
            id_ = lease.subscription.subscription_id
            if id_ in own:
                continue
            sign = (lease.holder, lease.epoch, lease.beats)
            known = self._seen.get(id_)
            since_s = known[1] if known is not None and known[0] == sign else now_s
            seen[id_] = (sign, since_s)
            if not lease.holder or now_s - since_s >= self._takeover_after_s:
                found.append(lease)
        self._seen = seen
        return found


__all__ = [
    "Answer",
    "Failed",
    "LeaseWatch",
    "Outcome",
    "Pace",
    "after_failure",
    "backoff_s",
    "pause_s",
]
