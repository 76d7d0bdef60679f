"""Every edge case of the tool assembly has a test that runs, and every test that names one is about one that exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
CASES = TESTS / "tool_assembly_cases.toml"
NAMED = re.compile(r"^test_((?:TA\d\d_)+)")


def test_every_case_has_a_running_test_and_every_test_its_case(all_tests: list[Any]) -> None:
    cases = tomllib.loads(CASES.read_text(encoding="utf-8"))["case"]
    ids = [case["id"] for case in cases]
    assert ids == [f"TA{number:02}" for number in range(1, 84)]
    assert len({case["title"] for case in cases}) == len(cases)
    by_name: dict[str, list[object]] = {}
    named: dict[str, list[object]] = {}
    problems: list[str] = []
    for test in all_tests:
        by_name.setdefault(test.name, []).append(test)
        if found := NAMED.match(test.name):
            for id_ in found[1].strip("_").split("_"):
                named.setdefault(id_, []).append(test)
    problems += [f"{id_} is in no case" for id_ in sorted(set(named) - set(ids))]
    for case in cases:
        claimed = case.get("tests", [])
        problems += [
            f"{case['id']}: claims {name}, which does not exist" for name in claimed if name not in by_name
        ]
        tests = [*named.get(case["id"], ()), *(test for name in claimed for test in by_name.get(name, ()))]
        problems += [f"{case['id']}: {test.node_id} {test.fault}" for test in tests if test.fault]
        if not any(not test.fault and not test.full for test in tests):
            problems.append(f"{case['id']} has no test that always runs: {case['title']}")
    assert problems == []
