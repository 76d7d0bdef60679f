"""How a tool's return value becomes JSON for the journal and text for the model.

| returned                                              | kept as                         |
|-------------------------------------------------------|---------------------------------|
| ``None``                                              | null; the model is told "null"  |
| text                                                  | text, lone surrogates replaced  |
| bool, int, finite float                               | JSON                            |
| list, tuple, mapping with text keys                   | JSON, item by item              |
| set, frozenset                                        | JSON list, sorted by its JSON   |
| datetime, date, time, timedelta, Decimal, UUID, Path  | text                            |
| Enum                                                  | its value                       |
| dataclass instance, pydantic model                    | JSON mapping of its fields      |
| bytes, bytearray, memoryview                          | error ``unsupported_result``    |
| NaN, infinity, a value that contains itself           | error ``unsupported_result``    |
| generator, coroutine, any other object                | error ``unsupported_result``    |
| more than `MAX_RESULT_CHARS` of JSON text             | error ``result_too_large``      |
| text longer than the tool's ``max_result_chars``      | kept whole; the model sees head, marker, tail |
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import os
import uuid
from collections.abc import Mapping
from typing import Any

from phronomy_ray.canonical_json import (
    MAX_DEPTH,
    JSONValue,
    clean_text,
    content_hash,
    dumps_plain,
    to_json_value,
)
from phronomy_ray.errors import SerializationError, ToolError

#: Hard limit of one result, in characters of JSON text (32 Mi).
MAX_RESULT_CHARS = 32 * 1024 * 1024
#: Default of what the model is shown of one result, in characters.
DEFAULT_SHOWN_CHARS = 32_000


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedResult:
    """A return value in its two forms."""

    json: JSONValue
    text: str
    #: Whether `text` is a part of the whole.
    is_cut: bool = False


def encode_result(value: Any, *, shown_chars: int = DEFAULT_SHOWN_CHARS) -> EncodedResult:
    """Encode what a tool returned, by the table of this module.

    Raises:
        ToolError: code ``unsupported_result`` or ``result_too_large``.
    """
    try:
        json_value = to_json_value(_plain(value, 0))
        text = result_text(json_value)
    except SerializationError as error:
        raise ToolError(
            f"the tool's result cannot be kept: {error.message}", code="unsupported_result"
        ) from error
    if len(text) > MAX_RESULT_CHARS:
        raise ToolError(
            f"the tool's result has {len(text)} characters; at most {MAX_RESULT_CHARS} can be kept",
            code="result_too_large",
        )
    if len(text) <= shown_chars:
        return EncodedResult(json_value, text)
    return EncodedResult(
        json_value, cut_text(text, shown_chars, digest=reference_of(json_value)), is_cut=True
    )


def result_text(value: JSONValue) -> str:
    """The whole text of a kept result: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else dumps_plain(value)


def reference_of(value: JSONValue) -> str:
    """The hash under which the store keeps a result that was cut: of its JSON, also for a text."""
    return content_hash(dumps_plain(value))


def cut_text(text: str, limit: int, *, digest: str = "") -> str:
    """`text`, or its head and tail around a marker that says how much was left out and the hash of the whole.

    `digest`: the hash to name, by default that of `text`.
    """
    if len(text) <= limit:
        return text
    return _cut(text, limit, digest or content_hash(text))


def cut_within(text: str, limit: int, *, digest: str = "") -> str:
    """As `cut_text`, the marker included in `limit` where that leaves room for it."""
    if len(text) <= limit:
        return text
    digest = digest or content_hash(text)
    return _cut(text, max(0, limit - len(_marker(text, len(text), digest))), digest)


def _cut(text: str, kept: int, digest: str) -> str:
    head = (kept * 3) // 4
    tail = kept - head
    return text[:head] + _marker(text, len(text) - kept, digest) + (text[-tail:] if tail else "")


def _marker(text: str, left_out: int, digest: str) -> str:
    return f"\n[... {left_out} of {len(text)} characters left out; full result {digest} ...]\n"


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if depth >= MAX_DEPTH:
        raise SerializationError(f"nested deeper than {MAX_DEPTH} levels, or a value that contains itself")
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        items = [to_json_value(_plain(item, depth + 1)) for item in value]
        return sorted(items, key=dumps_plain)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID | dt.timedelta):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)
        }
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return _plain(dump(mode="json"), depth + 1)
    raise SerializationError(f"a {type(value).__name__} has no JSON form")


def _key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return clean_text(key)
    raise SerializationError(f"the mapping key {key!r} is a {type(key).__name__}; keys must be text")
