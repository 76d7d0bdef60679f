"""A user's function off the event loop: on a thread of its own, so that one that never returns holds up nothing else.

A thread pool would be joined at the end of the process, and its threads would be used up by functions that hang; a daemon
thread costs some fifty microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any


async def off_loop(function: Callable[..., Any], *arguments: Any, timeout_s: float, name: str) -> Any:
    """What ``function(*arguments)`` returns. After `timeout_s` seconds it is given up; its thread runs out.

    Raises:
        TimeoutError: it did not return in time.
        RuntimeError: it raised what cannot be told from the loop's own signals (cancellation, ``StopIteration``, ...).
        what else it raised.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, *arguments)
        except BaseException as raised:  # noqa: BLE001 - a user's function may raise anything; it is told to the loop
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, daemon=True, name=name).start()
    async with asyncio.timeout(timeout_s):
        value, error = await ended
    if error is None:
        return value
    if isinstance(error, StopIteration | StopAsyncIteration | TimeoutError) or not isinstance(
        error, Exception
    ):
        raise RuntimeError(f"{type(error).__name__} was raised: {error}") from error
    raise error


def call_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function`, plain or async, on the present thread, which has no event loop, and wait for its result."""
    value = function(*arguments)
    return asyncio.run(_wait(value)) if inspect.isawaitable(value) else value


async def _wait(value: Awaitable[Any]) -> Any:
    return await value
