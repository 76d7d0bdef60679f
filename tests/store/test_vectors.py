"""`SqlVectorStore` on SQLite, and on PostgreSQL with and without pgvector."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from phronomy_ray.errors import (
    ConfigurationError,
    DimensionMismatchError,
    InvalidInputError,
    SchemaVersionError,
)
from phronomy_ray.retrieval import Document, SqlVectorStore
from phronomy_ray.store.migrate import Migrations
from phronomy_ray.testing.vector_store_conformance import VectorStoreConformance

EAST, NORTH = [1.0, 0.0], [0.0, 1.0]
DOCUMENT = Document("d", "the secret text", {"who": "me"})


def _drop_pgvector(database: Any) -> None:
    database.sql("DROP EXTENSION vector")


@pytest.fixture(params=["sqlite", "pgvector", "postgres without pgvector"])
def vector_database(request: pytest.FixtureRequest) -> Any:
    names = {
        "sqlite": "sqlite_database",
        "pgvector": "lent_postgres",
        "postgres without pgvector": "lent_without_pgvector",
    }
    return request.getfixturevalue(names[request.param])


@pytest.fixture
def vector_store(vector_database: Any) -> Iterator[SqlVectorStore]:
    store = SqlVectorStore(vector_database.url, "tests")
    yield store
    store.close()


class TestContract(VectorStoreConformance):
    pass


async def test_the_migration_makes_the_extension_and_searches_use_it(postgres_database: Any) -> None:
    """Otherwise the suite above would test one way twice."""
    store = SqlVectorStore(postgres_database.url)
    await store.add([DOCUMENT], [EAST])
    await store.search(EAST)
    assert store._database._pgvector is True
    store.close()
    _drop_pgvector(postgres_database)
    store = SqlVectorStore(postgres_database.url)
    await store.search(EAST)
    assert store._database._pgvector is False
    store.close()


async def test_collections_do_not_see_each_other(vector_database: Any, vector_store: SqlVectorStore) -> None:
    other = SqlVectorStore(vector_database.url, "other")
    await vector_store.add([DOCUMENT], [EAST])
    assert (await other.size(), await other.search([1.0, 2.0, 3.0])) == (0, [])
    await other.add([Document("d", "mine")], [[1.0, 2.0, 3.0]])
    await other.clear()
    assert [hit.document for hit in await vector_store.search(EAST)] == [DOCUMENT]
    other.close()


async def test_it_travels_as_its_url_and_is_the_same_store_elsewhere(vector_store: SqlVectorStore) -> None:
    await vector_store.add([DOCUMENT], [EAST])
    data = pickle.dumps(vector_store)
    assert len(data) < 1_000
    again = pickle.loads(data)
    assert repr(again) == repr(vector_store)
    assert [hit.document for hit in await again.search(EAST)] == [DOCUMENT]
    again.close()


def test_its_name_shows_no_password() -> None:
    store = SqlVectorStore("postgresql://me:hidden@host/db", "docs")
    assert repr(store) == "SqlVectorStore('postgresql://host/db', 'docs')"
    assert b"hidden" in pickle.dumps(store), "a process that opens it anew needs the credentials"


async def test_texts_and_metadata_are_encrypted_ids_are_not(vector_database: Any) -> None:
    from phronomy_ray.store.content_keys import generate_content_key

    store = SqlVectorStore(vector_database.url, content_key=generate_content_key())
    await store.add([DOCUMENT], [EAST])
    assert [hit.document for hit in await store.search(EAST)] == [DOCUMENT]
    again = pickle.loads(pickle.dumps(store))
    assert [hit.document for hit in await again.search(EAST)] == [DOCUMENT]
    again.close()
    [(document_id, content, metadata)] = vector_database.sql(
        "SELECT document_id, content, metadata FROM vector_documents"
    )
    assert document_id == "d"
    assert "secret" not in content
    assert "me" not in metadata
    store.close()


async def test_a_database_without_schema_is_refused_and_made_on_request(empty_database: Any) -> None:
    store = SqlVectorStore(empty_database.url)
    with pytest.raises(SchemaVersionError, match="phronomy db upgrade"):
        await store.size()
    made = SqlVectorStore(empty_database.url, create=True)
    assert await made.size() == 0
    made.close()
    store.close()


async def test_two_first_documents_of_different_length_race(vector_database: Any) -> None:
    stores = [SqlVectorStore(vector_database.url, "race") for _ in range(6)]
    vectors = [EAST, [1.0, 0.0, 0.0]] * 3

    async def add(number: int) -> int | None:
        try:
            await stores[number].add([Document(f"d{number}", "")], [vectors[number]])
        except DimensionMismatchError:
            return None
        return len(vectors[number])

    lengths = await asyncio.gather(*map(add, range(6)))
    won = {length for length in lengths if length is not None}
    assert len(won) == 1, lengths
    assert await stores[0].size() == 3
    for store in stores:
        store.close()


async def test_writers_of_the_same_documents_do_not_block_each_other_for_good(vector_database: Any) -> None:
    stores = [SqlVectorStore(vector_database.url, "race") for _ in range(4)]
    documents = [Document(f"d{number}", "") for number in range(50)]

    async def work(store: SqlVectorStore, backwards: bool) -> None:
        mine = documents[::-1] if backwards else documents
        await store.add(mine, [NORTH] * 50)
        await store.clear()
        await store.add(mine, [EAST] * 50)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(store, number % 2 == 0) for number, store in enumerate(stores)))
    assert await stores[0].size() == 50
    for store in stores:
        store.close()


async def test_a_search_leaves_the_loop_free(vector_store: SqlVectorStore) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    await vector_store.add([DOCUMENT], [EAST])
    heart = asyncio.create_task(beat())
    await vector_store.search(EAST)
    heart.cancel()
    assert beats > 1


async def test_an_approximate_index_made_by_hand_is_used(postgres_database: Any) -> None:
    """The expression of the guide is the one of the searches."""
    store = SqlVectorStore(postgres_database.url, "house-rules")
    vectors = [[1.0, number / 100, number % 7] for number in range(1_000)]
    await store.add([Document(f"{number:04}", "") for number in range(1_000)], vectors)
    exact = [hit.document.id for hit in await store.search([1.0, 2.0, 3.0], 5)]
    postgres_database.sql(
        "CREATE INDEX by_hand ON vector_documents USING hnsw ((embedding::vector(3)) vector_ip_ops) "
        "WHERE collection = 'house-rules'"
    )
    postgres_database.sql("ANALYZE vector_documents")
    from phronomy_ray.retrieval import sql_store

    statement = str(sql_store._pgvector_search(3))
    for name, value in (("query", "'[1,2,3]'"), ("the_collection", "'house-rules'"), ("k", "5")):
        statement = statement.replace(f":{name}", value)
    plan = "\n".join(row[0] for row in postgres_database.sql("EXPLAIN " + statement.replace(":", "\\:")))
    assert "by_hand" in plan, plan
    assert Migrations(postgres_database.url).check() == [], "it is no fault of the schema"
    assert [hit.document.id for hit in await store.search([1.0, 2.0, 3.0], 5)] == exact
    store.close()


@pytest.mark.parametrize("collection", ["", "a\nb", 3], ids=repr)
def test_a_collection_needs_a_name(collection: Any) -> None:
    with pytest.raises(InvalidInputError):
        SqlVectorStore("sqlite:////tmp/x.db", collection)


def test_a_url_must_be_one() -> None:
    with pytest.raises(ConfigurationError):
        SqlVectorStore("redis://host")
