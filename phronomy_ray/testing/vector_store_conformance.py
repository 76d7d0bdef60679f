"""The contract of `VectorStore` as plain pytest classes: one suite over every implementation.

A test module gives a fixture ``vector_store`` with a fresh, empty store and subclasses `VectorStoreConformance`::

    class TestMine(VectorStoreConformance):
        pass

The tests are coroutines: run them with pytest-asyncio in ``auto`` mode.
"""

from __future__ import annotations

import asyncio
import math

import pytest

from phronomy_ray.errors import DimensionMismatchError, InvalidInputError
from phronomy_ray.retrieval.port import Document, VectorStore

EAST, NORTH, NORTH_EAST, WEST = [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]


def _documents(*ids: str) -> list[Document]:
    return [Document(key, f"text of {key}", {"source": key}) for key in ids]


async def _ids(store: VectorStore, query: list[float], k: int = 10) -> list[str]:
    return [hit.document.id for hit in await store.search(query, k)]


class VectorStoreConformance:
    """What every vector store does."""

    async def test_an_empty_store_finds_nothing(self, vector_store: VectorStore) -> None:
        assert await vector_store.size() == 0
        assert await vector_store.search(EAST) == []
        assert await vector_store.remove(["absent"]) == 0
        await vector_store.add([], [])
        await vector_store.clear()
        assert isinstance(vector_store, VectorStore)

    async def test_the_nearest_come_first_with_their_cosine(self, vector_store: VectorStore) -> None:
        await vector_store.add(
            _documents("west", "north", "north-east", "east"), [WEST, NORTH, NORTH_EAST, EAST]
        )
        hits = await vector_store.search(EAST, 4)
        assert [hit.document.id for hit in hits] == ["east", "north-east", "north", "west"]
        assert [hit.score for hit in hits] == pytest.approx([1.0, math.sqrt(0.5), 0.0, -1.0], abs=1e-6)

    async def test_the_length_of_a_vector_does_not_count(self, vector_store: VectorStore) -> None:
        await vector_store.add(_documents("long", "short"), [[3e4, 3e4], [1e-4, 0.0]])
        hits = await vector_store.search([1e-30, 1e-30], 2)
        assert [hit.document.id for hit in hits] == ["long", "short"]
        assert [hit.score for hit in hits] == pytest.approx([1.0, math.sqrt(0.5)], abs=1e-6)

    async def test_a_vector_of_zeros_is_at_zero_to_everything(self, vector_store: VectorStore) -> None:
        await vector_store.add(_documents("east", "nowhere", "west"), [EAST, [0.0, 0.0], WEST])
        assert await _ids(vector_store, EAST) == ["east", "nowhere", "west"]
        assert [hit.score for hit in await vector_store.search([0.0, 0.0], 3)] == pytest.approx([0.0] * 3)

    async def test_documents_come_back_as_they_were(self, vector_store: VectorStore) -> None:
        given = Document(
            "ä/1", "line\nzwei 漢字 🙂", {"n": 1, "f": 0.5, "list": [1, None, {"x": True}], "ü": "ö"}
        )
        await vector_store.add([given, Document("empty", "")], [EAST, WEST])
        first, second = await vector_store.search(EAST, 2)
        assert first.document == given
        assert second.document == Document("empty", "", {})

    async def test_what_a_caller_does_to_a_result_changes_nothing(self, vector_store: VectorStore) -> None:
        metadata = {"tags": ["a"]}
        await vector_store.add([Document("d", "text", metadata)], [EAST])
        metadata["tags"].append("b")
        [hit] = await vector_store.search(EAST)
        hit.document.metadata["tags"].append("c")
        assert (await vector_store.search(EAST))[0].document.metadata == {"tags": ["a"]}

    async def test_k_limits_and_defaults_to_five(self, vector_store: VectorStore) -> None:
        ids = [f"d{number}" for number in range(7)]
        await vector_store.add(_documents(*ids), [[1.0, number / 10] for number in range(7)])
        assert await _ids(vector_store, EAST, 3) == ids[:3]
        assert len(await vector_store.search(EAST)) == 5
        assert await _ids(vector_store, EAST, 100) == ids

    @pytest.mark.parametrize("k", [0, -1, 2.0, "3", None, True], ids=repr)
    async def test_k_must_be_a_positive_whole_number(self, vector_store: VectorStore, k: object) -> None:
        with pytest.raises(InvalidInputError, match="k must be"):
            await vector_store.search(EAST, k)  # type: ignore[arg-type]
        await vector_store.add(_documents("d"), [EAST])
        with pytest.raises(ValueError, match="k must be"):
            await vector_store.search(EAST, k)  # type: ignore[arg-type]

    async def test_equal_scores_come_by_id(self, vector_store: VectorStore) -> None:
        ids = ["b", "ä", "a", "B", "10", "9"]
        await vector_store.add(_documents(*ids), [NORTH_EAST] * len(ids))
        await vector_store.add(_documents("first"), [EAST])
        expected = ["first", "10", "9", "B", "a", "b", "ä"]
        for k in (1, 3, 7):
            assert await _ids(vector_store, EAST, k) == expected[:k]

    async def test_adding_an_id_again_replaces_it(self, vector_store: VectorStore) -> None:
        await vector_store.add(_documents("a", "b"), [EAST, NORTH])
        await vector_store.add([Document("a", "new", {"v": 2})], [WEST])
        assert await vector_store.size() == 2
        assert await _ids(vector_store, EAST) == ["b", "a"]
        [hit] = await vector_store.search(WEST, 1)
        assert hit.document == Document("a", "new", {"v": 2})

    async def test_another_length_is_a_typed_error_and_nothing_is_stored(
        self, vector_store: VectorStore
    ) -> None:
        with pytest.raises(DimensionMismatchError):
            await vector_store.add(_documents("a", "b"), [EAST, [1.0, 0.0, 0.0]])
        assert await vector_store.size() == 0
        await vector_store.add(_documents("a"), [[1.0, 0.0, 0.0]])
        for refused in (
            vector_store.add(_documents("b"), [EAST]),
            vector_store.search(EAST),
        ):
            with pytest.raises(DimensionMismatchError) as caught:
                await refused
            assert caught.value.code == "dimension_mismatch"
            assert caught.value.details == {"expected": 3, "found": 2}
        assert await vector_store.size() == 1

    async def test_the_length_is_free_again_after_clear_only(self, vector_store: VectorStore) -> None:
        await vector_store.add(_documents("a"), [[1.0, 0.0, 0.0]])
        assert await vector_store.remove(["a"]) == 1
        with pytest.raises(DimensionMismatchError):
            await vector_store.add(_documents("a"), [EAST])
        await vector_store.clear()
        await vector_store.add(_documents("a"), [EAST])
        assert await _ids(vector_store, EAST) == ["a"]

    @pytest.mark.parametrize(
        ("documents", "embeddings"),
        [
            (_documents("a"), []),
            (_documents("a", "a"), [EAST, WEST]),
            (_documents("a"), [[]]),
            (_documents("a"), [[math.nan, 1.0]]),
            (_documents("a"), [[math.inf, 1.0]]),
            (_documents("a"), [["x", 1.0]]),
            (_documents(""), [EAST]),
            (_documents("a\nb"), [EAST]),
            ([Document("a", 3)], [EAST]),  # type: ignore[arg-type]
            ([Document("a", "t", {"x": object()})], [EAST]),
            (["text"], [EAST]),
        ],
        ids=[
            "fewer embeddings",
            "id twice",
            "empty vector",
            "nan",
            "infinite",
            "text in vector",
            "empty id",
            "control character in id",
            "text is no text",
            "metadata is no JSON",
            "no document",
        ],
    )
    async def test_a_malformed_call_is_refused_as_a_whole(
        self, vector_store: VectorStore, documents: list[Document], embeddings: list[list[float]]
    ) -> None:
        with pytest.raises(InvalidInputError):
            await vector_store.add([*_documents("good"), *documents], [EAST, *embeddings])
        assert await vector_store.size() == 0

    @pytest.mark.parametrize("query", [[], [math.nan, 0.0], ["a", "b"]], ids=repr)
    async def test_a_query_must_be_a_vector(self, vector_store: VectorStore, query: list[float]) -> None:
        with pytest.raises(InvalidInputError):
            await vector_store.search(query)

    async def test_remove_counts_what_was_there(self, vector_store: VectorStore) -> None:
        await vector_store.add(_documents("a", "b", "c"), [EAST, NORTH, WEST])
        assert await vector_store.remove(["a", "c", "a", "absent"]) == 2
        assert await vector_store.size() == 1
        assert await _ids(vector_store, EAST) == ["b"]
        assert await vector_store.remove([]) == 0

    async def test_texts_that_no_database_can_hold_are_cleaned(self, vector_store: VectorStore) -> None:
        await vector_store.add([Document("a", "x\ud800y", {"k": "\udfff"})], [EAST])
        [hit] = await vector_store.search(EAST)
        assert hit.document.text.startswith("x")
        assert hit.document.text.endswith("y")
        hit.document.text.encode("utf-8")

    async def test_many_tasks_at_once(self, vector_store: VectorStore) -> None:
        async def add(number: int) -> None:
            await vector_store.add(_documents(*(f"{number}-{part}" for part in range(5))), [EAST] * 5)

        await asyncio.gather(*(add(number) for number in range(8)))
        found = await asyncio.gather(*(vector_store.search(EAST, 40) for _ in range(4)))
        assert await vector_store.size() == 40
        assert all(len(hits) == 40 for hits in found)

    async def test_many_documents_of_real_size(self, vector_store: VectorStore) -> None:
        count, dimensions = 300, 384
        vectors = [
            [math.sin(number * 0.37 + place * 0.11 * (1 + number % 7)) for place in range(dimensions)]
            for number in range(count)
        ]
        await vector_store.add(_documents(*(f"{number:03}" for number in range(count))), vectors)
        assert await vector_store.size() == count
        query = vectors[123]

        def cosine(other: list[float]) -> float:
            dot = sum(a * b for a, b in zip(query, other, strict=True))
            return dot / (math.hypot(*query) * math.hypot(*other))

        expected = sorted(map(cosine, vectors), reverse=True)[:20]
        hits = await vector_store.search(query, 20)
        assert hits[0].document.id == "123"
        assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-5)


__all__ = ["VectorStoreConformance"]
