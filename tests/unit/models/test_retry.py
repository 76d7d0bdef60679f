"""Which failure is tried again and when, on a clock of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from phronomy_ray.errors import (
    AuthenticationError,
    BackpressureError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
    TransportError,
)
from phronomy_ray.messages import Message
from phronomy_ray.models.port import ModelAnswer, StreamItem, StreamReset, TextDelta
from phronomy_ray.models.retry import Backoff, ModelRetry, is_retryable, retry_after_s

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
OK = ModelAnswer(Message.assistant("ok"))


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.sleeps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.passed += seconds

    def retry(self, *, max_retries: int = 2, total_timeout_s: float = 100.0, **more: Any) -> ModelRetry:
        return ModelRetry(
            max_retries=max_retries,
            total_timeout_s=total_timeout_s,
            sleep=self.sleep,
            clock=lambda: self.passed,
            now=lambda: NOW + timedelta(seconds=self.passed),
            **more,
        )


class Calls:
    """Raises the given failures one after the other, then answers."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.numbers: list[int] = []

    async def __call__(self, number: int) -> ModelAnswer:
        self.numbers.append(number)
        if self.failures:
            raise self.failures.pop(0)
        return OK


def limited(retry_after: Any) -> RateLimitError:
    return RateLimitError(details={"retry_after": retry_after})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0),
        (" 1.5 ", 1.5),
        (3, 3.0),
        ("-1", 0.0),
        ("Tue, 01 Jan 2030 12:00:30 GMT", 30.0),
        ("Tue, 01 Jan 2030 11:00:00 GMT", 0.0),
        ("Tue, 01 Jan 2030 13:00:10 +0100", 10.0),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
        (True, None),
    ],
)
def test_X01_retry_after_in_seconds_and_as_a_date(value: Any, expected: float | None) -> None:
    assert retry_after_s(value, NOW) == expected


async def test_X01_waits_as_asked_else_grows_with_jitter() -> None:
    clock = Clock()
    retry = clock.retry(max_retries=4, backoff=Backoff(initial_s=1.0, max_s=3.0, jitter_s=0.5))
    calls = Calls(limited("9"), TransportError(), TransportError(), ModelTimeoutError())
    answer = await retry.run(calls)
    assert calls.numbers == [1, 2, 3, 4, 5]
    assert clock.sleeps[0] == 9.0
    for waited, base in zip(clock.sleeps[1:], (2.0, 3.0, 3.0), strict=True):
        assert base <= waited <= base + 0.5
    assert [a.number for a in answer.attempts] == [1, 2, 3, 4, 5]
    assert answer.attempts[0].error is not None
    assert answer.attempts[0].error.code == "model_rate_limit"
    assert answer.attempts[0].started_at == NOW.isoformat()
    assert answer.attempts[1].started_at == (NOW + timedelta(seconds=9)).isoformat()
    assert answer.attempts[-1].error is None


async def test_X01_the_number_of_attempts_and_the_total_limit_hold() -> None:
    clock = Clock()
    calls = Calls(*[limited("1") for _ in range(9)])
    with pytest.raises(RateLimitError) as caught:
        await clock.retry(max_retries=2).run(calls)
    assert calls.numbers == [1, 2, 3]
    assert [a["number"] for a in caught.value.details["attempts"]] == [1, 2, 3]
    assert caught.value.details["attempts"][0]["error"]["type"] == "RateLimitError"
    for asked in ("60", "3600"):
        calls = Calls(limited(asked), limited(asked))
        with pytest.raises(RateLimitError):
            await Clock().retry(max_retries=9, total_timeout_s=60).run(calls)
        assert calls.numbers == [1]


@pytest.mark.parametrize(
    "failure",
    [
        AuthenticationError(),
        ModelError(),
        BackpressureError(),
        ValueError(),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(),
        GeneratorExit(),
    ],
    ids=lambda failure: type(failure).__name__,
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_L19_nothing_else_is_tried_again(failure: BaseException, stream: bool) -> None:
    clock, calls = Clock(), Calls(failure)
    assert not is_retryable(failure)

    async def attempt(number: int) -> AsyncIterator[StreamItem]:
        yield await calls(number)

    async def run() -> None:
        if stream:
            async for _ in clock.retry(max_retries=5).stream(attempt):
                pass
        else:
            await clock.retry(max_retries=5).run(calls)

    # Driven by hand: KeyboardInterrupt inside a task would end the test's event loop.
    with pytest.raises(type(failure)):
        run().send(None)
    assert calls.numbers == [1]
    assert clock.sleeps == []


async def test_Y04_a_reset_only_after_text_was_handed_out() -> None:
    scripts: list[list[StreamItem | ModelError]] = [
        [TransportError()],
        [TextDelta("a"), TransportError()],
        [StreamReset(9), TransportError()],
        [TextDelta("b"), OK],
    ]
    closed: list[int] = []

    async def attempt(number: int) -> AsyncIterator[StreamItem]:
        try:
            for item in scripts[number - 1]:
                if isinstance(item, ModelError):
                    raise item
                yield item
        finally:
            closed.append(number)

    items = [item async for item in Clock().retry(max_retries=5).stream(attempt)]
    assert items[:-1] == [TextDelta("a"), StreamReset(3), StreamReset(9), TextDelta("b")]
    assert isinstance(items[-1], ModelAnswer)
    assert [a.number for a in items[-1].attempts] == [1, 2, 3, 4]
    assert closed == [1, 2, 3, 4]


async def test_a_stream_without_an_answer_is_an_error_and_leaving_it_closes_the_attempt() -> None:
    closed: list[int] = []

    async def attempt(number: int) -> AsyncIterator[StreamItem]:
        try:
            yield TextDelta("a")
        finally:
            closed.append(number)

    with pytest.raises(ModelError, match="without an answer"):
        [item async for item in Clock().retry().stream(attempt)]
    items = Clock().retry().stream(attempt)
    await anext(items)
    await items.aclose()  # type: ignore[attr-defined]
    assert closed == [1, 1]
