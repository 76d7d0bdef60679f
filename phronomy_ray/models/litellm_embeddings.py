"""The embedding port over litellm; the counterpart of `models.litellm_model`, whose invariants hold here too."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from phronomy_ray.clock import utc_now
from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingRequest
from phronomy_ray.errors import ModelError, ModelRequestError, ModelTimeoutError
from phronomy_ray.models.litellm_errors import model_error
from phronomy_ray.models.litellm_model import RESERVED_SETTINGS, import_litellm
from phronomy_ray.models.retry import Backoff, ModelRetry, Monotonic, Now, Sleep
from phronomy_ray.redaction import environment_secrets, secret_values

#: Settings that belong to us; see `litellm_model.RESERVED_SETTINGS`.
RESERVED_EMBEDDING_SETTINGS = RESERVED_SETTINGS | {"aembedding", "encoding_format", "input"}


class LitellmEmbeddingPort:
    """An `EmbeddingPort` that calls providers through litellm. Stateless between calls; use it on one event loop."""

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        sleep: Sleep = asyncio.sleep,
        now: Now = utc_now,
        clock: Monotonic = time.monotonic,
    ) -> None:
        """
        Args:
            backoff: waits between attempts.
            sleep: how to wait.
            now: wall clock.
            clock: monotonic clock of the total limit, which is the attempts' limits added up.
        """
        self._backoff = backoff
        self._sleep = sleep
        self._now = now
        self._clock = clock

    async def embed(self, request: EmbeddingRequest) -> EmbeddingAnswer:
        """Embed the texts of `request` in one call of the provider, tried again as model calls are.

        Raises:
            ModelError: its class says what kind; code ``embedding_malformed`` for an answer that cannot be used.
        """
        arguments = _arguments(request)
        litellm = await asyncio.to_thread(import_litellm)
        retry = ModelRetry(
            max_retries=request.max_retries,
            total_timeout_s=request.timeout_s * (max(0, request.max_retries) + 1),
            backoff=self._backoff,
            sleep=self._sleep,
            now=self._now,
            clock=self._clock,
        )

        async def attempt(number: int) -> EmbeddingAnswer:
            try:
                async with asyncio.timeout(min(request.timeout_s, retry.remaining_s())):
                    response = await litellm.aembedding(**arguments)
            except TimeoutError as error:
                raise ModelTimeoutError(
                    f"{request.model} did not answer within {request.timeout_s} s",
                    details={"provider_error": type(error).__name__},
                ) from None
            except Exception as error:  # noqa: BLE001 - providers raise anything; the table decides
                secrets = secret_values(request.settings) | environment_secrets(os.environ)
                raise model_error(error, secrets=secrets) from None
            return answer_of(response.model_dump(warnings=False), expected=len(request.texts))

        return await retry.run_any(attempt)


def answer_of(response: Mapping[str, Any], *, expected: int) -> EmbeddingAnswer:
    """The answer in an embeddings response with `expected` vectors, put into the order of the texts.

    Raises:
        ModelError: code ``embedding_malformed``.
    """
    data = response.get("data")
    if not isinstance(data, list) or len(data) != expected:
        found = len(data) if isinstance(data, list) else "no"
        raise _malformed(f"{expected} texts were answered with {found} vectors")
    vectors: dict[int, tuple[float, ...]] = {}
    for position, item in enumerate(data):
        entry = item if isinstance(item, Mapping) else {}
        index = entry.get("index", position)
        vectors[index if isinstance(index, int) else position] = _vector(entry.get("embedding"))
    if sorted(vectors) != list(range(expected)):
        raise _malformed("the positions of the vectors are not those of the texts")
    if len({len(vector) for vector in vectors.values()}) != 1:
        raise _malformed("the vectors are of different lengths")
    usage = response.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    model = response.get("model")
    return EmbeddingAnswer(
        tuple(vectors[index] for index in range(expected)),
        tokens if isinstance(tokens, int) and tokens > 0 else None,
        model if isinstance(model, str) else "",
    )


def _vector(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise _malformed("a vector is missing")
    for number in value:
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
            raise _malformed("a vector holds something that is no finite number")
    return tuple(map(float, value))


def _malformed(text: str) -> ModelError:
    return ModelError(f"the provider's embeddings cannot be used: {text}", code="embedding_malformed")


def _arguments(request: EmbeddingRequest) -> dict[str, Any]:
    reserved = sorted(RESERVED_EMBEDDING_SETTINGS & request.settings.keys())
    if reserved:
        raise ModelRequestError(
            f"embedding settings {reserved} are controlled by the runtime (timeout and retries have options of their own)",
            code="reserved_setting",
        )
    return {
        **request.settings,
        "model": request.model,
        "input": list(request.texts),
        "num_retries": 0,
        "max_retries": 0,
        "timeout": request.timeout_s,
    }
