"""The ports of retrieval: documents, vector stores and embeddings.

The operations follow Phronomy's vector stores (add, search, remove, clear, size); they are async here throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from phronomy_ray.canonical_json import clean_text, to_json_value
from phronomy_ray.errors import InvalidInputError, SerializationError
from phronomy_ray.ids import check_id

#: How many documents a search gives unless told otherwise.
DEFAULT_K = 5


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of text that can be found."""

    #: Non-empty text of at most 200 characters; adding another document of this id replaces the former.
    id: str
    text: str
    #: JSON mapping, given back as it was.
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A document that was found."""

    document: Document
    #: Cosine similarity to the query, from -1 to 1.
    score: float


@runtime_checkable
class VectorStore(Protocol):
    """Documents with their embeddings. Safe to use from several tasks; `phronomy_ray.testing` ships its contract as tests.

    All vectors of a store have one length, fixed by the first one until `clear`.
    """

    async def add(self, documents: Sequence[Document], embeddings: Sequence[Sequence[float]]) -> None:
        """Store `documents`, each with the embedding at its position; all or none. An id that is stored is replaced.

        Raises:
            DimensionMismatchError: an embedding has another length than those stored, or than its neighbours.
            InvalidInputError: the two do not go together, an id stands twice, or a value is not what it must be.
        """
        ...

    async def search(self, query_embedding: Sequence[float], k: int = DEFAULT_K) -> list[SearchHit]:
        """The `k` documents nearest to the query, best first; fewer when there are fewer. Equal scores come by id.

        Raises:
            InvalidInputError: `k` is not a positive whole number, or the query is no embedding.
            DimensionMismatchError: the query has another length than the vectors stored.
        """
        ...

    async def remove(self, ids: Sequence[str]) -> int:
        """Remove documents by id; how many there were."""
        ...

    async def clear(self) -> None:
        """Remove everything, and with it the length that vectors must have."""
        ...

    async def size(self) -> int:
        """Number of documents."""
        ...


@runtime_checkable
class Embeddings(Protocol):
    """Turns texts into vectors of one length."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, in order; none for none.

        Raises:
            ModelError: the provider failed.
            InvalidInputError: a text is empty or not text.
        """
        ...


def check_k(k: object) -> int:
    """`k` as a positive whole number. Raises `InvalidInputError`."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise InvalidInputError(f"k must be a positive whole number, not {k!r}")
    return k


def check_documents(documents: Sequence[Document], embeddings: Sequence[object]) -> list[Document]:
    """`documents` as any store can keep them: legal ids, clean text, plain metadata.

    Raises:
        InvalidInputError: as `VectorStore.add`.
    """
    if len(documents) != len(embeddings):
        raise InvalidInputError(f"{len(documents)} documents were given with {len(embeddings)} embeddings")
    checked = [_checked(document) for document in documents]
    if len({document.id for document in checked}) != len(checked):
        raise InvalidInputError("a document id stands twice in one call")
    return checked


def check_texts(texts: Sequence[str]) -> list[str]:
    """`texts` for an embedding call.

    Raises:
        InvalidInputError: one text instead of a sequence, or an item that is empty or not text.
    """
    if isinstance(texts, str):
        raise InvalidInputError("embed takes a sequence of texts, not one text")
    given: Sequence[object] = texts
    for text in given:
        if not isinstance(text, str) or not text.strip():
            raise InvalidInputError(f"a text to embed must be non-empty text, not {text!r}")
    return [clean_text(text) for text in texts]


def _checked(document: Document) -> Document:
    if not isinstance(document, Document):
        raise InvalidInputError(f"{document!r} is not a Document")
    check_id(document.id, "a document's id")
    if not isinstance(document.text, str):
        raise InvalidInputError(f"the text of document {document.id!r} is not text")
    try:
        metadata = to_json_value(document.metadata)
    except SerializationError as error:
        raise InvalidInputError(f"the metadata of document {document.id!r}: {error.message}") from error
    if not isinstance(metadata, dict):
        raise InvalidInputError(f"the metadata of document {document.id!r} must be a mapping")
    return Document(document.id, clean_text(document.text), metadata)
