"""Scopes: agents that are woken for a piece of work are unloaded at its end. No Ray is started."""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session
from ray_testbed import effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S

from phronomy_ray import InProcess, Runtime
from phronomy_ray.errors import (
    AgentBusyError,
    ConfigurationError,
    EventLoopReentrancyError,
    ScopeCleanupError,
)
from phronomy_ray.runtime.scope import Scope

Names = Callable[[str], str]


@pytest.fixture
def runtime(sqlite_template: Path, tmp_path: Path) -> Iterator[Runtime]:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    with Runtime(placement=InProcess(), store=f"sqlite:///{tmp_path}/agents.db") as made:
        yield made


@pytest.fixture
def new_id() -> Names:
    return ray_testbed.session.fresh_name


def work(scope: Scope, agent_id: str, gate: str) -> None:
    """Have a new agent work until the gate is opened."""
    agent = scope.create(Puppet, agent_id)
    agent.start(turn([("linger", {"gate": gate})]), execution_id=f"ex-{agent_id}")
    effects.until_recorded(agent_id, "linger")


def test_what_it_has_woken_is_unloaded_and_nothing_else(runtime: Runtime, new_id: Names) -> None:
    live, asleep, made = new_id("live"), new_id("asleep"), new_id("made")
    runtime.create(Puppet, live)
    runtime.create(Puppet, asleep).unload()
    with runtime.scope() as scope:
        assert scope.load(Puppet, live).invoke("a").output == "you said: a"
        handle = scope.agent(asleep)
        assert runtime.get(asleep) is None, "a handle wakes nobody"
        assert handle.invoke("b").output == "you said: b"
        scope.load_or_create(Puppet, made)
        assert scope.woken == (asleep, made)
    assert runtime.get(live) is not None
    assert runtime.get(asleep) is None
    assert runtime.get(made) is None
    assert handle.invoke("c").output == "you said: c", "the handle goes on working, and wakes the agent"


async def test_the_async_form(runtime: Runtime, new_id: Names) -> None:
    name = new_id("made")
    async with runtime.scope() as scope:
        await (await scope.create_async(Puppet, name)).invoke_async("a")
    assert await runtime.get_async(name) is None
    with pytest.raises(EventLoopReentrancyError):
        runtime.scope().__enter__()


def test_an_agent_that_waits_for_a_human_is_unloaded_and_keeps_waiting(
    runtime: Runtime, new_id: Names
) -> None:
    name = new_id("made")
    with runtime.scope() as scope:
        result = scope.create(Puppet, name).invoke(turn([("send", {"text": "x"})]))
    assert runtime.get(name) is None
    assert runtime.observe(result.execution_id).is_suspended


def test_scopes_stand_in_each_other(runtime: Runtime, new_id: Names) -> None:
    outer_name, inner_name = new_id("outer"), new_id("inner")
    with runtime.scope() as outer:
        outer.create(Puppet, outer_name)
        with runtime.scope() as inner:
            inner.load(Puppet, outer_name)
            inner.create(Puppet, inner_name)
        assert runtime.get(outer_name) is not None, "the inner scope has not woken it"
        assert runtime.get(inner_name) is None
    assert runtime.get(outer_name) is None


def test_what_cannot_be_unloaded_is_told_together(runtime: Runtime, new_id: Names) -> None:
    busy, idle, gate = new_id("busy"), new_id("idle"), new_id("gate")

    def leave_one_working() -> None:
        with runtime.scope() as scope:
            work(scope, busy, gate)
            scope.create(Puppet, idle)

    with pytest.raises(ScopeCleanupError) as caught:
        leave_one_working()
    assert list(caught.value.failures) == [busy]
    assert caught.value.failures[busy].code == AgentBusyError.default_code
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.code, copied.failures) == ("scope_cleanup", caught.value.failures)
    assert runtime.get(idle) is None
    effects.open_gate(gate)
    runtime.execution(f"ex-{busy}").result(timeout=PATIENCE_S)


def test_an_error_of_the_body_is_not_lost(runtime: Runtime, new_id: Names) -> None:
    busy, gate = new_id("busy"), new_id("gate")
    scope = runtime.scope()

    def fail() -> None:
        with scope:
            work(scope, busy, gate)
            raise ValueError("the body's")

    with pytest.raises(ValueError, match="the body's") as caught:
        fail()
    assert scope.cleanup_error is not None
    assert any(busy in note for note in caught.value.__notes__)
    effects.open_gate(gate)
    runtime.execution(f"ex-{busy}").result(timeout=PATIENCE_S)


def test_a_scope_gives_agents_only_while_it_is_open(runtime: Runtime, new_id: Names) -> None:
    scope = runtime.scope()
    with pytest.raises(ConfigurationError):
        scope.agent(new_id("x"))
    with scope, pytest.raises(ConfigurationError):
        scope.__enter__()
    with pytest.raises(ConfigurationError):
        scope.agent(new_id("x"))
