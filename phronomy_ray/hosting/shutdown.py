"""Shutting down together: everybody closes admission before anybody is waited for, and all share one deadline.

Follows the participant protocol of Phronomy's ``Runtime#shutdown``: a clean stop is followed by the hooks, of which each runs
whatever the others do; the first failure is kept; a repeated shutdown gives the same result.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from phronomy_ray.errors import ConfigurationError, ErrorRecord, WaitTimeoutError

T = TypeVar("T")

#: How much longer than the deadline a participant may take to say what still works, in seconds: processes are asked for it. One
#: that takes longer is given up; the others are not held up by it.
ANSWER_S = 15.0


class Participant(Protocol):
    """Something that is shut down with others."""

    async def begin_draining(self) -> None:
        """Take no new work. Short, and harmless when repeated."""
        ...

    async def wait_until_idle(self, remaining_s: Callable[[], float]) -> Sequence[str]:
        """Wait until nothing works any more, at most as long as `remaining_s` says; what still works, in words."""
        ...


@dataclass(frozen=True, slots=True)
class ShutdownResult:
    """What a shutdown came to."""

    #: What still worked at the deadline: it goes on from the store.
    left: tuple[str, ...] = ()
    #: What went wrong, the first first.
    failures: tuple[ErrorRecord, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether everything has ended in time, and nothing went wrong."""
        return not self.left and not self.failures


Hook = Callable[[], object]


class Shutdown:
    """One shutdown of several participants. Use it on one event loop.

    Args:
        answer_s: how long after the deadline a participant is given up, in seconds.
    """

    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._participants: dict[str, Participant] = {}
        self._hooks: list[Callable[[], Awaitable[None]]] = []
        self._run: asyncio.Task[ShutdownResult] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether admission is closed."""
        return self._run is not None

    @property
    def result(self) -> ShutdownResult | None:
        """What it came to; ``None`` before its end."""
        ended = self._run is not None and self._run.done() and not self._run.cancelled()
        return self._run.result() if self._run is not None and ended else None

    def register(self, key: str, participant: Participant) -> None:
        """Have `participant` take part. Raises `ConfigurationError` when the key is taken, or the shutdown has begun."""
        if self.has_begun or key in self._participants:
            why = "it has begun" if self.has_begun else "somebody else has this key"
            raise ConfigurationError(f"{key!r} cannot take part in the shutdown: {why}")
        self._participants[key] = participant

    def add_hook(self, hook: Hook) -> None:
        """Have `hook`, a plain or an async function, run after a clean stop.

        Raises `ConfigurationError` when the shutdown has begun, or it is no function.
        """
        if not callable(cast("object", hook)):
            raise ConfigurationError(f"a hook is a function without arguments, not {hook!r}")
        if self.has_begun:
            raise ConfigurationError("the shutdown has begun: it takes no more hooks")

        async def run() -> None:
            found = hook()
            if inspect.isawaitable(found):
                await found

        self._hooks.append(run)

    async def run(self, timeout_s: float) -> ShutdownResult:
        """Shut down within `timeout_s` seconds; the first call says how long, and every call gives the same result."""
        if self._run is None:
            self._run = asyncio.get_running_loop().create_task(self._shut_down(timeout_s))
        return await asyncio.shield(self._run)

    async def _shut_down(self, timeout_s: float) -> ShutdownResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s

        def remaining_s() -> float:
            return max(0.0, deadline - loop.time())

        everybody = self._participants.items()
        closed = await self._ask({key: one.begin_draining for key, one in everybody}, remaining_s)
        waited = await self._ask(
            {key: _waiting(one, remaining_s) for key, one in everybody},
            remaining_s,
        )
        failures = _failures([*closed.values(), *waited.values()])
        left = tuple(
            name for names in waited.values() if not isinstance(names, BaseException) for name in names
        )
        if not failures and not left:
            for number, hook in enumerate(self._hooks, start=1):
                failures += _failures([*(await self._ask({f"hook {number}": hook}, remaining_s)).values()])
        return ShutdownResult(left, tuple(failures))

    async def _ask(
        self, questions: Mapping[str, Callable[[], Awaitable[T]]], remaining_s: Callable[[], float]
    ) -> dict[str, T | BaseException]:
        """Ask all participants at once; each one's answer, or why there is none."""
        asked = {key: asyncio.ensure_future(_outcome(question)) for key, question in questions.items()}
        if asked:
            _, late = await asyncio.wait(asked.values(), timeout=remaining_s() + self._answer_s)
            for task in late:
                task.cancel()  # not waited for: it has not kept its time either
        return {
            key: task.result() if task.done() and not task.cancelled() else _no_answer(key)
            for key, task in asked.items()
        }


def _waiting(one: Participant, remaining_s: Callable[[], float]) -> Callable[[], Awaitable[Sequence[str]]]:
    return lambda: one.wait_until_idle(remaining_s)


async def _outcome(question: Callable[[], Awaitable[T]]) -> T | BaseException:
    """The answer, or what was raised instead of it, be it the cancellation of something inside; never raises but for the loop's end."""
    try:
        return await question()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - told in the result
        return error


def _no_answer(key: str) -> BaseException:
    return WaitTimeoutError(f"{key!r} did not answer in time", details={"participant": key})


def _failures(answers: Sequence[object]) -> list[ErrorRecord]:
    return [ErrorRecord.from_exception(answer) for answer in answers if isinstance(answer, BaseException)]
