"""Who does the harm: what it stops goes on, what it says it harmed was harmed, and a trap without prey is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the folder of effects
from ray_testbed.effects import until

from phronomy_ray.testing.chaos import adversary, log
from phronomy_ray.testing.chaos.adversary import Adversary
from phronomy_ray.testing.chaos.agents import HUNGRY
from phronomy_ray.testing.chaos.schedule import Fault, FaultKind


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate()


def state_of(pid: int) -> str:
    """``T`` for a stopped process."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.parametrize("by_itself", [True, False])
def test_what_is_stopped_goes_on(driver: subprocess.Popen[bytes], by_itself: bool) -> None:
    harmful = Adversary(None, None, lambda: [driver])
    done = harmful.harm(Fault(0.0, FaultKind.STOP_DRIVER, 0.5, for_s=0.2 if by_itself else 60.0))
    assert str(driver.pid) in done
    until(lambda: state_of(driver.pid) == "T", "the driver to stop")
    if by_itself:
        harmful.finish()
    else:
        harmful.let_go()
    until(lambda: state_of(driver.pid) != "T", "the driver to go on")


def test_a_killed_driver_is_dead(driver: subprocess.Popen[bytes]) -> None:
    assert Adversary(None, None, lambda: [driver]).harm(Fault(0.0, FaultKind.KILL_DRIVER, 0.5))
    assert driver.poll() is not None


def test_a_trap_without_prey_is_taken_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(log.FOLDER_ENV, str(tmp_path))
    monkeypatch.setattr(adversary, "TRAP_S", 0.1)
    assert Adversary(None, None, list).harm(Fault(0.0, FaultKind.EXHAUST_MEMORY, 0.5)) == ""
    assert not log.is_marked(HUNGRY)


@pytest.mark.parametrize("kind", [FaultKind.KILL_NODE, FaultKind.KILL_GATEWAY, FaultKind.STOP_POOL])
def test_without_a_cluster_there_is_nothing_to_harm(kind: FaultKind) -> None:
    assert Adversary(None, None, list).harm(Fault(0.0, kind, 0.5)) == ""
