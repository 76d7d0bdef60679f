"""Ending executions from a driver: by a word, whose wish is stored before anybody is told, or by a token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from phronomy_ray.cancel_tokens import CancellationToken, Deadline
from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.canonical_json import clean_text
from phronomy_ray.clock import utc_now
from phronomy_ray.errors import (
    CancellationError,
    DeadlineExceededError,
    InvalidInputError,
    NotFoundError,
    PhronomyError,
    RuntimeShutdownError,
    WaitTimeoutError,
)
from phronomy_ray.results import RunResult
from phronomy_ray.runtime.agent_link import AgentLink

_LOG = logging.getLogger("phronomy_ray.runtime")
T = TypeVar("T")


async def cancel_execution(link: AgentLink, execution_id: str, reason: str) -> RunResult:
    """Store the wish that an execution, or a request that waits, ends, and tell its owner, who is woken for it.

    Whatever becomes of that call, the wish holds: the next owner of the agent ends the execution instead of going on with it.

    Raises:
        NotFoundError: the agent has no such execution.
        InvalidInputError: the reason is not text.
        PhronomyError: the owner could not be told (`WaitTimeoutError`, or why it cannot be woken); the wish is stored.
    """
    if not isinstance(cast("object", reason), str):
        raise InvalidInputError(f"reason must be text, not {type(reason).__name__}")
    wish = CancellationIntent(
        execution_id, link.client.agent_id, clean_text(reason or "cancelled"), utc_now()
    )
    try:
        in_force = await asyncio.to_thread(link.store.request_cancellation, wish)
    except NotFoundError:
        in_force = wish  # its owner says what is wrong
    if in_force is None:
        return await link.client.stored_result(execution_id)
    return RunResult.from_wire(await link.client.call("cancel", execution_id, in_force.reason))


def tie(link: AgentLink, execution_id: str, token: CancellationToken | None) -> Callable[[], None]:
    """Have the execution end when `token` is cancelled; returns what unties them."""
    if token is None:
        return lambda: None

    async def end(reason: str) -> None:
        try:
            await cancel_execution(link, execution_id, reason)
        except PhronomyError as error:
            _LOG.warning(
                "execution %s could not be told that its token is cancelled: %s", execution_id, error
            )

    def cancelled(reason: str) -> None:
        try:
            link.bridge.submit(end(reason))
        except RuntimeShutdownError:
            _LOG.warning(
                "execution %s goes on: its token was cancelled after its runtime was closed", execution_id
            )

    return token.on_cancel(cancelled)


def budget_of(token: CancellationToken | None) -> float | None:
    """How long an execution with this token may take, in seconds.

    Raises:
        CancellationError: it is cancelled (`DeadlineExceededError`: its time is over); nothing is to be started.
    """
    if token is None:
        return None
    token.raise_if_cancelled()
    return token.deadline.remaining_s if token.deadline is not None else None


def seconds_of(timeout: float | Deadline | None) -> float | None:
    """Seconds that a wait may take."""
    return timeout.remaining_s if isinstance(timeout, Deadline) else timeout


async def unless_cancelled(work: Awaitable[T], token: CancellationToken | None, *, what: str) -> T:
    """The value of `work`, whose wait ends when `token` is cancelled. What is waited for goes on.

    Raises:
        CancellationError: code ``wait_cancelled``.
        WaitTimeoutError: the token's time is over.
    """
    if token is None:
        return await work
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def cancelled(reason: str) -> None:
        loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(reason))

    take_back = token.on_cancel(cancelled)
    waiting = asyncio.ensure_future(work)
    try:
        await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        if ended.result() == DeadlineExceededError.default_code:
            raise WaitTimeoutError(f"the time to wait for {what} is over; it goes on")
        raise CancellationError(
            f"the wait for {what} was cancelled; it goes on",
            code="wait_cancelled",
            details={"reason": ended.result()},
        )
    finally:
        take_back()
        waiting.cancel()
        ended.cancel()


__all__ = ["budget_of", "cancel_execution", "seconds_of", "tie", "unless_cancelled"]
