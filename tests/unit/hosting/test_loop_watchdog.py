"""The watchdog names the tool that holds the loop, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable

import pytest

from phronomy_ray.hosting.loop_watchdog import LoopWatchdog, Offence

PATIENCE_S = 30


def hold_the_loop(released: threading.Event) -> None:
    """A body that does not await: held until it has been noticed."""
    released.wait(PATIENCE_S)


async def watched(body: Callable[[], None], name: str, offences: queue.Queue[Offence]) -> LoopWatchdog:
    watchdog = LoopWatchdog(on_offence=offences.put, blocked_s=0.05)
    watchdog.start()

    async def run() -> None:
        body()

    watchdog.wake()
    await asyncio.get_running_loop().create_task(run(), name=name)
    return watchdog


async def test_a_tool_that_holds_the_loop_is_named_once_with_its_stack() -> None:
    offences: queue.Queue[Offence] = queue.Queue()
    released = threading.Event()
    seen: list[Offence] = []

    def release_when_accused() -> None:
        seen.append(offences.get(timeout=PATIENCE_S))
        released.set()

    thread = threading.Thread(target=release_when_accused)
    thread.start()
    watchdog = await watched(lambda: hold_the_loop(released), "tool:brew:tc_1", offences)
    thread.join(PATIENCE_S)
    [offence] = seen
    assert offence.tool_name == "brew"
    assert offence.blocked_s >= 0.05
    assert "hold_the_loop" in offence.stack
    while not watchdog.to_wire()["looks"]:
        await asyncio.sleep(0.01)
    watchdog.close()
    assert offences.empty(), "an offence is reported once"
    found = watchdog.to_wire()
    assert found["blocked_by_tools"] == 1
    assert isinstance(found["max_s"], float)
    assert found["max_s"] >= 0.05


async def test_what_is_no_tool_is_not_accused() -> None:
    offences: queue.Queue[Offence] = queue.Queue()
    watchdog = await watched(lambda: time.sleep(0.5), "commit", offences)
    while not watchdog.to_wire()["looks"]:
        await asyncio.sleep(0.01)
    watchdog.close()
    assert offences.empty()


async def test_the_default_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog(blocked_s=0.05)
    watchdog._on_offence(Offence("brew", "tc_1", 0.3, "  the stack"))
    assert "tool 'brew' has held the agent's event loop for 0.30 s" in caplog.text
    assert "the stack" in caplog.text


def test_a_loop_that_has_ended_is_told_of() -> None:
    ended = threading.Event()

    async def main() -> None:
        LoopWatchdog(on_end=ended.set, blocked_s=0.05).start()
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(PATIENCE_S)

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())

    def run() -> None:  # as Ray does
        with contextlib.suppress(SystemExit):
            loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "sys.exit in a callback ends the loop"
    assert ended.wait(PATIENCE_S)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
