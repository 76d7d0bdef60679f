"""The model port over litellm: every provider that litellm knows, with retries and error classes of our own.

Invariants:

* litellm is imported on the first use, off the event loop, after the switches that keep it offline and quiet are set;
* every layer below makes one HTTP request per attempt (``num_retries`` and ``max_retries`` are 0), so a call makes at
  most ``request.max_retries + 1``;
* cancelling the awaiting task closes the upstream connection, streamed or not;
* a message of an error never holds a credential that was in the settings or in the environment.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from phronomy_ray.clock import utc_now
from phronomy_ray.errors import ModelError, ModelRequestError, ModelTimeoutError
from phronomy_ray.models.litellm_errors import model_error
from phronomy_ray.models.normalise import StreamCollector, answer_from_response
from phronomy_ray.models.port import ModelAnswer, ModelInfo, ModelRequest, StreamItem, TextDelta
from phronomy_ray.models.retry import Backoff, ModelRetry, Monotonic, Now, Sleep, close_stream
from phronomy_ray.redaction import environment_secrets, secret_values

#: Set before litellm is imported, unless the user has set them: no price list, header list or model list from the network, no
#: ``.env`` file read into our environment, nothing printed.
OFFLINE_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_SUPPRESS_STARTUP_OUTPUT": "True",
    "LITELLM_DONT_SHOW_FEEDBACK_BOX": "True",
}

#: Settings that belong to us; a request that names one is refused, because passing it on would multiply retries, break
#: the stream protocol or replace what the runtime has decided.
RESERVED_SETTINGS = frozenset(
    {
        "context_window_fallback_dict",
        "fallbacks",
        "max_retries",
        "messages",
        "model",
        "n",
        "num_retries",
        "retry_policy",
        "retry_strategy",
        "stream",
        "stream_options",
        "timeout",
        "tools",
    }
)

#: Providers whose Claude models take ``cache_control`` marks; others cache by themselves or not at all.
_MARKED_PROVIDERS = ("anthropic", "bedrock", "vertex_ai", "databricks", "openrouter")

_import_lock = threading.Lock()


def import_litellm() -> Any:
    """The litellm module, offline and quiet. Costs seconds the first time; thread-safe."""
    with _import_lock:
        for name, value in OFFLINE_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        litellm: Any = importlib.import_module("litellm")
        litellm.suppress_debug_info = True
        # Its own estimate of tokens would pass for what the provider reported; off, unreported usage is all zeros.
        litellm.disable_token_counter = True
        litellm.disable_streaming_logging = True
        # Embedding calls take ``max_retries=0`` for "not given" and would retry by this default, below our own retries.
        litellm.DEFAULT_MAX_RETRIES = 0
        if hasattr(litellm, "telemetry"):
            litellm.telemetry = False
        if "LITELLM_LOG" not in os.environ:
            for logger in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
                logging.getLogger(logger).setLevel(logging.CRITICAL)
        return litellm


class LitellmModel:
    """A `ModelPort` that calls providers through litellm. Stateless between calls; use it on one event loop."""

    def __init__(
        self,
        *,
        defaults: Mapping[str, Any] | None = None,
        total_timeout_s: float | None = None,
        backoff: Backoff | None = None,
        sleep: Sleep = asyncio.sleep,
        now: Now = utc_now,
        clock: Monotonic = time.monotonic,
    ) -> None:
        """
        Args:
            defaults: settings such as ``api_base`` and ``api_key`` for requests that name none. Without them litellm
                reads the provider's environment variables.
            total_timeout_s: limit of a whole call with all attempts and waits; by default the attempts' limits added up.
            backoff: waits between attempts.
            sleep: how to wait.
            now: wall clock.
            clock: monotonic clock of the total limit.
        """
        self._defaults = dict(defaults or {})
        self._total_timeout_s = total_timeout_s
        self._backoff = backoff
        self._sleep = sleep
        self._now = now
        self._clock = clock
        self._litellm: Any = None

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        """Answer `request` in one piece."""
        litellm = await self.load()
        arguments = self._arguments(request)
        retry = self._retry(request)

        async def attempt(number: int) -> ModelAnswer:
            try:
                async with asyncio.timeout(min(request.timeout_s, retry.remaining_s())):
                    response = await litellm.acompletion(**arguments)
            except TimeoutError as error:
                raise self._timed_out(request, error) from None
            except Exception as error:  # noqa: BLE001 - providers raise anything; the table decides
                raise self._error(request, error) from None
            return answer_from_response(_plain(response), call_id=request.call_id)

        return await retry.run(attempt)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer `request` piece by piece. Closing the iterator closes the upstream connection."""
        litellm = await self.load()
        arguments = self._arguments(request) | {"stream": True, "stream_options": {"include_usage": True}}
        retry = self._retry(request)

        async def attempt(number: int) -> AsyncIterator[StreamItem]:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + min(request.timeout_s, retry.remaining_s())
            collector = StreamCollector(call_id=request.call_id)
            upstream: Any = None
            try:
                # The limit is armed around each wait, never across a yield, where it would cancel the consumer.
                async with asyncio.timeout_at(deadline):
                    upstream = await litellm.acompletion(**arguments)
                    chunks = aiter(upstream)
                while True:
                    async with asyncio.timeout_at(deadline):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        break
                    text = collector.feed(_plain(chunk))
                    if text:
                        yield TextDelta(text)
            except TimeoutError as error:
                raise self._timed_out(request, error) from None
            except Exception as error:  # noqa: BLE001 - providers raise anything; the table decides
                raise self._error(request, error) from None
            finally:
                await close_stream(upstream)
            yield collector.finish()

        items = retry.stream(attempt)
        try:
            async for item in items:
                yield item
        finally:
            await close_stream(items)

    async def info(self, model: str) -> ModelInfo:
        """Limits of `model` from the registry that ships with litellm; no network."""
        registry = (await self.load()).model_cost
        entry = registry.get(model)
        provider, _, bare = model.partition("/")
        if entry is None and bare:
            candidate = registry.get(bare)
            if isinstance(candidate, Mapping) and candidate.get("litellm_provider") == provider:
                entry = candidate
        if not isinstance(entry, Mapping):
            return ModelInfo()
        return ModelInfo(
            _tokens(entry.get("max_input_tokens", entry.get("max_tokens"))),
            _tokens(entry.get("max_output_tokens")),
        )

    async def load(self) -> Any:
        """Import litellm if that has not happened yet, without blocking the loop."""
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(import_litellm)
        return self._litellm

    # --- one request -------------------------------------------------------------------------------------------

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        """Keyword arguments of litellm for one attempt.

        Raises:
            ModelRequestError: a reserved setting was given.
        """
        settings = {**self._defaults, **request.settings}
        reserved = sorted(RESERVED_SETTINGS & settings.keys())
        if reserved:
            raise ModelRequestError(
                f"model settings {reserved} are controlled by the runtime (timeout, retries and streaming have options "
                "of their own)",
                code="reserved_setting",
            )
        messages = [dict(message) for message in request.messages]
        if request.cache_instructions and takes_cache_marks(request.model):
            messages = mark_instructions(messages)
        arguments: dict[str, Any] = {"model": request.model, "messages": messages, **settings}
        if request.tools:
            arguments["tools"] = list(request.tools)
        return arguments | {"num_retries": 0, "max_retries": 0, "timeout": request.timeout_s}

    def _retry(self, request: ModelRequest) -> ModelRetry:
        total_s = self._total_timeout_s
        if total_s is None:
            total_s = request.timeout_s * (max(0, request.max_retries) + 1)
        return ModelRetry(
            max_retries=request.max_retries,
            total_timeout_s=total_s,
            backoff=self._backoff,
            sleep=self._sleep,
            now=self._now,
            clock=self._clock,
        )

    def _error(self, request: ModelRequest, error: Exception) -> ModelError:
        secrets = secret_values({**self._defaults, **request.settings}) | environment_secrets(os.environ)
        return model_error(error, secrets=secrets)

    def _timed_out(self, request: ModelRequest, error: TimeoutError) -> ModelError:
        return ModelTimeoutError(
            f"{request.model} did not answer within {request.timeout_s} s",
            details={"provider_error": type(error).__name__},
        )


def takes_cache_marks(model: str) -> bool:
    """Whether the provider of `model` understands ``cache_control`` on a message part."""
    provider, slash, rest = model.partition("/")
    if not slash:
        return provider.startswith("claude")
    return provider == "anthropic" or (provider in _MARKED_PROVIDERS and "claude" in rest)


def mark_instructions(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`messages` with a cache mark at the end of the last leading system message (tools come before it and are cached too)."""
    last = -1
    while last + 1 < len(messages) and messages[last + 1].get("role") == "system":
        last += 1
    if last < 0 or not isinstance(messages[last].get("content"), str) or not messages[last]["content"]:
        return messages
    part = {"type": "text", "text": messages[last]["content"], "cache_control": {"type": "ephemeral"}}
    return [*messages[:last], {**messages[last], "content": [part]}, *messages[last + 1 :]]


def _plain(response: Any) -> dict[str, Any]:
    """A response or chunk as plain values; usage that is all zeros is what litellm fills in for none."""
    plain: dict[str, Any] = response.model_dump(warnings=False)
    usage = plain.get("usage")
    if isinstance(usage, Mapping) and not usage.get("prompt_tokens") and not usage.get("completion_tokens"):
        plain["usage"] = None
    return plain


def _tokens(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
