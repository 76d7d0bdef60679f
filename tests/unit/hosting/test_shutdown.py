"""Shutting down together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.hosting.shutdown import Shutdown


class Worker:
    """Writes down what it is told."""

    def __init__(self, name: str, log: list[str], *, left: Sequence[str] = (), fails: str = "") -> None:
        self.name, self.log, self.left, self.fails = name, log, left, fails

    async def begin_draining(self) -> None:
        self.log.append(f"{self.name} closes")
        if self.fails == "closing":
            raise RuntimeError(f"{self.name} cannot close")

    async def wait_until_idle(self, remaining_s: Callable[[], float]) -> Sequence[str]:
        assert 0 <= remaining_s() <= 5
        self.log.append(f"{self.name} waits")
        if self.fails == "waiting":
            raise RuntimeError(f"{self.name} cannot wait")
        return self.left


async def test_everybody_closes_before_anybody_waits_and_hooks_come_last() -> None:
    log: list[str] = []
    shutdown = Shutdown()
    for name in ("agents", "pools"):
        shutdown.register(name, Worker(name, log))

    async def first() -> None:
        log.append("first hook")
        raise RuntimeError("first hook failed")

    async def second() -> None:
        log.append("second hook")

    shutdown.add_hook(first)
    shutdown.add_hook(second)
    result = await shutdown.run(5)
    assert log == [
        "agents closes",
        "pools closes",
        "agents waits",
        "pools waits",
        "first hook",
        "second hook",
    ]
    assert [failure.message for failure in result.failures] == ["first hook failed"]
    assert not result.is_clean
    assert await shutdown.run(0) is result, "a repeated call gives the same result"


@pytest.mark.parametrize("fails", ["closing", "waiting", ""])
async def test_hooks_run_only_after_a_clean_stop(fails: str) -> None:
    log: list[str] = []
    shutdown = Shutdown()
    shutdown.register("one", Worker("one", log, fails=fails, left=() if fails else ("execution e1",)))
    shutdown.register("two", Worker("two", log))

    async def hook() -> None:
        log.append("hook")

    shutdown.add_hook(hook)
    first, again = await asyncio.gather(shutdown.run(5), shutdown.run(5))
    assert first is again
    assert "two waits" in log
    assert "hook" not in log
    assert first.left == (() if fails else ("execution e1",))
    assert len(first.failures) == bool(fails)


async def test_nobody_joins_late_or_twice() -> None:
    shutdown = Shutdown()
    shutdown.register("one", Worker("one", []))
    with pytest.raises(ConfigurationError, match="key"):
        shutdown.register("one", Worker("one", []))
    assert (await shutdown.run(1)).is_clean
    with pytest.raises(ConfigurationError, match="begun"):
        shutdown.register("two", Worker("two", []))
