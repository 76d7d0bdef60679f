"""Parameters by a JSON Schema that somebody wrote: the author of a tool, or the server that a tool comes from.

How the body is given the arguments, decided when the tool is made:

* a single parameter named ``arguments`` (which is no property of the schema) takes the whole mapping;
* else parameters take the properties of their names, and ``**kwargs`` takes the others.

A body without ``**kwargs`` must name every property, and one that the model may leave out needs a default, its own or the
schema's; a schema that says nothing of further properties is then closed, and one that allows them is refused. Values are
plain JSON as the model wrote them: hints of the body are for its reader. Missing properties get the schema's defaults.

jsonschema does the validation and is imported at the first schema.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from phronomy_ray.canonical_json import dumps, loads, to_json_value
from phronomy_ray.definition import schema_walk
from phronomy_ray.definition.body_signature import BodySignature, signature_of
from phronomy_ray.definition.schema import MAX_VALUE_CHARS, Parameters, echo, got, path_of, refusal
from phronomy_ray.errors import ConfigurationError, SerializationError
from phronomy_ray.tool_calls import ToolContext

DIALECT = "https://json-schema.org/draft/2020-12/schema"
WHOLE_PARAMETER = "arguments"
#: With how many schemas one value may be compared: references can make a short text into any number of them.
MAX_APPLIED = 10_000
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
#: Keywords beside which the root's properties are not all that it may hold.
_COMPOSITION = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties"}
)


@dataclass(frozen=True, slots=True)
class SchemaParameters(Parameters):
    """Parameters that a JSON Schema describes."""

    #: Parameter of the body that takes the whole mapping; ``None`` for properties as keywords.
    whole_parameter: str | None = dataclasses.field(default=None, kw_only=True)
    #: Names that no argument may have, since the body has another use for them.
    reserved: frozenset[str] = dataclasses.field(default=frozenset(), kw_only=True)
    #: Written by somebody else: its defaults are that side's to fill in.
    foreign: bool = dataclasses.field(default=False, kw_only=True)

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """`arguments` themselves. Raises `ArgumentError` when they do not fit."""
        problems = [
            f"{path_of([name])}: Extra inputs are not permitted"
            for name in arguments
            if name in self.reserved
        ]
        for error in _validator(self.text).iter_errors(arguments):
            problems += _problems(error)
        if problems:
            raise refusal(problems)
        return arguments

    def bind(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """See `Parameters`: JSON values, the schema's defaults filled in."""
        value = copy.deepcopy(self.validate(arguments))  # a body may change what it is given
        if not self.foreign:
            value = schema_walk.with_defaults(value, self.schema, self.schema)
        bound: dict[str, Any] = value if self.whole_parameter is None else {self.whole_parameter: value}
        if self.context_parameter is not None:
            bound[self.context_parameter] = context
        return bound

    def fitted(self, function: Callable[..., Any], *, tool: str, skip_self: bool = False) -> Self:
        """See `Parameters`."""
        signature = signature_of(function, tool=tool, skip_self=skip_self)
        properties = self.schema.get("properties", {})
        takes_one = [item.name for item in signature.parameters] == [
            WHOLE_PARAMETER
        ] and not signature.takes_any
        # a server's schema may have a property of that name, and its body takes the whole all the same
        is_whole = takes_one and (self.whole_parameter is not None or WHOLE_PARAMETER not in properties)
        whole = WHOLE_PARAMETER if is_whole else None
        clash = sorted(signature.reserved & set(properties))
        if clash and whole is None:
            raise ConfigurationError(
                f"tool {tool!r}: the schema has a property {clash[0]!r}, which the body has another use for"
            )
        schema = self.schema
        if whole is None:
            self._check_keywords(signature, tool)
            if not signature.takes_any:
                schema = self._closed(tool)
        return dataclasses.replace(
            self,
            schema=schema,
            context_parameter=signature.context_parameter,
            whole_parameter=whole,
            reserved=signature.reserved if whole is None else frozenset(),
        )

    def _check_keywords(self, signature: BodySignature, tool: str) -> None:
        properties = self.schema.get("properties", {})
        required = self.schema.get("required", ())
        for parameter in signature.parameters:
            name = parameter.name
            if name not in properties:
                raise ConfigurationError(f"tool {tool!r}: parameter {name!r} is no property of the schema")
            filled = not self.foreign and schema_walk.has_default(properties[name], self.schema)
            if parameter.default is inspect.Parameter.empty and name not in required and not filled:
                raise ConfigurationError(
                    f"tool {tool!r}: parameter {name!r} may be left out by the model; give it a default"
                )
        names = {item.name for item in signature.parameters}
        missing = [name for name in properties if name not in names]
        if missing and not signature.takes_any:
            raise ConfigurationError(
                f"tool {tool!r}: the schema has a property {missing[0]!r} that the body does not take"
            )

    def _closed(self, tool: str) -> dict[str, Any]:
        """The schema for a body that takes its properties and nothing else."""
        opened = self.schema.get("additionalProperties", False) is not False
        if opened or _COMPOSITION & set(self.schema):
            raise ConfigurationError(
                f"tool {tool!r}: the schema may allow more than its properties; take **kwargs, or one parameter named "
                f"{WHOLE_PARAMETER!r}"
            )
        return {**self.schema, "additionalProperties": False}


def parameters_from_schema(
    schema: Mapping[str, Any], *, tool: str, foreign: bool = False
) -> SchemaParameters:
    """Parameters of the JSON Schema `schema`, not yet fitted to a body: `bind` gives properties as keywords.

    With `foreign`, for a schema that came from a server: any dialect that jsonschema knows is accepted where ``$schema``
    names it, and defaults are neither checked nor filled in.

    Raises:
        ConfigurationError: no valid schema of an object, a reference that leaves it or leads nowhere, or (unless
            `foreign`) a default or an enum value that does not fit its own place. Names `tool` and the place.
    """
    from jsonschema.exceptions import SchemaError

    def wrong(text: str) -> ConfigurationError:
        return ConfigurationError(f"tool {tool!r}: parameters: {text}")

    try:
        plain = to_json_value(schema)
    except SerializationError as error:
        raise wrong(f"must be plain JSON: {error.message}") from None
    if not isinstance(plain, dict) or plain.get("type") != "object":
        raise wrong("the root of the schema must have type 'object'")
    dialect = plain.get("$schema", DIALECT)
    validator = _dialect(str(dialect))
    if validator is None or not (foreign or str(dialect).rstrip("#") == DIALECT):
        raise wrong(f"$schema must be {DIALECT!r}, not {dialect!r}")
    try:
        validator.check_schema(plain)
    except SchemaError as error:
        raise wrong(f"{path_of(error.absolute_path)}: {echo(error.message, 200)}") from None
    _check_references(plain, wrong)
    if not foreign:
        _check_values(plain, wrong)
    return SchemaParameters(plain, foreign=foreign)


def _check_references(schema: dict[str, Any], wrong: Callable[[str], ConfigurationError]) -> None:
    """Every reference is inside `schema` and leads somewhere; every pattern is one."""
    waiting: list[Any] = [schema]
    seen: set[int] = set()
    sizes: dict[int, int | None] = {}
    while waiting:
        for item in schema_walk.subschemas(waiting.pop()):
            if id(item) in seen:
                continue
            seen.add(id(item))
            for keyword in _REFERENCES:
                reference = item.get(keyword)
                if reference is None:
                    continue
                if not str(reference).startswith("#"):
                    raise wrong(f"{keyword} {reference!r} leads out of the schema; write it under $defs")
                target = schema_walk.lookup(str(reference), schema)
                if target is None:
                    raise wrong(f"{keyword} {reference!r} leads nowhere")
                waiting.append(target)
            for pattern in (item.get("pattern"), *_keys(item.get("patternProperties"))):
                try:
                    re.compile(pattern or "")
                except re.error as error:
                    raise wrong(f"pattern {pattern!r} is not a regular expression: {error}") from None
            size = _applied(item, schema, sizes)
            if size is None:
                raise wrong("the schema refers to itself without an object or list in between")
            if size > MAX_APPLIED:
                raise wrong(f"one value would be compared with more than {MAX_APPLIED} schemas")


def is_bounded(schema: dict[str, Any]) -> bool:
    """Whether reading a value by `schema`, or by one inside it, takes no more than `MAX_APPLIED` comparisons on each level."""
    sizes: dict[int, int | None] = {}
    found = (_applied(item, schema, sizes) for item in schema_walk.subschemas(schema))
    return all(size is not None and size <= MAX_APPLIED for size in found)


def _applied(item: Any, root: dict[str, Any], sizes: dict[int, int | None]) -> int | None:
    """With how many schemas one value is compared that is read by `item`; ``None`` when that would never end, since it
    applies itself to the very same value.

    `sizes` holds what is known by schema, ``None`` for those that are being looked at: each is looked at once, while one
    that is referred to twice counts twice, as it does for the validator.
    """
    if not isinstance(item, dict):
        return 1
    if id(item) in sizes:
        return sizes[id(item)]
    sizes[id(item)] = None
    applied = [part for key in ("allOf", "anyOf", "oneOf") for part in item.get(key, ())]
    applied += [item[key] for key in ("not", "if", "then", "else") if key in item]
    applied += [schema_walk.lookup(item[key], root) for key in _REFERENCES if isinstance(item.get(key), str)]
    total = 1
    for part in applied:
        size = _applied(part, root, sizes)
        if size is None:
            return None
        total += size
    sizes[id(item)] = total
    return total


def _check_values(schema: dict[str, Any], wrong: Callable[[str], ConfigurationError]) -> None:
    """Defaults fit their schemas, and enums hold values of their types: ``"true"`` is no boolean."""
    validator = _validator(dumps(schema))
    for item in schema_walk.subschemas(schema):
        values = [(value, "enum") for value in item.get("enum", ())]
        values += [(item["default"], "default")] if "default" in item else []
        for value, keyword in values:
            error = next(iter(validator.evolve(schema=item).iter_errors(value)), None)
            if error is not None:
                text = "; ".join(_problems(error)).removeprefix("$: ")
                raise wrong(f"{keyword} {echo(repr(value), MAX_VALUE_CHARS)} does not fit its schema: {text}")


def _keys(value: Any) -> Iterable[Any]:
    return value if isinstance(value, dict) else ()


@functools.lru_cache(maxsize=1024)
def _validator(text: str) -> Any:
    """The validator of a schema, by its canonical text; it never fetches anything."""
    from referencing import Registry

    schema = loads(text)
    validator = _dialect(str(schema.get("$schema", DIALECT)))
    assert validator is not None
    return validator(schema, registry=Registry())


def _dialect(name: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    if name.rstrip("#") == DIALECT:
        return Draft202012Validator
    return validator_for({"$schema": name}, default=None)


# --- what is wrong, in short -----------------------------------------------------------------------------------

_TEXTS: dict[str, str] = {
    "const": "must be {0}",
    "exclusiveMaximum": "must be less than {0}",
    "exclusiveMinimum": "must be greater than {0}",
    "maximum": "must be at most {0}",
    "minimum": "must be at least {0}",
    "multipleOf": "must be a multiple of {0}",
    "maxItems": "must have at most {0} items",
    "minItems": "must have at least {0} items",
    "maxLength": "must have at most {0} characters",
    "minLength": "must have at least {0} characters",
    "maxProperties": "must have at most {0} fields",
    "minProperties": "must have at least {0} fields",
    "pattern": "must match {0}",
    "uniqueItems": "must not repeat an item",
}


def _types_wanted(error: Any) -> list[str]:
    """The types that would have fitted, where the type is all that was wrong."""
    if error.validator == "type":
        wanted = error.validator_value
        return list(wanted) if isinstance(wanted, list) else [wanted]
    inner = [_types_wanted(item) if not item.relative_path else [] for item in error.context or ()]
    if error.validator not in ("anyOf", "oneOf") or not inner or not all(inner):
        return []
    return list(dict.fromkeys(name for names in inner for name in names))


def _problems(error: Any) -> list[str]:
    """``path: text`` for one error of jsonschema; its own messages quote values in full, which may be megabytes."""
    from jsonschema.exceptions import best_match

    types = _types_wanted(error)
    if error.validator in ("anyOf", "oneOf") and error.context and not types:
        best = best_match([error])
        if best is not error and best.validator not in ("anyOf", "oneOf"):
            return _problems(best)
    path = list(error.absolute_path)
    if error.validator == "required":
        return [
            f"{path_of([*path, name])}: Field required"
            for name in error.validator_value
            if name not in error.instance
        ]
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        known = error.schema.get("properties", {})
        patterns = list(error.schema.get("patternProperties", {}))
        extra = [
            name
            for name in error.instance
            if name not in known and not any(re.search(pattern, name) for pattern in patterns)
        ]
        return [f"{path_of([*path, name])}: Extra inputs are not permitted" for name in extra]
    wants_structure = bool({"object", "array"} & set(types))
    if types:
        text = f"must be {' or '.join(types)}"
    elif error.validator == "enum":
        text = f"must be one of {echo(', '.join(repr(value) for value in error.validator_value), 200)}"
    elif error.validator in _TEXTS:
        text = _TEXTS[error.validator].format(echo(repr(error.validator_value), MAX_VALUE_CHARS))
    elif error.validator is None:
        text = "no value is allowed here"
    else:
        text = f"does not fit the schema's {error.validator}"
    return [f"{path_of(path)}: {text}{got(error.instance, wants_structure=wants_structure)}"]
