"""Canonical JSON: one text for one value, or a refusal that names the place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray.canonical_json import (
    MAX_DEPTH,
    clean_text,
    content_hash,
    dumps,
    dumps_plain,
    loads,
    to_json_value,
)
from phronomy_ray.errors import SerializationError

#: Any text that Python can hold, lone surrogates included.
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_text_is_read_back_as_the_same_value_and_text(value: Any) -> None:
    text = dumps(value)
    assert loads(text) == to_json_value(value)
    assert dumps(loads(text)) == text


class _Text(str):
    __slots__ = ()


@given(
    st.recursive(
        SCALARS | st.builds(_Text, ANY_TEXT) | st.floats() | st.binary(max_size=2),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner, inner)
            | st.dictionaries(ANY_TEXT | st.integers() | st.booleans(), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_the_text_is_that_of_the_plain_copy_or_the_same_refusal(value: Any) -> None:
    def outcome(encode: Callable[[Any], str]) -> tuple[str, str]:
        try:
            return "text", encode(value)
        except SerializationError as refused:
            return "refused", refused.message

    assert outcome(dumps) == outcome(lambda given: dumps_plain(to_json_value(given)))


@given(JSON_VALUES)
def test_text_can_be_stored_anywhere(value: Any) -> None:
    text = dumps(value)
    assert text.encode("utf-8").decode("utf-8") == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@given(st.dictionaries(st.text(), st.integers(), max_size=6))
def test_the_order_of_keys_does_not_matter(mapping: dict[str, int]) -> None:
    backwards = dict(reversed(list(mapping.items())))
    assert dumps(mapping) == dumps(backwards)
    assert content_hash(dumps(mapping)) == content_hash(dumps(backwards))


@given(JSON_VALUES)
def test_what_is_given_back_shares_nothing_with_what_was_given(value: Any) -> None:
    before = dumps(value)
    copy = to_json_value(value)
    if isinstance(copy, list):
        copy.append("changed")
    elif isinstance(copy, dict):
        copy["changed"] = True
    assert dumps(value) == before


@given(ANY_TEXT)
def test_cleaning_is_done_once(text: str) -> None:
    clean = clean_text(text)
    clean.encode("utf-8")
    assert clean_text(clean) == clean


def test_a_legal_surrogate_pair_becomes_its_character_and_a_lone_half_is_replaced() -> None:
    assert clean_text("\ud83c\udf78") == "\N{COCKTAIL GLASS}"
    assert clean_text("a\ud835b") == "a\N{REPLACEMENT CHARACTER}b"
    assert clean_text("a\udf78") == "a\N{REPLACEMENT CHARACTER}"
    assert dumps({"\ud83c\udf78": "\ud835"}) == '{"\N{COCKTAIL GLASS}":"\N{REPLACEMENT CHARACTER}"}'


def test_the_text_is_compact_and_sorted() -> None:
    assert (
        dumps({"b": [1, 2.5, None], "a": {"d": True, "c": "ä"}})
        == '{"a":{"c":"ä","d":true},"b":[1,2.5,null]}'
    )
    assert dumps((1, (2,))) == "[1,[2]]"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "$"),
        ({"a": [0, math.inf]}, "$.a[1]"),
        ({"a": {"b": b"bytes"}}, "$.a.b"),
        ([{1, 2}], "$[0]"),
        ({"a": {3: "x"}}, "$.a"),
        ({"a": object()}, "$.a"),
    ],
)
def test_a_value_that_is_no_json_is_refused_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(SerializationError) as refused:
        dumps(value)
    assert refused.value.message.startswith(f"{place}:")
    assert refused.value.code == "serialization"


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(SerializationError, match="contains itself"):
        dumps(circle)


def test_depth_has_a_limit_that_is_exact() -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    assert loads(dumps(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(SerializationError):
        dumps(nested(MAX_DEPTH + 1))


def test_an_integer_too_long_to_print_is_refused() -> None:
    assert loads(dumps(10**400)) == 10**400
    with pytest.raises(SerializationError):
        dumps(10**10_000)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1,]", b"\xff", "[" * 100_000])
def test_text_that_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(SerializationError):
        loads(text)
