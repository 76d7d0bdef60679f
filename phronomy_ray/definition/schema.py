"""The parameters of a tool: the JSON Schema that a model is shown, and the way back from what it writes to a body's arguments.

| declared as                   | compiled by                          | a body is given                             |
|-------------------------------|--------------------------------------|---------------------------------------------|
| type hints of the body        | `model_parameters.parameters_of_hints` | typed values as keywords                     |
| a pydantic model              | `model_parameters.parameters_of_model` | its fields as keywords, or an instance of it |
| a JSON Schema (draft 2020-12) | `raw_schema.parameters_from_schema`    | JSON values as keywords, or one mapping     |

All three read the model's text the same way and report what does not fit in the same form, so that whoever uses a
`Parameters` need not know which one it is.
"""

from __future__ import annotations

import abc
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from phronomy_ray.canonical_json import content_hash, dumps, loads, to_json_value
from phronomy_ray.definition import schema_walk
from phronomy_ray.errors import SerializationError, safe_message
from phronomy_ray.tool_calls import ToolContext

#: How much of a refused argument text is echoed to the model, in characters.
MAX_ECHO_CHARS = 300
#: The same of one refused value.
MAX_VALUE_CHARS = 80
#: How many problems one error result lists.
MAX_PROBLEMS = 8


class ArgumentError(Exception):
    """The model's arguments do not fit the schema; the message is short and says where, for the model to correct."""


@dataclass(frozen=True, slots=True)
class Parameters(abc.ABC):
    """The parameters of one tool. Immutable; may be shared and pickled by value."""

    #: JSON Schema (draft 2020-12) of the argument object, as the model is shown it.
    schema: dict[str, Any]
    #: Name of the parameter that takes the `ToolContext`, if any; no argument of the model may have it.
    context_parameter: str | None = None
    #: Canonical text of the schema, and its hash.
    text: str = field(init=False, default="", repr=False)
    hash: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", dumps(self.schema))
        object.__setattr__(self, "hash", content_hash(self.text))

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters and of all fields inside them, as the model writes them."""
        return schema_walk.property_names(self.schema)

    def decode(self, raw: str, *, coerce: bool = False) -> dict[str, Any]:
        """The argument object of a call as plain validated JSON: what is approved, journaled and run.

        Empty text means no arguments. Text that holds JSON is decoded, at any depth, only where the schema says
        object or list and nothing else; text fields are never touched. A number without a fraction is an integer.
        With `coerce`, what does not fit is read as the wanted type where that can be done without a guess.

        Raises:
            ArgumentError: broken JSON, not an object, or fields that are missing, extra or of the wrong type; also when
                the check itself fails, since a tool's validators, or a number that is too large, may raise anything.
        """
        try:
            return self._decoded(raw, coerce=coerce)
        except (ArgumentError, KeyboardInterrupt):
            raise
        except BaseException as error:  # what a model writes must never stop its agent
            raise ArgumentError(
                f"$: the arguments cannot be checked: {type(error).__name__}: {echo(safe_message(error))}"
            ) from error

    def _decoded(self, raw: str, *, coerce: bool) -> dict[str, Any]:
        arguments = self._object(raw)
        value: Any = arguments
        if schema_walk.may_need_fitting(arguments):
            value = schema_walk.fit(arguments, self.schema, self.schema)
        try:
            self.validate(value)
        except ArgumentError:
            changed = self._coerced(arguments) if coerce else None
            if changed is None:
                raise
            return changed
        return typing.cast("dict[str, Any]", value)

    @abc.abstractmethod
    def validate(self, arguments: dict[str, Any]) -> Any:
        """What the body's arguments are made of. Raises `ArgumentError` when plain JSON `arguments` do not fit."""

    @abc.abstractmethod
    def bind(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """Keyword arguments for the body, and the context where it was asked for. Raises `ArgumentError`."""

    @abc.abstractmethod
    def fitted(self, function: Callable[..., Any], *, tool: str, skip_self: bool = False) -> Self:
        """The same parameters for another body. Raises `ConfigurationError` when it cannot take them."""

    def _coerced(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """`arguments` made to fit, or ``None``."""
        value = schema_walk.fit(arguments, self.schema, self.schema, coerce=True)
        try:
            self.validate(value)
        except ArgumentError:
            return None
        return typing.cast("dict[str, Any]", value)

    def _object(self, raw: str) -> dict[str, Any]:
        if not raw.strip():
            return {}
        try:
            value: Any = to_json_value(loads(raw))
        except SerializationError as error:
            raise ArgumentError(
                f"$: the arguments are not valid JSON ({error.message}); got {echo(raw)}"
            ) from None
        if isinstance(value, str):
            value = schema_walk.decode_text(value, frozenset({"object"}))
        if not isinstance(value, dict):
            raise ArgumentError(f"$: the arguments must be a JSON object; got {echo(raw)}")
        return value


def refusal(problems: list[str]) -> ArgumentError:
    """One error for all `problems`, each ``path: text`` and told once."""
    problems = list(dict.fromkeys(problems))
    shown = "; ".join(problems[:MAX_PROBLEMS])
    more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
    return ArgumentError(shown + more)


def path_of(location: typing.Iterable[int | str]) -> str:
    """``$.steps[0].name``."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def got(value: Any, *, wants_structure: bool) -> str:
    """What a wrong value was, for the end of a problem's text; a hint where JSON was sent as text."""
    hint = ""
    if isinstance(value, str) and (value.lstrip()[:1] in ("{", "[") or wants_structure):
        hint = "; send JSON, not a string"
    return f" (got {echo(repr(value), MAX_VALUE_CHARS)}{hint})"


def echo(text: str, limit: int = MAX_ECHO_CHARS) -> str:
    """`text`, cut to `limit` characters with its length."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
