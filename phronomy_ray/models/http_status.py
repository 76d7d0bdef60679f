"""HTTP statuses of a model provider and our error classes, in both directions."""

from __future__ import annotations

from typing import Any

from phronomy_ray.errors import (
    AuthenticationError,
    ContextLengthError,
    ModelError,
    ModelRequestError,
    ModelTimeoutError,
    PhronomyError,
    RateLimitError,
    TransportError,
)


def error_for_status(status: int, message: str, *, details: dict[str, Any] | None = None) -> ModelError:
    """The error class of an HTTP error status; 0 is a broken connection."""
    facts = {"status": status, **(details or {})} if status else dict(details or {})
    if status in (401, 403):
        return AuthenticationError(message, details=facts)
    if status == 429:
        return RateLimitError(message, details=facts)
    if status in (408, 504):
        return ModelTimeoutError(message, details=facts)
    if status == 0 or status == 409 or status >= 500:
        return TransportError(message, code="model_unavailable" if status else None, details=facts)
    return ModelRequestError(message, details=facts)


def status_for_error(failure: PhronomyError) -> int:
    """The HTTP status that makes a client raise `failure`; 0 for a broken connection."""
    if isinstance(failure.details.get("status"), int):
        return int(failure.details["status"])
    table: tuple[tuple[type[PhronomyError], int], ...] = (
        (AuthenticationError, 401),
        (RateLimitError, 429),
        (ModelTimeoutError, 504),
        (ContextLengthError, 400),
        (ModelRequestError, 400),
        (TransportError, 0),
    )
    return next((status for cls, status in table if isinstance(failure, cls)), 500)
