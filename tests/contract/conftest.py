"""One build of the distributions for every contract that looks at them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Distributions:
    """What `python -m build` makes of the checkout: the wheel is built from the sdist."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built from a copy, so that neither an old egg-info nor a second run of the tests changes the outcome."""
    folder = tmp_path_factory.mktemp("distributions")
    source = folder / "source"
    shutil.copytree(
        ROOT,
        source,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".git",
            ".venv",
            "*.egg-info",
            "build",
            "dist",
            "__pycache__",
            ".*_cache",
            ".hypothesis",
            "demo-output",
        ),
    )
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return Distributions(sdist, wheel)
