"""Running a tool's body the way an executor does, on arguments as a model writes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from phronomy_ray.definition.tool import Tool
from phronomy_ray.tool_calls import ToolContext

CONTEXT = ToolContext("a", "ex", "tc", "key", 1)


def plain(value: Any) -> Any:
    """Models in a value as mappings."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def run(made: Tool, raw: str) -> Any:
    """What the body gives for the model's argument text, as plain values."""
    parameters = made.spec.parameters
    return plain(made.body(parameters.bind(parameters.decode(raw), CONTEXT)))
