"""Eight drivers and one agent: what they were told has one sequential order. And a checker that would notice if not."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray import InProcess, Runtime
from phronomy_ray.testing.chaos import log
from phronomy_ray.testing.chaos.admission import Answer, Kind, Model, Operation, unexplained
from phronomy_ray.testing.chaos.agents import Contested
from phronomy_ray.testing.chaos.contest import Contestant

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


class Drivers:
    """Threads that do at random to one agent what drivers do; each writes down what it was told."""

    def __init__(self, open_runtime: Callable[[], Runtime], seconds: float, seed: int) -> None:
        self._runtimes = [open_runtime() for _ in range(2)]
        self._until = time.monotonic() + seconds
        self._at_the_latest = self._until + PATIENCE_S
        self._agent_id = f"contested-{seed}"
        self._runtimes[0].create(Contested, self._agent_id)
        self._contestants = [
            Contestant(
                self._runtimes[number % 2],
                self._agent_id,
                f"{seed}/{number}",
                known=self._admitted,
                tell=lambda operation: self.history.append(operation),
            )
            for number in range(DRIVERS)
        ]
        self.history: list[Operation] = []
        self.failures: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._drive, args=(item,)) for item in self._contestants]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drive(self, contestant: Contestant) -> None:
        try:
            contestant.drive(self._goes_on)
        except BaseException as error:  # the test says so
            self.failures.append(error)

    def _admitted(self) -> list[str]:
        return [item.execution_id for item in list(self.history) if (item.kind, item.answer) == (START, DONE)]

    def _goes_on(self) -> bool:
        now = time.monotonic()
        return now < self._until or (now < self._at_the_latest and not self.answers() >= WORTH_IT)

    def answers(self) -> set[tuple[Kind, Answer]]:
        """What was asked and answered at least once."""
        return {(item.kind, item.answer) for item in list(self.history)}

    def close(self) -> None:
        for runtime in self._runtimes:
            runtime.close()


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_what_drivers_are_told_has_one_order(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Two processes' worth of owners take the agent from each other all the time, four drivers at each."""
    monkeypatch.setenv(log.FOLDER_ENV, str(tmp_path))
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
