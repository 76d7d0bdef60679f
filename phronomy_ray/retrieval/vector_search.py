"""`VectorSearch`: a tool that finds documents by meaning (follows Phronomy's ``Tools::VectorSearch``)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from phronomy_ray.canonical_json import dumps_plain
from phronomy_ray.definition.tool import FunctionTool, tool
from phronomy_ray.errors import ConfigurationError, InvalidInputError
from phronomy_ray.retrieval.port import DEFAULT_K, Embeddings, SearchHit, VectorStore, check_k

DEFAULT_NAME = "vector_search"
DEFAULT_DESCRIPTION = (
    "Search the stored documents by meaning and return the passages that fit the query best."
)
NOTHING_FOUND = "No results found."
#: Metadata that holds the text of a document whose own text is empty.
_TEXT_KEYS = ("content", "text")


@dataclass(frozen=True, slots=True)
class VectorSearch:
    """A search over one store. `from_store` makes a tool of it; `run` can be called from your own tools."""

    store: VectorStore
    embeddings: Embeddings
    k: int = DEFAULT_K

    @classmethod
    def from_store(
        cls,
        store: VectorStore,
        *,
        embeddings: Embeddings,
        k: int = DEFAULT_K,
        name: str = DEFAULT_NAME,
        description: str = DEFAULT_DESCRIPTION,
        timeout_s: float = 60.0,
    ) -> FunctionTool:
        """A cooperative tool with one parameter, ``query``: it embeds the query, searches, and returns `format_hits`.

        The body runs in the agent's process, so `store` and `embeddings` must mean the same there as here: a `SqlVectorStore`
        does (its URL travels), an `InMemoryVectorStore` only when the module that fills it is imported there too.

        Args:
            store: where to search.
            embeddings: must be those that the documents were embedded with.
            k: documents per search.
            name: the tool's name.
            description: what the model is told; say what can be found.
            timeout_s: limit of one search, embedding included, in seconds.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        for value, what, port in ((store, "store", VectorStore), (embeddings, "embeddings", Embeddings)):
            if not isinstance(value, port):
                raise ConfigurationError(f"VectorSearch: {what} {value!r} is not a {port.__name__}")
        try:
            check_k(k)
        except InvalidInputError as error:
            raise ConfigurationError(f"VectorSearch: {error.message}") from None
        search = cls(store, embeddings, k)
        return tool(name=name, description=description, replay="safe", timeout_s=timeout_s)(search.run)

    async def run(self, query: str) -> str:
        """Search.

        Args:
            query: what to look for, in plain words
        """
        if not query.strip():
            return NOTHING_FOUND
        [embedding] = await self.embeddings.embed([query])
        return format_hits(await self.store.search(embedding, self.k))


def format_hits(hits: Sequence[SearchHit]) -> str:
    """Numbered entries: score rounded to 3 decimals, text, and metadata as JSON; ``No results found.`` for none."""
    return "\n".join(_entry(number, hit) for number, hit in enumerate(hits, start=1)) or NOTHING_FOUND


def _entry(number: int, hit: SearchHit) -> str:
    metadata = dict(hit.document.metadata)
    text = hit.document.text
    if not text.strip():
        key = next((key for key in _TEXT_KEYS if isinstance(metadata.get(key), str)), None)
        text = metadata.pop(key) if key is not None else ""
    head = f"{number}. "
    lines = f"[{round(hit.score, 3) + 0.0:.3f}] {text.strip()}"
    if metadata:
        lines += f"\n{dumps_plain(metadata)}"
    return head + textwrap.indent(lines, " " * len(head)).lstrip()
