"""Embeddings: through the model gateways, and a deterministic local one for tests and demos."""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.embedding import EmbeddingPort, EmbeddingRequest
from phronomy_ray.errors import ConfigurationError, SerializationError
from phronomy_ray.retrieval.port import check_texts
from phronomy_ray.retrieval.vectors import MAX_DIMENSIONS
from phronomy_ray.tool_environment import current_environment

#: Texts in one call of the provider unless told otherwise; every large provider takes so many.
DEFAULT_BATCH_SIZE = 96
_WORD = re.compile(r"\w+")


class LitellmEmbeddings:
    """`Embeddings` of any provider that litellm knows, with the retries and errors of model calls.

    Inside an agent's process the calls go through the model gateways, so that litellm is never imported there. Elsewhere (a
    script that fills a store) litellm is imported on the first call, or `port` is asked: ``runtime.embedding_port()`` goes
    through the gateways from a driver. Holds plain values, and pickles unless a port was given that does not.
    """

    def __init__(
        self,
        model: str,
        *,
        settings: Mapping[str, Any] | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        port: EmbeddingPort | None = None,
    ) -> None:
        """
        Args:
            model: litellm model name, e.g. ``openai/text-embedding-3-small``.
            settings: provider settings such as ``dimensions``, ``api_base`` and ``api_key``; without credentials the
                environment of the process that calls the provider decides.
            batch_size: texts in one call of the provider.
            timeout_s: limit of one attempt, in seconds.
            max_retries: attempts after the first.
            port: whom to ask instead of the agent's gateways.

        Raises:
            ConfigurationError: a value cannot be used.
        """
        self._model = model
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._port = port
        self._check()
        try:
            plain = to_json_value(dict(settings or {}))
        except (SerializationError, TypeError, ValueError) as error:
            raise ConfigurationError(f"embedding settings must be plain JSON: {error}") from error
        self._settings: dict[str, Any] = plain if isinstance(plain, dict) else {}

    def __repr__(self) -> str:
        return f"LitellmEmbeddings({self._model!r})"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """As `Embeddings.embed`; one call of the provider after the other."""
        checked = check_texts(texts)
        vectors: list[list[float]] = []
        environment, port = current_environment(), self._chosen_port()
        for start in range(0, len(checked), self._batch_size):
            request = EmbeddingRequest(
                self._model,
                tuple(checked[start : start + self._batch_size]),
                f"em_{uuid.uuid4().hex}",
                dict(self._settings),
                self._timeout_s,
                self._max_retries,
                environment.agent_id if environment is not None else "",
            )
            answer = await port.embed(request)
            vectors.extend(list(vector) for vector in answer.vectors)
        return vectors

    def _chosen_port(self) -> EmbeddingPort:
        if self._port is not None:
            return self._port
        environment = current_environment()
        if environment is not None and environment.embeddings is not None:
            return environment.embeddings
        # not an agent's process: litellm may be loaded here
        from phronomy_ray.models.litellm_embeddings import LitellmEmbeddingPort

        return LitellmEmbeddingPort()

    def _check(self) -> None:
        def wrong(field: str, value: object, expected: str) -> ConfigurationError:
            return ConfigurationError(f"LitellmEmbeddings: {field} must be {expected}, not {value!r}")

        values: dict[str, object] = {
            "model": self._model,
            "batch_size": self._batch_size,
            "timeout_s": self._timeout_s,
            "max_retries": self._max_retries,
        }
        if not isinstance(values["model"], str) or not values["model"]:
            raise wrong("model", values["model"], "a litellm model name")
        for field, least in (("batch_size", 1), ("max_retries", 0)):
            value = values[field]
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise wrong(field, value, f"a whole number of at least {least}")
        timeout = values["timeout_s"]
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < math.inf:
            raise wrong("timeout_s", timeout, "a positive number of seconds")


class HashEmbeddings:
    """`Embeddings` without a model: texts that share words are near each other. Deterministic on every machine."""

    def __init__(self, dimensions: int = 256) -> None:
        if not 0 < dimensions <= MAX_DIMENSIONS:
            raise ConfigurationError(
                f"HashEmbeddings: dimensions must be 1 to {MAX_DIMENSIONS}, not {dimensions!r}"
            )
        self._dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """As `Embeddings.embed`."""
        return [hash_vector(text, self._dimensions) for text in check_texts(texts)]


def hash_vector(text: str, dimensions: int) -> list[float]:
    """The words of `text`, each added at a place and with a sign that its hash decides, scaled to length 1."""
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [text]:
        digest = hashlib.sha256(word.encode("utf-8", "replace")).digest()
        place = int.from_bytes(digest[:8], "little") % dimensions
        vector[place] += 1.0 if digest[8] & 1 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector] if length else vector
