"""``sys.exit`` in a task that an async body has started, or works in: it would end the event loop and all that lives on it.

A body that raises ``SystemExit`` itself is answered by the envelope. In a task of its own, which is what ``asyncio.gather`` makes of
a coroutine, the loop would let it through, and the process would go on without a loop: an agent that never answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, cast

_is_contained: ContextVar[bool] = ContextVar("phronomy_exits_contained", default=False)


def contain_exits() -> None:
    """From now on ``SystemExit`` and ``KeyboardInterrupt`` in tasks that the present one makes are a `RuntimeError` of theirs, as in
    all tasks that those make.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(cast("Any", _make_task))
    _is_contained.set(True)


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    if not _is_contained.get():
        return asyncio.Task(work, loop=loop, **options)
    task = asyncio.Task(_contained(work), loop=loop, **options)
    task.add_done_callback(lambda _: work.close())  # cancelled before its first step, nobody has awaited it
    return task


async def _contained(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__} was raised in a task: {error}") from error
