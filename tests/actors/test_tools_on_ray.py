"""Tools on real Ray processes: side by side, in order, and whatever a body does to its process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from ray_testbed import effects
from ray_testbed.agents import Patient, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench

from phronomy_ray import AgentHandle, RunResult
from phronomy_ray.errors import CancellationError, ToolError
from phronomy_ray.journal import ExecutionStatus, ToolCallRow, ToolCallStatus
from phronomy_ray.testing import processes

AMOUNTS = itertools.count(1)


def answers(result: RunResult) -> list[str]:
    """What the model was told by the tools, in order."""
    return [str(message.content) for message in result.messages if message.role == "tool"]


def ledger(bench: Bench, result: RunResult) -> list[ToolCallRow]:
    return bench.runtime().store.tool_calls(result.execution_id)


# --- side by side -----------------------------------------------------------------------------------------------


def test_a_batch_runs_side_by_side_and_answers_in_request_order(
    puppet: AgentHandle, new_id: Callable[[str], str]
) -> None:
    place = new_id("place")
    names = ["a", "b", "c", "d", "e"]
    batch = [("meet", {"place": place, "people": 5, "name": name}) for name in names[:3]]
    batch += [("meet_never", {"place": place, "people": 5, "name": name}) for name in names[3:]]
    result = puppet.invoke(turn(batch), timeout=PATIENCE_S)
    assert answers(result) == [f"{name} met" for name in names]
    arrivals = recorded(puppet.agent_id, "arrive", place=place)
    assert len(arrivals) == 5
    assert len({(item["pid"], item["thread"]) for item in arrivals}) == 5


def test_results_stand_in_request_order_whatever_ends_first(
    puppet: AgentHandle, new_id: Callable[[str], str]
) -> None:
    first, second = new_id("gate"), new_id("gate")
    batch = [
        ("after_gates", {"gates": [first, second], "text": "last"}),
        ("after_gates", {"gates": [first], "text": "middle"}),
        ("linger", {"gate": first}),
        ("note", {"text": "first"}),
    ]
    handle = puppet.start(turn(batch))
    seen = []
    for event in handle.events():
        if event.type == "tool_result":
            seen.append(event.payload["preview"])
            if len(seen) == 1:
                effects.open_gate(first)
            if len(seen) == 3:
                effects.open_gate(second)
    assert seen[0] == "noted first"
    assert seen[-1] == "last"
    assert answers(handle.result(PATIENCE_S)) == ["last", "middle", "lingered", "noted first"]


def test_the_owner_answers_while_blocking_tools_run(
    puppet: AgentHandle, new_id: Callable[[str], str]
) -> None:
    gate = new_id("gate")
    handle = puppet.start(turn([("hold", {"gate": gate})]))
    until_recorded(puppet.agent_id, "hold", gate=gate)
    status = puppet.status()
    assert status["execution_id"] == handle.execution_id
    assert status["phase"] == "dispatching_tools"
    effects.open_gate(gate)
    assert answers(handle.result(PATIENCE_S)) == ["held"]


# --- bodies that raise ------------------------------------------------------------------------------------------


def test_R11_whatever_a_body_raises_is_one_plain_outcome(puppet: AgentHandle, shared_bench: Bench) -> None:
    before = puppet.status()["pid"]
    kinds = {
        "exception": ("ValueError", "a wrong value"),
        "bare": ("ray_testbed.agents.Bare", "bare"),
        "exit": ("SystemExit", "3"),
        "interrupt": ("KeyboardInterrupt", ""),
        "needs_arguments": ("ray_testbed.agents.NeedsArguments", "status 7"),
        "lock": ("ray_testbed.agents.HoldsALock", "holds a lock"),
        "unspeakable": ("ray_testbed.agents.Unspeakable", "__str__ raised RuntimeError"),
        "http": ("urllib.error.HTTPError", "HTTP Error 500: broken"),
    }
    batch = [(tool, {"how": how}) for tool in ("fail", "fail_on_loop") for how in kinds]
    result = puppet.invoke(turn([*batch, ("note", {"text": "unharmed"})]), timeout=PATIENCE_S)
    assert result.output == "done"
    *failures, unharmed = ledger(shared_bench, result)
    for row, (type_name, text) in zip(failures, [*kinds.values(), *kinds.values()], strict=True):
        assert row.status is ToolCallStatus.FAILED
        assert row.error is not None
        assert row.error["type"] == type_name
        assert text in row.error["message"]
        assert str(row.model_text).startswith(f"Error ({type_name})")
    assert unharmed.status is ToolCallStatus.SUCCEEDED
    assert puppet.status()["pid"] == before


def test_a_body_that_must_not_fail_ends_the_execution_after_its_siblings(
    puppet: AgentHandle, shared_bench: Bench
) -> None:
    handle = puppet.start(turn([("break_off", {"how": "lock"}), ("note", {"text": "sibling"})]))
    with pytest.raises(ToolError, match=r"tool 'break_off' failed: .*HoldsALock: holds a lock") as caught:
        handle.result(PATIENCE_S)
    assert caught.value.details["tool_name"] == "break_off"
    statuses = [row.status for row in ledger(shared_bench, handle.view())]
    assert statuses == [ToolCallStatus.FAILED, ToolCallStatus.SUCCEEDED]
    assert puppet.invoke("still there?", timeout=PATIENCE_S).output == "you said: still there?"


# --- bodies that end their process ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_R04_a_process_that_dies_makes_one_call_unknown_and_runs_nothing_again(
    puppet: AgentHandle, shared_bench: Bench, how: str
) -> None:
    deaths = len(recorded(puppet.agent_id, "die", how=how))
    amounts = [next(AMOUNTS), next(AMOUNTS)]
    batch = [("wire", {"amount": amounts[0]}), ("die", {"how": how}), ("wire", {"amount": amounts[1]})]
    handle = puppet.start(turn(batch))
    result = handle.wait("suspended", PATIENCE_S)
    assert result.suspended
    assert [call.tool_name for call in result.unresolved] == ["die"]
    assert [row.status for row in ledger(shared_bench, result)] == ["succeeded", "unknown", "succeeded"]
    assert len(recorded(puppet.agent_id, "die", how=how)) == deaths + 1, "Ray or we ran it again"
    [call] = result.unresolved
    asked = [
        event
        for event in shared_bench.runtime().store.events(result.execution_id)
        if event.type == "resolution_required"
    ]
    assert [event.payload["tool_call_id"] for event in asked] == [call.tool_call_id]
    puppet.resolve(
        handle.execution_id,
        call.tool_call_id,
        "succeeded",
        result={"looked": "it happened"},
        expected_revision=call.execution_revision,
    )
    ended = handle.result(PATIENCE_S)
    assert answers(ended) == [f"wired {amounts[0]}", '{"looked":"it happened"}', f"wired {amounts[1]}"]
    assert len(recorded(puppet.agent_id, "die", how=how)) == deaths + 1
    assert [len(recorded(puppet.agent_id, "wire", amount=amount)) for amount in amounts] == [1, 1]


def test_a_call_that_was_not_performed_runs_again_on_a_humans_word(puppet: AgentHandle) -> None:
    deaths = len(recorded(puppet.agent_id, "die"))
    handle = puppet.start(turn([("die", {"how": "exit"})]))
    [call] = handle.wait("suspended", PATIENCE_S).unresolved
    puppet.resolve(handle.execution_id, call.tool_call_id, "not_performed")
    until_recorded(puppet.agent_id, "die", deaths + 2)
    [again] = handle.wait("suspended", PATIENCE_S).unresolved
    assert again.tool_call_id == call.tool_call_id
    assert again.execution_revision > call.execution_revision
    puppet.resolve(handle.execution_id, call.tool_call_id, "failed", error="it never works")
    with pytest.raises(ToolError, match="it never works"):
        handle.result(PATIENCE_S)
    assert len(recorded(puppet.agent_id, "die")) == deaths + 2


def test_a_safe_call_runs_again_after_its_workers_death_and_spares_its_siblings(
    puppet: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str]
) -> None:
    gate = new_id("gate")
    amount = next(AMOUNTS)
    # the replayable ones share a worker, the other one has its own; what runs again after a death goes alone
    batch = [
        ("die_first", {"times": 2, "how": "exit"}),
        ("wire", {"amount": amount}),
        ("hold", {"gate": gate}),
    ]
    handle = puppet.start(turn(batch))
    until_recorded(puppet.agent_id, "die_first", attempt=3)
    effects.open_gate(gate)
    result = handle.result(PATIENCE_S)
    assert answers(result) == ["survived attempt 3", f"wired {amount}", "held"]
    rows = ledger(shared_bench, result)
    assert [row.attempt for row in rows] == [3, 1, 2]
    assert [entry["status"] for entry in rows[0].attempts] == ["lost", "lost", "succeeded"]


def test_T10_a_call_that_kills_three_workers_has_failed(puppet: AgentHandle, shared_bench: Bench) -> None:
    result = puppet.invoke(turn([("die_first", {"times": 9, "how": "kill"})]), timeout=PATIENCE_S)
    [row] = ledger(shared_bench, result)
    assert row.status is ToolCallStatus.FAILED
    assert row.error is not None
    assert row.error["code"] == "worker_died"
    assert row.attempt == 3
    assert answers(result) == ["Error (worker_died): the process that ran the tool died 3 times"]


# --- size and time ----------------------------------------------------------------------------------------------


def test_ten_megabytes_are_kept_whole_and_shown_in_part(puppet: AgentHandle, shared_bench: Bench) -> None:
    result = puppet.invoke(turn([("big", {"characters": 10_000_000})]), timeout=PATIENCE_S)
    [row] = ledger(shared_bench, result)
    assert isinstance(row.result, str)
    assert len(row.result) == 10_000_000
    [shown] = answers(result)
    assert len(shown) < 40_000
    assert "of 10000000 characters left out" in shown
    assert shown.endswith("END.")


def test_a_blocking_body_that_takes_too_long_is_fenced_off(
    puppet: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str]
) -> None:
    gate = new_id("gate")
    batch = [("too_slow", {"gate": gate}), ("note", {"text": "in time"})]
    result = puppet.invoke(turn(batch), timeout=PATIENCE_S)
    effects.open_gate(gate)
    late, quick = ledger(shared_bench, result)
    assert late.status is ToolCallStatus.TIMED_OUT
    assert late.error is not None
    assert late.error["type"] == "ToolTimeoutError"
    assert quick.status is ToolCallStatus.SUCCEEDED
    assert answers(result)[0].startswith("Error (tool_timeout)")


# --- cancellation -----------------------------------------------------------------------------------------------


def test_a_body_that_looks_sees_the_cancellation(shared_bench: Bench, new_id: Callable[[str], str]) -> None:
    agent = shared_bench.runtime().create(Patient, new_id("patient"))
    handle = agent.start(turn([("polite", {})]))
    [begun] = until_recorded(agent.agent_id, "polite")
    handle.cancel(reason="enough")
    result = handle.wait(timeout=PATIENCE_S)
    assert result.status is ExecutionStatus.CANCELLED
    assert recorded(agent.agent_id, "polite_end")
    assert processes.is_alive(begun["pid"]), "a body that ends by itself costs no worker"
    assert agent.invoke("next", timeout=PATIENCE_S).output == "you said: next"


def test_a_body_that_does_not_stop_is_killed_and_its_outcome_unknown(
    puppet: AgentHandle, shared_bench: Bench, new_id: Callable[[str], str]
) -> None:
    gate = new_id("gate")
    batch: list[tuple[str, dict[str, Any]]] = [("note", {"text": "quick"}), ("stubborn", {"gate": gate})]
    handle = puppet.start(turn(batch))
    [begun] = until_recorded(puppet.agent_id, "stubborn")
    effects.until(
        lambda: any(row.status == "succeeded" for row in ledger(shared_bench, handle.view())),
        "the quick sibling's result to be committed",
    )
    handle.cancel(reason="too long")
    with pytest.raises(CancellationError, match="too long"):
        handle.result(PATIENCE_S)
    assert [row.status for row in ledger(shared_bench, handle.view())] == ["succeeded", "unknown"]
    assert not processes.wait_dead([begun["pid"]], timeout_s=PATIENCE_S), "the worker still runs"
    effects.open_gate(gate)
    assert puppet.invoke("next", timeout=PATIENCE_S).output == "you said: next"
    assert not recorded(puppet.agent_id, "stubborn_end")
