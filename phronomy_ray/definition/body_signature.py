"""What the signature of a tool's body says: which parameter takes the `ToolContext`, and which take arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phronomy_ray.definition.callables import fixed_arguments, target_of
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import ToolContext


@dataclass(frozen=True, slots=True)
class BodySignature:
    """The signature of one body, without ``self``, the context, and what a partial has fixed."""

    parameters: tuple[inspect.Parameter, ...]
    hints: Mapping[str, Any]
    #: Name of the parameter that takes the `ToolContext`, if any.
    context_parameter: str | None
    #: Whether it takes any keyword (``**kwargs``).
    takes_any: bool
    #: Names that no argument of the model may have: the context's, those that are fixed, and ``self``.
    reserved: frozenset[str]


def signature_of(function: Callable[..., Any], *, tool: str, skip_self: bool) -> BodySignature:
    """Read the signature of `function`.

    Raises:
        ConfigurationError: hints that cannot be resolved, positional-only or ``*args`` parameters, two contexts.
    """
    try:
        hints = typing.get_type_hints(target_of(function), include_extras=True)
        listed = list(inspect.signature(function).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise ConfigurationError(f"tool {tool!r}: type hints cannot be resolved: {error}") from error
    own = {listed[0].name} if skip_self and listed else set()
    fixed = fixed_arguments(function)
    taken: list[inspect.Parameter] = []
    context: str | None = None
    takes_any = False
    for parameter in listed[1:] if skip_self else listed:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"tool {tool!r}: parameter {parameter.name!r} is {parameter.kind.description}; "
                "a model can only give arguments by name"
            )
        if parameter.name in fixed:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif is_context(hints.get(parameter.name)):
            if context is not None:
                raise ConfigurationError(
                    f"tool {tool!r}: {parameter.name!r} is a second ToolContext parameter"
                )
            context = parameter.name
        else:
            taken.append(parameter)
    reserved = frozenset({*own, *fixed, *([context] if context else [])})
    return BodySignature(tuple(taken), hints, context, takes_any, reserved)


def is_context(hint: Any) -> bool:
    """Whether `hint` asks for the `ToolContext`, also as an optional or annotated one."""
    return hint is ToolContext or any(is_context(part) for part in typing.get_args(hint))
