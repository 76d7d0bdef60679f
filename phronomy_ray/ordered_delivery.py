"""`OrderedDelivery`: hands values to a local function in order, on a thread of its own, so that whoever has them never waits.

```python
with OrderedDelivery(write_to_socket, capacity=256) as delivery:
    for event in execution.events():
        delivery.submit(event.to_wire())
# here everything has been handed over, or an error says what was not
```

It is bounded and never silent: what the function was given is always the beginning of what was submitted, without a gap. When there is no
room, or a value cannot be copied, that submission fails and nothing more is accepted; when the function fails and nobody handles it,
nothing more is handed over. Nothing is tried again, and nothing survives this process: for that there are subscriptions. Follows
Phronomy's OrderedEventDelivery; values go one by one, and a handler may let it go on after a failure, which is ours.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.errors import (
    BackpressureError,
    EventLoopReentrancyError,
    InvalidInputError,
    OrderedDeliveryError,
    PhronomyError,
    safe_message,
)
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.ordered_delivery")
DEFAULT_CAPACITY = 256
DEFAULT_FLUSH_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """What became of everything that was submitted, as far as it is known."""

    #: Handed over, and the function returned.
    delivered: int
    #: Handed over, and the function raised.
    failed: int
    #: Accepted and not handed over (yet).
    waiting: int
    #: Whether nothing is handed over any more, and no call of the function is under way.
    is_over: bool
    #: Why something was refused or not handed over; ``None`` when all is well.
    error: BaseException | None = None

    @property
    def is_whole(self) -> bool:
        """Whether everything that anybody tried to submit was handed over and went well."""
        return self.is_over and not self.failed and not self.waiting and self.error is None


class OrderedDelivery(WorkerInputRestricted):
    """Values on their way to one function. Use it from any thread; a context manager for the thread that submits.

    Its thread ends with `close`, so close it, or use it as a context manager.

    Args:
        deliver: called with one value after the other, never two at once; plain or async. The order is that of `submit`.
        capacity: values that may wait, the one that is being handed over not counted.
        on_error: called on the same thread with a value and what `deliver` raised for it; when it returns, the next value follows,
            and when it raises, that is the end. By default the first error is the end.
        flush_timeout_s: how long leaving the context waits.

    Raises:
        InvalidInputError: an argument cannot be used.
    """

    def __init__(
        self,
        deliver: Callable[[Any], Any],
        *,
        capacity: int = DEFAULT_CAPACITY,
        on_error: Callable[[Any, BaseException], None] | None = None,
        flush_timeout_s: float = DEFAULT_FLUSH_TIMEOUT_S,
    ) -> None:
        given: object = capacity
        is_whole = isinstance(given, int) and not isinstance(given, bool) and given > 0
        if not (callable(cast("object", deliver)) and is_whole and flush_timeout_s > 0):
            raise InvalidInputError(
                "deliver must be callable, capacity a positive whole number, flush_timeout_s positive"
            )
        self._deliver = deliver
        self._capacity = capacity
        self._on_error = on_error
        self._flush_timeout_s = flush_timeout_s
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._worker: threading.Thread | None = None
        self._is_closed = False
        #: Whether nothing more is handed over, whatever waits.
        self._is_broken = False
        self._is_busy = False
        self._delivered = 0
        self._failed = 0
        self._error: BaseException | None = None

    # --- submitting --------------------------------------------------------------------------------------------

    def submit(self, value: Any) -> None:
        """Accept a copy of `value`, which is plain JSON, to be handed over after all that was accepted before; never waits.

        Raises:
            OrderedDeliveryError: nothing is accepted any more (code ``delivery_closed``).
            BackpressureError: there is no room; from now on nothing is accepted.
            SerializationError: it is no plain JSON; from now on nothing is accepted.
        """
        refused: PhronomyError | None = None
        copied: Any = None
        try:
            copied = to_json_value(value)
        except PhronomyError as error:
            refused = error
        with self._changed:
            if self._is_closed:
                raise OrderedDeliveryError(
                    "nothing is accepted any more"
                    + (f": {safe_message(self._error)}" if isinstance(self._error, Exception) else ""),
                    code="delivery_closed",
                )
            if refused is None and len(self._waiting) >= self._capacity:
                refused = BackpressureError(
                    f"{self._capacity} values wait to be handed over already",
                    details={"capacity": self._capacity},
                )
            if refused is not None:
                self._error = self._error or refused
                self._is_closed = True
                self._changed.notify_all()
                raise refused
            self._waiting.append(copied)
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="phronomy-ordered", daemon=True)
                self._worker.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Accept nothing more; what was accepted is still handed over. Idempotent, never waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def report(self) -> DeliveryReport:
        """What became of it so far."""
        with self._changed:
            return self._report()

    def close_and_wait(self, timeout_s: float | None = None) -> DeliveryReport:
        """`close`, and wait until everything is handed over or cannot be; any number of threads may.

        A timeout ends only the wait: the report says ``is_over=False``, and one may wait again.

        Raises:
            EventLoopReentrancyError: called on a running event loop; use `close_and_wait_async`.
            OrderedDeliveryError: called by `deliver` itself, which would wait for itself (code ``delivery_reentrancy``).
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._close_and_wait(timeout_s)
        raise EventLoopReentrancyError(
            "close_and_wait() blocks and was called on a running event loop; use `await close_and_wait_async(...)`"
        )

    async def close_and_wait_async(self, timeout_s: float | None = None) -> DeliveryReport:
        """As `close_and_wait`, for an event loop."""
        return await asyncio.to_thread(self._close_and_wait, timeout_s)

    def __enter__(self) -> OrderedDelivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for everything. The error of the block stays the one that is raised; ours is logged then.

        Raises:
            OrderedDeliveryError: not everything was handed over and went well (code ``delivery_incomplete``); its cause says why.
        """
        report = self.close_and_wait(self._flush_timeout_s)
        if report.is_whole:
            return
        incomplete = OrderedDeliveryError(
            f"{report.delivered} were handed over, {report.failed} failed, {report.waiting} were not handed over"
            + ("" if report.is_over else f" within {self._flush_timeout_s:g} s"),
            code="delivery_incomplete",
            details={"delivered": report.delivered, "failed": report.failed, "waiting": report.waiting},
        )
        if error is None:
            raise incomplete from report.error
        _LOG.warning("%s (%s)", incomplete.message, incomplete.code)

    # --- inside ------------------------------------------------------------------------------------------------

    def _close_and_wait(self, timeout_s: float | None) -> DeliveryReport:
        if threading.current_thread() is self._worker:
            raise OrderedDeliveryError(
                "the function that values are handed to cannot wait for itself", code="delivery_reentrancy"
            )
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_over, None if until_s is None else max(0.0, until_s - time.monotonic())
            )
            return self._report()

    @property
    def _is_over(self) -> bool:
        return self._is_closed and not self._is_busy and (self._is_broken or not self._waiting)

    def _report(self) -> DeliveryReport:
        return DeliveryReport(self._delivered, self._failed, len(self._waiting), self._is_over, self._error)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._is_closed)
                if self._is_broken or not self._waiting:
                    return
                value = self._waiting.popleft()
                self._is_busy = True
            error = self._hand_over(value)
            with self._changed:
                self._is_busy = False
                if error is not None:
                    self._error = self._error or error
                    self._is_broken = self._is_closed = True
                self._changed.notify_all()
                if self._is_broken:
                    return

    def _hand_over(self, value: Any) -> BaseException | None:
        """Call the function; the error that ends everything, if any."""
        try:
            _call(self._deliver, value)
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything; somebody is told of it
            with self._changed:
                self._failed += 1
            if self._on_error is None:
                return error
            try:
                _call(self._on_error, value, error)
            except BaseException as second:  # noqa: BLE001 - likewise
                return second
            return None
        with self._changed:
            self._delivered += 1
        return None


def _call(function: Callable[..., Any], *arguments: Any) -> None:
    value = function(*arguments)
    if inspect.isawaitable(value):
        asyncio.run(_wait(value))


async def _wait(value: Awaitable[Any]) -> None:
    await value


__all__ = ["DeliveryReport", "OrderedDelivery"]
