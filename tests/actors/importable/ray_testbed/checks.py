"""What must hold of any agent, whatever was done to it; checked in its store after each test."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from phronomy_ray.journal import JournalRecord, RecordKind, ToolCallStatus
from phronomy_ray.store.port import Store
from phronomy_ray.testing import processes
from ray_testbed.agents import asked

MESSAGES = (RecordKind.EXTERNAL_MESSAGE, RecordKind.ASSISTANT_MESSAGE, RecordKind.TOOL_MESSAGE)


def check_agent(store: Store, agent_id: str) -> None:
    """Raise `AssertionError` unless the invariants of an agent hold."""
    root = store.load_root(agent_id)
    journal = store.read_journal(agent_id, limit=100_000)
    assert [record.position for record in journal] == list(range(1, root.journal_position + 1)), (
        "positions have gaps"
    )
    executions = store.list_executions(agent_id=agent_id, limit=10_000)
    open_ones = [row for row in executions if not row.status.is_terminal]
    assert len(open_ones) <= 1, f"several executions are open: {open_ones}"
    for row in executions:
        check_execution(store, row.execution_id, ended=row.status.is_terminal)
    for entry in asked(agent_id):
        check_pairs(entry["messages"])


def check_execution(store: Store, execution_id: str, *, ended: bool) -> None:
    events = store.events(execution_id, limit=100_000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), (
        f"event seqs of {execution_id} have gaps"
    )
    calls = store.tool_calls(execution_id)
    assert len({row.tool_call_id for row in calls}) == len(calls)
    if not ended:
        return
    records = store.journal_of_execution(execution_id)
    answered = [record.causation_id for record in records if record.kind is RecordKind.TOOL_MESSAGE]
    assert answered == [row.tool_call_id for row in calls], (
        f"each call of {execution_id} is answered once, in order"
    )
    for row in calls:
        assert row.status.is_settled or row.status is ToolCallStatus.UNKNOWN, row
        assert row.ended_at is not None, row
    check_pairs([record.content for record in records if record.kind in MESSAGES])
    assert all(call.status != "pending" for call in store.model_calls(execution_id))
    assert all(item.status.value != "pending" for item in store.approvals(execution_id=execution_id))


def check_pairs(messages: Sequence[dict[str, Any]]) -> None:
    """Every call is answered right behind its message, in order, and nothing else is."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting, f"an answer to nothing: {message}"
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting, f"calls {waiting} are not answered before {message}"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert not waiting, f"calls {waiting} are not answered"


def check_processes_gone(store: Store, agent_id: str) -> None:
    """The process that owned the agent last has ended (its actor was killed before)."""
    pid = (store.load_root(agent_id).owner or {}).get("pid")
    assert not pid or not processes.wait_dead([pid], timeout_s=30), (
        f"process {pid} of agent {agent_id} still runs"
    )


def plain_journal(store: Store, execution_id: str) -> list[dict[str, Any]]:
    """An execution's journal without what differs from run to run: ids, times and positions."""
    return [
        _plain(store, execution_id, _facts(record)) for record in store.journal_of_execution(execution_id)
    ]


def plain_events(store: Store, execution_id: str) -> list[dict[str, Any]]:
    """Its durable events without those and the attempts of a recovery."""
    recovery = {"recovered", "resolution_required", "resolved"}
    found = []
    for event in store.events(execution_id, limit=10_000):
        if event.type in recovery:
            continue
        payload = {key: value for key, value in event.payload.items() if key not in ("attempt", "agent_id")}
        found.append(_plain(store, execution_id, {"type": event.type, "payload": payload}))
    return found


def _facts(record: JournalRecord) -> dict[str, Any]:
    return {
        "kind": record.kind.value,
        "channel": record.channel.value,
        "model_call_id": record.model_call_id,
        "role": record.role,
        "content": record.content,
        "causation_id": record.causation_id,
        "candidate": record.context_candidate,
        "generation": record.generation,
        "metadata": record.metadata,
    }


def _plain(store: Store, execution_id: str, value: dict[str, Any]) -> dict[str, Any]:
    """`value` with derived ids replaced by their place: they hash the execution's id."""
    text = json.dumps(value, sort_keys=True)
    for number, row in enumerate(store.tool_calls(execution_id)):
        bare = row.tool_call_id.removeprefix("tc_")
        text = text.replace(bare, f"call-{number}").replace(row.provider_call_id, f"provider-call-{number}")
    text = text.replace(execution_id, "execution")
    assert not re.search(r"(tc|ap|ex)_[0-9a-f]{32}", text), text
    plain: dict[str, Any] = json.loads(text)
    return plain
