"""The model port: what the runtime asks of any model, and what it gets back.

An implementation answers one `ModelRequest` with one `ModelAnswer`. Guarantees that callers rely on:

* retries, backoff and ``Retry-After`` belong to the implementation; the caller never retries a provider error;
* a failure is one of the `ModelError` classes; cancelling the awaiting task raises `asyncio.CancelledError` (never a
  `CancellationError`) and closes the upstream connection;
* provider call ids are non-empty and unique within the answer; tool-call fragments of a stream are assembled, or the
  answer carries a call whose arguments are broken JSON text, never a guess;
* `stream` yields `TextDelta`s, a `StreamReset` when an attempt is started again (text so far is void), and as its last
  item exactly one `ModelAnswer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from phronomy_ray.errors import ErrorRecord
from phronomy_ray.messages import Message, Usage


class FinishReason(StrEnum):
    """Why the model stopped. Whether there are calls is decided by their presence, not by this."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything that one model call needs; plain values only."""

    #: Our id of the call, the same for every attempt, also after a crash.
    call_id: str
    #: Position of the call within its execution, from 1.
    sequence: int
    #: litellm model name, e.g. ``openai/gpt-4o``.
    model: str
    #: Chat-completions messages, system first. Must not be mutated.
    messages: Sequence[dict[str, Any]]
    #: Chat-completions tool definitions ``{"type": "function", "function": {...}}``.
    tools: Sequence[dict[str, Any]] = ()
    #: Provider settings such as ``temperature``, ``max_tokens``, ``api_base``; passed on as they are.
    settings: dict[str, Any] = field(default_factory=dict)
    #: Limit in seconds of one attempt.
    timeout_s: float = 120.0
    #: Attempts after the first.
    max_retries: int = 2
    #: Ask the provider to cache the instructions.
    cache_instructions: bool = False
    #: Agent and execution, for rate limits and logs.
    agent_id: str = ""
    execution_id: str = ""


@dataclass(frozen=True, slots=True)
class ModelAttempt:
    """One attempt of a model call, also a failed one."""

    number: int
    started_at: str
    ended_at: str
    error: ErrorRecord | None = None

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "number": self.number,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "error": self.error.to_wire() if self.error else None,
        }


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answer to one request."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    #: ``None`` when the provider did not report any.
    usage: Usage | None = None
    attempts: tuple[ModelAttempt, ...] = ()
    #: Model name as the provider reported it.
    model: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The attempt was lost and is made again: text received so far is void."""

    attempt: int


StreamItem: TypeAlias = TextDelta | StreamReset | ModelAnswer


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model's limits, in tokens; ``None`` where unknown."""

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


@runtime_checkable
class ModelPort(Protocol):
    """A model, or a way to many."""

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        """Answer `request` in one piece. Raises `ModelError`; the failed attempts are in ``error.details["attempts"]``."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer `request` piece by piece; the last item is the `ModelAnswer`. Raises as `complete`."""
        ...

    async def info(self, model: str) -> ModelInfo:
        """Limits of `model`; never raises for an unknown one."""
        ...
