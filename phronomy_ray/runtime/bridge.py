"""Async inside, one thin sync bridge outside: a loop on its own thread, and a decorator that makes the blocking form."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from phronomy_ray.errors import EventLoopReentrancyError, RuntimeShutdownError
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: How long what an interrupt has cancelled may take to end, in seconds.
END_S = 5.0

P = ParamSpec("P")
R = TypeVar("R")


class Bridge(WorkerInputRestricted):
    """An event loop on a daemon thread: for the blocking forms of one runtime, or for agents in its process."""

    def __init__(self, name: str = "phronomy-driver") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._loop

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run `work` on the loop and wait for it; an interrupt of the waiting thread cancels it.

        Raises what `work` raises, and `RuntimeShutdownError` when the runtime is closed, also while it waits.
        """
        if self._closed:
            work.close()
            raise RuntimeShutdownError("the runtime is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if isinstance(error, CancelledError) and self._closed:
                raise RuntimeShutdownError("the runtime was closed while this call waited") from None
            raise

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Begin `work` on the loop and wait for nothing; closing the bridge ends it. Raises `RuntimeShutdownError`."""
        if self._closed:
            work.close()
            raise RuntimeShutdownError("the runtime is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        """Let what an interrupt has cancelled come to its end, then stop the loop."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_S
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # what ends may begin something else
            for task in others:
                task.cancel()
            _, late = await asyncio.wait(others, timeout=max(0.0, deadline - loop.time()))
            if late or loop.time() >= deadline:
                break
        loop.stop()

    def close(self) -> None:
        """Stop the loop and its thread; later calls are refused."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end()))
        self._thread.join(timeout=10)
        self._loop.close()


class HasBridge(Protocol):
    """Whatever has blocking forms."""

    @property
    def _bridge(self) -> Bridge:
        """The loop that blocking forms run on."""
        ...


S = TypeVar("S", bound=HasBridge)


def refuse_on_loop(name: str, async_name: str) -> None:
    """Raise `EventLoopReentrancyError` when the present thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise EventLoopReentrancyError(
        f"{name}() blocks and was called on a running event loop; use `await {async_name}(...)` there"
    )


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """The blocking form of an async method called ``<name>_async``."""
    async_name = method.__name__
    name = async_name.removesuffix("_async")

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        refuse_on_loop(name, async_name)
        return self._bridge.run(method(self, *args, **kwargs))

    functools.update_wrapper(call, method)
    call.__name__ = name
    call.__qualname__ = method.__qualname__.removesuffix("_async")
    call.__doc__ = f"Blocking form of `{async_name}`.\n\n{method.__doc__ or ''}"
    return call
