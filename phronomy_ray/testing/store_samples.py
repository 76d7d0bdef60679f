"""Sample rows and an owner that commits them: what store tests are written with.

`Owner` keeps the guards (epoch, revision, position) like a kernel does, with a clock that only it moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from phronomy_ray import ids
from phronomy_ray.canonical_json import content_hash
from phronomy_ray.commits import Commit, ExecutionUpdate, Hydration, NewAgent
from phronomy_ray.errors import PhronomyError
from phronomy_ray.journal import (
    ApprovalRow,
    ApprovalStatus,
    Channel,
    EventRow,
    ExecutionRow,
    ExecutionStatus,
    JournalRecord,
    Lifecycle,
    ModelCallRow,
    ModelCallStatus,
    Phase,
    QueuedRequest,
    RecordKind,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.store.port import Store

StoreFactory = Callable[[], Store]

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def new_agent(agent_id: str, *contents: Any, **changes: Any) -> NewAgent:
    """A new agent whose first records hold `contents`."""
    journal = tuple(record(position, content) for position, content in enumerate(contents, start=1))
    new = NewAgent(
        agent_id=agent_id,
        definition_id="sample",
        definition_version="1",
        class_path="samples:Sample",
        metadata={"team": "red"},
        journal=journal,
        now=START,
    )
    return replace(new, **changes)


def record(position: int, content: Any = None, **changes: Any) -> JournalRecord:
    """A journal record."""
    sample = JournalRecord(
        position=position,
        kind=RecordKind.EXTERNAL_MESSAGE,
        channel=Channel.EXTERNAL,
        occurred_at=START,
        role="user",
        content=content,
        context_candidate=True,
        metadata={"n": position},
    )
    return replace(sample, **changes)


def execution(execution_id: str, agent_id: str, **changes: Any) -> ExecutionRow:
    """A fresh active execution."""
    sample = ExecutionRow(
        execution_id=execution_id,
        agent_id=agent_id,
        status=ExecutionStatus.ACTIVE,
        phase=Phase.CALLING_MODEL,
        revision=1,
        input_hash="sha256:00",
        input="hello",
        durable_context={"user": "u1"},
        base_position=0,
        state={"iteration": 0},
        created_at=START,
        updated_at=START,
    )
    return replace(sample, **changes)


def model_call(execution_id: str, sequence: int = 1, **changes: Any) -> ModelCallRow:
    """A pending model call."""
    sample = ModelCallRow(
        model_call_id=ids.model_call_id(execution_id, sequence),
        execution_id=execution_id,
        sequence=sequence,
        status=ModelCallStatus.PENDING,
        manifest={"ranges": [[1, 3]]},
        started_at=START,
    )
    return replace(sample, **changes)


def tool_call(
    execution_id: str, agent_id: str, position: int = 0, sequence: int = 1, **changes: Any
) -> ToolCallRow:
    """A ledger entry without outcome."""
    model_call_id = ids.model_call_id(execution_id, sequence)
    sample = ToolCallRow(
        tool_call_id=ids.tool_call_id(execution_id, model_call_id, f"call_{position}", position, "search"),
        execution_id=execution_id,
        agent_id=agent_id,
        model_call_id=model_call_id,
        position=position,
        provider_call_id=f"call_{position}",
        tool_name="search",
        arguments={"q": position},
        status=ToolCallStatus.INTENT,
        replay="never",
        requires_approval=False,
        schema_hash="sha256:11",
        created_at=START,
    )
    return replace(sample, **changes)


def approval(call: ToolCallRow, **changes: Any) -> ApprovalRow:
    """A pending approval request for `call`."""
    sample = ApprovalRow(
        approval_request_id=ids.approval_request_id(call.tool_call_id),
        execution_id=call.execution_id,
        agent_id=call.agent_id,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        arguments=call.arguments,
        status=ApprovalStatus.PENDING,
        created_at=START,
        batch_id=call.model_call_id,
    )
    return replace(sample, **changes)


def queued_request(execution_id: str, **changes: Any) -> QueuedRequest:
    """A request that waits for ``alice``."""
    sample = QueuedRequest(
        execution_id=execution_id,
        agent_id="alice",
        position=1,
        interrupts=False,
        input_hash="sha256:22",
        input="hello",
        durable_context=None,
        stream=False,
        options={},
        queued_at=START,
    )
    return replace(sample, **changes)


def event(execution_id: str, agent_id: str, seq: int, payload: Any = None) -> EventRow:
    """A durable event."""
    return EventRow(
        execution_id, seq, agent_id, "tool_result", {"n": seq} if payload is None else payload, START
    )


def race(*calls: Callable[[], Any]) -> list[Any]:
    """Run `calls` at the same moment; each result is a value or the error that it raised."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(timeout=30)
        try:
            return call()
        except PhronomyError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class Owner:
    """Owns one agent: claims it and makes commits whose guards fit."""

    def __init__(self, store: Store, agent_id: str) -> None:
        self.store = store
        self.agent_id = agent_id
        self.epoch = 0
        self.revision = 0
        self.position = 0
        self.number = 0
        self.now = START

    def claim(self) -> Hydration:
        """Take the agent."""
        self.now += timedelta(seconds=1)
        hydration = self.store.claim(self.agent_id, owner={"pid": 1, "node": "n"}, now=self.now)
        self.epoch = hydration.root.epoch
        self.revision = hydration.root.agent_revision
        self.position = hydration.root.journal_position
        return hydration

    def commit(self, *contents: Any, step: str = "step", **changes: Any) -> Commit:
        """A commit that appends one record for each of `contents`; not executed."""
        self.number += 1
        self.now += timedelta(seconds=1)
        journal = tuple(
            record(position, content, occurred_at=self.now)
            for position, content in enumerate(contents, start=self.position + 1)
        )
        sample = Commit(
            commit_id=ids.commit_id(self.agent_id, self.epoch, self.number),
            step=step,
            agent_id=self.agent_id,
            epoch=self.epoch,
            expected_revision=self.revision,
            expected_position=self.position,
            now=self.now,
            lifecycle=Lifecycle.ACTIVE,
            context_revision=self.revision + 1,
            transcript_generation=0,
            journal=journal,
        )
        return replace(sample, **changes)

    def execute(self, commit: Commit) -> Commit:
        """Execute and advance the guards."""
        self.store.execute(commit)
        self.revision = commit.expected_revision + 1
        self.position = commit.position_after
        return commit

    def append(self, *contents: Any, **changes: Any) -> Commit:
        """`commit` and `execute`."""
        return self.execute(self.commit(*contents, **changes))

    def start(self, execution_id: str, **changes: Any) -> ExecutionRow:
        """Admit an execution."""
        row = execution(execution_id, self.agent_id, base_position=self.position, **changes)
        self.append(step="admit", new_execution=row)
        return row

    def change(self, row: ExecutionRow, **changes: Any) -> ExecutionRow:
        """Change an execution."""
        after = replace(row, revision=row.revision + 1, updated_at=self.now, **changes)
        self.append(step="change", execution=ExecutionUpdate(row.revision, after))
        return after


def owned(store: Store, agent_id: str = "alice", *contents: Any) -> Owner:
    """A created and claimed agent."""
    store.create_agent(new_agent(agent_id, *contents))
    owner = Owner(store, agent_id)
    owner.claim()
    return owner


def write_everything(owner: Owner, canary: str, *, prefix: str = "e") -> None:
    """Put `canary` into every place of the agent that can hold what a user says, in line and over the inline limit."""
    error = {"type": "ToolError", "code": "x", "message": canary}
    for number, secret in enumerate((canary, canary * 1000), start=1):
        execution_id = f"{prefix}{number}"
        row = owner.start(
            execution_id,
            input=secret,
            input_hash=content_hash(secret),
            durable_context={canary: secret},
            state={"note": canary},
        )
        call = tool_call(
            execution_id,
            owner.agent_id,
            arguments={"q": secret},
            authorization={"facts": canary},
            contract={"note": canary},
        )
        request = approval(call, arguments={"q": secret}, facts={"f": secret}, metadata={"m": canary})
        model = model_call(execution_id, manifest={"instructions": content_hash(canary)})
        owner.append(
            {"text": secret},
            new_model_calls=(model,),
            new_tool_calls=(call,),
            new_approvals=(request,),
            events=(event(execution_id, owner.agent_id, 1, {"p": secret}),),
            contents=((content_hash(secret), secret),),
        )
        waiting = queued_request(
            f"{prefix}q{number}",
            agent_id=owner.agent_id,
            position=number,
            input=secret,
            input_hash=content_hash(secret),
            durable_context={canary: secret},
        )
        owner.append(new_requests=(waiting,))
        done = replace(
            row, revision=2, status=ExecutionStatus.FAILED, output=secret, error=error, state={"note": canary}
        )
        owner.append(
            execution=ExecutionUpdate(1, done),
            model_calls=(
                replace(model, status=ModelCallStatus.FAILED, error=error, attempts=[{"text": canary}]),
            ),
            tool_calls=(
                replace(
                    call,
                    status=ToolCallStatus.FAILED,
                    model_text=secret,
                    result={"r": secret},
                    error=error,
                    attempts=[{"error": canary}],
                ),
            ),
            approvals=(
                replace(
                    request,
                    status=ApprovalStatus.REJECTED,
                    decided_by=canary,
                    reason=canary,
                    edited_arguments={"q": secret},
                    fingerprint={"arguments": canary},
                ),
            ),
            journal=(record(owner.position + 1, "x", metadata={"m": canary}),),
        )


def append_in_process(url: str, agent_id: str, count: int) -> int:
    """What a worker process of a concurrency test does: open, create, own, append; returns the journal's length."""
    from phronomy_ray.store.sql_store import open_store

    store = open_store(url, create=True)
    try:
        owner = owned(store, agent_id)
        for number in range(count):
            assert store.load_root(agent_id).agent_revision == number
            owner.append({"n": number})
        return len(store.read_journal(agent_id, limit=count + 1))
    finally:
        store.close()


__all__ = [
    "START",
    "Owner",
    "StoreFactory",
    "append_in_process",
    "approval",
    "event",
    "execution",
    "model_call",
    "new_agent",
    "owned",
    "queued_request",
    "race",
    "record",
    "tool_call",
    "write_everything",
]
