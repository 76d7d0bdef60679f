"""Reading a JSON Schema beside a value: where text stands for an object, where a number is meant, which default is missing.

Pure functions over plain JSON. A schema is read from its root, since references are relative to it; all of them are
inside the schema (``#...``), which `raw_schema` checks and pydantic does by itself. Whatever a keyword of the standard says
that is not read here, nothing is changed for it, and validation comes after.
"""

from __future__ import annotations

import copy
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

from phronomy_ray.canonical_json import dumps_plain, loads, to_json_value
from phronomy_ray.errors import SerializationError

#: How deep references and unions in unions are followed in one place.
MAX_DEPTH = 16
ALL_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_OBJECT_KEYWORDS = frozenset({"properties", "patternProperties", "additionalProperties"})
_LIST_KEYWORDS = frozenset({"items", "prefixItems"})
_UNIONS = ("anyOf", "oneOf")
_INTEGER = re.compile(r"[+-]?\d{1,300}")
_NUMBER = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][+-]?\d{1,3})?")


# --- references ------------------------------------------------------------------------------------------------


def lookup(reference: str, root: Any) -> Any:
    """What a reference into `root` names: ``#``, ``#/a/b`` or ``#anchor``; ``None`` when there is no such place."""
    fragment = urllib.parse.unquote(reference[1:])
    if not reference.startswith("#"):
        return None
    if fragment and not fragment.startswith("/"):
        return next((item for item in subschemas(root) if item.get("$anchor") == fragment), None)
    found = root
    for part in fragment.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """`schema` and every schema that is written inside it; examples, enums and defaults are values and not entered."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            inner = list(value.values())
        elif key in _LISTS_OF_SCHEMAS and isinstance(value, list):
            inner = value
        elif key in _SINGLE_SCHEMAS:
            inner = [value]
        else:
            continue
        for item in inner:
            yield from subschemas(item)


_MAPS_OF_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_LISTS_OF_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SINGLE_SCHEMAS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)


# --- what a place allows ---------------------------------------------------------------------------------------


def allowed_types(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """JSON types that a place may hold; in doubt more rather than fewer."""
    if schema is False:
        return frozenset()
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return ALL_TYPES
    kind = schema.get("type")
    types = ALL_TYPES if kind is None else frozenset(kind if isinstance(kind, list) else [kind])
    if "number" in types:
        types |= {"integer"}
    if "enum" in schema:
        types &= {type_of(value) for value in schema["enum"]}
    if "const" in schema:
        types &= {type_of(schema["const"])}
    if isinstance(schema.get("$ref"), str):
        types &= allowed_types(lookup(schema["$ref"], root), root, depth + 1)
    for part in schema.get("allOf", ()):
        types &= allowed_types(part, root, depth + 1)
    for union in _UNIONS:
        if schema.get(union):
            types &= frozenset().union(*(allowed_types(part, root, depth + 1) for part in schema[union]))
    return types


def type_of(value: Any) -> str:
    """JSON Schema's name for the type of a JSON value; ``integer`` also for a float without a fraction."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def property_names(schema: Any) -> frozenset[str]:
    """Every property name that is written anywhere in `schema`."""
    return frozenset(name for item in subschemas(schema) for name in _mapping(item, "properties"))


def shapes(schema: Any, root: Any, depth: int = 0) -> list[dict[str, Any]]:
    """The schemas that may describe what is inside a place: itself, what it refers to, and its alternatives."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return []
    found = [schema] if set(schema) & (_OBJECT_KEYWORDS | _LIST_KEYWORDS) else []
    if isinstance(schema.get("$ref"), str):
        found += shapes(lookup(schema["$ref"], root), root, depth + 1)
    for key in ("allOf", *_UNIONS):
        for part in schema.get(key, ()):
            found += shapes(part, root, depth + 1)
    return found


def _field(shape: dict[str, Any], key: str) -> Any:
    """The schema of a field; without one for it, and unless the shape is closed, it may hold anything."""
    named = _mapping(shape, "properties")
    if key in named:
        return named[key]
    for pattern, schema in _mapping(shape, "patternProperties").items():
        if re.search(pattern, key):
            return schema
    return shape.get("additionalProperties", True)


def _rules_out(shape: dict[str, Any], value: dict[str, Any]) -> bool:
    """Whether `value` cannot be of this shape: it lacks a field, has one too many, or another word in a telling one."""
    named = _mapping(shape, "properties")
    if any(name not in value for name in shape.get("required", ())):
        return True
    is_closed = shape.get("additionalProperties") is False and not _mapping(shape, "patternProperties")
    if is_closed and any(key not in named for key in value):
        return True
    for key, item in value.items():
        described = named.get(key)
        if isinstance(described, dict) and isinstance(item, str):
            words = [described["const"]] if "const" in described else described.get("enum")
            if words is not None and item not in words:
                return True
    return False


def _item(shape: dict[str, Any], index: int) -> Any:
    items = shape.get("items")
    prefix = shape.get("prefixItems") or (items if isinstance(items, list) else [])
    if index < len(prefix):
        return prefix[index]
    return shape.get("additionalItems") if isinstance(items, list) else items


def _any_of(schemas: list[Any]) -> Any:
    """The schema of a place that several shapes describe: text in one of them is text for all."""
    known = [
        {} if schema is True else schema for schema in schemas if schema is not None and schema is not False
    ]
    return known[0] if len(known) == 1 else {"anyOf": known} if known else None


def _mapping(schema: dict[str, Any], key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


# --- changing a value ------------------------------------------------------------------------------------------


def may_need_fitting(value: Any) -> bool:
    """Whether `fit` without `coerce` could change plain JSON `value` under any schema; most calls hold nothing of the kind."""
    if isinstance(value, str):
        return value.lstrip()[:1] in ("{", "[")
    if isinstance(value, float):
        return value.is_integer()
    if isinstance(value, dict):
        return any(map(may_need_fitting, value.values()))
    return any(map(may_need_fitting, value)) if isinstance(value, list) else False


def fit(value: Any, schema: Any, root: Any, *, coerce: bool = False) -> Any:
    """`value` with every place read as the schema says, and nothing else changed.

    Text that holds an object or list is decoded where the schema wants one and no text; a number without a fraction
    is an integer where it wants one (``2.0`` is one in JSON). With `coerce` also ``"3"``, ``"1.5"`` and ``"true"`` where a
    number or boolean is wanted and no text, and a number where text is wanted and no number.
    """
    if schema is None or schema is False or schema is True or not (coerce or may_need_fitting(value)):
        return value
    types = allowed_types(schema, root)
    if isinstance(value, str) and "string" not in types:
        value = decode_text(value, types)
    if isinstance(value, float) and "integer" in types and "number" not in types and value.is_integer():
        value = int(value)
    if coerce and type_of(value) not in types:
        value = _coerced(value, types)
    if isinstance(value, dict):
        inside = [shape for shape in shapes(schema, root) if set(shape) & _OBJECT_KEYWORDS]
        if len(inside) > 1:
            inside = [shape for shape in inside if not _rules_out(shape, value)]
        return {
            key: fit(item, _any_of([_field(shape, key) for shape in inside]), root, coerce=coerce)
            for key, item in value.items()
        }
    if isinstance(value, list):
        inside = [shape for shape in shapes(schema, root) if set(shape) & _LIST_KEYWORDS]
        return [
            fit(item, _any_of([_item(shape, index) for shape in inside]), root, coerce=coerce)
            for index, item in enumerate(value)
        ]
    return value


def decode_text(text: str, types: frozenset[str]) -> Any:
    """The object or list that `text` holds, if `types` has exactly that; else `text` itself."""
    if not types & {"object", "array"} or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        decoded = to_json_value(loads(text))
    except SerializationError:
        return text
    return decoded if type_of(decoded) in types & {"object", "array"} else text


def _coerced(value: Any, types: frozenset[str]) -> Any:
    if isinstance(value, str):
        text = value.strip()
        if "integer" in types and _INTEGER.fullmatch(text):
            return int(text)
        if "number" in types and _NUMBER.fullmatch(text):
            number = float(text)
            return number if number - number == 0 else value
        if "boolean" in types and text.lower() in ("true", "false"):
            return text.lower() == "true"
    elif "string" in types and isinstance(value, int | float) and not isinstance(value, bool):
        return dumps_plain(value)
    return value


def with_defaults(value: Any, schema: Any, root: Any) -> Any:
    """`value` with the schema's default for every missing property of the objects in it.

    Only where one shape describes the object: which alternative of a union is meant is not guessed.
    """
    inside = shapes(schema, root)
    if isinstance(value, dict):
        plain = [shape for shape in inside if "properties" in shape or "additionalProperties" in shape]
        if len(plain) != 1:
            return value
        filled = {key: with_defaults(item, _field(plain[0], key), root) for key, item in value.items()}
        for key, described in _mapping(plain[0], "properties").items():
            if key not in filled:
                default = _default(described, root)
                if default is not _MISSING:
                    filled[key] = copy.deepcopy(default)
        return filled
    if isinstance(value, list):
        lists = [shape for shape in inside if "items" in shape or "prefixItems" in shape]
        if len(lists) != 1:
            return value
        return [with_defaults(item, _item(lists[0], index), root) for index, item in enumerate(value)]
    return value


def has_default(schema: Any, root: Any) -> bool:
    """Whether `with_defaults` fills a property of this schema."""
    return _default(schema, root) is not _MISSING


_MISSING = object()


def _default(schema: Any, root: Any) -> Any:
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict):
            break
        if "default" in schema:
            return schema["default"]
        if not isinstance(schema.get("$ref"), str):
            break
        schema = lookup(schema["$ref"], root)
    return _MISSING
