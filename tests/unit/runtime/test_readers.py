"""Readers of events that stop, are slow, come late or outlive the owner: played with agents in the driver's own process."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the environment that agents are declared with
from ray_testbed import effects
from ray_testbed.agents import Puppet, asked, turn
from ray_testbed.effects import PATIENCE_S, recorded
from ray_testbed.fixtures import in_background
from ray_testbed.session import fresh_name

from phronomy_ray import Event, ExecutionHandle, InProcess, Runtime

WORDS = 10_000
#: Durable events of a turn of `talk`: its start, two of each of the calls, its end.
CALLS = 8


@pytest.fixture
def url(sqlite_template: Path, tmp_path: Path) -> str:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    return f"sqlite:///{tmp_path / 'agents.db'}"


@pytest.fixture
def runtime(url: str) -> Iterator[Runtime]:
    with Runtime(placement=InProcess(), store=url) as made:
        yield made


def talk(gate: str) -> str:
    """Some calls, a gate, and an answer of very many words."""
    batches = [[("note", {"text": str(number)})] for number in range(CALLS)]
    return turn(*batches, answer="word " * WORDS, model_gates={2: gate})


def durable(events: list[Event]) -> list[int]:
    return [event.seq for event in events if event.durable]


def text(events: list[Event]) -> str:
    return "".join(event.payload["text"] for event in events if event.type == "token")


def test_R16_a_reader_that_stops_or_is_slow_holds_up_nothing_and_loses_nothing_durable(
    runtime: Runtime,
) -> None:
    gate = fresh_name("gate")
    handle = runtime.create(Puppet, fresh_name("talker")).start(talk(gate), stream=True)
    stopped = handle.events()
    first = list(islice(stopped, 3))
    slow_may_go_on = threading.Event()

    def read_slowly() -> list[Event]:
        seen = []
        for event in handle.events():
            seen.append(event)
            if not slow_may_go_on.is_set() and len(seen) == 2:
                assert slow_may_go_on.wait(PATIENCE_S)
        return seen

    slow = in_background(read_slowly)
    quick = in_background(lambda: list(handle.events()))
    effects.open_gate(gate)
    result = handle.result(timeout=PATIENCE_S)
    assert not slow.done(), "the execution has ended before its slow reader"
    assert result.output == "word " * WORDS
    slow_may_go_on.set()
    whole = [row.seq for row in runtime.store.events(handle.execution_id)]
    assert whole == list(range(1, len(whole) + 1))
    late = list(handle.events())
    for seen in (quick.result(PATIENCE_S), slow.result(PATIENCE_S), late, first + list(stopped)):
        assert durable(seen) == whole, "each has every one of them, once and in order"
        assert text(seen) in (result.output, ""), "and the live text whole, as long as it is kept at all"
    middle = whole[len(whole) // 2]
    assert durable(list(handle.events(after=middle))) == whole[middle:]


def test_R17_a_reader_goes_on_at_the_next_owner_and_no_effect_is_repeated_for_it(
    runtime: Runtime, url: str
) -> None:
    """An owner is lost in the middle of a stream whose events have effects behind them."""
    gate = fresh_name("gate")
    amounts = list(range(1, 7))
    script = turn(*[[("pay", {"amount": amount})] for amount in amounts], model_gates={3: gate})
    agent = runtime.create(Puppet, fresh_name("payer"))
    handle = agent.start(script, stream=True)
    stream = handle.events()
    seen = list(islice(stream, 4))
    effects.until(lambda: len(asked(agent.agent_id)) == 3, "the third model call")
    assert len(recorded(agent.agent_id, "pay")) == 2
    with Runtime(placement=InProcess(), store=url) as second:
        taken = second.load(Puppet, agent.agent_id)  # the first owner's commits are refused from now on
        effects.open_gate(gate)
        other: ExecutionHandle = taken.execution(handle.execution_id)
        assert other.result(timeout=PATIENCE_S).output == "done"
        rest = list(other.events(after=max(durable(seen))))
        whole = [row.seq for row in second.store.events(handle.execution_id)]
    assert durable(seen) + durable(rest) == whole
    assert durable(seen + list(stream)) == whole, (
        "the first reader went on as well, and was told nothing twice"
    )
    assert [entry["amount"] for entry in recorded(agent.agent_id, "pay")] == amounts
    assert [event.type for event in rest].count("recovered") == 1
