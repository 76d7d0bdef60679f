"""Fixtures of the delivery tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "importable"))

from delivery_lab import Post, Receiver, receiving

from phronomy_ray.delivery import plan


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture
async def post(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Post]:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    monkeypatch.setattr(plan, "FIRST_RETRY_S", 0.02)
    made = Post(tmp_path / "agents.db")
    yield made
    await made.close()
