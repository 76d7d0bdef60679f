"""What an installation gets is what the checkout holds, under one name."""

from __future__ import annotations

import configparser
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.contract.conftest import Distributions


@pytest.fixture(scope="module")
def wheel_files(distributions: Distributions) -> dict[str, bytes]:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}


def _checkout_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "phronomy_ray").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_unchanged(
    root: Path, wheel_files: dict[str, bytes]
) -> None:
    packaged = {name: content for name, content in wheel_files.items() if ".dist-info/" not in name}
    expected = _checkout_files(root)
    assert sorted(packaged) == sorted(expected)
    assert [name for name in expected if packaged[name] != expected[name]] == []


def test_an_installation_adds_exactly_one_import_name(wheel_files: dict[str, bytes]) -> None:
    tops = {name.split("/")[0] for name in wheel_files}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"phronomy_ray"}
    (top_level,) = [content for name, content in wheel_files.items() if name.endswith("top_level.txt")]
    assert top_level.decode().split() == ["phronomy_ray"]


def test_types_migrations_licence_and_command_are_included(wheel_files: dict[str, bytes]) -> None:
    assert "phronomy_ray/py.typed" in wheel_files
    assert any(name.startswith("phronomy_ray/store/migrations/versions/") for name in wheel_files)
    assert any(name.endswith("licenses/LICENSE") for name in wheel_files)
    (entry_points,) = [content for name, content in wheel_files.items() if name.endswith("entry_points.txt")]
    parsed = configparser.ConfigParser()
    parsed.read_string(entry_points.decode())
    assert dict(parsed["console_scripts"]) == {"phronomy": "phronomy_ray.cli:main"}


def test_the_sdist_holds_the_package_once_and_under_its_real_path(
    root: Path, distributions: Distributions
) -> None:
    with tarfile.open(distributions.sdist) as sdist:
        names = [member.name.split("/", 1)[1] for member in sdist if member.isfile()]
    assert set(_checkout_files(root)) <= set(names)
    assert not [name for name in names if name.startswith(("actors/", "store/"))]
