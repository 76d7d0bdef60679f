"""Agents whose model does what the message says, and tools of every replay kind that leave one effect for each body."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from phronomy_ray import Agent, ToolContext, tool
from phronomy_ray.models.script import ScriptRequest, Step, call, calls, final
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.testing.chaos import log

#: Where the loopback provider of `StormByGateway` listens.
MODEL_URL_ENV = "PHRONOMY_CHAOS_MODEL_URL"
#: A mark: the next body in a worker is to run out of memory.
HUNGRY = "hungry"
#: Most memory that a worker of the storm's pool may use, and what a hungry body takes at most, in bytes: the machine has much more.
WORKER_MEMORY_BYTES = 400 * 1024 * 1024
_MOUTHFUL_BYTES = 16 * 1024 * 1024
_MOUTHFULS = 32


def _begin() -> None:
    """What every body in a worker does first: take memory until its worker is ended for it, if it is to. Bounded in any case.

    Raises:
        MemoryError: nobody has ended the worker.
    """
    if not log.take_mark(HUNGRY):
        return
    log.append("hungry", name="a body takes memory")
    eaten = []
    for _ in range(_MOUTHFULS):
        eaten.append(b"\x01" * _MOUTHFUL_BYTES)  # written to, so that it counts
        time.sleep(0.02)
    time.sleep(1.0)
    raise MemoryError(f"{len(eaten) * _MOUTHFUL_BYTES >> 20} MiB were not enough")


def _effect(context: ToolContext, name: str) -> None:
    log.append(
        log.EFFECTS,
        tool=name,
        tool_call_id=context.tool_call_id,
        attempt=context.attempt,
        execution_id=context.execution_id,
        key=context.idempotency_key,
    )


async def obey(request: ScriptRequest) -> Step:
    """The script."""
    batches = json.loads(request.last_user)
    await asyncio.sleep(0.02)
    if request.sequence > len(batches):
        return final("done")
    return calls(*(call(name, {"ms": ms}) for name, ms in batches[request.sequence - 1]))


@tool(replay="safe")
def look(ms: int, context: ToolContext) -> str:
    """May run again."""
    _begin()
    time.sleep(ms / 1000)
    _effect(context, "look")
    return "looked"


@tool(replay="idempotent")
def charge(ms: int, context: ToolContext) -> str:
    """May run again with the same key."""
    _begin()
    time.sleep(ms / 2000)
    _effect(context, "charge")
    time.sleep(ms / 2000)
    return "charged"


@tool
def wire(ms: int, context: ToolContext) -> str:
    """Must not run again without a human's word."""
    _begin()
    time.sleep(ms / 2000)
    _effect(context, "wire")
    time.sleep(ms / 2000)
    return "wired"


@tool
async def pay(ms: int, context: ToolContext) -> str:
    """The same on the agent's loop."""
    await asyncio.sleep(ms / 2000)
    _effect(context, "pay")
    await asyncio.sleep(ms / 2000)
    return "paid"


@tool(requires_approval=True)
def send(ms: int, context: ToolContext) -> str:
    """Needs a human first."""
    _begin()
    time.sleep(ms / 1000)
    _effect(context, "send")
    return "sent"


#: Tools of which no body may run twice without a human's word.
NEVER = frozenset({"wire", "pay", "send"})
NAMES = ("look", "charge", "wire", "pay", "send")


class Storm(Agent):
    """Does what its message says."""

    model: ClassVar[Any] = ScriptedModel(obey)
    definition_id = "chaos-storm"
    tools = (look, charge, wire, pay, send)
    max_tool_repeats = 0
    max_starts_without_progress = 1_000
    quiescence_timeout_s = 2.0


class StormByGateway(Storm):
    """The same with a provider behind the model gateways."""

    model = "openai/storm"
    model_settings: ClassVar[Mapping[str, Any]] = {
        "api_base": os.environ.get(MODEL_URL_ENV, "http://127.0.0.1:9/v1"),
        "api_key": "test",
    }
    definition_id = "chaos-storm-by-gateway"


class Contested(Storm):
    """Is taken from its owners all the time, which is no crash loop."""

    definition_id = "chaos-contested"
    max_starts_without_progress = 10_000


def class_of(agent_id: str) -> type[Storm]:
    """The class of an agent, from its id."""
    return StormByGateway if agent_id.endswith("-by-gateway") else Storm
