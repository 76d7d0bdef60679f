"""Whether what is left after a storm is right. Pure but for reading the store: effects and history come in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phronomy_ray.journal import ApprovalStatus, EventRow, ExecutionRow, ToolCallRow, ToolCallStatus
from phronomy_ray.store.port import Store
from phronomy_ray.testing.chaos.agents import NEVER
from phronomy_ray.testing.chaos.ownership import check_testimony
from phronomy_ray.testing.chaos.witness import Testimony


def violations(
    store: Store,
    effects: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    seen: Testimony,
) -> list[str]:
    """What is wrong, in words; nothing when all is well.

    Args:
        store: what is stored.
        effects: what tools did outside.
        history: what drivers said and were told.
        seen: what the witness in the database saw.
    """
    found: list[str] = []
    executions: dict[str, ExecutionRow] = {}
    calls: list[ToolCallRow] = []
    positions: dict[str, list[int]] = {}
    for root in store.list_agents(limit=100_000):
        journal = store.read_journal(root.agent_id, limit=1_000_000)
        positions[root.agent_id] = [record.position for record in journal]
        if positions[root.agent_id] != list(range(1, root.journal_position + 1)):
            found.append(f"{root.agent_id}: journal positions have gaps or repeats")
        waiting = store.queued_requests(root.agent_id)
        if waiting:
            found.append(f"{root.agent_id}: {len(waiting)} requests wait and nothing runs")
        rows = store.list_executions(agent_id=root.agent_id, limit=100_000)
        for row in rows:
            executions[row.execution_id] = row
            of_row = store.tool_calls(row.execution_id)
            calls += of_row
            found += check_execution(row, of_row, store.events(row.execution_id, limit=1_000_000))
            for request in store.approvals(execution_id=row.execution_id):
                if row.status.is_terminal and request.status is ApprovalStatus.PENDING:
                    found.append(f"{row.execution_id}: has ended, and {request.approval_request_id} is open")
    found += check_testimony(seen, positions)
    found += check_told(executions, history)
    found += check_effects(calls, effects, history)
    return found


def check_execution(row: ExecutionRow, calls: Iterable[ToolCallRow], events: Sequence[EventRow]) -> list[str]:
    """One execution: it has ended, its events are complete, every call has an outcome, and owners came one after the other."""
    found = []
    name = row.execution_id
    if not row.status.is_terminal:
        found.append(f"{name}: stuck: {row.status.value} ({row.phase.value})")
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        found.append(f"{name}: event seqs have gaps or repeats")
    if row.status.is_terminal:
        for call in calls:
            if not (call.status.is_settled or call.status is ToolCallStatus.UNKNOWN):
                found.append(f"{name}: call {call.tool_call_id} has no outcome: {call.status.value}")
    epochs = [event.payload["epoch"] for event in events if event.type == "recovered"]
    if epochs != sorted(epochs):
        found.append(f"{name}: an older owner has committed after a newer one: {epochs}")
    return found


def check_told(executions: Mapping[str, ExecutionRow], history: Iterable[Mapping[str, Any]]) -> list[str]:
    """What drivers were told is what is stored; what was admitted is there; whoever began something was told its end."""
    found = []
    ended = {entry["execution_id"] for entry in history if entry["kind"] == "ended"}
    for entry in history:
        if entry["kind"] == "begin" and entry["execution_id"] not in ended:
            found.append(f"{entry['execution_id']}: its handle was never settled")
        if entry["kind"] not in ("admitted", "ended"):
            continue
        name = entry["execution_id"]
        row = executions.get(name)
        if row is None:
            found.append(f"{name}: a driver was told that it is {entry['kind']}, and it is not stored")
        elif entry["kind"] == "ended" and row.status.value != entry["status"]:
            found.append(f"{name}: a driver was told {entry['status']}, stored is {row.status.value}")
        elif entry["kind"] == "ended" and row.output != entry["output"]:
            found.append(f"{name}: a driver was told {entry['output']!r}, stored is {row.output!r}")
    return found


def check_effects(
    calls: Iterable[ToolCallRow], effects: Iterable[Mapping[str, Any]], history: Iterable[Mapping[str, Any]]
) -> list[str]:
    """A body ran at most once per attempt; a ``never`` tool's at most once, and once more for each word that it was not
    performed; what succeeded has an effect; a repeated call keeps its key.
    """
    found = []
    by_call: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for effect in effects:
        by_call[effect["tool_call_id"]].append(effect)
    # the same word may be said again because its answer was lost: it is one word about one revision
    said = {
        (entry["tool_call_id"], entry["revision"])
        for entry in history
        if entry["kind"] == "resolved" and entry["outcome"] == "not_performed"
    }
    words = Counter(call_id for call_id, _ in said)
    known = {call.tool_call_id: call for call in calls}
    for call_id, of_call in by_call.items():
        tool_name = of_call[0]["tool"]
        if call_id not in known:
            found.append(f"{call_id} ({tool_name}): an effect without a call in the ledger")
        attempts = Counter(effect["attempt"] for effect in of_call)
        for attempt, count in attempts.items():
            if count > 1:
                found.append(f"{call_id} ({tool_name}): attempt {attempt} ran {count} times")
        if tool_name in NEVER and len(of_call) > 1 + words[call_id]:
            found.append(
                f"{call_id} ({tool_name}): ran {len(of_call)} times with {words[call_id]} words that it had not"
            )
        if len({effect["key"] for effect in of_call}) > 1:
            found.append(f"{call_id} ({tool_name}): its key changed between attempts")
    told = {entry["tool_call_id"] for entry in history if entry["kind"] == "resolved"}
    for call_id, call in known.items():
        if call.status is ToolCallStatus.SUCCEEDED and call_id not in by_call and call_id not in told:
            found.append(f"{call_id} ({call.tool_name}): succeeded without an effect")
    return found
