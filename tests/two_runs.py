"""The whole suite as two pytest runs side by side: what needs a Ray cluster, which mostly waits, and the rest.

``python tests/two_runs.py [pytest arguments]``; with paths among the arguments it is one ordinary run. The output of the
second run is shown when the first has ended; the exit code is the worse of the two.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
#: Folders and files that use a cluster; they share one, so they stay in one run.
ON_RAY = ("actors", "chaos", "cluster", "cli", "contract/test_cluster_yaml.py")


def main(arguments: list[str]) -> int:
    """Run, and return the exit code."""
    pytest = [sys.executable, "-m", "pytest", "-q", *arguments]
    if any("tests/" in argument or argument == "tests" for argument in arguments):
        return subprocess.call(pytest)
    on_ray = [str(HERE / name) for name in ON_RAY]
    with tempfile.TemporaryFile("w+") as kept:
        cache = ["-o", "cache_dir=.pytest_cache/second"]
        rest = subprocess.Popen(
            [*pytest, *cache, str(HERE), *(f"--ignore={path}" for path in on_ray)],
            stdout=kept,
            stderr=subprocess.STDOUT,
        )
        first = subprocess.Popen([*pytest, *on_ray], stdout=subprocess.PIPE, text=True)
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
    print(f"on Ray:  {closing}\nthe rest: {lines[-1]}", flush=True)
    return max(abs(first.returncode), abs(rest.returncode))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
