"""Tool registries that every process builds for itself, and an agent whose tools come from them alone."""

from __future__ import annotations

from phronomy_ray import Agent, AssemblySources, CapabilityRegistry, Provider, ToolContext, ToolRegistry, tool
from ray_testbed import effects
from ray_testbed.agents import note, obedient

#: From when on there is a better provider.
BETTER_GATE = "registries-better"


@tool(name="first_choice", replay="safe")
def first(text: str, gate: str, context: ToolContext) -> str:
    """What a turn gets that begins before the gate is open."""
    effects.record(context.agent_id, "first", text=text, attempt=context.attempt)
    effects.pass_gate(gate)
    return f"first {text} for {(context.durable_context or {}).get('tenant')}"


@tool(name="better_choice", replay="safe")
def better(text: str, gate: str, context: ToolContext) -> str:
    """What a turn gets that begins later."""
    effects.record(context.agent_id, "better", text=text)
    return f"better {text} for {(context.durable_context or {}).get('tenant')}"


def registries() -> AssemblySources:
    """Called once in each process."""
    tools, capabilities = ToolRegistry(), CapabilityRegistry()
    tools.register("acme.first", factory=lambda: first)
    tools.register("acme.better", better)
    tools.register("acme.note", note)
    capabilities.register(Provider("work", "acme.first"))
    capabilities.register(
        Provider("work", "acme.better", priority=9, availability=lambda: effects.is_open(BETTER_GATE))
    )
    return AssemblySources(tools, capabilities)


class Capable(Agent):
    """Has one capability and one tool of the runtime's registry."""

    model = obedient()
    capabilities = ("work",)
    tools_allow = ("acme.note",)
    max_parallel_tools = 2
