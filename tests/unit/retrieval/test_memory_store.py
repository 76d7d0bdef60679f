"""The in-memory vector store."""

from __future__ import annotations

import pickle

import pytest

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.retrieval import Document, InMemoryVectorStore
from phronomy_ray.testing.vector_store_conformance import VectorStoreConformance


@pytest.fixture
def vector_store() -> InMemoryVectorStore:
    return InMemoryVectorStore()


class TestContract(VectorStoreConformance):
    pass


def test_it_refuses_to_travel() -> None:
    with pytest.raises(ConfigurationError, match="SqlVectorStore"):
        pickle.dumps(InMemoryVectorStore())


async def test_a_large_search_leaves_the_loop_and_finds_the_same(vector_store: InMemoryVectorStore) -> None:
    documents = [Document(f"{number:04}", "") for number in range(600)]
    vectors = [[1.0, number / 100] + [0.0] * 98 for number in range(600)]
    await vector_store.add(documents, vectors)
    hits = await vector_store.search([1.0, 0.0] + [0.0] * 98, 3)
    assert [hit.document.id for hit in hits] == ["0000", "0001", "0002"]
