"""The table of `phronomy_ray.tool_results`, line by line."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import threading
import uuid
from collections import OrderedDict, UserDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.errors import ToolError
from phronomy_ray.tool_results import MAX_RESULT_CHARS, cut_text, encode_result


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mode(enum.StrEnum):
    FAST = "fast"


@dataclasses.dataclass
class Point:
    x: int
    when: dt.date


class Model(BaseModel):
    name: str
    when: dt.datetime


class Text(str):
    __slots__ = ()


IDENTITY = uuid.UUID("12345678123456781234567812345678")


@pytest.mark.parametrize(
    ("value", "kept", "text"),
    [
        (None, None, "null"),
        ("plain", "plain", "plain"),
        ("", "", ""),
        (Text("sub"), "sub", "sub"),
        (True, True, "true"),
        (0, 0, "0"),
        (-1.5, -1.5, "-1.5"),
        (10**400, 10**400, "1" + "0" * 400),
        ([1, "a", None], [1, "a", None], '[1,"a",null]'),
        ((1, (2, [3])), [1, [2, [3]]], "[1,[2,[3]]]"),
        ({"b": 1, "a": (2,)}, {"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        (OrderedDict(x=1), {"x": 1}, '{"x":1}'),
        (UserDict({"x": 1}), {"x": 1}, '{"x":1}'),
        ({3, 1, 2}, [1, 2, 3], "[1,2,3]"),
        (frozenset({"b", "a"}), ["a", "b"], '["a","b"]'),
        ({"b", 1}, ["b", 1], '["b",1]'),
        (
            dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC),
            "2026-01-02T03:04:00+00:00",
            "2026-01-02T03:04:00+00:00",
        ),
        (dt.date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (dt.time(3, 4), "03:04:00", "03:04:00"),
        (dt.timedelta(seconds=90), "0:01:30", "0:01:30"),
        (decimal.Decimal("1.10"), "1.10", "1.10"),
        (IDENTITY, str(IDENTITY), str(IDENTITY)),
        (Path("/tmp/x"), "/tmp/x", "/tmp/x"),
        (Color.RED, "red", "red"),
        (Level.HIGH, 3, "3"),
        (Mode.FAST, "fast", "fast"),
        ({Color.RED: 1}, {"red": 1}, '{"red":1}'),
        (Point(1, dt.date(2026, 1, 2)), {"x": 1, "when": "2026-01-02"}, '{"when":"2026-01-02","x":1}'),
        (
            Model(name="n", when=dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
            {"name": "n", "when": "2026-01-02T00:00:00Z"},
            '{"name":"n","when":"2026-01-02T00:00:00Z"}',
        ),
    ],
)
def test_T11_what_has_a_json_form(value: Any, kept: Any, text: str) -> None:
    encoded = encode_result(value)
    assert encoded.json == kept
    assert type(encoded.json) is type(kept)
    assert encoded.text == text
    assert json.loads(json.dumps(encoded.json)) == encoded.json


def generator() -> Any:
    yield 1


def recursive_dict() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def recursive_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Raises:
    def model_dump(self, mode: str) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        bytearray(b"x"),
        memoryview(b"x"),
        float("nan"),
        float("inf"),
        [float("-inf")],
        10**5_000,
        object(),
        threading.Lock(),
        print,
        Point,
        Model,
        generator(),
        iter([1]),
        {1: "x"},
        {None: "x"},
        {"deep": {"deeper": [b"x"]}},
        recursive_dict(),
        recursive_list(),
        complex(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_T11_what_has_none_is_a_typed_error(value: Any) -> None:
    with pytest.raises(ToolError) as caught:
        encode_result(value)
    assert caught.value.code == "unsupported_result"
    assert len(caught.value.message) < 500


def test_T11_the_result_is_a_copy() -> None:
    value = {"list": [1]}
    encoded = encode_result(value)
    value["list"].append(2)
    assert encoded.json == {"list": [1]}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("\ud835", "\ufffd"),
        ("\ud83c\udf78", "\U0001f378"),
        ("a\ud835b\ud83c\udf78c\udf78", "a\ufffdb\U0001f378c\ufffd"),
        (["\ud835"], ["\ufffd"]),
        ({"\ud83c\udf78": "\ud835"}, {"\U0001f378": "\ufffd"}),
        ({"\ud835"}, ["\ufffd"]),
    ],
)
def test_T13_lone_surrogates_are_replaced_and_pairs_joined(value: Any, kept: Any) -> None:
    encoded = encode_result(value)
    assert encoded.json == kept
    encoded.text.encode("utf-8")
    assert content_hash(encoded.text) == content_hash(encode_result(encoded.json).text)


def test_T14_text_above_the_hard_limit_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_RESULT_CHARS == 32 * 1024 * 1024
    monkeypatch.setattr("phronomy_ray.tool_results.MAX_RESULT_CHARS", 100)
    assert encode_result("x" * 100).text == "x" * 100
    for value in ("x" * 101, ["x" * 97]):
        with pytest.raises(ToolError) as caught:
            encode_result(value)
        assert caught.value.code == "result_too_large"
        assert "100" in caught.value.message


@given(st.text(max_size=300), st.integers(1, 200))
def test_T14_cut_text_is_head_marker_tail(text: str, limit: int) -> None:
    cut = cut_text(text, limit)
    if len(text) <= limit:
        assert cut == text
        return
    head, tail = (limit * 3) // 4, limit - (limit * 3) // 4
    assert cut.startswith(text[:head])
    assert cut.endswith(text[len(text) - tail :])
    assert f"{len(text) - limit} of {len(text)} characters left out" in cut
    assert content_hash(text) in cut, "the whole can be found"


def test_T14_the_value_is_kept_whole_when_its_text_is_cut() -> None:
    value = {"rows": list(range(10_000))}
    encoded = encode_result(value, shown_chars=200)
    assert encoded.json == value
    assert len(encoded.text) < 400
