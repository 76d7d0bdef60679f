"""Embeddings: whom they ask, in which batches, and the local one."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest

from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingRequest
from phronomy_ray.errors import ConfigurationError, InvalidInputError, RateLimitError
from phronomy_ray.retrieval import Embeddings, HashEmbeddings, LitellmEmbeddings
from phronomy_ray.retrieval.vectors import from_bytes, similarity, to_bytes, unit
from phronomy_ray.tool_environment import ToolEnvironment, current_environment, enter_environment


class Recorder:
    """An embedding port that answers with the lengths of the texts."""

    def __init__(self) -> None:
        self.requests: list[EmbeddingRequest] = []

    async def embed(self, request: EmbeddingRequest) -> EmbeddingAnswer:
        self.requests.append(request)
        if "fail" in request.texts:
            raise RateLimitError("slow down")
        return EmbeddingAnswer(tuple((float(len(text)), 1.0) for text in request.texts))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def in_agent(recorder: Recorder) -> Iterator[None]:
    enter_environment(ToolEnvironment("clerk", recorder))
    yield
    enter_environment(None)


async def test_batches_keep_the_order_and_carry_the_settings(recorder: Recorder) -> None:
    embeddings = LitellmEmbeddings(
        "openai/e", settings={"dimensions": 2}, batch_size=2, timeout_s=7, max_retries=1, port=recorder
    )
    assert isinstance(embeddings, Embeddings)
    assert await embeddings.embed(["a", "bb", "ccc"]) == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    assert [request.texts for request in recorder.requests] == [("a", "bb"), ("ccc",)]
    first, second = recorder.requests
    assert (first.model, first.settings, first.timeout_s, first.max_retries) == (
        "openai/e",
        {"dimensions": 2},
        7,
        1,
    )
    assert first.call_id != second.call_id
    assert await embeddings.embed([]) == []


async def test_within_an_agent_the_gateways_are_asked(in_agent: None, recorder: Recorder) -> None:
    assert await LitellmEmbeddings("openai/e").embed(["abc"]) == [[3.0, 1.0]]
    assert recorder.requests[0].agent_id == "clerk"


async def test_the_providers_error_comes_out_as_it_is(recorder: Recorder) -> None:
    with pytest.raises(RateLimitError, match="slow down"):
        await LitellmEmbeddings("openai/e", port=recorder).embed(["fail"])


@pytest.mark.parametrize("texts", ["text", [""], ["a", " "], [None], [3]], ids=repr)
async def test_texts_are_checked_before_anybody_is_asked(recorder: Recorder, texts: Any) -> None:
    for embeddings in (LitellmEmbeddings("openai/e", port=recorder), HashEmbeddings()):
        with pytest.raises(InvalidInputError, match="text"):
            await embeddings.embed(texts)
    assert recorder.requests == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": math.inf}, "timeout_s"),
        ({"max_retries": -1}, "max_retries"),
        ({"settings": {"x": object()}}, "settings"),
        ({"settings": 3}, "settings"),
    ],
)
def test_a_wrong_option_is_refused_at_once(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        LitellmEmbeddings(**{"model": "openai/e"} | arguments)


async def test_it_travels(in_agent: None) -> None:
    again = pickle.loads(pickle.dumps(LitellmEmbeddings("openai/e", batch_size=3)))
    assert repr(again) == "LitellmEmbeddings('openai/e')"
    assert await again.embed(["abcd"]) == [[4.0, 1.0]]


def test_an_environment_is_the_tasks_own() -> None:
    copy_context().run(enter_environment, ToolEnvironment("inner"))
    assert current_environment() is None


async def test_hash_embeddings_are_deterministic_and_near_for_shared_words() -> None:
    cat, dog, tax = await HashEmbeddings().embed(
        ["The cat sat on the mat", "the CAT, on a mat!", "Income tax returns"]
    )
    assert math.isclose(math.hypot(*cat), 1.0)
    assert len(cat) == 256
    near, far = (similarity(unit(cat), unit(other)) for other in (dog, tax))
    assert near > 0.6 > 0.3 > far
    assert await HashEmbeddings(8).embed(["phronomy"]) == [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]]
    assert await HashEmbeddings(8).embed(["..."]) != []
    with pytest.raises(ConfigurationError, match="dimensions"):
        HashEmbeddings(0)


def test_vectors_survive_as_bytes() -> None:
    vector = unit([3.0, -4.0, 0.0])
    assert list(vector) == pytest.approx([0.6, -0.8, 0.0])
    assert from_bytes(to_bytes(vector)) == vector
    assert to_bytes(unit([1.0])) == b"\x00\x00\x80\x3f"
