"""The ledger's checker notices a false claim: otherwise a green ledger says nothing."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CASE = {"area": "loop", "priority": "P0", "issue": "core", "title": "a fault"}


def check(
    ledger: ModuleType, folder: Path, source: str, *, required: bool = False, **claims: object
) -> tuple[str, str]:
    """State of case Z01 and the problems found, for tests with this source."""
    tests = folder / "tests"
    tests.mkdir()
    (tests / "test_it.py").write_text(source)
    found = ledger.find_tests(tests, folder / "no-suites", folder)
    cases = [ledger.Case(id="Z01", **CASE, **claims)]
    rows, problems = ledger.compare(cases, frozenset({"core"} if required else ()), found)
    return rows[0].state.value, "\n".join(problems)


def test_the_ledger_of_this_repository_holds(ledger: ModuleType, all_tests: list[Any]) -> None:
    cases, required_issues = ledger.read_ledger()
    _, problems = ledger.compare(cases, required_issues, all_tests)
    assert problems == []
    assert len(cases) == 95


def test_a_running_test_covers(ledger: ModuleType, tmp_path: Path) -> None:
    assert check(ledger, tmp_path, "def test_Z01_x(): assert 1", required=True) == ("covered", "")


def test_a_method_covers(ledger: ModuleType, tmp_path: Path) -> None:
    assert check(ledger, tmp_path, "class TestX:\n  async def test_Z01_x(self): assert 1") == ("covered", "")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("@pytest.mark.skip\ndef test_Z01_x(): assert 1", "is marked skip"),
        ("@pytest.mark.skipif(True, reason='')\ndef test_Z01_x(): assert 1", "is marked skipif"),
        ("@pytest.mark.xfail(strict=True)\ndef test_Z01_x(): assert 1", "is marked xfail"),
        ("pytestmark = [pytest.mark.skip]\ndef test_Z01_x(): assert 1", "is marked skip"),
        ("@pytest.mark.skip\nclass TestX:\n  def test_Z01_x(self): assert 1", "is marked skip"),
        ("def test_Z01_x():\n  pytest.skip('later')", "uses pytest.skip"),
        (
            "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.xfail)])\ndef test_Z01_x(a): assert a",
            "xfail",
        ),
        ("def test_Z01_x():\n  'says much'", "has an empty body"),
        ("def test_Z01_x(): ...", "has an empty body"),
        ("def test_Z99_x(): assert 1", "Z99 is not in the ledger"),
        ("def test_z01_x(): assert 1", "write the id as Z01"),
    ],
)
def test_a_claim_that_shows_nothing_is_a_problem(
    ledger: ModuleType, tmp_path: Path, source: str, problem: str
) -> None:
    state, problems = check(ledger, tmp_path, source)
    assert state == "planned"
    assert problem in problems


def test_a_claimed_name_must_exist(ledger: ModuleType, tmp_path: Path) -> None:
    state, problems = check(ledger, tmp_path, "def test_other(): assert 1", tests=("test_gone",))
    assert (state, problems) == ("planned", "Z01: claims test_gone, which does not exist")


def test_a_claimed_name_covers(ledger: ModuleType, tmp_path: Path) -> None:
    assert check(ledger, tmp_path, "def test_other(): assert 1", tests=("test_other",)) == ("covered", "")


def test_a_finished_issue_needs_a_test_that_always_runs(ledger: ModuleType, tmp_path: Path) -> None:
    state, problems = check(ledger, tmp_path, "@pytest.mark.full\ndef test_Z01_x(): assert 1", required=True)
    assert state == "full size only"
    assert "which is done, but is full size only" in problems
