"""Agents that the benchmarks run; importable by the actors through PYTHONPATH."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import ClassVar

from phronomy_ray import Agent, ToolContext, tool
from phronomy_ray.models.scripted import ScriptedModel
from support.bench_scripts import hold_turn, one_tool_turn


@tool(replay="safe")
async def lookup(key: str) -> str:
    """Look a value up."""
    return f"{key}=42"


class OneToolAgent(Agent):
    """Two model calls and one cooperative tool; the model is in process."""

    model = ScriptedModel(one_tool_turn)
    instructions = "You answer from the table."
    tools = (lookup,)


class OneToolGatewayAgent(Agent):
    """The same turn through the model gateway and a real HTTP server."""

    model = "openai/bench"
    instructions = "You answer from the table."
    tools = (lookup,)
    model_settings: ClassVar = {"api_base": os.environ.get("PHRONOMY_BENCH_API_BASE", ""), "api_key": "none"}


@tool(replay="safe")
async def hold(folder: str, context: ToolContext) -> str:
    """Note the start of each attempt, then wait until the folder says go; on the agent's loop, so it is lost with it."""
    with (Path(folder) / "starts").open("a") as log:
        log.write(f"{time.time()} {os.getpid()}\n")
    while not (Path(folder) / "go").exists() and not context.is_cancelled():
        await asyncio.sleep(0.02)
    return "held"


class HoldAgent(Agent):
    """An agent that can be killed in the middle of a tool call."""

    model = ScriptedModel(hold_turn)
    tools = (hold,)


class LongHistoryAgent(Agent):
    """An agent whose history is much longer than what its model takes."""

    model = ScriptedModel(one_tool_turn)
    instructions = "You answer from the table."
    tools = (lookup,)
    context_window = 8_000
