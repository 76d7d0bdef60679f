"""One build of the distributions for every contract that looks at them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

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
def ledger() -> ModuleType:
    """The checker of the ledger of field cases."""
    path = ROOT / "tests" / "field_cases.py"
    spec = importlib.util.spec_from_file_location("field_cases_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def all_tests(ledger: ModuleType) -> list[Any]:
    """Every test that this repository has, read once for all who look through them."""
    found: list[Any] = ledger.find_tests()
    return found


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
