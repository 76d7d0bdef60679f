"""Splitters lose nothing, keep to the size, and break where they should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.retrieval import Document, FixedSizeSplitter, RecursiveSplitter, Splitter, split_documents

TEXTS = st.text(alphabet="ab \n.漢", max_size=120)
SIZES = st.integers(1, 30).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


@pytest.mark.parametrize("kind", [FixedSizeSplitter, RecursiveSplitter])
@given(text=TEXTS, sizes=SIZES)
def test_pieces_are_short_in_order_and_cover_the_text(
    kind: type[FixedSizeSplitter] | type[RecursiveSplitter], text: str, sizes: tuple[int, int]
) -> None:
    size, overlap = sizes
    pieces = kind(size, overlap).split(text)
    covered = 0
    for piece in pieces:
        assert 0 < len(piece.text) <= size
        assert text[piece.start :].startswith(piece.text)
        assert not text[covered : piece.start].strip(), "only white space may be left out"
        assert piece.start >= covered - overlap
        assert piece.start + len(piece.text) > covered, "a piece adds something"
        covered = piece.start + len(piece.text)
    assert not text[covered:].strip()


def _texts(splitter: Splitter, text: str) -> list[str]:
    return [piece.text for piece in splitter.split(text)]


def test_fixed_sizes_with_overlap() -> None:
    assert _texts(FixedSizeSplitter(4), "abcdefghij") == ["abcd", "efgh", "ij"]
    assert _texts(FixedSizeSplitter(4, 2), "abcdefgh") == ["abcd", "cdef", "efgh"]
    assert _texts(FixedSizeSplitter(4, 3), "ab") == ["ab"]
    assert _texts(FixedSizeSplitter(4), "") == []


def test_recursive_breaks_at_the_largest_unit_that_fits() -> None:
    text = "One two three.\n\nFour five. Six seven.\nEight\n\nNine"
    assert _texts(RecursiveSplitter(24), text) == [
        "One two three.\n\n",
        "Four five. Six seven.\n",
        "Eight\n\nNine",
    ]
    assert _texts(RecursiveSplitter(12), text) == [
        "One two ",
        "three.\n\n",
        "Four five. ",
        "Six seven.\n",
        "Eight\n\nNine",
    ]
    assert _texts(RecursiveSplitter(4), "abcdefghij") == ["abcd", "efgh", "ij"]


def test_an_overlap_begins_with_a_whole_word() -> None:
    pieces = _texts(RecursiveSplitter(16, 6), "alpha beta gamma delta epsilon")
    assert pieces == ["alpha ", "alpha beta ", "beta gamma ", "gamma delta ", "delta epsilon"]


def test_separators_are_ones_own() -> None:
    assert _texts(RecursiveSplitter(5, separators=["|"]), "ab|cd|efghijk") == ["ab|", "cd|", "efghi", "jk"]


def test_documents_keep_their_metadata_and_get_numbered_ids() -> None:
    found = split_documents([Document("d", "abcd  ", {"k": 1})], FixedSizeSplitter(2))
    assert found == [
        Document("d#1", "ab", {"k": 1, "document_id": "d", "chunk": 1, "start": 0}),
        Document("d#2", "cd", {"k": 1, "document_id": "d", "chunk": 2, "start": 2}),
    ]


@pytest.mark.parametrize("kind", [FixedSizeSplitter, RecursiveSplitter])
@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (-1, 0), (5, 5), (5, -1), (True, 0), (2.0, 1)])
def test_impossible_sizes_are_refused(kind: type[FixedSizeSplitter], size: int, overlap: int) -> None:
    with pytest.raises(ConfigurationError, match=kind.__name__):
        kind(size, overlap)


@pytest.mark.parametrize("separators", ["\n", [""], ["\n", ""]])
def test_impossible_separators_are_refused(separators: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="separators"):
        RecursiveSplitter(5, separators=separators)
