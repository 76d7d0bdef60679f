"""Shared by the unit tests: what every prompt must hold to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from phronomy_ray.testing.prompts import check_paired


@pytest.fixture
def paired() -> Callable[[Sequence[dict[str, Any]]], None]:
    return check_paired
