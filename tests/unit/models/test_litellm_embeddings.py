"""Embeddings through litellm against the loopback provider."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingRequest
from phronomy_ray.errors import (
    AuthenticationError,
    ModelError,
    ModelRequestError,
    ModelTimeoutError,
    RateLimitError,
)
from phronomy_ray.models.litellm_embeddings import LitellmEmbeddingPort, answer_of
from phronomy_ray.models.retry import Backoff
from phronomy_ray.models.script import error, hang, http_error
from phronomy_ray.retrieval.embeddings import LitellmEmbeddings, hash_vector
from phronomy_ray.testing.model_server import ModelServer

pytestmark = [
    # litellm keeps its HTTP clients per event loop and leaves closing them to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEY = "sk-CANARY"
PORT = LitellmEmbeddingPort(backoff=Backoff(initial_s=0.0, max_s=0.0, jitter_s=0.0))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def ask(
    server: ModelServer, *texts: str, settings: dict[str, Any] | None = None, **more: Any
) -> EmbeddingRequest:
    given = {"api_base": server.base_url, "api_key": KEY} | (settings or {})
    return EmbeddingRequest(
        "openai/text-embedding-3-small", texts, "em_1", given, **{"timeout_s": 20.0} | more
    )


async def test_vectors_in_order_with_usage_and_settings(server: ModelServer) -> None:
    answer = await PORT.embed(ask(server, "one", "two words", settings={"dimensions": 8}))
    for vector, text in zip(answer.vectors, ("one", "two words"), strict=True):
        assert list(vector) == pytest.approx(hash_vector(text, 8), abs=1e-6)
    assert (answer.input_tokens, answer.model) == (3, "text-embedding-3-small")
    [request] = server.embeddings
    assert (request.body["input"], request.body["dimensions"]) == (["one", "two words"], 8)
    assert request.headers["authorization"] == f"Bearer {KEY}"


async def test_a_script_without_an_agent_asks_the_provider_itself(server: ModelServer) -> None:
    settings = {"api_base": server.base_url, "api_key": KEY}
    vectors = await LitellmEmbeddings("openai/embed", settings=settings, batch_size=1).embed(["a", "b"])
    assert [len(vector) for vector in vectors] == [64, 64]
    assert [request.body["input"] for request in server.embeddings] == [["a"], ["b"]]


async def test_what_passes_is_tried_again(server: ModelServer) -> None:
    server.embedding_script = lambda request: (
        error(RateLimitError("slow", details={"retry_after": "0"})) if request.number < 3 else None
    )
    assert len((await PORT.embed(ask(server, "x"))).vectors) == 1
    assert len(server.embeddings) == 3


async def test_attempts_are_bounded_and_recorded(server: ModelServer) -> None:
    server.embedding_script = lambda request: http_error(503, "overloaded")
    with pytest.raises(ModelError) as caught:
        await PORT.embed(ask(server, "x", max_retries=1))
    assert (caught.value.code, caught.value.retryable) == ("model_unavailable", True)
    assert [entry["number"] for entry in caught.value.details["attempts"]] == [1, 2]
    assert len(server.embeddings) == 2


async def test_what_does_not_pass_is_not_tried_again_and_holds_no_key(server: ModelServer) -> None:
    server.embedding_script = lambda request: http_error(401, f"wrong key {KEY}")
    with pytest.raises(AuthenticationError) as caught:
        await PORT.embed(ask(server, "x"))
    assert KEY not in "".join(traceback.format_exception(caught.value)) + str(caught.value.details)
    assert len(server.embeddings) == 1


async def test_a_silent_provider_is_a_timeout(server: ModelServer) -> None:
    server.embedding_script = lambda request: hang()
    with pytest.raises(ModelTimeoutError):
        await PORT.embed(ask(server, "x", timeout_s=0.3, max_retries=0))


async def test_cancelling_closes_the_connection(server: ModelServer) -> None:
    server.embedding_script = lambda request: hang()
    task = asyncio.create_task(PORT.embed(ask(server, "x")))
    while not server.embeddings:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.embeddings[0].done.wait, 10)
    assert server.embeddings[0].closed_by_client


@pytest.mark.parametrize("setting", ["input", "timeout", "max_retries", "num_retries", "encoding_format"])
async def test_settings_of_ours_are_refused(server: ModelServer, setting: str) -> None:
    with pytest.raises(ModelRequestError, match=setting) as caught:
        await PORT.embed(ask(server, "x", settings={setting: 1}))
    assert caught.value.code == "reserved_setting"
    assert server.embeddings == []


def _data(*vectors: Any) -> dict[str, Any]:
    return {"data": [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]}


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"data": None},
        _data([1.0]),
        _data([1.0], []),
        _data([1.0], ["x"]),
        _data([1.0], [float("nan")]),
        _data([1.0], [1.0, 2.0]),
        _data([1.0], None),
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 1, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}]},
        {"data": ["x", "y"]},
    ],
    ids=repr,
)
def test_an_answer_that_cannot_be_used_is_a_typed_error(response: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        answer_of(response, expected=2)
    assert (caught.value.code, caught.value.retryable) == ("embedding_malformed", False)


def test_vectors_are_put_into_the_order_of_the_texts() -> None:
    data = [{"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1]}]
    assert answer_of({"data": data}, expected=2) == EmbeddingAnswer(((1.0,), (2.0,)))
