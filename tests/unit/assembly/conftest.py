"""Registries, agents and turns for tests of the assembly; nothing here runs a body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.assembly.capabilities import CapabilityRegistry, Provider, Turn
from phronomy_ray.assembly.registry import ToolRegistry
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool import FunctionTool, tool

TURN = Turn("a1", "ex1")


def named(name: str, **options: Any) -> FunctionTool:
    """A tool that says its name."""

    @tool(name=name, **{"replay": "safe", **options})
    async def body(x: int = 0) -> str:
        return f"{name} {x}"

    return body


class Bench:
    """Two registries and agents that use them."""

    def __init__(self) -> None:
        self.tools = ToolRegistry()
        self.capabilities = CapabilityRegistry()
        self.sources = AssemblySources(self.tools, self.capabilities)
        self.made: list[str] = []

    def tool(self, key: str, name: str = "", **options: Any) -> None:
        """Register a factory that counts what it makes."""

        def make() -> FunctionTool:
            self.made.append(key)
            return named(name or key)

        self.tools.register(key, factory=make, **options)

    def provide(self, capability: str, implementation: str, **fields: Any) -> Provider:
        """Register a provider."""
        return self.capabilities.register(Provider(capability, implementation, **fields))

    def agent(self, *own: Any, **attributes: Any) -> AgentDefinition:
        """An agent class."""
        body = {"model": "m/m", "tools": list(own), "tool_sources": "some:where", **attributes}
        return type("Clerk", (Agent,), body).definition()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def named_tool() -> Callable[..., FunctionTool]:
    return named


@pytest.fixture
def turn() -> Turn:
    return TURN
