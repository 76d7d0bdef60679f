"""Canonical JSON: one text for one value, so that hashes and comparisons mean something.

Keys sorted, no white space, UTF-8, no NaN or infinity, integers in full. Strings hold no lone surrogates: a legal
pair becomes its character and a lone half becomes U+FFFD, once, here, because neither UTF-8 nor any database can
hold it (`clean_text`). Only plain JSON values are accepted; nothing is ever imported by a stored name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from phronomy_ray.errors import SerializationError

JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"

MAX_DEPTH = 100


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# Made once: `json.dumps` and `json.loads` with options of their own build an encoder or decoder for every call, which
# costs more than a small value.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_quoted = json.encoder.encode_basestring


def clean_text(text: str) -> str:
    """`text` without lone surrogates (a legal pair is joined, a lone half replaced by U+FFFD)."""
    if _is_clean(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_clean(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def to_json_value(value: Any, *, path: str = "$", depth: int = 0) -> JSONValue:
    """Copy `value` as plain JSON with cleaned strings.

    Raises:
        SerializationError: the value is not JSON; the message names the path of the offending part.
    """
    if not depth and _is_plain(value, 0) and _copies(value):
        return _copy(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(str.__str__(value))  # a text enum's own __str__ names the member
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SerializationError(f"{path}: {value!r} is not a finite number and JSON has no form for it")
        return float(value)
    if depth >= MAX_DEPTH:
        raise SerializationError(
            f"{path}: nested deeper than {MAX_DEPTH} levels (or a value that contains itself)"
        )
    if isinstance(value, Mapping):
        result: dict[str, JSONValue] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise SerializationError(
                    f"{path}: the key {key!r} is a {type(key).__name__}; JSON keys are strings"
                )
            name = clean_text(str.__str__(key))
            if name in result:
                raise SerializationError(
                    f"{path}: two keys become {name!r} once lone surrogates are replaced"
                )
            result[name] = to_json_value(item, path=f"{path}.{key}", depth=depth + 1)
        return result
    if isinstance(value, list | tuple):
        return [
            to_json_value(item, path=f"{path}[{index}]", depth=depth + 1) for index, item in enumerate(value)
        ]
    raise SerializationError(f"{path}: a {type(value).__name__} is not a JSON value")


def _copies(value: Any) -> bool:
    """Whether the texts and floats of a value of plain types can be kept as they are."""
    kind = type(value)
    if kind is str:
        return _is_clean(value)
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        return all(_is_clean(key) and _copies(item) for key, item in value.items())
    return all(map(_copies, value)) if kind is list or kind is tuple else True


def _copy(value: Any) -> JSONValue:
    kind = type(value)
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if kind is list or kind is tuple else value


def dumps(value: Any) -> str:
    """The canonical text of `value`.

    Raises:
        SerializationError: as `to_json_value`, or an integer too long to print.
    """
    if _is_plain(
        value, 0
    ):  # nearly always: what is stored is JSON already, and a copy costs more than its text
        try:
            text = dumps_plain(value)
        except SerializationError:
            pass  # found again below, with its path
        else:
            if _is_clean(text):
                return text
    return dumps_plain(to_json_value(value))


_LEAVES = frozenset({str, int, float, bool, type(None)})


def _is_plain(value: Any, depth: int) -> bool:
    """Whether `value` is built of plain JSON types with text keys, not too deep; its texts and floats are not looked at."""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not (type(item) in _LEAVES or _is_plain(item, depth + 1)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(type(item) in _LEAVES or _is_plain(item, depth + 1) for item in value)
    return False


def dumps_plain(value: JSONValue) -> str:
    """Canonical text of a value that is known to be clean plain JSON (what `to_json_value` returned)."""
    try:
        return _quoted(value) if type(value) is str else _ENCODER.encode(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise SerializationError(f"value cannot be written as JSON: {error}") from error


def loads(text: str | bytes) -> Any:
    """Parse JSON text.

    Raises:
        SerializationError: the text is not JSON.
    """
    try:
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"stored text is not JSON: {error}") from error


def check_format(wire: dict[str, Any], newest: int, what: str) -> None:
    """Refuse a `what` that a newer release wrote, by its format number ``v``.

    Raises:
        SerializationError: `wire` has no format number, or one above `newest`.
    """
    version = wire.get("v")
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise SerializationError(f"{what} has format {version!r}; this release reads up to {newest}")


def content_hash(text: str) -> str:
    """``sha256:<hex>`` of the UTF-8 bytes of `text`."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()
