"""`InMemoryVectorStore`: vectors of one process, for tests, demos and small fixed collections.

It lives and dies with its process. A tool runs in its agent's process, so a store that is filled in the driver is not the
one that the tool searches: fill it where the tool's module is imported, or use `SqlVectorStore`. It refuses to be pickled
for that reason.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
from array import array
from collections.abc import Sequence
from typing import Any, NoReturn

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.retrieval.port import DEFAULT_K, Document, SearchHit, check_documents, check_k
from phronomy_ray.retrieval.vectors import check_dimensions, similarity, unit

_WHERE = "this in-memory store"
#: A search over more numbers than this leaves the event loop (about 5 ms of work).
_INLINE_NUMBERS = 50_000


class InMemoryVectorStore:
    """A `VectorStore` in a dictionary; every search looks at every vector."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Document, array[float]]] = {}
        self._dimensions: int | None = None

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            "an InMemoryVectorStore lives in one process and cannot be sent to another: make it in a module that the "
            "agent's process imports, or use SqlVectorStore"
        )

    async def add(self, documents: Sequence[Document], embeddings: Sequence[Sequence[float]]) -> None:
        """As `VectorStore.add`."""
        checked = check_documents(documents, embeddings)
        vectors = [unit(values) for values in embeddings]
        if not vectors:
            return
        expected = self._dimensions if self._dimensions is not None else len(vectors[0])
        check_dimensions(expected, vectors, where=_WHERE)
        self._dimensions = expected
        for document, vector in zip(checked, vectors, strict=True):
            self._entries[document.id] = (document, vector)

    async def search(self, query_embedding: Sequence[float], k: int = DEFAULT_K) -> list[SearchHit]:
        """As `VectorStore.search`."""
        check_k(k)
        query = unit(query_embedding)
        if self._dimensions is None:
            return []
        check_dimensions(self._dimensions, [query], where=_WHERE)
        entries = list(self._entries.values())
        if len(entries) * len(query) <= _INLINE_NUMBERS:
            return nearest(entries, query, k)
        return await asyncio.to_thread(nearest, entries, query, k)

    async def remove(self, ids: Sequence[str]) -> int:
        """As `VectorStore.remove`."""
        return sum(self._entries.pop(key, None) is not None for key in set(ids))

    async def clear(self) -> None:
        """As `VectorStore.clear`."""
        self._entries.clear()
        self._dimensions = None

    async def size(self) -> int:
        """As `VectorStore.size`."""
        return len(self._entries)


def nearest(entries: Sequence[tuple[Document, array[float]]], query: array[float], k: int) -> list[SearchHit]:
    """The `k` best of `entries`, best first, equal scores by id; the metadata is the caller's own copy."""
    scored: list[tuple[float, str, Document]] = [
        (-similarity(query, vector), document.id, document) for document, vector in entries
    ]
    best = heapq.nsmallest(k, scored, key=_by_score_then_id)
    return [
        SearchHit(Document(document.id, document.text, copy.deepcopy(document.metadata)), -negative)
        for negative, _, document in best
    ]


def _by_score_then_id(entry: tuple[float, str, Any]) -> tuple[float, str]:
    return entry[:2]
