"""Parameters by pydantic: from the type hints of a body, or from a model that somebody wrote.

pydantic is imported at the first tool definition, so that importing the package stays cheap.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from phronomy_ray.canonical_json import dumps_plain, to_json_value
from phronomy_ray.definition.body_signature import BodySignature, signature_of
from phronomy_ray.definition.callables import own_docstring
from phronomy_ray.definition.schema import ArgumentError, Parameters, got, path_of, refusal
from phronomy_ray.errors import ConfigurationError, SerializationError
from phronomy_ray.tool_calls import ToolContext

if TYPE_CHECKING:
    from pydantic import BaseModel

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


@dataclass(frozen=True, slots=True)
class ModelParameters(Parameters):
    """Parameters that a pydantic model describes."""

    model: type[BaseModel] = dataclasses.field(kw_only=True)
    #: Parameter of the body that takes the model's instance as a whole; ``None`` for its fields as keywords.
    whole_parameter: str | None = dataclasses.field(default=None, kw_only=True)
    #: The only names that arguments may have, where the model's own configuration would let any pass; else ``None``.
    known: frozenset[str] | None = dataclasses.field(default=None, kw_only=True)
    #: Names that no argument may have, since the body has another use for them.
    reserved: frozenset[str] = dataclasses.field(default=frozenset(), kw_only=True)

    def validate(self, arguments: dict[str, Any]) -> BaseModel:
        """The typed form of plain JSON `arguments`. Raises `ArgumentError`."""
        return self._validated(arguments, strict=True)

    def bind(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """See `Parameters`: typed values."""
        model = self.validate(arguments)
        if self.whole_parameter is not None:
            bound: dict[str, Any] = {self.whole_parameter: model}
        else:
            bound = {name: getattr(model, name) for name in type(model).model_fields}
            bound.update(model.model_extra or {})
        if self.context_parameter is not None:
            bound[self.context_parameter] = context
        return bound

    def fitted(self, function: Callable[..., Any], *, tool: str, skip_self: bool = False) -> Self:
        """See `Parameters`."""
        signature = signature_of(function, tool=tool, skip_self=skip_self)
        return dataclasses.replace(
            self,
            context_parameter=signature.context_parameter,
            whole_parameter=_whole_parameter(self.model, signature, tool),
            reserved=signature.reserved,
        )

    def _validated(self, arguments: dict[str, Any], *, strict: bool) -> BaseModel:
        from pydantic import ValidationError

        problems = [
            f"{path_of([name])}: Extra inputs are not permitted"
            for name in arguments
            if name in self.reserved or (self.known is not None and name not in self.known)
        ]
        try:
            model = self.model.model_validate_json(dumps_plain(arguments), strict=strict)
        except ValidationError as error:
            problems += [
                f"{path_of(item['loc'])}: {item['msg']}{_got(item)}"
                for item in error.errors(include_url=False)
            ]
            raise refusal(problems) from None
        if problems:
            raise refusal(problems)
        return model

    def _coerced(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """As the schema says; else as pydantic reads it when it is not strict, if that can be written down again."""
        # not zero-argument super(): a dataclass with slots is another class than the one it was written as
        value = Parameters._coerced(self, arguments)
        if value is not None:
            return value
        try:
            lax = self._validated(arguments, strict=False)
            value = typing.cast(
                "dict[str, Any]",
                to_json_value(lax.model_dump(mode="json", by_alias=True, exclude_unset=True)),
            )
            # what is stored is what runs: a field that hides or rounds its value cannot be coerced
            return value if self.validate(value) == lax else None
        except (ArgumentError, SerializationError):
            return None


def parameters_of_hints(
    function: Callable[..., Any], *, tool: str, skip_self: bool = False
) -> ModelParameters:
    """Compile the signature and docstring of `function`.

    Raises:
        ConfigurationError: a parameter without type hint, ``*args``, ``**kwargs``, or a type without JSON form.
    """
    from docstring_parser import parse
    from pydantic import ConfigDict, Field, create_model

    signature = signature_of(function, tool=tool, skip_self=skip_self)
    if signature.takes_any:
        name = next(
            item.name
            for item in inspect.signature(function).parameters.values()
            if item.kind is item.VAR_KEYWORD
        )
        raise ConfigurationError(
            f"tool {tool!r}: parameter {name!r} takes any keyword; declare the arguments, or give parameters="
        )
    documented = {item.arg_name: item.description or "" for item in parse(own_docstring(function)).params}
    fields: dict[str, Any] = {}
    for parameter in signature.parameters:
        if parameter.name.startswith("_"):
            raise ConfigurationError(f"tool {tool!r}: parameter {parameter.name!r} must not begin with '_'")
        if parameter.name not in signature.hints:
            raise ConfigurationError(f"tool {tool!r}: parameter {parameter.name!r} has no type hint")
        hint = signature.hints[parameter.name]
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
        raise ConfigurationError(f"tool {tool!r}: {_without_schema(fields, error)}") from error
    return ModelParameters(_plain_schema(schema, tool), signature.context_parameter, model=model)


def _without_schema(fields: Mapping[str, tuple[Any, Any]], error: Exception) -> str:
    """Which of the parameters pydantic cannot describe; its own words when each alone can be."""
    from pydantic import TypeAdapter

    for name, (hint, _) in fields.items():
        try:
            TypeAdapter(hint).json_schema()
        except Exception:  # noqa: BLE001 - the same that was raised for all of them
            return (
                f"parameter {name!r}: {hint!r} has no JSON Schema, so no model can give a value of it; take JSON types, "
                "enums, dataclasses or pydantic models"
            )
    return f"the parameters have no JSON Schema: {error}"


def parameters_of_model(
    model: type[BaseModel], function: Callable[..., Any], *, tool: str, skip_self: bool = False
) -> ModelParameters:
    """The parameters that `model` describes, for the body `function`.

    The body takes the model's fields as keywords by their Python names, or a single parameter that is annotated with the
    model. Arguments that the model does not know are refused unless its own configuration says what becomes of them.

    Raises:
        ConfigurationError: the model has no JSON Schema of an object, or the body cannot take it.
    """
    signature = signature_of(function, tool=tool, skip_self=skip_self)
    try:
        schema = model.model_json_schema()
    except Exception as error:  # pydantic raises many classes for a type it cannot describe
        raise ConfigurationError(f"tool {tool!r}: the parameters have no JSON Schema: {error}") from error
    reference = schema.get("$ref")
    if isinstance(reference, str):  # a model that contains itself
        inner = schema.get("$defs", {})
        schema = {**inner[reference.rsplit("/", 1)[-1]], "$defs": inner}
    if schema.get("type") != "object":
        raise ConfigurationError(f"tool {tool!r}: parameters must describe an object, not {model.__name__}")
    known: frozenset[str] | None = None
    if "extra" not in model.model_config:
        schema = {**schema, "additionalProperties": False}
        by_name = any(model.model_config.get(key) for key in ("populate_by_name", "validate_by_name"))
        known = frozenset(schema.get("properties", ())) | frozenset(model.model_fields if by_name else ())
    return ModelParameters(
        _plain_schema(schema, tool),
        signature.context_parameter,
        model=model,
        whole_parameter=_whole_parameter(model, signature, tool),
        known=known,
        reserved=signature.reserved,
    )


def _whole_parameter(model: type[BaseModel], signature: BodySignature, tool: str) -> str | None:
    """The parameter that takes the instance, if the body has one; else its keywords are checked to be the fields."""
    named = [item for item in signature.parameters if signature.hints.get(item.name) is model]
    if len(signature.parameters) == 1 and named and not signature.takes_any:
        return named[0].name
    fields = model.model_fields
    unknown = [item.name for item in signature.parameters if item.name not in fields]
    if unknown:
        raise ConfigurationError(
            f"tool {tool!r}: parameter {unknown[0]!r} is no field of {model.__name__}; take its fields, or one parameter "
            f"annotated {model.__name__}"
        )
    taken = {item.name for item in signature.parameters}
    missing = [name for name in fields if name not in taken and not signature.takes_any]
    if missing:
        raise ConfigurationError(
            f"tool {tool!r}: {model.__name__} has a field {missing[0]!r} that the body does not take"
        )
    if model.model_config.get("extra") == "allow" and not signature.takes_any:
        raise ConfigurationError(
            f"tool {tool!r}: {model.__name__} allows fields of any name; take **kwargs or one parameter annotated with it"
        )
    clash = [name for name in fields if name in signature.reserved]
    if clash:
        raise ConfigurationError(
            f"tool {tool!r}: {model.__name__} has a field {clash[0]!r}, which is reserved"
        )
    return None


def _plain_schema(schema: dict[str, Any], tool: str) -> dict[str, Any]:
    """`schema` as plain JSON without the titles that only repeat names."""
    schema = {key: value for key, value in schema.items() if key != "title"}
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {
            name: {key: value for key, value in item.items() if key != "title"}
            for name, item in schema["properties"].items()
        }
    try:
        return typing.cast("dict[str, Any]", to_json_value(schema))
    except SerializationError as error:  # a default such as infinity
        raise ConfigurationError(
            f"tool {tool!r}: the parameters have no JSON Schema: {error.message}"
        ) from error


def _got(item: Any) -> str:
    if item["type"] in ("missing", "extra_forbidden"):
        return ""
    return got(item.get("input"), wants_structure=item["type"] in _STRUCTURED)
