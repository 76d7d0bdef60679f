"""Retrieval: documents by meaning, as a tool.

Ports (`VectorStore`, `Embeddings`), stores in memory and in the SQL database, embeddings through the model gateways,
loaders and splitters, and `VectorSearch`, which makes a tool of a store. Names are loaded on first use: SQLAlchemy comes
with `SqlVectorStore` only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phronomy_ray.retrieval.embeddings import HashEmbeddings, LitellmEmbeddings
    from phronomy_ray.retrieval.indexing import add_documents
    from phronomy_ray.retrieval.loaders import load_csv, load_file, load_markdown, load_text
    from phronomy_ray.retrieval.memory_store import InMemoryVectorStore
    from phronomy_ray.retrieval.port import Document, Embeddings, SearchHit, VectorStore
    from phronomy_ray.retrieval.splitters import (
        FixedSizeSplitter,
        Piece,
        RecursiveSplitter,
        Splitter,
        split_documents,
    )
    from phronomy_ray.retrieval.sql_store import SqlVectorStore
    from phronomy_ray.retrieval.vector_search import VectorSearch

_HOMES = {
    "Document": "port",
    "Embeddings": "port",
    "FixedSizeSplitter": "splitters",
    "HashEmbeddings": "embeddings",
    "InMemoryVectorStore": "memory_store",
    "LitellmEmbeddings": "embeddings",
    "Piece": "splitters",
    "RecursiveSplitter": "splitters",
    "SearchHit": "port",
    "Splitter": "splitters",
    "SqlVectorStore": "sql_store",
    "VectorSearch": "vector_search",
    "VectorStore": "port",
    "add_documents": "indexing",
    "load_csv": "loaders",
    "load_file": "loaders",
    "load_markdown": "loaders",
    "load_text": "loaders",
    "split_documents": "splitters",
}

__all__ = [
    "Document",
    "Embeddings",
    "FixedSizeSplitter",
    "HashEmbeddings",
    "InMemoryVectorStore",
    "LitellmEmbeddings",
    "Piece",
    "RecursiveSplitter",
    "SearchHit",
    "Splitter",
    "SqlVectorStore",
    "VectorSearch",
    "VectorStore",
    "add_documents",
    "load_csv",
    "load_file",
    "load_markdown",
    "load_text",
    "split_documents",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'phronomy_ray.retrieval' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"phronomy_ray.retrieval.{home}"), name)
    globals()[name] = value
    return value
