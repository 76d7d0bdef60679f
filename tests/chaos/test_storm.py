"""A storm of faults over agents under load; `benchmarks/chaos.py` runs longer ones.

The everyday one has no cluster: two drivers with their agents inside are killed and stopped, and their commits are cut. What needs
a cluster of its own is a full-size test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ray_testbed import session

from phronomy_ray.testing.chaos import log
from phronomy_ray.testing.chaos.storm import StormConfig, StormReport, run_storm


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """The storm has a cluster of its own."""
    session.shared(request.config).disconnect()
    before = os.environ.get(log.FOLDER_ENV)
    yield
    if before is None:
        os.environ.pop(log.FOLDER_ENV, None)


def check(report: StormReport, *, faults: int) -> None:
    assert report.violations == []
    assert sum(report.injected.values()) >= faults, report.injected
    assert sum(report.executions.values()) >= 10, report.executions


def test_a_short_storm_over_drivers_and_their_store() -> None:
    report = run_storm(StormConfig(10.0, seed=5, postgres=True, in_process=True, mean_pause_s=1.2))
    check(report, faults=4)


@pytest.mark.full
def test_a_storm_leaves_everything_right() -> None:
    check(run_storm(StormConfig(16.0, seed=2002, hosts=1)), faults=5)


@pytest.mark.full
@pytest.mark.parametrize("postgres", [False, True], ids=["sqlite", "postgres"])
@pytest.mark.parametrize("hosts", [0, 2], ids=["dedicated", "packed"])
def test_a_storm_of_a_minute(postgres: bool, hosts: int) -> None:
    check(run_storm(StormConfig(60.0, seed=11, postgres=postgres, hosts=hosts)), faults=8)
