"""Agents of the tool benchmarks; importable by the actors through PYTHONPATH."""

from __future__ import annotations

import time

from phronomy_ray import Agent, tool
from support.batch_scripts import BatchModel
from support.tool_bodies import cpu_body, sleep_body, trivial_body


@tool(replay="safe")
async def trivial(n: int) -> str:
    """Return at once, on the agent's loop."""
    return await trivial_body(n)


@tool(replay="safe", execution_mode="blocking_io")
def sleep50(n: int) -> str:
    """Block for 50 ms."""
    return sleep_body(n)


@tool(replay="safe", execution_mode="cpu_bound", timeout_s=600.0)
def burn50(n: int, rounds: int) -> str:
    """Compute for about 50 ms."""
    return cpu_body(n, rounds)


@tool(replay="safe", execution_mode="blocking_io")
def touch(n: int) -> str:
    """Return at once, in a worker."""
    return str(n)


class BatchAgent(Agent):
    """Any number of calls of one tool, then an answer; the model is in process and free."""

    model = BatchModel()
    instructions = "You use your tools."
    tools = (trivial, sleep50, burn50, touch)


@tool(replay="safe", execution_mode="blocking_io", pool="bench_shared")
def shared50(n: int) -> str:
    """Block for 50 ms in the pool that many agents share."""
    return sleep_body(n)


@tool(replay="safe", execution_mode="blocking_io", pool="bench_small", on_error="suppress")
def small_hold(n: int, seconds: float) -> str:
    """Block for a while in a pool that is soon full."""
    time.sleep(seconds)
    return str(n)


class PoolAgent(Agent):
    """One of the many agents of a pool."""

    model = BatchModel()
    instructions = "You use your tools."
    tools = (shared50, small_hold)


class GatewayBatchAgent(Agent):
    """The same through the model gateway."""

    model = "openai/bench"
    instructions = "You use your tools."
    tools = (touch,)
