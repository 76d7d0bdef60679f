"""Splitters: pure functions from a text to pieces of bounded length, in characters.

Guarantees of both: no piece is longer than ``size_chars``; every character of the text is in at least one piece, in order;
neighbours share at most ``overlap_chars``; pieces of nothing but white space are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.retrieval.port import Document

#: Where the recursive splitter breaks first, and where only when it must.
DEFAULT_SEPARATORS = ("\n\n", "\n", ". ", " ")


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of a text."""

    text: str
    #: Where it begins, in characters.
    start: int


class Splitter(Protocol):
    """Divides a text."""

    def split(self, text: str) -> list[Piece]:
        """The pieces of `text`, in order."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSizeSplitter:
    """Cuts every so many characters, wherever that is."""

    size_chars: int = 1_000
    overlap_chars: int = 0

    def __post_init__(self) -> None:
        _check(type(self).__name__, self.size_chars, self.overlap_chars)

    def split(self, text: str) -> list[Piece]:
        """The pieces of `text`, in order."""
        starts = range(0, max(1, len(text) - self.overlap_chars), self.size_chars - self.overlap_chars)
        return _pieces(text, [(start, min(start + self.size_chars, len(text))) for start in starts])


@dataclass(frozen=True, slots=True)
class RecursiveSplitter:
    """Breaks at paragraphs; a paragraph that is too long at its lines, then sentences, words, and at last anywhere."""

    size_chars: int = 1_000
    overlap_chars: int = 0
    #: Breaks in order of preference; each stays at the end of the piece before it.
    separators: Sequence[str] = DEFAULT_SEPARATORS

    def __post_init__(self) -> None:
        _check(type(self).__name__, self.size_chars, self.overlap_chars)
        if isinstance(self.separators, str) or not all(self.separators):
            raise ConfigurationError("RecursiveSplitter: separators must be a list of non-empty texts")

    def split(self, text: str) -> list[Piece]:
        """The pieces of `text`, in order."""
        spans = self._spans(text, 0, tuple(self.separators))
        return _pieces(text, [(self._reach_back(text, start, end), end) for start, end in spans])

    def _spans(self, text: str, offset: int, separators: tuple[str, ...]) -> list[tuple[int, int]]:
        """Neighbouring spans that cover `text`, each short enough to take its overlap."""
        room = self.size_chars - self.overlap_chars
        if len(text) <= room:
            return [(offset, offset + len(text))] if text else []
        if not separators:
            return [(offset + at, offset + min(at + room, len(text))) for at in range(0, len(text), room)]
        spans: list[tuple[int, int]] = []
        for part in _parts(text, separators[0]):
            inner = self._spans(part, offset, separators[1:])
            offset += len(part)
            if spans and len(inner) == 1 and inner[0][1] - spans[-1][0] <= room:
                spans[-1] = (spans[-1][0], inner[0][1])
            else:
                spans.extend(inner)
        return spans

    def _reach_back(self, text: str, start: int, end: int) -> int:
        """Where a piece begins with its overlap: at the first word of it, so that no word is cut."""
        earliest = max(0, start - self.overlap_chars)
        if earliest in (0, start):
            return earliest
        for at in range(earliest, start):
            if text[at - 1].isspace():
                return at
        return start


def split_documents(documents: Iterable[Document], splitter: Splitter) -> list[Document]:
    """A document for every piece: id ``<id>#<number from 1>``, metadata with ``document_id``, ``chunk`` and ``start``."""
    return [
        Document(
            f"{document.id}#{number}",
            piece.text,
            {**document.metadata, "document_id": document.id, "chunk": number, "start": piece.start},
        )
        for document in documents
        for number, piece in enumerate(splitter.split(document.text), start=1)
    ]


def _parts(text: str, separator: str) -> list[str]:
    """`text` cut behind every `separator`; joined they give it again."""
    *heads, tail = text.split(separator)
    return [head + separator for head in heads] + ([tail] if tail else [])


def _pieces(text: str, spans: list[tuple[int, int]]) -> list[Piece]:
    return [Piece(text[start:end], start) for start, end in spans if text[start:end].strip()]


def _check(name: str, size: object, overlap: object) -> None:
    for field, value, least in (("size_chars", size, 1), ("overlap_chars", overlap, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigurationError(
                f"{name}: {field} must be a whole number of at least {least}, not {value!r}"
            )
    if isinstance(size, int) and isinstance(overlap, int) and overlap >= size:
        raise ConfigurationError(f"{name}: overlap_chars ({overlap}) must be less than size_chars ({size})")
