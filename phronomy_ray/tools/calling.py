"""One attempt of a body: how it is called, how whatever it returned is waited for, and when it is really over.

Whether a body is async is decided by what it returned, never by looking at the function: lambdas, partials, objects with
``__call__`` and decorated functions all return an awaitable or do not. A tool that overrides `Tool.call_async` may give its
result first and say later that its work has ended (`ToolCompletion`); until then nothing of it may be tried again, and
whoever waits for quiet waits on (`PhysicalEnd`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from phronomy_ray.definition.tool import Tool, ToolCompletion
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import ToolError, ToolTimeoutError
from phronomy_ray.tool_calls import ToolContext
from phronomy_ray.tools.exits import contain_exits

_LOG = logging.getLogger("phronomy_ray.tools")
#: Awaitables that give awaitables that give awaitables: a body that wraps more often than this is taken for endless.
MAX_AWAITS = 8


class PhysicalEnd:
    """When the bodies of one call are really over. Its methods may be called from any thread.

    `on_finished` is called once, as soon as the outcome has been made (`close`) and everything that was watched has ended:
    at once for a tool that has no more to say than its result. `tool`: its name, for the log.
    """

    def __init__(self, on_finished: Callable[[], None], *, tool: str) -> None:
        self._on_finished = on_finished
        self._tool = tool
        self._lock = threading.Lock()
        self._running = 0
        self._is_closed = False

    @property
    def is_pending(self) -> bool:
        """Whether something of an attempt may still run."""
        return self._running > 0

    def watch(self, finished: Awaitable[Any]) -> asyncio.Task[None]:
        """Wait for `finished` on the present loop; an error of it is an end too, and is logged."""
        with self._lock:
            self._running += 1
        task = asyncio.get_running_loop().create_task(self._ended(finished), name="tool-physical-end")
        _WATCHED.add(task)
        task.add_done_callback(self._done)
        return task

    async def _ended(self, finished: Awaitable[Any]) -> None:
        try:
            await finished
        except Exception as error:  # noqa: BLE001 - what the work ended with has no effect any more; that it ended has
            # not its message, which may hold what must not be logged
            _LOG.warning("tool %s: work behind a result failed: %s", self._tool, type(error).__name__)

    def close(self) -> None:
        """The outcome has been made; no attempt will follow."""
        self._change(closing=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        _WATCHED.discard(task)
        self._change(closing=False)

    def _change(self, *, closing: bool) -> None:
        with self._lock:
            self._is_closed = self._is_closed or closing
            self._running -= 0 if closing else 1
            is_over = self._is_closed and self._running == 0
        if is_over:
            self._on_finished()


#: The loop itself holds its tasks weakly.
_WATCHED: set[asyncio.Task[None]] = set()


def attempt_of(bound: BoundTool, arguments: dict[str, Any], context: ToolContext) -> Callable[[], Any]:
    """What begins one attempt; gives the body's value, or what has to be awaited for it."""
    tool = bound.tool
    if not is_custom(tool):
        return lambda: tool.body(arguments)
    given = {
        name: value for name, value in arguments.items() if name != bound.spec.parameters.context_parameter
    }

    def begin() -> Any:
        value = tool.call_async(given, context)
        if not (isinstance(value, ToolCompletion) or inspect.isawaitable(value)):
            raise ToolError(
                f"{type(tool).__name__}.call_async must return an awaitable or a ToolCompletion, not a "
                f"{type(value).__name__}",
                code="invalid_completion",
            )
        return value

    return begin


def is_custom(tool: Tool) -> bool:
    """Whether the tool runs its calls itself."""
    return type(tool).call_async is not Tool.call_async


async def settle(value: Any, *, timeout_s: float, end: PhysicalEnd) -> Any:
    """The value that a body gives in the end.

    Raises:
        ToolTimeoutError: not within `timeout_s` seconds.
    """
    if not (isinstance(value, ToolCompletion) or inspect.isawaitable(value)):
        return value
    deadline = asyncio.timeout(None)
    try:
        async with deadline:
            # A loop keeps timers that were cancelled until they are due or many. This one is to keep nothing of the agent.
            Context().run(deadline.reschedule, asyncio.get_running_loop().time() + timeout_s)
            for _ in range(MAX_AWAITS):
                if isinstance(value, ToolCompletion):
                    end.watch(value.finished)
                    value = value.result
                if not inspect.isawaitable(value):
                    return value
                value = await value
    except TimeoutError as error:
        if deadline.expired():
            raise ToolTimeoutError(f"the tool did not finish within {timeout_s:g} s") from None
        raise error
    raise ToolError(
        f"the tool's result is still awaitable after {MAX_AWAITS} awaits", code="unsupported_result"
    )


def settle_blocking(begin: Callable[[], Any], *, custom: bool, timeout_s: float, end: PhysicalEnd) -> Any:
    """Run one attempt in the present thread and give its value.

    A `custom` call has a loop and a thread of its own, since its work may outlive its result, and the loop with it.

    Raises:
        ToolTimeoutError: as `settle`.
    """
    if not custom:
        value = begin()
        return (
            asyncio.run(settle(value, timeout_s=timeout_s, end=end)) if inspect.isawaitable(value) else value
        )
    result: concurrent.futures.Future[Any] = concurrent.futures.Future()
    thread = threading.Thread(
        target=asyncio.run, args=(_drive(begin, timeout_s, end, result),), name="tool-completion", daemon=True
    )
    thread.start()
    return result.result()


async def _drive(
    begin: Callable[[], Any], timeout_s: float, end: PhysicalEnd, result: concurrent.futures.Future[Any]
) -> None:
    contain_exits()
    try:
        value = await settle(begin(), timeout_s=timeout_s, end=end)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the thread that waits for the result must get it
        result.set_exception(error)
    else:
        result.set_result(value)
    loop = asyncio.get_running_loop()
    mine = [task for task in frozenset(_WATCHED) if task.get_loop() is loop]  # other threads have others
    if mine:
        await asyncio.wait(mine)
