"""What the model of the tool benchmarks does: N calls of one tool, then a final text.

The user's message says which calls: ``{"tool": ..., "calls": N, "arguments": {...}}``. The peers' fake models read the same
message, so every runtime gets the same work, and none of them pays for a provider.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phronomy_ray.messages import Message, ToolCallRequest, Usage
from phronomy_ray.models.port import (
    FinishReason,
    ModelAnswer,
    ModelInfo,
    ModelRequest,
    StreamItem,
)

FINAL_TEXT = "done"


@dataclass(frozen=True, slots=True)
class Work:
    """One turn's batch."""

    tool: str
    calls: int
    #: Arguments of every call besides its number ``n``.
    arguments: tuple[tuple[str, Any], ...] = ()

    def message(self) -> str:
        """The user message that asks for it."""
        return json.dumps({"tool": self.tool, "calls": self.calls, "arguments": dict(self.arguments)})

    @classmethod
    def of(cls, message: str) -> Work:
        """Inverse of `message`."""
        wire = json.loads(message)
        return cls(wire["tool"], wire["calls"], tuple(wire["arguments"].items()))

    def each(self) -> list[dict[str, Any]]:
        """Arguments of every call."""
        return [{"n": number, **dict(self.arguments)} for number in range(self.calls)]


@lru_cache(maxsize=64)
def tool_answer(message: str) -> ModelAnswer:
    """The answer that asks for the calls of `message`; made once, so that a model costs nobody anything."""
    work = Work.of(message)
    calls = tuple(
        ToolCallRequest(f"call_{number}", work.tool, json.dumps(arguments))
        for number, arguments in enumerate(work.each())
    )
    return ModelAnswer(Message.assistant(None, calls), FinishReason.TOOL_CALLS, Usage(10, 5))


class BatchModel:
    """A `ModelPort` without any work of its own."""

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        """The calls that the last user message asks for, then the final text."""
        last = request.messages[-1]
        if last["role"] == "user":
            return tool_answer(last["content"])
        return ModelAnswer(Message.assistant(FINAL_TEXT), FinishReason.STOP, Usage(10, 5))

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """The whole answer as one item."""
        yield await self.complete(request)

    async def info(self, model: str) -> ModelInfo:
        """No limits."""
        return ModelInfo()
