"""The ledger of field cases against the tests: which case is covered by what, and where a claim is false.

Run by ``make field-cases``. Reads `field_cases.toml` beside it and the syntax trees of the tests; imports no test, so
it takes a second and works while a layer is broken.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
LEDGER = TESTS / "field_cases.toml"
#: Conformance suites that travel with the package; they count where a class below tests/ derives from them.
SHIPPED_SUITES = ROOT / "phronomy_ray" / "testing"

NAMED_AFTER_CASE = re.compile(r"^test_([A-Z]\d\d)(?:_|$)")
NEARLY_NAMED = re.compile(r"^test_([a-z]\d\d)_")
NOT_RUN_MARKS = frozenset({"skip", "skipif", "xfail"})


class State(StrEnum):
    """How far a case is covered."""

    PLANNED = "planned"
    #: Only by tests that `make test` leaves out.
    FULL_ONLY = "full size only"
    COVERED = "covered"


@dataclass(frozen=True, slots=True)
class FoundTest:
    """One test function as its source shows it."""

    #: ``path::[Class::]name``, the path relative to the repository.
    node_id: str
    name: str
    #: Marked, itself or by its class or module, as a full-size case.
    full: bool
    #: Why it does not count, empty when it does.
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the ledger."""

    id: str
    area: str
    priority: str
    issue: str
    title: str
    #: Names of functions that cover it beside those named after it.
    tests: tuple[str, ...] = ()


@dataclass(slots=True)
class Row:
    """A case with what was found for it."""

    case: Case
    tests: list[FoundTest] = field(default_factory=list)

    @property
    def state(self) -> State:
        """Computed from the tests that are there and run."""
        running = [test for test in self.tests if not test.fault]
        if not running:
            return State.PLANNED
        return State.FULL_ONLY if all(test.full for test in running) else State.COVERED


# --- reading the tests ------------------------------------------------------------------------------------------


def _marks(decorators: list[ast.expr]) -> set[str]:
    """Names of the ``pytest.mark.<name>`` that stand as decorators themselves."""
    names = set()
    for decorator in decorators:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(target, ast.Attribute) and ast.unparse(target.value).endswith("mark"):
            names.add(target.attr)
    return names


def _module_marks(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            value = node.value
            return _marks(list(value.elts) if isinstance(value, ast.List | ast.Tuple) else [value])
    return set()


def _fault(function: ast.FunctionDef | ast.AsyncFunctionDef, marks: set[str]) -> str:
    """Why the function shows nothing, empty when it runs."""
    for mark in sorted(marks & NOT_RUN_MARKS):
        return f"is marked {mark}"
    for node in ast.walk(function):
        # Also inside decorators: parametrize(..., marks=pytest.mark.skip) hides a part of the case.
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text in {"pytest.skip", "pytest.xfail", "pytest.importorskip"} or (
                node.attr in NOT_RUN_MARKS and text.startswith("pytest.mark.")
            ):
                return f"uses {text}"
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if all(isinstance(node, ast.Pass) for node in body):
        return "has an empty body"
    return ""


def _functions_of(
    tree: ast.Module,
) -> Iterator[tuple[str, list[ast.ClassDef], ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function that pytest could collect: ``(class path, classes, function)``."""

    def visit(
        body: list[ast.stmt], classes: list[ast.ClassDef]
    ) -> Iterator[tuple[str, list[ast.ClassDef], ast.FunctionDef | ast.AsyncFunctionDef]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                yield "".join(f"{cls.name}::" for cls in classes), classes, node
            elif isinstance(node, ast.ClassDef):
                yield from visit(node.body, [*classes, node])

    yield from visit(tree.body, [])


def find_tests(tests: Path = TESTS, suites: Path = SHIPPED_SUITES, root: Path = ROOT) -> list[FoundTest]:
    """Every test function below `tests`, and those of `suites` whose class is derived from there."""
    found: list[FoundTest] = []
    derived: set[str] = set()
    files = [(path, False) for path in sorted(tests.rglob("test_*.py"))]
    files += [(path, True) for path in sorted(suites.rglob("*.py"))] if suites.is_dir() else []
    for path, shipped in files:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        if not shipped:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    derived.update(ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases)
        module_marks = _module_marks(tree)
        for prefix, classes, function in _functions_of(tree):
            marks = module_marks.union(
                _marks(function.decorator_list), *(_marks(cls.decorator_list) for cls in classes)
            )
            fault = _fault(function, marks)
            if shipped and not any(cls.name in derived for cls in classes):
                fault = fault or "is in a suite that no test class derives from"
            node_id = f"{path.relative_to(root)}::{prefix}{function.name}"
            found.append(FoundTest(node_id, function.name, "full" in marks, fault))
    return found


# --- the ledger against the tests -------------------------------------------------------------------------------


def read_ledger(path: Path = LEDGER) -> tuple[list[Case], frozenset[str]]:
    """The cases in their order, and the issues whose cases must be covered."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    cases = [Case(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in document["case"]]
    return cases, frozenset(document["required_issues"])


def compare(
    cases: list[Case], required_issues: frozenset[str], found: list[FoundTest]
) -> tuple[list[Row], list[str]]:
    """A row for each case, and every false or missing claim as one sentence."""
    rows = {case.id: Row(case) for case in cases}
    problems: list[str] = []
    if len(rows) != len(cases):
        problems.append("the ledger lists an id twice")
    problems += [
        f"the ledger requires issue {issue!r}, which has no case"
        for issue in sorted(required_issues - {case.issue for case in cases})
    ]
    for test in found:
        if named := NAMED_AFTER_CASE.match(test.name):
            if named[1] in rows:
                rows[named[1]].tests.append(test)
            else:
                problems.append(f"{test.node_id}: {named[1]} is not in the ledger")
        elif (nearly := NEARLY_NAMED.match(test.name)) and nearly[1].upper() in rows:
            problems.append(f"{test.node_id}: write the id as {nearly[1].upper()}, or it does not count")
    by_name: dict[str, list[FoundTest]] = {}
    for test in found:
        by_name.setdefault(test.name, []).append(test)
    for row in rows.values():
        for name in row.case.tests:
            if name not in by_name:
                problems.append(f"{row.case.id}: claims {name}, which does not exist")
            row.tests += [test for test in by_name.get(name, ()) if test not in row.tests]
        problems += [f"{row.case.id}: {test.node_id} {test.fault}" for test in row.tests if test.fault]
        if row.case.issue in required_issues and row.state is not State.COVERED:
            problems.append(
                f"{row.case.id} belongs to {row.case.issue!r}, which is done, but is {row.state.value}"
            )
    return list(rows.values()), problems


def main() -> int:
    """Print the table; 1 when a claim is false."""
    cases, required_issues = read_ledger()
    rows, problems = compare(cases, required_issues, find_tests())
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a log has no width of its own
    table = Table(title="Field cases", title_justify="left", box=None, pad_edge=False)
    for heading in ("id", "pri", "issue", "state", "case", "tests"):
        table.add_column(heading, no_wrap=heading in {"id", "pri", "issue", "state"}, overflow="fold")
    colours = {State.COVERED: "green", State.FULL_ONLY: "yellow", State.PLANNED: "dim"}
    for row in rows:
        table.add_row(
            row.case.id,
            row.case.priority,
            row.case.issue,
            f"[{colours[row.state]}]{row.state.value}[/]",
            row.case.title,
            "\n".join(test.node_id for test in row.tests),
        )
    console.print(table)
    counts = ", ".join(f"{sum(row.state is state for row in rows)} {state.value}" for state in State)
    console.print(f"\n{len(rows)} cases: {counts}")
    for problem in problems:
        console.print(f"[red]error:[/] {problem}", highlight=False, soft_wrap=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
