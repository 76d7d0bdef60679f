"""The executor port: what an agent's engine needs of whatever runs its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.tool_calls import (
    Attachment,
    CallKey,
    ToolInvocation,
    ToolLate,
    ToolOutcome,
    ToolProgress,
    ToolStarted,
)

ToolReport: TypeAlias = ToolOutcome | ToolStarted | ToolProgress | ToolLate
Sink: TypeAlias = Callable[[ToolReport], None]


class ToolExecutor(Protocol):
    """Runs the bodies of one agent. All methods are called on the agent's event loop."""

    @property
    def on_loop(self) -> int:
        """Bodies that run on the event loop."""
        ...

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """Run all side by side and give `sink` exactly one outcome for each; returns at once.

        `sink` may get a `ToolLate` after the outcome of a call whose body went on.
        """
        ...

    async def attach(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> Attachment:
        """Go on with calls that an earlier owner dispatched; a dispatch of that owner can start no more.

        Each attached call gives `sink` exactly one outcome, which may come before this returns.
        """
        ...

    def acknowledge(self, keys: Sequence[CallKey]) -> None:
        """These outcomes are committed: nothing has to be kept for them any more."""
        ...

    def stragglers(self, execution_id: str) -> bool:
        """Whether a body of this execution may still run although its call has its outcome."""
        ...

    async def quiesce(self, execution_id: str, timeout_s: float) -> frozenset[CallKey]:
        """Wait until no body of this execution runs any more; those that still do after `timeout_s` are returned and
        forgotten.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Ask every running body to stop; after `grace_s` seconds those that have not are given up as ``unknown``.

        Returns when each dispatched call has had its outcome.
        """
        ...

    def close(self) -> None:
        """Release what the executor holds; nothing is running."""
        ...
