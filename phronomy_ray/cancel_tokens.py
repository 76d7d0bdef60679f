"""`CancellationToken` and `Deadline`: how a program says that it does not want something any more, or only for so long.

Both compose: a token is cancelled by its own word, by that of any token that it is linked to, or when the earliest of their
deadlines has passed; never the other way round. A cancellation and a time that is over stay two things. Between processes the
remaining time travels and never a clock reading; a token itself does not travel. Follows Phronomy's tokens (section 9 of its
contract).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from phronomy_ray.errors import CancellationError, DeadlineExceededError, InvalidInputError
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray")
#: Longest time that a timer is set for at once, in seconds; after it the time is looked at again.
_MAX_TIMER_S = 1e6


class Deadline:
    """A moment on this process's monotonic clock. Pickled or sent as JSON it is the time that is left."""

    __slots__ = ("_clock", "_due_s")

    def __init__(self, due_s: float, clock: Callable[[], float]) -> None:
        self._due_s = due_s
        self._clock = clock

    @classmethod
    def after(cls, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """The moment `seconds` from now. Raises `InvalidInputError` for what is no finite number."""
        given: object = seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(seconds):
            raise InvalidInputError(f"a deadline is a finite number of seconds away, not {seconds!r}")
        return cls(clock() + seconds, clock)

    @property
    def remaining_s(self) -> float:
        """Seconds that are left, 0 when none are."""
        return max(0.0, self._due_s - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return self._due_s <= self._clock()

    def earlier(self, other: Deadline | None) -> Deadline:
        """The earlier one of the two."""
        return self if other is None or self.remaining_s <= other.remaining_s else other

    def to_wire(self) -> dict[str, float]:
        """The time that is left, as JSON."""
        return {"budget_s": self.remaining_s}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Deadline:
        """Inverse of `to_wire`, by the clock of this process."""
        return cls.after(wire["budget_s"])

    def __reduce__(self) -> tuple[Callable[[float], Deadline], tuple[float]]:
        return Deadline.after, (self.remaining_s,)

    def __repr__(self) -> str:
        return f"Deadline({self.remaining_s:.3f} s left)"


class CancellationToken(WorkerInputRestricted):
    """Cancelled once and for all. Its methods may be called from any thread."""

    def __init__(
        self, *parents: CancellationToken, timeout_s: float | None = None, deadline: Deadline | None = None
    ) -> None:
        """
        Args:
            parents: tokens whose cancellation is this one's too.
            timeout_s: seconds from now after which it counts as cancelled for lack of time.
            deadline: the same as a moment.
        """
        self._parents = parents
        own = Deadline.after(timeout_s) if timeout_s is not None else None
        for other in (deadline, *(parent.deadline for parent in parents)):
            own = other.earlier(own) if other is not None else own
        #: The earliest deadline of this token and of all that it is linked to.
        self.deadline: Deadline | None = own
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._callbacks: dict[object, Callable[[str], object]] = {}
        self._timer: threading.Timer | None = None
        self._links: list[Callable[[], None]] = []

    def cancel(self, reason: str = "cancelled") -> bool:
        """Cancel; whether it was not cancelled before. Who waits for it is told in this thread."""
        with self._lock:
            if self._reason is not None:
                return False
            self._reason = self._from_outside() or reason
            is_first = self._reason == reason
            told, self._callbacks = list(self._callbacks.values()), {}
        self._let_go()
        for callback in told:
            _tell(callback, self._reason)
        return is_first

    @property
    def reason(self) -> str | None:
        """Why it is cancelled, ``deadline_exceeded`` for lack of time; ``None`` while it is not."""
        return self._reason or self._from_outside()

    @property
    def is_cancelled(self) -> bool:
        """Whether it is cancelled."""
        return self.reason is not None

    def raise_if_cancelled(self) -> None:
        """Raise `DeadlineExceededError` when its time is over, `CancellationError` when it was cancelled."""
        reason = self.reason
        if reason is not None:
            raise error_of(reason)

    def linked(self, *others: CancellationToken, timeout_s: float | None = None) -> CancellationToken:
        """A token that is cancelled with this one, with any of the `others`, or after `timeout_s` seconds; cancelling it changes
        none of them.
        """
        return CancellationToken(self, *others, timeout_s=timeout_s)

    def with_timeout(self, timeout_s: float) -> CancellationToken:
        """A token that is cancelled with this one, or after `timeout_s` seconds."""
        return self.linked(timeout_s=timeout_s)

    def on_cancel(self, callback: Callable[[str], object]) -> Callable[[], None]:
        """Have `callback` called once with the reason, at once if it is cancelled already; returns what takes it back.

        It is called in whatever thread cancels, or in a timer's; what it raises is logged.
        """
        key = object()
        with self._lock:
            known = self._reason
            if known is None:
                is_first = not self._callbacks
                self._callbacks[key] = callback
        if known is not None:
            _tell(callback, known)
            return lambda: None
        if is_first:
            self._hold_on()

        def take_back() -> None:
            with self._lock:
                is_last = self._callbacks.pop(key, None) is not None and not self._callbacks
            if is_last:
                self._let_go()

        return take_back

    def _from_outside(self) -> str | None:
        for parent in self._parents:
            if (reason := parent.reason) is not None:
                return reason
        return (
            DeadlineExceededError.default_code
            if self.deadline is not None and self.deadline.is_over
            else None
        )

    def _hold_on(self) -> None:
        """Be told by the parents and by a timer: only while somebody waits here, so that a parent keeps nobody alive."""
        links = [parent.on_cancel(self.cancel) for parent in self._parents]
        timer = None
        if self.deadline is not None:
            timer = self._timer_to(self.deadline)
        with self._lock:
            self._links, self._timer = links, timer

    def _timer_to(self, deadline: Deadline) -> threading.Timer:
        timer = threading.Timer(min(deadline.remaining_s, _MAX_TIMER_S), self._look, (deadline,))
        timer.daemon = True
        timer.start()
        return timer

    def _look(self, deadline: Deadline) -> None:
        """Cancel when its time is over; a longer time than a timer takes is looked at again."""
        if deadline.is_over:
            self.cancel(DeadlineExceededError.default_code)
            return
        with self._lock:
            if self._callbacks:  # somebody waits still
                self._timer = self._timer_to(deadline)

    def _let_go(self) -> None:
        with self._lock:
            links, self._links = self._links, []
            timer, self._timer = self._timer, None
        for unlink in links:
            unlink()
        if timer is not None:
            timer.cancel()


def error_of(reason: str) -> CancellationError:
    """The error of whoever is told to stop for this reason."""
    kind = DeadlineExceededError if reason == DeadlineExceededError.default_code else CancellationError
    text = "the time is over" if kind is DeadlineExceededError else "cancelled"
    return kind(
        text + ("" if reason in ("cancelled", kind.default_code) else f": {reason}"),
        details={"reason": reason},
    )


def _tell(callback: Callable[[str], object], reason: str) -> None:
    try:
        callback(reason)
    except Exception:  # noqa: BLE001 - whoever cancels must not suffer from who listens
        _LOG.exception("a callback of a cancellation token failed")


__all__ = ["CancellationToken", "Deadline", "error_of"]
