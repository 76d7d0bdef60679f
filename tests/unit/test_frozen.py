"""Copies of frozen values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from phronomy_ray.commits import Commit, Hydration
from phronomy_ray.frozen import replace
from phronomy_ray.journal import AgentRoot, ExecutionRow, ToolCallRow
from phronomy_ray.testing import store_samples as samples


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2


@dataclass(frozen=True, slots=True)
class Named(Point):
    name: str = ""


@dataclass(frozen=True, slots=True)
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("negative")


@dataclass(frozen=True)
class WithoutSlots:
    x: int
    tags: dict[str, int] = field(default_factory=dict)


def test_it_copies_as_the_standard_one() -> None:
    values: list[tuple[Any, dict[str, Any]]] = [
        (Point(1), {"x": 3}),
        (Point(1), {}),
        (Named(1, 2, "n"), {"y": 5, "name": "m"}),
        (WithoutSlots(1, {"a": 1}), {"x": 2}),
        (samples.execution("e", "a"), {"revision": 7, "state": {}}),
        (samples.tool_call("e", "a"), {"attempt": 3}),
    ]
    for value, changes in values:
        found = replace(value, **changes)
        assert found == dataclasses.replace(value, **changes)
        assert type(found) is type(value)
        assert found is not value
    assert Point(1) == values[0][0], "the original is as it was"


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="'z'"):
        replace(Point(1), z=3)  # type: ignore[call-arg]


def test_a_class_that_checks_itself_still_does() -> None:
    assert replace(Positive(1), n=2) == Positive(2)
    with pytest.raises(ValueError, match="negative"):
        replace(Positive(1), n=-2)


@pytest.mark.parametrize("cls", [Commit, Hydration, AgentRoot, ExecutionRow, ToolCallRow])
def test_the_values_of_the_hot_path_can_be_copied_fast(cls: type) -> None:
    assert not hasattr(cls, "__post_init__")
    assert not hasattr(cls, "__dict__") or "__slots__" in vars(cls)
