"""The repository's shape: signposts at the top, one import root below them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env import packaging

LINKS = ["actors", "store"]


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_relative_and_points_to_its_package(root: Path, name: str) -> None:
    assert (root / name).is_symlink()
    assert os.readlink(root / name) == f"phronomy_ray/{name}"
    assert (root / name / "__init__.py").samefile(root / "phronomy_ray" / name / "__init__.py")


@pytest.mark.parametrize("name", LINKS)
def test_a_link_cannot_be_imported(root: Path, name: str) -> None:
    """A second copy of every class would break isinstance and pickling without a sound."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert f"ImportError: import phronomy_ray.{name}" in done.stderr


def test_no_link_leads_out_of_the_repository(root: Path) -> None:
    skipped = {".git", ".venv"}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in skipped]
        for path in (Path(folder) / name for name in [*subfolders, *files]):
            if path.is_symlink():
                assert not os.path.isabs(os.readlink(path)), path
                assert path.resolve().is_relative_to(root), path


def test_ray_uploads_every_module_once(root: Path, tmp_path: Path) -> None:
    """Ray follows links when it packs a working_dir; `.rayignore` keeps them out."""
    package = tmp_path / "package.zip"
    packaging.create_package(str(root), package, include_gitignore=True)
    with zipfile.ZipFile(package) as archive:
        names = set(archive.namelist())
    assert "phronomy_ray/actors/__init__.py" in names
    assert {name.split("/")[0] for name in names}.isdisjoint({*LINKS, "tests", "benchmarks", ".git", ".venv"})
    assert len(names) == len({name.removeprefix("phronomy_ray/") for name in names})
