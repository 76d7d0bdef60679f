"""An agent whose model does what the message says, and tools of every replay kind that leave one effect for each body."""

from __future__ import annotations

import asyncio
import json
import time

from phronomy_ray import Agent, ToolContext, tool
from phronomy_ray.models.script import ScriptRequest, Step, call, calls, final
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.testing.chaos import log


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
    time.sleep(ms / 1000)
    _effect(context, "look")
    return "looked"


@tool(replay="idempotent")
def charge(ms: int, context: ToolContext) -> str:
    """May run again with the same key."""
    time.sleep(ms / 2000)
    _effect(context, "charge")
    time.sleep(ms / 2000)
    return "charged"


@tool
def wire(ms: int, context: ToolContext) -> str:
    """Must not run again without a human's word."""
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
    time.sleep(ms / 1000)
    _effect(context, "send")
    return "sent"


#: Tools of which no body may run twice without a human's word.
NEVER = frozenset({"wire", "pay", "send"})
NAMES = ("look", "charge", "wire", "pay", "send")


class Storm(Agent):
    """Does what its message says."""

    model = ScriptedModel(obey)
    definition_id = "chaos-storm"
    tools = (look, charge, wire, pay, send)
    max_tool_repeats = 0
    max_starts_without_progress = 1_000
    quiescence_timeout_s = 2.0
