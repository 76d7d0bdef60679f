"""The one table from litellm's, openai's and the HTTP libraries' exceptions to our error classes.

Decided by exception class, found by module and class name so that nothing is imported here; the first entry that matches
any class of the exception's ancestry, most derived first, decides. The message is scrubbed, and the original exception is *not*
chained: its text, arguments and request may hold credentials, and causes are recorded. Its class name is kept in the details.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from phronomy_ray.errors import (
    AuthenticationError,
    ContextLengthError,
    ModelError,
    ModelRequestError,
    ModelTimeoutError,
    RateLimitError,
    TransportError,
    safe_message,
)
from phronomy_ray.models.http_status import error_for_status
from phronomy_ray.redaction import redact_text

_LITELLM = "litellm.exceptions"
_OPENAI = "openai"

#: How far a chain of causes is followed.
_MAX_CAUSES = 8

#: (top-level package or module, class name) -> our class and code; ``None`` as class: decided by the HTTP status.
_TABLE: dict[tuple[str, str], tuple[type[ModelError] | None, str | None]] = {
    (_LITELLM, "ContextWindowExceededError"): (ContextLengthError, None),
    (_LITELLM, "ContentPolicyViolationError"): (ModelRequestError, "content_policy"),
    (_LITELLM, "AuthenticationError"): (AuthenticationError, None),
    (_LITELLM, "PermissionDeniedError"): (AuthenticationError, None),
    (_LITELLM, "NotFoundError"): (ModelRequestError, "model_not_found"),
    (_LITELLM, "BadRequestError"): (ModelRequestError, None),
    (_LITELLM, "InvalidRequestError"): (ModelRequestError, None),
    (_LITELLM, "UnprocessableEntityError"): (ModelRequestError, None),
    (_LITELLM, "PaymentRequiredError"): (ModelRequestError, "payment_required"),
    (_LITELLM, "RateLimitError"): (RateLimitError, None),
    (_LITELLM, "Timeout"): (ModelTimeoutError, None),
    (_LITELLM, "ServiceUnavailableError"): (TransportError, "model_unavailable"),
    (_LITELLM, "BadGatewayError"): (TransportError, "model_unavailable"),
    (_LITELLM, "InternalServerError"): (TransportError, "model_unavailable"),
    (_LITELLM, "APIConnectionError"): (TransportError, None),
    (_LITELLM, "APIError"): (None, None),
    (_LITELLM, "BudgetExceededError"): (ModelRequestError, "budget_exceeded"),
    (_OPENAI, "APITimeoutError"): (ModelTimeoutError, None),
    (_OPENAI, "APIConnectionError"): (TransportError, None),
    (_OPENAI, "APIStatusError"): (None, None),
    ("httpx", "TimeoutException"): (ModelTimeoutError, None),
    ("httpx", "TransportError"): (TransportError, None),
    ("aiohttp", "ClientError"): (TransportError, None),
    ("builtins", "TimeoutError"): (ModelTimeoutError, None),
    ("builtins", "ConnectionError"): (TransportError, None),
}


def model_error(error: Exception, *, secrets: Collection[str] = ()) -> ModelError:
    """Our error for an exception of a provider call; never raises, never keeps `error`.

    Its details hold, where known: ``provider_error`` (class name), ``status`` and ``retry_after`` (the header, verbatim).
    """
    if isinstance(error, ModelError):
        return error
    message = redact_text(safe_message(error), secrets)
    details: dict[str, Any] = {"provider_error": type(error).__name__}
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and not isinstance(status, bool):
        details["status"] = status
    retry_after = _retry_after(error)
    if retry_after is not None:
        details["retry_after"] = retry_after
    if _says_context_length(error):
        return ContextLengthError(message, details=details)
    if _lacks_credentials(error):
        details.pop("status", None)  # litellm's invention: nobody was asked
        return AuthenticationError(message, code="missing_credentials", details=details)
    for ancestor in type(error).__mro__:
        found = _TABLE.get((ancestor.__module__, ancestor.__name__)) or _TABLE.get(
            (ancestor.__module__.split(".")[0], ancestor.__name__)
        )
        if found is not None:
            cls, code = found
            if cls is None:
                return error_for_status(details.get("status", 500), message, details=details)
            return cls(message, code=code, details=details)
    return ModelError(f"{type(error).__name__}: {message}", code="model_unexpected", details=details)


def _lacks_credentials(error: Exception) -> bool:
    """Whether the provider's client could not even be made: the OpenAI SDK raises the root of its errors for a key that
    is not there, and litellm passes that on as a server's fault.
    """
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return False
        if (type(cause).__module__.split(".")[0], type(cause).__name__) == ("openai", "OpenAIError"):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _retry_after(error: Exception) -> str | None:
    """The ``Retry-After`` header of the response that caused `error`."""
    response = getattr(error, "response", None)
    headers: Any
    for headers in (getattr(error, "litellm_response_headers", None), getattr(response, "headers", None)):
        if headers is not None and hasattr(headers, "get"):
            value = headers.get("retry-after") or headers.get("Retry-After")
            if value is not None:
                return str(value)
    return None


def _says_context_length(error: Exception) -> bool:
    """Whether the provider's error code, not its prose, names the context window."""
    body = getattr(error, "body", None)
    codes = [getattr(error, "code", None)]
    if isinstance(body, Mapping):
        inner = body.get("error")
        codes += [body.get("code"), inner.get("code") if isinstance(inner, Mapping) else None]
    return "context_length_exceeded" in codes
