"""Agents whose batches can take every way that a kernel knows."""

from __future__ import annotations

from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import tool

AGENT = "alice"


@tool(replay="safe", on_error="suppress")
def look(x: int) -> int:
    return x


@tool(replay="idempotent", on_error="suppress")
def put(x: int) -> int:
    return x


@tool(on_error="suppress")
def pay(x: int) -> int:
    return x


@tool(on_error="raise")
def pay_or_fail(x: int) -> int:
    return x


@tool(requires_approval=True, on_error="suppress")
def ask(x: int) -> int:
    return x


@tool(requires_approval=True, approval_expires_s=20, on_error="suppress")
def ask_soon(x: int) -> int:
    return x


@tool(requires_approval=lambda request: True, on_error="suppress")
def maybe(x: int) -> int:
    return x


@tool(return_direct=True, replay="safe", on_error="suppress")
def report(x: int) -> int:
    return x


@tool(requires_approval=True, approval_facts=lambda arguments, context: {}, on_error="raise")
def ask_with_facts(x: int) -> int:
    return x


class Clerk(Agent):
    model = "none/none"
    tools = [look, put, pay, pay_or_fail, ask, ask_soon, maybe, ask_with_facts, report]
    max_iterations = 4
    definition_id = "clerk"


class StrictClerk(Clerk):
    """The same with everything on that a kernel can do to a batch."""

    max_tool_repeats = 2
    deduplicate_tool_calls = True
    max_batch_result_chars = 40


DEFINITION = Clerk.definition()
#: The same two behind a gate for parallel calls.
GATED = {
    (base, limit): type(f"{base.__name__}{limit}", (base,), {"max_parallel_tools": limit}).definition()
    for base in (Clerk, StrictClerk)
    for limit in (None, 1, 2)
}
