"""Named fault points: places around every commit and dispatch where a test can pause, fail or kill.

Production pays one ``is None`` check. A plan is a JSON file ``<directory>/<agent_id>.json``, so that it works across
processes and a kill happens once: the file is renamed before the fault acts.

```json
{"point": "after_commit:batch", "occurrence": 2, "action": "kill"}
```

Actions: ``kill`` (SIGKILL to the own process), ``pause`` (until ``<file>.release`` exists), ``fail``
(`FaultInjectedError`). Points: ``before_commit:<step>`` and ``after_commit:<step>`` for every commit step, ``before_model``,
``after_model``, ``after_authorization``, ``before_dispatch``, ``after_dispatch``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from phronomy_ray.errors import PhronomyError

FAULTS_ENV = "PHRONOMY_FAULTS_DIR"
_POLL_S = 0.02


class FaultInjectedError(PhronomyError):
    """A test asked for this failure."""

    default_code = "fault_injected"


class FaultPoints:
    """The fault points of one agent in one process."""

    def __init__(self, agent_id: str, directory: str | None = None) -> None:
        directory = directory or os.environ.get(FAULTS_ENV)
        self._file = Path(directory) / f"{quote(agent_id, safe='')}.json" if directory else None
        self._seen: Counter[str] = Counter()

    async def reach(self, point: str) -> None:
        """Act if a plan names `point` and this is its occurrence; otherwise return at once.

        Raises:
            FaultInjectedError: the plan's action is ``fail``.
        """
        if self._file is None:
            return
        self._seen[point] += 1
        plan = self._take(point)
        if plan is None:
            return
        match plan.get("action"):
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "pause":
                release = self._file.with_suffix(".release")
                while not release.exists():  # noqa: ASYNC110 - another process releases it
                    await asyncio.sleep(_POLL_S)
                release.unlink()
            case _:
                raise FaultInjectedError(f"fault injected at {point}")

    def _take(self, point: str) -> dict[str, object] | None:
        assert self._file is not None
        try:
            plan = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        if plan.get("point") != point or self._seen[point] < int(plan.get("occurrence", 1)):
            return None
        self._file.rename(self._file.with_suffix(".reached"))
        return dict(plan)


def write_plan(directory: str | Path, agent_id: str, *, point: str, action: str, occurrence: int = 1) -> Path:
    """Write the plan of one agent; returns the file that appears (``.reached``) when the fault acts."""
    file = Path(directory) / f"{quote(agent_id, safe='')}.json"
    scratch = file.with_suffix(".tmp")
    scratch.write_text(json.dumps({"point": point, "occurrence": occurrence, "action": action}))
    reached = file.with_suffix(".reached")
    reached.unlink(missing_ok=True)
    scratch.rename(file)
    return reached
