"""Shutting down together: everybody closes admission before anybody is waited for, and all share one deadline.

Follows the participant protocol of Phronomy's ``Runtime#shutdown``: a clean stop is followed by the hooks, of which each runs
whatever the others do; the first failure is kept; a repeated shutdown gives the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from phronomy_ray.errors import ConfigurationError, ErrorRecord


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


Hook = Callable[[], Awaitable[None]]


class Shutdown:
    """One shutdown of several participants. Use it on one event loop."""

    def __init__(self) -> None:
        self._participants: dict[str, Participant] = {}
        self._hooks: list[Hook] = []
        self._run: asyncio.Task[ShutdownResult] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether admission is closed."""
        return self._run is not None

    def register(self, key: str, participant: Participant) -> None:
        """Have `participant` take part. Raises `ConfigurationError` when the key is taken, or the shutdown has begun."""
        if self.has_begun or key in self._participants:
            why = "it has begun" if self.has_begun else "somebody else has this key"
            raise ConfigurationError(f"{key!r} cannot take part in the shutdown: {why}")
        self._participants[key] = participant

    def add_hook(self, hook: Hook) -> None:
        """Have `hook` run after a clean stop. Raises `ConfigurationError` when the shutdown has begun."""
        if self.has_begun:
            raise ConfigurationError("the shutdown has begun: it takes no more hooks")
        self._hooks.append(hook)

    async def run(self, timeout_s: float) -> ShutdownResult:
        """Shut down within `timeout_s` seconds; the first call says how long, and every call gives the same result."""
        if self._run is None:
            self._run = asyncio.get_running_loop().create_task(self._shut_down(timeout_s))
        return await asyncio.shield(self._run)

    async def _shut_down(self, timeout_s: float) -> ShutdownResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        failures: list[ErrorRecord] = []
        everybody = list(self._participants.values())
        closed = await asyncio.gather(*(one.begin_draining() for one in everybody), return_exceptions=True)
        failures += _failures(closed)

        def remaining_s() -> float:
            return max(0.0, deadline - loop.time())

        waited = await asyncio.gather(
            *(one.wait_until_idle(remaining_s) for one in everybody), return_exceptions=True
        )
        failures += _failures(waited)
        left = tuple(name for names in waited if not isinstance(names, BaseException) for name in names)
        if not failures and not left:
            for hook in self._hooks:
                failures += _failures(await asyncio.gather(hook(), return_exceptions=True))
        return ShutdownResult(left, tuple(failures))


def _failures(answers: Sequence[object]) -> list[ErrorRecord]:
    return [ErrorRecord.from_exception(answer) for answer in answers if isinstance(answer, BaseException)]
