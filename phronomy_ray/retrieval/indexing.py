"""Filling a store: embed documents and add them, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

from phronomy_ray.definition.tool_options import is_whole
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.retrieval.port import Document, Embeddings, VectorStore


async def add_documents(
    store: VectorStore, documents: Sequence[Document], *, embeddings: Embeddings, batch_size: int = 256
) -> int:
    """Embed the texts of `documents` and add them to `store`; how many.

    Each batch is added as a whole. When one fails, those before it are stored; adding all of them again replaces them.

    Raises:
        ModelError: the embeddings failed.
        InvalidInputError, DimensionMismatchError: as `VectorStore.add`; a document without text cannot be embedded; or
            `batch_size` is not a positive whole number.
    """
    if not (is_whole(batch_size) and batch_size > 0):
        raise InvalidInputError(f"batch_size must be a positive whole number, not {batch_size!r}")
    for start in range(0, len(documents), batch_size):
        batch = documents[start : start + batch_size]
        await store.add(batch, await embeddings.embed([document.text for document in batch]))
    return len(documents)
