"""The VectorSearch tool: declaration, what the model reads, errors."""

from __future__ import annotations

from typing import Any

import pytest

from phronomy_ray import Agent
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import ConfigurationError, InvalidInputError, RateLimitError
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.retrieval import (
    Document,
    HashEmbeddings,
    InMemoryVectorStore,
    SearchHit,
    VectorSearch,
    add_documents,
)
from phronomy_ray.retrieval.vector_search import format_hits
from phronomy_ray.tool_calls import ToolInvocation, ToolOutcome
from phronomy_ray.tools.envelope import run_async

DOCUMENTS = [
    Document("refund", "Refunds take five days", {"page": 3}),
    Document("shipping", "Shipping is free above 50 euros"),
    Document("hours", "We are open from nine to five"),
]


async def run(tool: Any, **arguments: Any) -> ToolOutcome:
    invocation = ToolInvocation("tc_1", tool.spec.name, arguments, "clerk", "ex", 1)
    return await run_async(BoundTool(tool.spec, tool), invocation, is_cancelled=lambda: False)


@pytest.fixture
async def store() -> InMemoryVectorStore:
    filled = InMemoryVectorStore()
    assert await add_documents(filled, DOCUMENTS, embeddings=HashEmbeddings(), batch_size=2) == 3
    return filled


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
async def test_documents_are_added_in_batches_of_a_whole_size(size: Any) -> None:
    with pytest.raises(InvalidInputError, match="batch_size must be a positive whole number"):
        await add_documents(InMemoryVectorStore(), DOCUMENTS, embeddings=HashEmbeddings(), batch_size=size)


async def test_it_answers_with_numbered_lines(store: InMemoryVectorStore) -> None:
    tool = VectorSearch.from_store(store, embeddings=HashEmbeddings(), k=2)
    outcome = await run(tool, query="how long do refunds take")
    assert outcome.status is ToolCallStatus.SUCCEEDED
    first, metadata, second = outcome.model_text.split("\n")
    assert first == "1. [0.447] Refunds take five days"
    assert metadata == '   {"page":3}'
    assert second.startswith("2. [")


async def test_the_declaration(store: InMemoryVectorStore) -> None:
    tool = VectorSearch.from_store(
        store, embeddings=HashEmbeddings(), name="find_rule", description="House rules."
    )
    assert tool.spec.definition()["function"] == {
        "name": "find_rule",
        "description": "House rules.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "what to look for, in plain words"}},
            "required": ["query"],
            "additionalProperties": False,
        },
    }
    assert (tool.spec.execution_mode, tool.spec.replay, tool.spec.requires_approval) == (
        "cooperative",
        "safe",
        False,
    )

    class Clerk(Agent):
        model = "openai/m"
        tools = [tool]

    assert list(Clerk.definition().tools) == ["find_rule"]


async def test_nothing_found_is_said() -> None:
    tool = VectorSearch.from_store(InMemoryVectorStore(), embeddings=HashEmbeddings())
    assert (await run(tool, query="anything")).model_text == "No results found."
    assert (await run(tool, query=" ")).model_text == "No results found."


def test_entries_of_several_lines_stay_under_their_number() -> None:
    hits = [SearchHit(Document("a", "one\ntwo"), 0.12345)] * 9 + [
        SearchHit(Document("b", "", {"content": "from metadata", "n": 1}), -0.0004)
    ]
    lines = format_hits(hits).split("\n")
    assert lines[:3] == ["1. [0.123] one", "   two", "2. [0.123] one"]
    assert lines[-2:] == ["10. [0.000] from metadata", '    {"n":1}']


async def test_a_failing_provider_fails_the_call_with_its_code(store: InMemoryVectorStore) -> None:
    class Broken:
        async def embed(self, texts: Any) -> Any:
            raise RateLimitError("slow down")

    outcome = await run(VectorSearch.from_store(store, embeddings=Broken()), query="x")
    assert outcome.status is ToolCallStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.code == "model_rate_limit"


async def test_vectors_of_another_model_are_a_typed_failure(store: InMemoryVectorStore) -> None:
    outcome = await run(VectorSearch.from_store(store, embeddings=HashEmbeddings(8)), query="x")
    assert outcome.error is not None
    assert outcome.error.code == "dimension_mismatch"


@pytest.mark.parametrize(
    "arguments",
    [
        {"store": object()},
        {"embeddings": object()},
        {"k": 0},
        {"k": True},
        {"name": "not a name"},
    ],
    ids=lambda given: "-".join(map(str, given)),
)
def test_a_wrong_argument_is_a_configuration_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        VectorSearch.from_store(
            **{"store": InMemoryVectorStore(), "embeddings": HashEmbeddings()} | arguments
        )
