"""The raw-handle API: everything that a driver can do, by ``ray.get_actor`` and plain JSON alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError
from ray_testbed import effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench, fresh_id

from phronomy_ray import Runtime
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    AgentBusyError,
    AgentUnloadedError,
    InvalidInputError,
    NotFoundError,
    PhronomyError,
    StateConflictError,
)
from phronomy_ray.ids import new_execution_id
from phronomy_ray.testing import processes


class Raw:
    """A raw handle whose answers must be plain JSON."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.handle = ray.get_actor(f"agent:{agent_id}", namespace="phronomy")

    def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        answer = ray.get(getattr(self.handle, method).remote(*arguments, **options), timeout=PATIENCE_S)
        assert json.loads(json.dumps(answer)) == answer, f"{method} answers with more than JSON"
        return answer

    def until(self, execution_id: str, until: str = "terminal") -> dict[str, Any]:
        result: dict[str, Any] = effects.until(
            lambda: self("result", execution_id, until=until, wait_s=5), f"{execution_id} to be {until}"
        )
        return result


@pytest.fixture(scope="module")
def raw_agent(shared_bench: Bench) -> str:
    return shared_bench.runtime().create(Puppet, fresh_id("raw")).agent_id


@pytest.fixture
def raw(raw_agent: str, connected: str) -> Raw:
    return Raw(raw_agent)


def test_start_events_result_and_transcript(raw: Raw) -> None:
    execution_id = new_execution_id()
    started = raw("start", execution_id, turn([("note", {"text": "raw"})]), {"user": "u1"}, stream=True)
    assert started["execution_id"] == execution_id
    assert started["status"] in ("preparing", "active")
    events: list[dict[str, Any]] = []
    cursor = None
    while not events or events[-1]["type"] != "completed":
        page = raw("events", execution_id, cursor=cursor)
        cursor = page["cursor"]
        events += page["events"]
        assert page["ended"] == (bool(page["events"]) and page["events"][-1]["type"] == "completed")
    assert [event["seq"] for event in events if event["durable"]] == [1, 2, 3, 4]
    assert "".join(event["payload"]["text"] for event in events if event["type"] == "token") == "done"
    assert raw("events", execution_id, cursor=cursor, wait_s=30) == {
        "events": [],
        "cursor": cursor,
        "ended": True,
    }
    assert raw("events", execution_id, after=4, wait_s=30)["ended"] is True
    again = raw("events", execution_id, after=2)
    assert [event["seq"] for event in again["events"] if event["durable"]] == [3, 4]
    result = raw.until(execution_id)
    assert (result["status"], result["output"], result["error"]) == ("completed", "done", None)
    assert result["messages"][2] == {"role": "tool", "content": "noted raw", "tool_call_id": "call_t1m1_0"}
    records = raw("transcript")
    assert [record["position"] for record in records] == list(range(1, len(records) + 1))
    assert raw("transcript", after=2, limit=1) == records[2:3]
    assert {record["execution_id"] for record in records} == {execution_id}
    assert raw("resume", execution_id) == result


def test_invoke_waits_for_the_end_or_a_human(raw: Raw) -> None:
    assert raw("invoke", "hello")["output"] == "you said: hello"
    mine = new_execution_id()
    held = raw("invoke", turn([("send", {"text": "a"}), ("send", {"text": "b"})]), mine)
    assert (held["execution_id"], held["status"]) == (mine, "suspended")
    assert [item["arguments"] for item in held["approvals"]] == [{"text": "a"}, {"text": "b"}]
    first, second = held["approvals"]
    waiting = raw("approve", mine, first["approval_request_id"], decided_by="ann")
    assert waiting["status"] == "suspended"
    assert waiting["approvals"] == [second]
    assert raw("approve", mine, first["approval_request_id"])["approvals"] == [second]
    with pytest.raises(StateConflictError):
        raw("approve", mine, first["approval_request_id"], approved=False)
    assert not recorded(raw.agent_id, "send"), "the batch waits for all its answers"
    raw("approve", mine, second["approval_request_id"], approved=True)
    assert raw.until(mine)["output"] == "done"
    assert [item["text"] for item in recorded(raw.agent_id, "send")].count("a") == 1
    refused = raw("invoke", turn([("send", {"text": "c"})]))
    [request] = refused["approvals"]
    ended = raw(
        "approve", refused["execution_id"], request["approval_request_id"], approved=False, reason="no"
    )
    assert ended["status"] == "rejected"


def test_resolve_by_an_operators_word(raw: Raw) -> None:
    held = raw("invoke", turn([("die", {"how": "exit"})]))
    assert held["status"] == "suspended"
    [call] = held["unresolved"]
    execution_id = held["execution_id"]
    with pytest.raises(StateConflictError):
        raw("resolve", execution_id, call["tool_call_id"], "succeeded", expected_revision=1)
    with pytest.raises(InvalidInputError):
        raw("resolve", execution_id, call["tool_call_id"], "perhaps")
    with pytest.raises(NotFoundError):
        raw("resolve", execution_id, "tc_unknown", "succeeded")
    raw(
        "resolve", execution_id, call["tool_call_id"], "succeeded", {"seen": True},
        expected_revision=call["execution_revision"], decided_by="ann",
    )  # fmt: skip
    result = raw.until(execution_id)
    assert result["messages"][2]["content"] == '{"seen":true}'


def test_cancel_and_status(raw: Raw, new_id: Callable[[str], str]) -> None:
    gate = new_id("gate")
    execution_id = new_execution_id()
    raw("start", execution_id, turn([("linger", {"gate": gate})]))
    until_recorded(raw.agent_id, "linger", gate=gate)
    status = raw("status")
    assert status["agent_id"] == raw.agent_id
    assert (status["execution_id"], status["execution_status"]) == (execution_id, "active")
    assert processes.is_alive(status["pid"])
    assert raw("result", execution_id, wait_s=0.1) is None
    assert raw("is_cancelled", execution_id) is False
    raw("cancel", execution_id, "not needed")
    result = raw.until(execution_id)
    assert (result["status"], result["terminal_reason"]) == ("cancelled", "not needed")
    assert raw("status")["execution_id"] is None
    assert raw("cancel", execution_id)["status"] == "cancelled"


def test_our_errors_arrive_as_our_classes(raw: Raw, new_id: Callable[[str], str]) -> None:
    gate = new_id("gate")
    execution_id = new_execution_id()
    raw("start", execution_id, turn(model_gates={1: gate}))
    with pytest.raises(AgentBusyError) as busy:
        raw("start", new_execution_id(), "me too")
    assert isinstance(busy.value, RayTaskError)
    assert isinstance(busy.value.cause, AgentBusyError)
    assert busy.value.cause.code == "agent_busy"
    assert busy.value.cause.details["execution_id"] == execution_id
    effects.open_gate(gate)
    raw.until(execution_id)
    wrong: list[tuple[type[PhronomyError], str, tuple[Any, ...]]] = [
        (StateConflictError, "start", (execution_id, "another input")),
        (InvalidInputError, "start", (new_execution_id(), 7)),
        (InvalidInputError, "start", ("", "hello")),
        (NotFoundError, "result", (new_execution_id(),)),
        (InvalidInputError, "result", (execution_id, "sometime")),
        (NotFoundError, "resume", (new_execution_id(),)),
        (NotFoundError, "events", (new_execution_id(),)),
        (NotFoundError, "cancel", (new_execution_id(),)),
        (StateConflictError, "approve", (execution_id, "ap_unknown")),
        (StateConflictError, "resolve", (execution_id, "tc_unknown", "succeeded")),
    ]
    for error, method, arguments in wrong:
        with pytest.raises(error):
            raw(method, *arguments)
    assert raw("invoke", "well?")["output"] == "you said: well?"


def test_unload_says_goodbye_and_ends_the_process(runtime: Runtime, new_id: Callable[[str], str]) -> None:
    agent_id = new_id("alice")
    handle = runtime.actor_for(runtime.create(Puppet, agent_id).agent_id)
    raw = Raw(agent_id)
    assert raw.handle == handle
    pid = raw("status")["pid"]
    with pytest.raises(AgentAlreadyExistsError):
        runtime.create(Puppet, agent_id)
    assert raw("unload") == {"agent_id": agent_id, "unloaded": True}
    with pytest.raises((AgentUnloadedError, ray.exceptions.RayActorError)):
        raw("start", new_execution_id(), "too late")
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    woken = runtime.actor_for(agent_id)
    assert ray.get(woken.invoke.remote("awake?"), timeout=PATIENCE_S)["output"] == "you said: awake?"
