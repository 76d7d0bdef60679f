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


async def test_all_share_one_deadline_which_begins_with_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now)
    seen: list[tuple[str, float]] = []

    class Slow(Worker):
        def __init__(self, name: str, takes_s: float) -> None:
            super().__init__(name, [])
            self.takes_s = takes_s

        async def begin_draining(self) -> None:
            nonlocal now
            now += self.takes_s

        async def wait_until_idle(self, remaining_s: Callable[[], float]) -> Sequence[str]:
            nonlocal now
            seen.append((self.name, remaining_s()))
            now += self.takes_s
            return ()

    shutdown = Shutdown()
    for name, takes_s in (("one", 1.0), ("two", 2.0), ("three", 4.0)):
        shutdown.register(name, Slow(name, takes_s))
    assert (await shutdown.run(10)).is_clean
    assert seen == [("one", 3.0), ("two", 2.0), ("three", 0.0)], "what closing took is gone for all of them"


async def test_the_first_failure_is_kept_first_and_whatever_fails_stops_nobody_else() -> None:
    log: list[str] = []

    class Cancelled(Worker):
        async def begin_draining(self) -> None:
            self.log.append(f"{self.name} closes")
            raise asyncio.CancelledError

    shutdown = Shutdown()
    shutdown.register("one", Cancelled("one", log))
    shutdown.register("two", Worker("two", log, fails="waiting"))
    shutdown.register("three", Worker("three", log, fails="closing"))
    result = await shutdown.run(5)
    assert [name.split()[0] for name in log] == ["one", "two", "three"] * 2
    assert [failure.type for failure in result.failures] == [
        "asyncio.exceptions.CancelledError",
        "RuntimeError",
        "RuntimeError",
    ]
    assert [failure.message for failure in result.failures[1:]] == ["three cannot close", "two cannot wait"]
    assert await shutdown.run(5) is result
    assert shutdown.result is result


async def test_later_hooks_run_whatever_earlier_ones_do() -> None:
    log: list[str] = []
    shutdown = Shutdown()

    def hook(name: str, error: BaseException | None = None) -> Callable[[], object]:
        async def run() -> None:
            log.append(name)
            if error is not None:
                raise error

        return run

    def no_coroutine() -> None:
        log.append("plain")

    for one in (
        hook("a", asyncio.CancelledError()),
        hook("b", ValueError("b failed")),
        no_coroutine,
        hook("d"),
    ):
        shutdown.add_hook(one)
    result = await shutdown.run(5)
    assert log == ["a", "b", "plain", "d"]
    assert [failure.type.rsplit(".", 1)[-1] for failure in result.failures] == [
        "CancelledError",
        "ValueError",
    ]
    assert await shutdown.run(5) is result
    assert log == ["a", "b", "plain", "d"], "none of them runs twice"


@pytest.mark.parametrize("when", ["closing", "waiting"])
async def test_a_participant_that_never_answers_is_given_up_and_holds_up_nobody(when: str) -> None:
    log: list[str] = []
    released = asyncio.Event()

    class Stuck(Worker):
        async def begin_draining(self) -> None:
            await self._hang("closing")

        async def wait_until_idle(self, remaining_s: Callable[[], float]) -> Sequence[str]:
            await self._hang("waiting")
            return ()

        async def _hang(self, now: str) -> None:
            while when == now and not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    log.append("cancelled, and does not care")

    shutdown = Shutdown(answer_s=0.02)
    shutdown.register("stuck", Stuck("stuck", []))
    shutdown.register("two", Worker("two", log))

    async def hook() -> None:
        log.append("hook")

    shutdown.add_hook(hook)
    try:
        async with asyncio.timeout(10):
            first, again = await asyncio.gather(shutdown.run(0.02), shutdown.run(60))
    finally:
        released.set()
    assert first is again
    assert [failure.details for failure in first.failures] == [{"participant": "stuck"}]
    assert first.failures[0].code == "wait_timeout"
    assert [line for line in log if line.startswith("two")] == ["two closes", "two waits"]
    assert "hook" not in log


async def test_a_caller_that_gives_up_changes_nothing_for_the_others() -> None:
    gate = asyncio.Event()

    class Waiting(Worker):
        async def wait_until_idle(self, remaining_s: Callable[[], float]) -> Sequence[str]:
            await gate.wait()
            return ()

    shutdown = Shutdown()
    shutdown.register("one", Waiting("one", []))
    impatient = asyncio.ensure_future(shutdown.run(5))
    patient = asyncio.ensure_future(shutdown.run(5))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    assert shutdown.result is None
    gate.set()
    assert (await patient).is_clean
    assert impatient.cancelled()


async def test_a_hook_that_never_returns_is_given_up() -> None:
    log: list[str] = []
    shutdown = Shutdown(answer_s=0.05)

    async def stuck() -> None:
        await asyncio.Event().wait()

    async def second() -> None:
        log.append("second hook")

    shutdown.add_hook(stuck)
    shutdown.add_hook(second)
    result = await shutdown.run(0.05)
    assert log == ["second hook"]
    assert ["hook 1" in failure.message for failure in result.failures] == [True]


async def test_a_hook_may_be_a_plain_function_and_must_be_one() -> None:
    log: list[str] = []
    shutdown = Shutdown()
    shutdown.add_hook(lambda: log.append("plain hook"))
    with pytest.raises(ConfigurationError, match="function"):
        shutdown.add_hook("not one")  # type: ignore[arg-type]
    assert (await shutdown.run(1)).is_clean
    assert log == ["plain hook"]
