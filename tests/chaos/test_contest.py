"""Eight driver processes and one agent on a cluster of its own: what they were told has one sequential order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray_testbed import effects, session

from phronomy_ray.store.migrate import Migrations
from phronomy_ray.testing.chaos import log
from phronomy_ray.testing.chaos.admission import Answer, Kind, unexplained
from phronomy_ray.testing.chaos.contest import BEGIN, READY, ContestConfig, told
from phronomy_ray.testing.local_cluster import LocalCluster

DRIVERS = 8
SECONDS = 60.0
#: Eight drivers import everything at once.
START_S = 180.0


@pytest.mark.full
@pytest.mark.parametrize("hosts", [0, 1], ids=["dedicated", "packed"])
def test_what_driver_processes_are_told_has_one_order(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hosts: int
) -> None:
    session.shared(request.config).disconnect()
    monkeypatch.setenv(log.FOLDER_ENV, str(tmp_path))
    url = f"sqlite:///{tmp_path}/agents.db"
    Migrations(url).upgrade()
    environment = {log.FOLDER_ENV: str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    drivers: list[subprocess.Popen[bytes]] = []
    with LocalCluster(workers=1, env=environment) as cluster:
        try:
            for number in range(DRIVERS):
                config = ContestConfig(
                    cluster.address, url, "contest", hosts, "contested", f"7/{number}", SECONDS
                )
                with (tmp_path / f"driver-{number}.out").open("wb") as out:
                    drivers.append(
                        subprocess.Popen(
                            [sys.executable, "-m", "phronomy_ray.testing.chaos.contest", config.to_text()],
                            stdout=out,
                            stderr=out,
                            env={**os.environ, "RAY_AUTH_MODE": "disabled"},
                        )
                    )
            effects.until(
                lambda: len(log.entries(READY)) == DRIVERS, "all drivers to be there", timeout_s=START_S
            )
            log.mark(BEGIN)
            codes = [driver.wait(SECONDS + START_S) for driver in drivers]
        finally:
            for driver in drivers:
                driver.kill()
                driver.wait()
    failed = [number for number, code in enumerate(codes) if code]
    assert not failed, (tmp_path / f"driver-{failed[0]}.out").read_text()[-3_000:]
    history = told()
    wrong = unexplained(history)
    assert wrong is None, f"{wrong} cannot be explained; {len(history)} operations"
    answers = {(item.kind, item.answer) for item in history}
    assert {(Kind.START, Answer.DONE), (Kind.START, Answer.REFUSED), (Kind.APPROVE, Answer.DONE)} <= answers
