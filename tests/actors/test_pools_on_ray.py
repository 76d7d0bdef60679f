"""Pools on real Ray: every execution mode, bounds, and bodies that nothing but a kill can end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_testbed import effects
from ray_testbed.agents import Puppet, Swimmer, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench, in_background

from phronomy_ray import AgentHandle, RunResult
from phronomy_ray.errors import CancellationError
from phronomy_ray.journal import ExecutionStatus, ToolCallRow
from phronomy_ray.testing import processes
from phronomy_ray.tools.pool_config import PoolConfig

NARROW = PoolConfig(max_running=2, max_workers=2, max_queued=4, stuck_grace_s=0.5)
AMOUNTS = itertools.count(1)


@pytest.fixture
def swimmer(shared_bench: Bench, connected: str, new_id: Callable[[str], str]) -> AgentHandle:
    """An idle agent of this module; a new one when the last test left it busy."""
    known: list[AgentHandle] = shared_bench.__dict__.setdefault("swimmers", [])
    if not known or known[-1].status()["execution_id"] is not None:
        runtime = shared_bench.runtime(pools={"narrow": NARROW})
        known.append(runtime.create(Swimmer, new_id("swimmer")))
    return known[-1]


def answers(result: RunResult) -> list[str]:
    return [str(message.content) for message in result.messages if message.role == "tool"]


def ledger(bench: Bench, result: RunResult) -> list[ToolCallRow]:
    return bench.runtime().store.tool_calls(result.execution_id)


def pool_metrics(name: str) -> dict[str, Any]:
    found: dict[str, Any] = ray.get(ray.get_actor(f"pool:{name}", namespace="phronomy").metrics.remote())
    return found


# --- modes ------------------------------------------------------------------------------------------------------


def test_work_for_the_cpu_gets_processes_of_its_own(swimmer: AgentHandle) -> None:
    result = swimmer.invoke(
        turn([("count_primes", {"limit": 500 + n}) for n in range(4)]), timeout=PATIENCE_S
    )
    assert answers(result) == ["95", "95", "95", "95"]
    pids = {item["pid"] for item in recorded(swimmer.agent_id, "count_primes")}
    assert swimmer.status()["pid"] not in pids


def test_a_runaway_computation_is_killed_at_its_timeout_and_the_pool_goes_on(
    swimmer: AgentHandle, shared_bench: Bench
) -> None:
    result = swimmer.invoke(
        turn([("run_away", {}), ("count_primes", {"limit": 10})], [("note", {"text": "after"})]),
        timeout=PATIENCE_S,
    )
    rows = ledger(shared_bench, result)
    assert [row.status for row in rows] == ["timed_out", "succeeded", "succeeded"]
    [begun] = recorded(swimmer.agent_id, "run_away")
    assert not processes.wait_dead([begun["pid"]], timeout_s=PATIENCE_S)


def test_a_program_is_the_result_and_ends_when_its_call_is_cancelled(
    swimmer: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str]
) -> None:
    result = swimmer.invoke(turn([("program", {"name": new_id("p"), "seconds": 0})]), timeout=PATIENCE_S)
    [row] = ledger(shared_bench, result)
    assert isinstance(row.result, dict)
    assert (row.result["exit_code"], row.result["stdout"]) == (0, "begun\n")
    name = new_id("p")
    handle = swimmer.start(turn([("program", {"name": name, "seconds": 300})]))
    pid = program_pid(name)
    handle.cancel(reason="enough")
    with pytest.raises(CancellationError):
        handle.result(PATIENCE_S)
    [row] = ledger(shared_bench, handle.view())
    assert row.status == "cancelled"
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)


def test_a_program_dies_with_its_worker(
    swimmer: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str]
) -> None:
    name = new_id("p")
    handle = swimmer.start(turn([("program", {"name": name, "seconds": 300})]))
    pid = program_pid(name)
    [begun] = recorded(swimmer.agent_id, "program", name=name)
    os.kill(begun["pid"], signal.SIGKILL)
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    assert [call.tool_name for call in handle.wait("suspended", PATIENCE_S).unresolved] == ["program"]
    [call] = handle.view().unresolved
    swimmer.resolve(handle.execution_id, call.tool_call_id, "succeeded", result="it ended")
    assert answers(handle.result(PATIENCE_S)) == ["it ended"]


def program_pid(name: str) -> int:
    path: Path = effects.folder() / f"{name}.pid"
    effects.until(lambda: path.exists() and path.read_text(), f"program {name} to begin")
    return int(path.read_text())


# --- field cases ------------------------------------------------------------------------------------------------


def test_T10_whatever_bodies_do_to_their_process_their_siblings_are_kept(
    swimmer: AgentHandle, shared_bench: Bench
) -> None:
    before = swimmer.status()["pid"]
    amount = next(AMOUNTS)
    batch: list[tuple[str, dict[str, Any]]] = [
        ("die", {"how": "exit"}),
        ("die", {"how": "kill"}),
        ("wire", {"amount": amount}),
        ("note", {"text": "sibling"}),
        *[("fail_on_loop", {"how": how}) for how in ("exit", "interrupt", "bare")],
    ]
    handle = swimmer.start(turn(batch))
    result = handle.wait("suspended", PATIENCE_S)
    assert [row.status for row in ledger(shared_bench, result)] == [
        "unknown",
        "unknown",
        "succeeded",
        "succeeded",
        "failed",
        "failed",
        "failed",
    ]
    assert len(recorded(swimmer.agent_id, "wire", amount=amount)) == 1
    for call in result.unresolved:
        swimmer.resolve(handle.execution_id, call.tool_call_id, "succeeded", result="it happened")
    assert handle.result(PATIENCE_S).output == "done"
    assert swimmer.status()["pid"] == before


def test_T16_sync_tools_run_side_by_side_and_their_agent_answers(swimmer: AgentHandle) -> None:
    swimmer.invoke(turn([("note", {"text": "warm"})]), timeout=PATIENCE_S)
    begun = time.monotonic()
    running = in_background(
        lambda: swimmer.invoke(turn([("nap", {"seconds": 3}) for _ in range(3)]), timeout=PATIENCE_S)
    )
    answered_s = []
    while not running.done():
        asked = time.monotonic()
        swimmer.status()
        answered_s.append(time.monotonic() - asked)
        time.sleep(0.05)  # the poll of the field case
    assert answers(running.result()) == ["slept"] * 3
    assert time.monotonic() - begun < 6, "three naps of 3 s, one after the other, take 9"
    assert len(answered_s) >= 10
    assert sorted(answered_s)[len(answered_s) // 2] < 0.1
    assert max(answered_s) < 2, "the agent did not answer while a tool slept"


def test_T20_a_call_keeps_its_key_over_attempts_and_crashes(
    swimmer: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str]
) -> None:
    gate, first, second = new_id("gate"), next(AMOUNTS), next(AMOUNTS)
    batch = [("charge", {"amount": first, "gate": gate}), ("charge", {"amount": second, "gate": gate})]
    handle = swimmer.start(turn(batch))
    until_recorded(swimmer.agent_id, "charge", 2, amount=first)
    [_, worker] = until_recorded(swimmer.agent_id, "charge", 2, amount=second)
    os.kill(swimmer.status()["pid"], signal.SIGKILL)  # a new owner attaches
    os.kill(worker["pid"], signal.SIGKILL)  # and its calls run again elsewhere
    until_recorded(swimmer.agent_id, "charge", 3, amount=first)
    effects.open_gate(gate)
    assert answers(handle.result(PATIENCE_S)) == [f"charged {first}", f"charged {second}"]
    keys = [{item["key"] for item in recorded(swimmer.agent_id, "charge", amount=a)} for a in (first, second)]
    assert [len(found) for found in keys] == [1, 1], "one key for all attempts of a call"
    assert keys[0] != keys[1], "and another one for another call"


def test_T23_bodies_that_cannot_be_interrupted_do_not_use_up_their_pool(
    swimmer: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str]
) -> None:
    batch = [("clutch", {"name": f"c{number}"}) for number in range(4)]
    result = swimmer.invoke(turn(batch, [("nimble", {"text": "quick"})]), timeout=PATIENCE_S)
    assert [row.status for row in ledger(shared_bench, result)] == ["timed_out"] * 4 + ["succeeded"]
    begun = recorded(
        swimmer.agent_id, "clutch"
    )  # one whose process another one holds may not have got that far
    names = [item["name"] for item in begun]
    assert sorted(set(names)) == sorted(names), "no second attempt beside the first"
    pids = [item["pid"] for item in begun]
    assert not processes.wait_dead(pids, timeout_s=PATIENCE_S), "stuck workers are killed"
    effects.until(lambda: pool_metrics("narrow")["abandoned"] == 0, "the pool to be quiet")

    gate = new_id("gate")
    result = swimmer.invoke(turn([("slow_twice", {"gate": gate})]), timeout=PATIENCE_S)
    effects.open_gate(gate)
    assert [row.status for row in ledger(shared_bench, result)] == ["timed_out"]
    assert len(recorded(swimmer.agent_id, "slow_twice")) == 1, "a retry beside the first attempt"


def test_T23_a_cancellation_that_is_waited_for_returns_when_all_is_quiet(
    swimmer: AgentHandle, shared_bench: Bench
) -> None:
    handle = swimmer.start(turn([("clutch", {"name": "held"}), ("nap", {"seconds": 0.5})]))
    [begun] = until_recorded(swimmer.agent_id, "clutch", name="held")
    handle.cancel(reason="stop")
    result = handle.wait(timeout=PATIENCE_S)
    assert result.status is ExecutionStatus.CANCELLED
    for name in ("narrow", "default"):
        effects.until(
            lambda name=name: (
                not ray.get(  # type: ignore[misc]
                    ray.get_actor(f"pool:{name}", namespace="phronomy").running.remote(handle.execution_id)
                )
            ),
            f"pool {name} to be quiet",
        )
    assert not processes.wait_dead([begun["pid"]], timeout_s=PATIENCE_S)
    assert swimmer.invoke("next", timeout=PATIENCE_S).output == "you said: next"


@pytest.mark.parametrize("tool_name", ["nap", "linger"])
def test_R10_a_cancellation_right_after_the_start_is_never_lost(
    swimmer: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str], tool_name: str
) -> None:
    arguments = {"seconds": 0.2} if tool_name == "nap" else {"gate": new_id("gate")}
    for number in range(8):
        handle = swimmer.start(turn([(tool_name, arguments)]))
        time.sleep(number / 4000)  # 0 to 2 ms, as in the field case
        handle.cancel(reason="at once")
        result = handle.wait(timeout=PATIENCE_S)
        assert result.status is ExecutionStatus.CANCELLED
        for row in ledger(shared_bench, result):
            assert row.status in ("not_performed", "cancelled", "succeeded", "unknown")
    assert swimmer.invoke("next", timeout=PATIENCE_S).output == "you said: next"


# --- bounds -----------------------------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_is_refused_whole_and_the_pool_works_afterwards(
    swimmer: AgentHandle, shared_bench: Bench
) -> None:
    result = swimmer.start(turn([("nimble", {"text": str(n)}) for n in range(7)]))
    with pytest.raises(Exception, match="a batch of 7 calls never fits into pool 'narrow', which takes 6"):
        result.result(PATIENCE_S)
    rows = ledger(shared_bench, result.view())
    assert {row.status.value for row in rows} == {"failed"}
    assert {(row.error or {})["code"] for row in rows} == {"backpressure"}
    fits = swimmer.invoke(turn([("nimble", {"text": str(n)}) for n in range(6)]), timeout=PATIENCE_S)
    assert answers(fits) == [str(n) for n in range(6)]
    assert pool_metrics("narrow")["rejected_total"] >= 7


def test_processes_that_are_told_to_end_do_so_and_hold_up_no_later_call(swimmer: AgentHandle) -> None:
    swimmer.invoke(turn([("note", {"text": "before"})]), timeout=PATIENCE_S)
    worker = recorded(swimmer.agent_id, "note", text="before")[-1]["pid"]
    for name, pid in (("a worker", worker), ("the pool", pool_metrics("default")["pid"])):
        os.kill(pid, signal.SIGTERM)
        effects.until(lambda pid=pid: not processes.is_alive(pid), f"the end of {name}", timeout_s=20)
        result = swimmer.invoke(turn([("note", {"text": f"after {name}"})]), timeout=PATIENCE_S)
        assert answers(result) == [f"noted after {name}"]


# --- one agent among others -------------------------------------------------------------------------------------


def test_an_agent_that_is_stopped_holds_up_nobody_else(
    swimmer: AgentHandle, bench: Bench, new_id: Callable[[str], str]
) -> None:
    """Its result waits for it in the pool; the other agents of the pool do not."""
    # in a store of its own: it may be stopped with a transaction in hand, and SQLite has one writer
    silent = bench.runtime().create(Puppet, new_id("silent"))
    gate = new_id("gate")
    handle = silent.start(turn([("hold", {"gate": gate}), ("note", {"text": "mine"})]))
    [begun] = until_recorded(silent.agent_id, "hold")
    with stopped(silent.status()["pid"]):
        effects.open_gate(gate)
        pool = ray.get_actor("pool:default", namespace="phronomy")
        effects.until(
            lambda: not ray.get(pool.running.remote(handle.execution_id), timeout=PATIENCE_S), "the results"
        )
        for text in ("one", "two"):
            result = swimmer.invoke(turn([("note", {"text": text})]), timeout=PATIENCE_S)
            assert answers(result) == [f"noted {text}"]
    assert answers(handle.result(PATIENCE_S)) == ["held", "noted mine"]
    assert [item["pid"] for item in recorded(silent.agent_id, "hold")] == [begun["pid"]], "nothing ran twice"


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing, and is not dead either."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
