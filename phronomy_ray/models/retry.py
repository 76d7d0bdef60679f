"""Attempts of one model call: which failure is tried again, when, and what is remembered of each.

Only `ModelError`s whose class says ``retryable`` are repeated; every other exception, cancellation first of all, leaves at
once and makes no new attempt. ``Retry-After`` is obeyed exactly when it fits the total deadline; when it does not, or when
no time is left, the last error is raised instead of waiting. Otherwise the wait grows exponentially with jitter. Time,
sleep and randomness are injected; waiting and counting are tenacity's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import tenacity

from phronomy_ray.clock import utc_now
from phronomy_ray.errors import ErrorRecord, ModelError
from phronomy_ray.models.port import ModelAnswer, ModelAttempt, StreamItem, StreamReset, TextDelta

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
#: Seconds on a clock that only goes forward.
Monotonic = Callable[[], float]
Now = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts where the provider names none."""

    initial_s: float = 0.5
    max_s: float = 20.0
    #: Up to this much is added at random, so that many agents do not come back at the same moment.
    jitter_s: float = 0.5


def retry_after_s(value: Any, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` value (seconds or HTTP date) asks to wait from `now`; ``None`` if it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return max(0.0, float(value)) if value == value else None
    if not isinstance(value, str):
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if seconds == seconds else None
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt may help: a `ModelError` of a retryable class, and nothing else."""
    return isinstance(error, ModelError) and error.retryable


class ModelRetry:
    """The attempts of one model call. One instance per call.

    `attempts` grows as attempts end. The answer carries them all, and so does the error that is finally raised, in
    ``details["attempts"]`` in wire form.
    """

    def __init__(
        self,
        *,
        max_retries: int,
        total_timeout_s: float,
        backoff: Backoff | None = None,
        sleep: Sleep = asyncio.sleep,
        clock: Monotonic = time.monotonic,
        now: Now = utc_now,
    ) -> None:
        self.attempts: list[ModelAttempt] = []
        self._max_retries = max(0, max_retries)
        self._sleep = sleep
        self._clock = clock
        self._now = now
        self._deadline = clock() + total_timeout_s
        self._backoff = backoff or Backoff()

    def remaining_s(self) -> float:
        """Seconds until the total deadline, not below 0."""
        return max(0.0, self._deadline - self._clock())

    async def run(self, attempt: Callable[[int], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Make attempts (numbered from 1) until one answers; raises the last `ModelError`."""
        return self._with_attempts(await self.run_any(attempt))

    async def run_any(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        """As `run` for a call that answers something else than a message."""
        answer = await self._try(1, attempt)
        if not isinstance(answer, ModelError):
            return answer  # without tenacity, which costs more than a small answer
        async for trial in self._retrying():
            number = trial.retry_state.attempt_number
            if number > 1:
                answer = await self._try(number, attempt)
            if not isinstance(answer, ModelError):
                return answer
            with trial:
                raise answer
        raise AssertionError("tenacity ended without an outcome")

    async def _try(self, number: int, attempt: Callable[[int], Awaitable[T]]) -> T | ModelError:
        """One attempt, noted; its failure is a value."""
        started = self._now()
        try:
            answer = await attempt(number)
        except ModelError as error:
            self._record(number, started, error)
            return error
        self._record(number, started, None)
        return answer

    async def stream(self, attempt: Callable[[int], AsyncIterator[StreamItem]]) -> AsyncIterator[StreamItem]:
        """As `run` for a streamed call.

        When an attempt is lost after text was handed out, a `StreamReset` with the number of the next attempt comes
        before that attempt's items.
        """
        sent_text = False
        async for trial in self._retrying():
            number = trial.retry_state.attempt_number
            if sent_text:
                yield StreamReset(number)
                sent_text = False
            started = self._now()
            failure: ModelError | None = None
            items = attempt(number)
            try:
                async for item in items:
                    if isinstance(item, ModelAnswer):
                        self._record(number, started, None)
                        yield self._with_attempts(item)
                        return
                    sent_text = sent_text or isinstance(item, TextDelta)
                    yield item
            except ModelError as error:
                failure = error
            finally:
                await close_stream(items)
            failure = failure or ModelError("the stream ended without an answer")
            self._record(number, started, failure)
            with trial:  # outside the try: only model errors reach tenacity, never a cancellation
                raise failure

    def _retrying(self) -> tenacity.AsyncRetrying:
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(is_retryable),
            stop=self._must_stop,
            wait=self._wait_s,
            sleep=self._sleep,
            reraise=True,
        )

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = (
            retry_after_s(error.details.get("retry_after"), self._now())
            if isinstance(error, ModelError)
            else None
        )
        if asked is not None:
            return asked
        chosen = self._backoff
        wait = tenacity.wait_exponential(
            multiplier=chosen.initial_s, max=chosen.max_s
        ) + tenacity.wait_random(0, chosen.jitter_s)
        return float(wait(state))

    def _must_stop(self, state: tenacity.RetryCallState) -> bool:
        if state.attempt_number > self._max_retries:
            return True
        remaining = self.remaining_s()  # tenacity computes the wait before it asks whether to stop
        return remaining <= 0 or state.upcoming_sleep >= remaining

    def _record(self, number: int, started: datetime, failure: ModelError | None) -> None:
        record = ErrorRecord.from_exception(failure) if failure else None
        self.attempts.append(ModelAttempt(number, started.isoformat(), self._now().isoformat(), record))
        if failure is not None:
            failure.details["attempts"] = [entry.to_wire() for entry in self.attempts]

    def _with_attempts(self, answer: ModelAnswer) -> ModelAnswer:
        return ModelAnswer(
            answer.message, answer.finish_reason, answer.usage, tuple(self.attempts), answer.model
        )


async def close_stream(items: object) -> None:
    """Close an iterator that was perhaps not read to its end, and what it holds open; ``None`` and one that cannot be
    closed are left alone.
    """
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
