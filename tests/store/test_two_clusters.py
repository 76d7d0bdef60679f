"""Two processes on one store, each a whole cluster to the other: who comes first, and who goes on when one leaves."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the environment that agents are declared with
from ray_testbed import checks, effects, local_drives, other_driver
from ray_testbed.agents import Puppet, Swimmer, turn
from ray_testbed.effects import PATIENCE_S, recorded
from ray_testbed.other_driver import OtherDriver
from ray_testbed.session import fresh_name

from phronomy_ray import InProcess, Runtime, SupervisionLimits
from phronomy_ray.errors import AgentBusyError
from phronomy_ray.journal import ExecutionRow, ExecutionStatus

#: Impatient, so that the tests are short.
LIMITS = SupervisionLimits(look_every_s=0.1, foreign_after_s=2.0, first_retry_s=0.1)


class Contested(Puppet):
    """Is taken from its owners on purpose."""

    definition_id = "contested-by-clusters"
    max_starts_without_progress = 10_000


@pytest.fixture
def url(sqlite_template: Path, tmp_path: Path) -> str:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    return f"sqlite:///{tmp_path / 'agents.db'}"


@pytest.fixture
def other() -> Iterator[OtherDriver]:
    made = other_driver.without_ray()
    yield made
    made.close()


def race(url: str, other: OtherDriver, *, rounds: int) -> None:
    """Both start the one agent at once, again and again: one is admitted, and nothing of the other gets in."""
    with Runtime(placement=InProcess(), store=url) as here:
        agent = here.create(Contested, fresh_name("shared"))
        outputs = []
        for number in range(rounds):
            gate = fresh_name("gate")
            message = turn(model_gates={1: gate}, answer=f"round {number}")
            theirs: Future[Any] = other.begin(
                local_drives.start, url, agent.agent_id, message, fresh_name("ex")
            )
            admitted = []
            try:
                admitted.append(agent.start(message).execution_id)
            except AgentBusyError:
                pass
            try:
                admitted.append(theirs.result(PATIENCE_S))
            except AgentBusyError:
                pass
            effects.open_gate(gate)
            assert len(admitted) == 1
            outputs.append(here.execution(admitted[0]).result(timeout=PATIENCE_S).output)
        assert outputs == [f"round {number}" for number in range(rounds)]
        said = [message.content for message in agent.transcript_messages()]
        assert said[1::2] == outputs
        other.run(local_drives.forget, url)
        checks.check_agent(here.store, agent.agent_id)


def roll(url: str, other: OtherDriver, *, agents: int, seed: int) -> None:
    """The other process is told to end (SIGTERM) at a random moment, while this one is up already and must not touch what it works
    on; whatever it leaves goes on here, and nobody asks for it.
    """
    chance, gate = random.Random(seed), fresh_name("gate")
    script = turn(
        [("pay", {"amount": 1})],
        [("nap", {"seconds": 0.1}), ("note", {"text": "n"})],
        [("pay", {"amount": 2})],
        [("nap", {"seconds": 0.2})],
        [("pay", {"amount": 3})],
        model_gates={2: gate},
    )
    names = [fresh_name("rolled") for _ in range(agents)]
    other.run(local_drives.open_runtime, url, LIMITS)
    other.run(local_drives.drain_on_sigterm, url, chance.uniform(0.0, 0.3))
    with Runtime(placement=InProcess(), store=url, supervisor=LIMITS) as here:
        here.start_supervisor()
        other.run(local_drives.start_many, url, Swimmer, dict.fromkeys(names, script))
        done: Callable[[], int] = lambda: sum(len(recorded(name)) for name in names)  # noqa: E731
        effects.until(lambda: done() == agents, "the first effect of each")
        moment = agents + chance.randrange(2 * agents)
        effects.open_gate(gate)
        effects.until(lambda: done() >= moment, "a random moment")
        other.terminate()
        effects.until(lambda: not other.is_alive, "the other process to end")

        def rows() -> list[ExecutionRow]:
            return [here.store.load_execution(f"ex-{name}") for name in names]

        def settled() -> bool:
            for row in rows():
                if row.status is ExecutionStatus.SUSPENDED:
                    decide(here, row)
            return all(row.status.is_terminal for row in rows())

        effects.until(settled, "everything to end")
        assert [row.status.value for row in rows()] == ["completed"] * agents
        for name in names:
            assert [entry["amount"] for entry in recorded(name, "pay")] == [1, 2, 3], "each is paid once"
            assert here.store.load_root(name).epoch <= 2, "nobody took it while its owner lived"
            checks.check_agent(here.store, name)


def decide(here: Runtime, row: ExecutionRow) -> None:
    """A payment that was under way when the process ended: the log of effects knows."""
    result = here.execution(row.execution_id).view()
    for unknown in result.unresolved:
        [wanted] = [
            call.arguments["amount"]
            for call in here.store.tool_calls(row.execution_id)
            if call.tool_call_id == unknown.tool_call_id
        ]
        paid = bool(recorded(row.agent_id, "pay", amount=wanted))
        here.agent(row.agent_id).resolve(
            row.execution_id,
            unknown.tool_call_id,
            "succeeded" if paid else "not_performed",
            **({"result": "paid"} if paid else {}),
        )


def test_L14_of_two_processes_that_start_together_one_is_admitted(url: str, other: OtherDriver) -> None:
    race(url, other, rounds=2)


@pytest.mark.full
def test_L14_of_two_processes_full_size(url: str, other: OtherDriver) -> None:
    race(url, other, rounds=100)


def test_S07_in_a_rolling_restart_each_execution_has_one_owner_at_a_time(
    url: str, other: OtherDriver
) -> None:
    roll(url, other, agents=4, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8))
def test_S07_full_size(url: str, other: OtherDriver, seed: int) -> None:
    roll(url, other, agents=20, seed=seed)
