"""From a Python signature to the JSON Schema that a model is shown, and back from its arguments to typed values.

pydantic does the work and is imported at the first tool definition, so that importing the package stays cheap.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phronomy_ray.canonical_json import content_hash, dumps, dumps_plain, loads, to_json_value
from phronomy_ray.errors import ConfigurationError, SerializationError
from phronomy_ray.tool_calls import ToolContext

if TYPE_CHECKING:
    from pydantic import BaseModel

#: How much of a refused argument text is echoed to the model, in characters.
MAX_ECHO_CHARS = 300
#: How many problems one error result lists.
MAX_PROBLEMS = 8
MAX_UNION_DEPTH = 8
#: pydantic's error types of places where an object or a list belongs.
_STRUCTURED = frozenset(
    {
        "dataclass_type",
        "dict_type",
        "frozen_set_type",
        "list_type",
        "model_attributes_type",
        "model_type",
        "set_type",
        "tuple_type",
    }
)


class ArgumentError(Exception):
    """The model's arguments do not fit the schema; the message is short and says where, for the model to correct."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one tool."""

    model: type[BaseModel]
    #: JSON Schema (draft 2020-12) of the argument object, as the model is shown it.
    schema: dict[str, Any]
    #: Name of the parameter that takes the `ToolContext`, if any.
    context_parameter: str | None

    @property
    def hash(self) -> str:
        """Hash of the schema."""
        return content_hash(dumps(self.schema))

    def decode(self, raw: str) -> dict[str, Any]:
        """The argument object of a call as plain validated JSON.

        Empty text means no arguments. Text that holds JSON is decoded, at any depth, only where the schema says
        object or list and nothing else; text fields are never touched.

        Raises:
            ArgumentError: broken JSON, not an object, or fields that are missing, extra or of the wrong type.
        """
        if not raw.strip():
            value: Any = {}
        else:
            try:
                value = to_json_value(loads(raw))
            except SerializationError as error:
                raise ArgumentError(
                    f"$: the arguments are not valid JSON ({error.message}); got {_echo(raw)}"
                ) from None
        if isinstance(value, str):
            value = _decode_text(value, {"type": "object"})
        if not isinstance(value, dict):
            raise ArgumentError(f"$: the arguments must be a JSON object; got {_echo(raw)}")
        value = _decode_nested(value, self.schema, self.schema.get("$defs", {}))
        self.validate(value)
        return typing.cast("dict[str, Any]", value)

    def validate(self, arguments: dict[str, Any]) -> BaseModel:
        """The typed form of plain JSON `arguments`. Raises `ArgumentError`."""
        from pydantic import ValidationError

        try:
            return self.model.model_validate_json(dumps_plain(arguments), strict=True)
        except ValidationError as error:
            problems = [
                f"{_path(item['loc'])}: {item['msg']}{_got(item, arguments)}"
                for item in error.errors(include_url=False)
            ]
            shown = "; ".join(problems[:MAX_PROBLEMS])
            more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
            raise ArgumentError(shown + more) from None

    def bind(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """Keyword arguments for the body: typed values, and the context where it was asked for."""
        model = self.validate(arguments)
        bound = {name: getattr(model, name) for name in type(model).model_fields}
        if self.context_parameter is not None:
            bound[self.context_parameter] = context
        return bound


def parameters_of(function: Callable[..., Any], *, tool: str, skip_self: bool = False) -> Parameters:
    """Compile the signature and docstring of `function`.

    Raises:
        ConfigurationError: a parameter without type hint, ``*args``, ``**kwargs``, or a type without JSON form.
    """
    from docstring_parser import parse
    from pydantic import ConfigDict, Field, create_model

    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"tool {tool!r}: type hints cannot be resolved: {error}") from error
    documented = {item.arg_name: item.description or "" for item in parse(function.__doc__ or "").params}
    fields: dict[str, Any] = {}
    context_parameter = None
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[1:] if skip_self else parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"tool {tool!r}: parameter {parameter.name!r} is {parameter.kind.description}; "
                "a model can only give arguments by name"
            )
        if parameter.name.startswith("_"):
            raise ConfigurationError(f"tool {tool!r}: parameter {parameter.name!r} must not begin with '_'")
        if parameter.name not in hints:
            raise ConfigurationError(f"tool {tool!r}: parameter {parameter.name!r} has no type hint")
        hint = hints[parameter.name]
        if _is_context(hint):
            if context_parameter is not None:
                raise ConfigurationError(
                    f"tool {tool!r}: {parameter.name!r} is a second ToolContext parameter"
                )
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        description = documented.get(parameter.name)
        fields[parameter.name] = (hint, Field(default, description=description) if description else default)
    try:
        with warnings.catch_warnings():
            # `schema`, `json` or `copy` are good names for parameters, and nobody calls these methods of the model
            warnings.filterwarnings(
                "ignore", message="Field name .* shadows an attribute", category=UserWarning
            )
            model = create_model(
                f"{tool}_arguments",
                __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False, protected_namespaces=()),
                **fields,
            )
        schema = model.model_json_schema()
    except Exception as error:  # pydantic raises many classes for a type it cannot describe
        raise ConfigurationError(f"tool {tool!r}: the parameters have no JSON Schema: {error}") from error
    schema.pop("title", None)
    for item in schema.get("properties", {}).values():
        item.pop("title", None)
    return Parameters(model, schema, context_parameter)


def _is_context(hint: Any) -> bool:
    """Whether `hint` asks for the `ToolContext`, also as an optional or annotated one."""
    return hint is ToolContext or any(_is_context(part) for part in typing.get_args(hint))


def _decode_nested(value: Any, schema: Any, definitions: dict[str, Any]) -> Any:
    """Decode JSON text where `schema` wants an object or list, recursively; everything else stays as it is."""
    schema = _resolve(schema, definitions)
    if not isinstance(schema, dict):
        return value
    if isinstance(value, str):
        decoded = _decode_text(value, schema, definitions)
        if decoded is value:
            return value
        value = decoded
    options = _options(schema, definitions)
    if isinstance(value, dict):
        shapes = [option for option in options if "properties" in option or "additionalProperties" in option]
        return {
            key: _decode_nested(item, _any_of([_field(shape, key) for shape in shapes]), definitions)
            for key, item in value.items()
        }
    if isinstance(value, list):
        shapes = [option for option in options if "items" in option or "prefixItems" in option]
        return [
            _decode_nested(item, _any_of([_item(shape, index) for shape in shapes]), definitions)
            for index, item in enumerate(value)
        ]
    return value


def _field(shape: dict[str, Any], key: str) -> Any:
    return shape.get("properties", {}).get(key, shape.get("additionalProperties"))


def _item(shape: dict[str, Any], index: int) -> Any:
    prefix = shape.get("prefixItems", [])
    return prefix[index] if index < len(prefix) else shape.get("items")


def _any_of(schemas: list[Any]) -> Any:
    """The schema of a place that several shapes of a union describe: text in one of them is text for all."""
    known = [schema for schema in schemas if schema is not None and schema is not False]
    return known[0] if len(known) == 1 else {"anyOf": known} if known else None


def _decode_text(text: str, schema: dict[str, Any], definitions: dict[str, Any] | None = None) -> Any:
    """The object or list that `text` holds, if the schema allows exactly that and no text; else `text` itself."""
    types = {kind for option in _options(schema, definitions or {}) for kind in _types(option)}
    if "string" in types or not types & {"object", "array"} or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        decoded = to_json_value(loads(text))
    except SerializationError:
        return text
    kind = "object" if isinstance(decoded, dict) else "array" if isinstance(decoded, list) else ""
    return decoded if kind in types else text


def _options(schema: Any, definitions: dict[str, Any], depth: int = 0) -> list[dict[str, Any]]:
    """The alternatives of a schema, unions in unions included; a schema that says nothing accepts everything."""
    schema = _resolve(schema, definitions)
    if not isinstance(schema, dict):
        return [{}]
    nested = [option for key in ("anyOf", "oneOf", "allOf") for option in schema.get(key, ())]
    if not nested or depth > MAX_UNION_DEPTH:
        return [schema]
    return [option for part in nested for option in _options(part, definitions, depth + 1)]


def _types(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type")
    if kind is None:
        values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
        # no type at all accepts text too, and so does an enum that holds some
        return ["string"] if not values or any(isinstance(value, str) for value in values) else ["other"]
    return list(kind) if isinstance(kind, list) else [kind]


def _resolve(schema: Any, definitions: dict[str, Any]) -> Any:
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = definitions.get(schema["$ref"].rsplit("/", 1)[-1])
    return schema


def _path(location: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _got(item: Any, arguments: Any) -> str:
    if item["type"] == "missing" or item["type"] == "extra_forbidden":
        return ""
    hint = ""
    given = item.get("input")
    if isinstance(given, str) and (given.lstrip()[:1] in ("{", "[") or item["type"] in _STRUCTURED):
        hint = "; send JSON, not a string"
    return f" (got {_echo(repr(given), 80)}{hint})"


def _echo(text: str, limit: int = MAX_ECHO_CHARS) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
