"""Embedding calls in the model gateway, as the plain class that it is: no Ray is started."""

from __future__ import annotations

import asyncio

import pytest

from phronomy_ray.actors.model_gateway import ModelGateway
from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingRequest
from phronomy_ray.errors import RateLimitError
from phronomy_ray.models.script import final
from phronomy_ray.models.scripted import ScriptedModel

ASK = EmbeddingRequest("openai/e", ("text",), "em_1")


class Provider:
    """Answers once it is let."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def embed(self, request: EmbeddingRequest) -> EmbeddingAnswer:
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return EmbeddingAnswer(((1.0,),))


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def gateway(provider: Provider) -> ModelGateway:
    return ModelGateway(ScriptedModel([final("ok")]), provider)


async def test_it_answers_and_raises_what_the_provider_says(
    gateway: ModelGateway, provider: Provider
) -> None:
    provider.may_answer.set()
    assert await gateway.embed(ASK, "t1") == EmbeddingAnswer(((1.0,),))
    provider.error = RateLimitError("slow down")
    with pytest.raises(RateLimitError):
        await gateway.embed(ASK, "t2")
    assert (await gateway.ping())["running"] == 0


async def test_a_cancel_holds_whenever_it_comes(gateway: ModelGateway) -> None:
    await gateway.cancel("early")
    assert await gateway.embed(ASK, "early") is None
    running = asyncio.create_task(gateway.embed(ASK, "t1"))
    await asyncio.sleep(0)
    assert await gateway.cancel("t1") is True
    assert await running is None
