"""When an unused agent gives up its process."""

from __future__ import annotations

import pytest

from phronomy_ray.definition.placement import Dedicated
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.hosting.idle_unload import MAX_LOOK_S, MIN_LOOK_S, IdleUnload, UnloadLimits
from phronomy_ray.journal import ExecutionStatus


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def at(limits: UnloadLimits) -> tuple[Clock, IdleUnload]:
    clock = Clock()
    return clock, IdleUnload(limits, clock)


def test_an_idle_agent_goes_after_its_time() -> None:
    clock, idle = at(UnloadLimits(idle_s=10, suspended_s=2))
    clock.now += 9.9
    assert not idle.is_due(None, is_needed=False)
    clock.now += 0.1
    assert idle.is_due(None, is_needed=False)
    idle.used()
    assert not idle.is_due(None, is_needed=False)


def test_a_suspended_agent_goes_sooner_and_a_working_one_never() -> None:
    clock, idle = at(UnloadLimits(idle_s=10, suspended_s=2))
    clock.now += 2
    assert idle.is_due(ExecutionStatus.SUSPENDED, is_needed=False)
    clock.now += 1_000
    assert not idle.is_due(ExecutionStatus.ACTIVE, is_needed=False)
    assert not idle.is_due(None, is_needed=False), "it was used until now"
    clock.now += 10
    assert idle.is_due(None, is_needed=False)


def test_one_that_is_needed_stays_and_begins_anew() -> None:
    clock, idle = at(UnloadLimits(idle_s=10))
    clock.now += 50
    assert not idle.is_due(None, is_needed=True)
    clock.now += 9
    assert not idle.is_due(None, is_needed=False)
    clock.now += 1
    assert idle.is_due(None, is_needed=False)
    assert not idle.is_due(ExecutionStatus.SUSPENDED, is_needed=False), "no limit for it"


def test_how_often_it_is_looked_at() -> None:
    assert UnloadLimits().look_every_s is None
    assert UnloadLimits(idle_s=0.01).look_every_s == MIN_LOOK_S
    assert UnloadLimits(idle_s=900, suspended_s=8).look_every_s == 2
    assert UnloadLimits(idle_s=900).look_every_s == MAX_LOOK_S


@pytest.mark.parametrize("name", ["idle_unload_after_s", "suspended_unload_after_s"])
@pytest.mark.parametrize("value", [0, -1, True, "1", float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Dedicated(**{name: value})  # type: ignore[arg-type]
    assert getattr(Dedicated(**{name: None}), name) is None  # type: ignore[arg-type]
