"""Filters and hooks that agents of the tests are given by their instance or their runtime."""

from __future__ import annotations

import threading
from typing import Any

from phronomy_ray import FilterContext, LLMInputBuildContext, LLMInputPatch, block
from ray_testbed import effects


class Suffix:
    """Adds its text, and leaves an effect that says where it ran."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, value: Any, context: FilterContext) -> Any:
        effects.record(context.agent_id, f"filter-{context.site}", tool=context.tool_name)
        return f"{value}{self.text}"


def no_secret(value: Any, context: FilterContext) -> Any:
    if "secret" in str(value):
        block("a secret")
    return value


def counted(context: LLMInputBuildContext) -> LLMInputPatch:
    """Tells the model which call this is."""
    return LLMInputPatch(candidates=[f"This is call {context.call_sequence}."])


def unpicklable() -> Any:
    lock = threading.Lock()

    def filtered(value: Any, context: FilterContext) -> Any:
        with lock:
            return value

    return filtered
