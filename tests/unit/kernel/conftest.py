"""The world of the property tests can be imported by its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "importable"))
pytest.register_assert_rewrite("kernel_world")
