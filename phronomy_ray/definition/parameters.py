"""One way in for the three ways to declare parameters (see `definition.schema`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phronomy_ray.definition.model_parameters import parameters_of_hints, parameters_of_model
from phronomy_ray.definition.raw_schema import parameters_from_schema
from phronomy_ray.definition.schema import Parameters
from phronomy_ray.errors import ConfigurationError


def compile_parameters(
    declared: Any, function: Callable[..., Any], *, tool: str, skip_self: bool = False
) -> Parameters:
    """The parameters of the body `function`: `declared` ones, or those of its type hints when that is ``None``.

    `declared` is a pydantic model, a JSON Schema, or `Parameters` that were made before (`parameters_from_schema`, or
    those of another tool). ``self`` is left out with `skip_self`.

    Raises:
        ConfigurationError: it is none of these, or the body cannot take it; names the tool.
    """
    if declared is None:
        return parameters_of_hints(function, tool=tool, skip_self=skip_self)
    if isinstance(declared, Parameters):
        return declared.fitted(function, tool=tool, skip_self=skip_self)
    if isinstance(declared, Mapping):
        return parameters_from_schema(declared, tool=tool).fitted(function, tool=tool, skip_self=skip_self)
    if isinstance(declared, type) and hasattr(declared, "model_json_schema"):
        return parameters_of_model(declared, function, tool=tool, skip_self=skip_self)
    raise ConfigurationError(
        f"tool {tool!r}: parameters must be a pydantic model or a JSON Schema mapping, not {declared!r}"
    )
