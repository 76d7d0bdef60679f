"""Embedding calls: what is asked, what comes back, and the port between.

Guarantees of an implementation are those of the model port: it retries by itself, a failure is one of the `ModelError`
classes, cancelling the awaiting task closes the provider's connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One request: texts that are embedded by one model in one call of the provider."""

    #: litellm model name, e.g. ``openai/text-embedding-3-small``.
    model: str
    #: At least one text, none empty.
    texts: tuple[str, ...]
    #: Our id of the call, the same for every attempt.
    call_id: str
    #: Provider settings such as ``dimensions``, ``api_base``, ``api_key``; passed on as they are.
    settings: dict[str, Any] = field(default_factory=dict)
    #: Limit in seconds of one attempt.
    timeout_s: float = 60.0
    #: Attempts after the first.
    max_retries: int = 2
    #: The agent that asks, empty for none; decides which gateway is asked first.
    agent_id: str = ""


@dataclass(frozen=True, slots=True)
class EmbeddingAnswer:
    """The vectors of one request, in the order of its texts and all of one length."""

    vectors: tuple[tuple[float, ...], ...]
    #: Input tokens as the provider reported them; ``None`` when it did not.
    input_tokens: int | None = None
    #: Model name as the provider reported it.
    model: str = ""


class EmbeddingPort(Protocol):
    """A provider of embeddings, or a way to many."""

    async def embed(self, request: EmbeddingRequest) -> EmbeddingAnswer:
        """Embed the texts of `request`. Raises `ModelError`; the failed attempts are in ``error.details["attempts"]``."""
        ...
