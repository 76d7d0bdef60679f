"""Very many interrupted executions go on at the supervisor's pace, in a real driver, and all of them end."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the environment that agents are declared with
from ray_testbed import effects
from ray_testbed.session import fresh_name

from phronomy_ray import Agent, InProcess, Runtime, SupervisionLimits
from phronomy_ray.clock import utc_now
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.models.script import ScriptRequest, Step, final
from phronomy_ray.models.scripted import ScriptedModel


async def once_open(request: ScriptRequest) -> Step:
    """Answers when the gate that the message names is open, else not in this process; nobody looks again and again."""
    if not effects.is_open(request.last_user):
        await asyncio.sleep(3600)
    return final("done")


class Stuck(Agent):
    """Is in its model call when its driver leaves."""

    model = ScriptedModel(once_open)
    definition_id = "stuck-in-a-call"


def interrupt(store: str, number: int) -> list[str]:
    """So many executions whose driver has left in the middle of their model calls; ids of the executions."""
    gate = fresh_name("gate")
    with Runtime(placement=InProcess(), store=store, supervisor=True) as runtime:
        ids = [runtime.create(Stuck, fresh_name("one")).start(gate).execution_id for _ in range(number)]
    effects.open_gate(gate)
    return ids


def recover(
    template: Path, folder: Path, *, number: int, limits: SupervisionLimits, timeout_s: float
) -> None:
    shutil.copyfile(template, folder / "agents.db")
    store = f"sqlite:///{folder / 'agents.db'}"
    ids = interrupt(store, number)
    begun = utc_now()
    with Runtime(placement=InProcess(max_live_agents=2 * number), store=store, supervisor=limits) as runtime:

        def have_ended() -> bool:
            rows = runtime.store.list_executions(limit=10_000)
            return sum(row.status is ExecutionStatus.COMPLETED for row in rows) == number

        effects.until(have_ended, "all of them to end", timeout_s=timeout_s)
        [report] = runtime.supervisor_report() or [{}]
        assert report["counts"]["wakes"] >= number
        assert report["failing"] == []
        recovered = []
        for execution_id in ids:
            events = [row for row in runtime.store.events(execution_id) if row.type == "recovered"]
            assert len(events) == 1, "whoever was woken twice was there already"
            recovered.append(events[0].created_at)
        took_s = (max(recovered) - begun).total_seconds()
        assert took_s >= (number - limits.max_wakes) / limits.wakes_per_s, "all but the first few have waited"


def test_interrupted_executions_go_on_at_a_pace(sqlite_template: Path, tmp_path: Path) -> None:
    limits = SupervisionLimits(look_every_s=0.1, max_wakes=5, wakes_per_s=20)
    recover(sqlite_template, tmp_path, number=40, limits=limits, timeout_s=60)


@pytest.mark.full
def test_a_thousand_interrupted_executions_go_on_at_a_pace(sqlite_template: Path, tmp_path: Path) -> None:
    recover(sqlite_template, tmp_path, number=1000, limits=SupervisionLimits(), timeout_s=240)
