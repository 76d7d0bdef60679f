"""The whole suite as two pytest runs side by side, each with a Ray cluster of its own, since tests on Ray mostly wait.

``python tests/two_runs.py [pytest arguments]``; with paths among the arguments it is one ordinary run. The output of the
second run is shown when the first has ended; the exit code is the worse of the two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
#: What the first run has.
FIRST = (
    "actors",
    "cli",
    "mcp/test_agents.py",
    "mcp/test_child.py",
    "unit/models",
    "contract/test_cluster_yaml.py",
)
#: What the second run has on Ray, behind everything else.
LAST = ("chaos", "cluster")


def main(arguments: list[str]) -> int:
    """Run, and return the exit code."""
    # Hundreds of processes import the package, one for every agent: without byte code each compiles it anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    pytest = [sys.executable, "-m", "pytest", "-q", *arguments]
    if any("tests/" in argument or argument == "tests" for argument in arguments):
        return subprocess.call(pytest)
    first_paths = [str(HERE / name) for name in FIRST]
    last_paths = [str(HERE / name) for name in LAST]
    others = sorted(
        str(path)
        for path in HERE.iterdir()
        if path.is_dir() and path.name not in (*FIRST, *LAST) and not path.name.startswith((".", "__"))
    )
    with tempfile.TemporaryFile("w+") as kept:
        cache = ["-o", "cache_dir=.pytest_cache/second"]
        rest = subprocess.Popen(
            [*pytest, *cache, *others, *last_paths, *(f"--ignore={path}" for path in first_paths)],
            stdout=kept,
            stderr=subprocess.STDOUT,
        )
        first = subprocess.Popen([*pytest, *first_paths], stdout=subprocess.PIPE, text=True)
        assert first.stdout is not None
        closing = ""
        for line in first.stdout:
            print(line, end="", flush=True)
            closing = line.strip() or closing
        first.wait()
        rest.wait()
        kept.seek(0)
        text = kept.read()
    print(text, flush=True)
    lines = text.strip().splitlines() or [""]
    print(f"first run:  {closing}\nsecond run: {lines[-1]}", flush=True)
    return max(abs(first.returncode), abs(rest.returncode))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
