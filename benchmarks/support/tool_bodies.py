"""The three bodies that every runtime runs: plain functions, so that floors, peers and tools share them."""

from __future__ import annotations

import time

SLEEP_S = 0.05
CPU_S = 0.05


async def trivial_body(n: int) -> str:
    """Return at once."""
    return str(n)


def sleep_body(n: int) -> str:
    """Wait as a blocking client waits for a server."""
    time.sleep(SLEEP_S)
    return str(n)


def cpu_body(n: int, rounds: int) -> str:
    """Pure Python that holds the interpreter."""
    value = n
    for number in range(rounds):
        value = (value * 31 + number) & 0xFFFF_FFFF
    return str(value)


def cpu_rounds() -> int:
    """Rounds of `cpu_body` that take `CPU_S` on this machine now."""
    sample = 100_000
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        cpu_body(1, sample)
        best = min(best, time.perf_counter() - begun)
    return round(sample * CPU_S / best)
