"""What the process around a cooperative tool offers to it: the way to the model gateways and to child agents.

A tool that needs neither never notices. The executor of an agent's process sets the environment for every cooperative
body it starts, as a context variable, so that it also reaches what the body awaits; a worker has none, because nothing
live crosses to a worker. Outside of an agent (a script, a test) there is none either, and each user says what it does then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.results import RunResult

if TYPE_CHECKING:
    from phronomy_ray.definition.agent import Agent


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """One call of an agent as a tool."""

    agent_class: type[Agent]
    #: What the child is told.
    input: str
    #: The parent's execution and call; with the parent's id they name the child, so that a call that is run again after
    #: a crash finds the child that it had started.
    execution_id: str
    tool_call_id: str
    #: Whether the body was told to stop, as opposed to having run out of time.
    is_stopped: Callable[[], bool]
    #: Handed on to the child's execution.
    durable_context: dict[str, Any] | None = None
    #: Leave the child's process running when its work has ended.
    keep: bool = False
    #: How many agents may stand below each other, the first parent not counted.
    max_depth: int = 4


class ChildAgents(Protocol):
    """Starts agents on behalf of the tools of one agent."""

    async def run(self, request: ChildRequest) -> RunResult:
        """Run a child to its end, free its process, and return its result whatever the end is.

        No thread and no worker is held meanwhile; a child that waits for a human is waited for. When the awaiting task is
        cancelled because the call was cancelled or timed out, the child is cancelled and freed too; when only the parent's
        owner has stopped, the child goes on and is found again.

        Raises:
            ToolError: code ``agent_depth`` or ``agent_cycle``; nothing was started.
            CleanupError: the child has ended and its process could not be freed; carries the result.
            PhronomyError: the child could not be started.
        """
        ...

    def reap(self) -> None:
        """End children of a cancelled execution whose owner died before it could tell them; called by a new owner.

        Returns at once; looking for them and their end go on behind it, and what fails is logged.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """What one agent's process offers to its cooperative tools."""

    #: The agent that the process owns.
    agent_id: str
    #: Embeddings through the model gateways.
    embeddings: EmbeddingPort | None = None
    #: Child agents.
    children: ChildAgents | None = None


_CURRENT: ContextVar[ToolEnvironment | None] = ContextVar("phronomy_tool_environment", default=None)


def current_environment() -> ToolEnvironment | None:
    """The environment of the cooperative tool that runs here; ``None`` in a worker and outside of an agent."""
    return _CURRENT.get()


def enter_environment(environment: ToolEnvironment | None) -> None:
    """Set the environment of the present task and what it starts (called by executors)."""
    _CURRENT.set(environment)
