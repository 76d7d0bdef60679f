"""What the process around a cooperative tool offers to it: the way to the model gateways and to child agents.

A tool that needs neither never notices. The executor of an agent's process sets the environment for every cooperative
body it starts, as a context variable, so that it also reaches what the body awaits; a worker has none, because nothing
live crosses to a worker. Outside of an agent (a script, a test) there is none either, and each user says what it does then.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from phronomy_ray.embedding import EmbeddingPort


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """What one agent's process offers to its cooperative tools."""

    #: The agent that the process owns.
    agent_id: str
    #: Embeddings through the model gateways.
    embeddings: EmbeddingPort | None = None


_CURRENT: ContextVar[ToolEnvironment | None] = ContextVar("phronomy_tool_environment", default=None)


def current_environment() -> ToolEnvironment | None:
    """The environment of the cooperative tool that runs here; ``None`` in a worker and outside of an agent."""
    return _CURRENT.get()


def enter_environment(environment: ToolEnvironment | None) -> None:
    """Set the environment of the present task and what it starts (called by executors)."""
    _CURRENT.set(environment)
