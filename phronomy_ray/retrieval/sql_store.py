"""`SqlVectorStore`: vectors in the SQL database, on SQLite and PostgreSQL.

Every search compares the query with every vector of its collection and is exact. Where that happens decides how far it
goes: with pgvector in the server's C code (hundreds of thousands of vectors), on PostgreSQL without it in SQL (some ten
thousand), on SQLite in Python on a thread (some thousand). The guide has the numbers, and the index to make for more.
"""

from __future__ import annotations

import asyncio
import heapq
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, Table, bindparam, delete, func, select, text
from sqlalchemy.dialects import postgresql, sqlite

from phronomy_ray.ids import check_id
from phronomy_ray.retrieval.port import DEFAULT_K, Document, SearchHit, check_documents, check_k
from phronomy_ray.retrieval.vectors import check_dimensions, from_bytes, similarity, to_bytes, unit
from phronomy_ray.store.batches import run_batch
from phronomy_ray.store.codec import RowDecoder, RowEncoder
from phronomy_ray.store.content_codec import ContentCodec
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.tables import vector_collections, vector_documents

T = TypeVar("T")
DEFAULT_COLLECTION = "default"
#: Ids in one ``IN`` list.
_IDS_PER_QUERY = 5_000
#: Vectors that SQLite hands over at a time.
_ROWS_PER_FETCH = 500
_MAX_LIMIT = 2**31 - 1


class SqlVectorStore:
    """A `VectorStore` in a collection of the SQL database, which may be the agents' own.

    Its methods run on threads, so they never block the loop. It pickles as its URL, collection and options: connections
    never travel, so a tool may hold one. Texts and metadata are encrypted with the content key; ids and vectors are not,
    and a vector tells something of its text.
    """

    def __init__(
        self,
        url: str,
        collection: str = DEFAULT_COLLECTION,
        *,
        content_key: str | bytes | None = None,
        create: bool = False,
        options: StoreOptions | None = None,
    ) -> None:
        """
        Args:
            url: ``sqlite:///path`` or ``postgresql://user@host/database``. Actors run in other directories than scripts:
                give an absolute path.
            collection: name of the documents that belong together; collections of one database do not see each other.
            content_key: key of the contents; default is the environment's ``PHRONOMY_CONTENT_KEY``, else plain text.
            create: give an empty database its schema now; otherwise nothing is connected yet.
            options: pool size and time limits.

        Raises:
            ConfigurationError: the URL or the key cannot be used.
            InvalidInputError: the collection's name cannot be used.
            SchemaVersionError: with `create`: the database has another schema version.
        """
        self._collection = check_id(collection, "collection")
        self._content_key = content_key
        self._options = options or StoreOptions(application_name="phronomy-ray vectors", pool_size=2)
        self._database = _Database(url, content_key=content_key, options=self._options)
        if create:
            self._database.ensure_schema()

    def __repr__(self) -> str:
        return f"SqlVectorStore({self._database.identity!r}, {self._collection!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._database.full_url, self._collection, self._content_key, self._options)

    async def add(self, documents: Sequence[Document], embeddings: Sequence[Sequence[float]]) -> None:
        """As `VectorStore.add`; also the errors of the store (`StoreError`)."""
        checked = check_documents(documents, embeddings)
        if checked:
            await self._write(lambda connection: self._add(connection, checked, embeddings))

    async def search(self, query_embedding: Sequence[float], k: int = DEFAULT_K) -> list[SearchHit]:
        """As `VectorStore.search`; also the errors of the store (`StoreError`)."""
        check_k(k)
        query = unit(query_embedding)
        return await asyncio.to_thread(
            self._database.read, lambda connection: self._search(connection, query, k)
        )

    async def remove(self, ids: Sequence[str]) -> int:
        """As `VectorStore.remove`."""
        wanted = sorted(set(ids))
        return await self._write(lambda connection: self._remove(connection, wanted)) if wanted else 0

    async def clear(self) -> None:
        """As `VectorStore.clear`; other collections stay."""
        await self._write(lambda connection: connection.execute(_CLEAR, {"the_collection": self._collection}))

    async def size(self) -> int:
        """As `VectorStore.size`."""
        parameters = {"the_collection": self._collection}
        return await asyncio.to_thread(
            self._database.read, lambda connection: int(connection.execute(_SIZE, parameters).scalar_one())
        )

    def close(self) -> None:
        """Close this process's idle connections; the next use opens new ones."""
        self._database.close()

    # --- units of work, on a thread ----------------------------------------------------------------------------------

    async def _write(self, work: Callable[[Connection], T]) -> T:
        # all of them may happen twice: after a commit of unknown outcome they are simply done again
        return await asyncio.to_thread(self._database.write, work)

    def _add(
        self, connection: Connection, documents: list[Document], embeddings: Sequence[Sequence[float]]
    ) -> None:
        engine = connection.dialect.name
        vectors = [unit(values) for values in embeddings]
        check_dimensions(len(vectors[0]), vectors, where="the first document's neighbours")
        row = {"collection": self._collection, "dimensions": len(vectors[0])}
        dimensions = connection.execute(_ENTER[engine], row).scalar_one()
        check_dimensions(dimensions, vectors, where=repr(self))
        encoder = RowEncoder(self._database.codec)
        rows = [
            {
                "collection": self._collection,
                "document_id": document.id,
                "content": encoder.sealed(document.text),
                "metadata": encoder.sealed(document.metadata),
                "embedding": _column_value(engine, vector),
            }
            for document, vector in zip(documents, vectors, strict=True)
        ]
        # in id order: two calls that share documents lock them in the same order
        run_batch(connection, [(_PUT[engine], sorted(rows, key=lambda row: str(row["document_id"])))])

    def _search(self, connection: Connection, query: array[float], k: int) -> list[SearchHit]:
        parameters: dict[str, Any] = {"the_collection": self._collection}
        dimensions = connection.execute(_DIMENSIONS, parameters).scalar()
        if dimensions is None:
            return []
        check_dimensions(dimensions, [query], where=repr(self))
        if connection.dialect.name == "sqlite":
            return self._scan(connection, query, k)
        if self._database.has_pgvector(connection):
            parameters["query"] = "[" + ",".join(map(repr, query)) + "]"
            statement = _pgvector_search(dimensions)
        else:
            parameters["query"] = _array_text(query)
            statement = _ARRAY_SEARCH
        found = connection.execute(statement, parameters | {"k": min(k, _MAX_LIMIT)}).all()
        return [self._hit(row, row.score) for row in found]

    def _scan(self, connection: Connection, query: array[float], k: int) -> list[SearchHit]:
        vectors = connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(
            _VECTORS, {"the_collection": self._collection}
        )
        best = heapq.nsmallest(
            k, ((-similarity(query, from_bytes(row.embedding)), row.document_id) for row in vectors)
        )
        rows: dict[str, Any] = {}
        for start in range(0, len(best), _IDS_PER_QUERY):
            ids = [key for _, key in best[start : start + _IDS_PER_QUERY]]
            found = connection.execute(_DOCUMENTS, {"the_collection": self._collection, "ids": ids})
            rows.update((row.document_id, row) for row in found)
        return [self._hit(rows[key], -negative) for negative, key in best]

    def _hit(self, row: Any, score: float) -> SearchHit:
        decoder = RowDecoder(self._database.codec, {})
        document = Document(row.document_id, decoder.sealed(row.content), decoder.sealed(row.metadata))
        return SearchHit(document, max(-1.0, min(1.0, float(score))) + 0.0)  # never -0.0

    def _remove(self, connection: Connection, ids: list[str]) -> int:
        parts = [ids[start : start + _IDS_PER_QUERY] for start in range(0, len(ids), _IDS_PER_QUERY)]
        return sum(
            connection.execute(_REMOVE, {"the_collection": self._collection, "ids": part}).rowcount
            for part in parts
        )


class _Database(SqlDatabase):
    """The database of one store, and whether its server has pgvector."""

    _pgvector: bool | None = None

    @property
    def codec(self) -> ContentCodec:
        """How contents are sealed."""
        return self._codec

    @property
    def full_url(self) -> str:
        """URL with credentials, for a process that opens it anew."""
        return self._location.url.render_as_string(hide_password=False)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads."""
        return self._read(work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction; twice when nobody knows whether the first was committed."""
        return self._write(work, repeat_unknown=True)

    def has_pgvector(self, connection: Connection) -> bool:
        """Asked once per process."""
        if self._pgvector is None:
            self._pgvector = bool(connection.execute(_HAS_PGVECTOR).scalar())
        return self._pgvector


def _rebuild(
    url: str, collection: str, content_key: str | bytes | None, options: StoreOptions
) -> SqlVectorStore:
    return SqlVectorStore(url, collection, content_key=content_key, options=options)


def _column_value(engine: str, vector: array[float]) -> bytes | str:
    return to_bytes(vector) if engine == "sqlite" else _array_text(vector)


def _array_text(vector: array[float]) -> str:
    """A PostgreSQL array: the driver would look at each number of a list, which takes twenty times as long."""
    return "{" + ",".join(map(repr, vector)) + "}"


# --- statements --------------------------------------------------------------------------------------------------

_INSERT: dict[str, Callable[[Table], postgresql.Insert | sqlite.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
_IN_COLLECTION = vector_documents.c.collection == bindparam("the_collection")
_CHOSEN = vector_documents.c.document_id.in_(bindparam("ids", expanding=True))


def _enter(engine: str) -> Executable:
    """Make the collection, or find its dimensions; locks its row until the transaction ends, so that no `clear` comes between."""
    insert = _INSERT[engine](vector_collections)
    kept = {"dimensions": vector_collections.c.dimensions}
    return insert.on_conflict_do_update(index_elements=["collection"], set_=kept).returning(
        vector_collections.c.dimensions
    )


def _put(engine: str) -> Executable:
    insert = _INSERT[engine](vector_documents)
    new = {name: insert.excluded[name] for name in ("content", "metadata", "embedding")}
    return insert.on_conflict_do_update(index_elements=["collection", "document_id"], set_=new)


_ENTER = {engine: _enter(engine) for engine in ("sqlite", "postgresql")}
_PUT = {engine: _put(engine) for engine in ("sqlite", "postgresql")}
_DIMENSIONS = select(vector_collections.c.dimensions).where(
    vector_collections.c.collection == bindparam("the_collection")
)
_SIZE = select(func.count()).select_from(vector_documents).where(_IN_COLLECTION)
_CLEAR = delete(vector_collections).where(vector_collections.c.collection == bindparam("the_collection"))
_REMOVE = delete(vector_documents).where(_IN_COLLECTION, _CHOSEN)
_VECTORS = select(vector_documents.c.document_id, vector_documents.c.embedding).where(_IN_COLLECTION)
_DOCUMENTS = select(
    vector_documents.c.document_id, vector_documents.c.content, vector_documents.c.metadata
).where(_IN_COLLECTION, _CHOSEN)

_HAS_PGVECTOR = text("SELECT to_regtype('vector') IS NOT NULL")

_ARRAY_SEARCH = text(
    """
    SELECT document_id, content, metadata, score
    FROM vector_documents, LATERAL (
        SELECT coalesce(sum(pair.a::float8 * pair.b::float8), 0) AS score
        FROM unnest(embedding, CAST(:query AS real[])) AS pair (a, b)
    ) AS compared
    WHERE collection = :the_collection
    ORDER BY score DESC, document_id
    LIMIT :k
    """
)


def _pgvector_search(dimensions: int) -> Executable:
    """Negative inner product of vectors of length 1, as the expression that an index can be made on (see the guide)."""
    distance = f"(embedding::vector({int(dimensions)})) <#> CAST(:query AS vector)"
    return text(
        f"""
        SELECT document_id, content, metadata, -({distance}) AS score
        FROM vector_documents
        WHERE collection = :the_collection
        ORDER BY {distance}, document_id
        LIMIT :k
        """
    )
