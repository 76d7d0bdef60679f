"""Eight drivers and one agent: what they were told has one sequential order. And a checker that would notice if not."""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the environment that agents are declared with
from ray_testbed.agents import Puppet, turn
from ray_testbed.session import fresh_name

from phronomy_ray import InProcess, Runtime
from phronomy_ray.errors import AgentBusyError, ConflictError
from phronomy_ray.testing.chaos.admission import Answer, Kind, Model, Operation, unexplained

DRIVERS = 8
#: A slow machine needs longer until everything was asked that is worth looking at, in seconds.
PATIENCE_S = 60.0

# --- the checker -------------------------------------------------------------------------------------------------


def simulate(choice: random.Random, length: int) -> list[Operation]:
    """A history that has an order: operations at one moment each, with times around it that overlap."""
    model, history = Model(), list[Operation]()
    ids = [f"e{number}" for number in range(4)]
    for moment in range(length):
        model = choice.choice(list(model.later()))
        kind = choice.choice(list(Kind))
        execution_id = "" if kind is Kind.UNLOAD else choice.choice(ids)
        if kind is Kind.START:
            execution_id = f"s{moment}"
            ids.append(execution_id)
        begun = moment - choice.random() * 6
        ended = moment + choice.random() * 6
        for answer in Answer:
            operation = Operation(kind, execution_id, answer, begun, ended)
            after = model.after(operation)
            if after is not None and not (kind is Kind.CANCEL and answer is Answer.REFUSED):
                model = after
                history.append(operation)
                break
    return history


@given(st.integers(0, 10**9), st.integers(0, 60))
def test_a_history_with_an_order_is_explained(seed: int, length: int) -> None:
    history = simulate(random.Random(seed), length)
    shuffled = random.Random(seed).sample(history, len(history))
    assert unexplained(shuffled) is None


def op(kind: Kind, execution_id: str, answer: Answer, begun: float, ended: float) -> Operation:
    return Operation(kind, execution_id, answer, begun, ended)


START, APPROVE, CANCEL, UNLOAD = Kind.START, Kind.APPROVE, Kind.CANCEL, Kind.UNLOAD
DONE, REFUSED = Answer.DONE, Answer.REFUSED


@pytest.mark.parametrize(
    ("history", "only_for_its_times"),
    [
        ([op(START, "a", DONE, 0, 1), op(START, "b", DONE, 2, 3)], False),
        ([op(START, "a", DONE, 0, 5), op(START, "b", DONE, 0, 5)], False),
        ([op(START, "a", REFUSED, 0, 1)], False),
        ([op(START, "a", DONE, 0, 1), op(CANCEL, "b", DONE, 2, 3), op(START, "b", DONE, 4, 5)], True),
        ([op(START, "a", DONE, 0, 1), op(APPROVE, "a", DONE, 2, 3), op(APPROVE, "a", REFUSED, 4, 5)], True),
        ([op(APPROVE, "a", DONE, 0, 1), op(START, "a", DONE, 2, 3)], True),
        ([op(UNLOAD, "", REFUSED, 0, 1), op(START, "a", DONE, 2, 3)], True),
    ],
)
def test_a_history_without_an_order_is_not(history: list[Operation], only_for_its_times: bool) -> None:
    assert unexplained(history) is not None
    wide = [replace(item, begun=item.begun - 10, ended=item.ended + 10) for item in history]
    assert (unexplained(wide) is None) == only_for_its_times


# --- the agent ---------------------------------------------------------------------------------------------------


#: Without these answers a history shows nothing.
WORTH_IT = {(START, DONE), (START, REFUSED), (APPROVE, DONE)}


class Contested(Puppet):
    """Is taken from its owners all the time, which is no crash loop."""

    definition_id = "contested"
    max_starts_without_progress = 10_000


class Drivers:
    """Threads that do at random to one agent what drivers do; each writes down what it was told."""

    def __init__(self, open_runtime: Callable[[], Runtime], seconds: float, seed: int) -> None:
        self._runtimes = [open_runtime() for _ in range(2)]
        self._until = time.monotonic() + seconds
        self._at_the_latest = self._until + PATIENCE_S
        self._seed = seed
        self._agent_id = fresh_name("contested")
        self._runtimes[0].create(Contested, self._agent_id)
        self._known: list[str] = []
        self.history: list[Operation] = []
        self.failures: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._drive, args=(number,)) for number in range(DRIVERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drive(self, number: int) -> None:
        choice = random.Random(f"{self._seed}/{number}")
        runtime = self._runtimes[number % 2]
        try:
            while self._goes_on():
                self._one(choice, runtime)
                time.sleep(choice.random() * 0.02)
        except BaseException as error:  # the test says so
            self.failures.append(error)

    def _goes_on(self) -> bool:
        now = time.monotonic()
        return now < self._until or (now < self._at_the_latest and not self.answers() >= WORTH_IT)

    def answers(self) -> set[tuple[Kind, Answer]]:
        """What was asked and answered at least once."""
        return {(item.kind, item.answer) for item in list(self.history)}

    def _one(self, choice: random.Random, runtime: Runtime) -> None:
        agent = runtime.agent(self._agent_id)
        kind = choice.choice([Kind.START, Kind.START, Kind.APPROVE, Kind.APPROVE, Kind.CANCEL, Kind.UNLOAD])
        execution_id = choice.choice(self._known[-3:]) if self._known else ""
        if kind is Kind.UNLOAD:
            self._told(kind, "", agent.unload)
        elif kind is Kind.START:
            execution_id = fresh_name("ex")
            message = turn([("send", {"text": execution_id})])
            if self._told(kind, execution_id, lambda: agent.start(message, execution_id=execution_id)):
                self._known.append(execution_id)
        elif execution_id and kind is Kind.CANCEL:
            self._told(kind, execution_id, lambda: agent.cancel(execution_id))
        elif execution_id:
            self._approve(runtime, execution_id)

    def _approve(self, runtime: Runtime, execution_id: str) -> None:
        requests = runtime.store.approvals(execution_id=execution_id)
        if requests:
            request_id = requests[0].approval_request_id
            self._told(Kind.APPROVE, execution_id, lambda: runtime.approve(execution_id, request_id))

    def _told(self, kind: Kind, execution_id: str, call: Callable[[], object]) -> bool:
        """Do it and write down what was answered; whether it was done."""
        begun = time.monotonic()
        answer = Answer.DONE
        try:
            if call() is False:
                return False  # there was no process here to free: it says nothing of the agent
        except (AgentBusyError, ConflictError):
            answer = Answer.REFUSED
        self.history.append(Operation(kind, execution_id, answer, begun, time.monotonic()))
        return answer is Answer.DONE

    def close(self) -> None:
        for runtime in self._runtimes:
            runtime.close()


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_what_drivers_are_told_has_one_order(sqlite_template: Path, tmp_path: Path, seconds: float) -> None:
    """Two processes' worth of owners take the agent from each other all the time, four drivers at each."""
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    drivers = Drivers(
        lambda: Runtime(placement=InProcess(), store=f"sqlite:///{tmp_path}/agents.db"), seconds, seed=3
    )
    try:
        drivers.run()
    finally:
        drivers.close()
    assert drivers.failures == []
    wrong = unexplained(drivers.history)
    assert wrong is None, f"{wrong} cannot be explained; {len(drivers.history)} operations"
    assert drivers.answers() >= WORTH_IT
