"""The busy rule: what becomes of a start while its agent is busy, and the requests that wait.

A request that waits is no execution yet: it becomes one when it is its turn, or ends as a cancelled one when it is withdrawn
before. Who is next, and whether there is room, is decided by what is committed. Phronomy only refuses (1.3 of its contract).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.errors import (
    AgentBusyError,
    BackpressureError,
    StateConflictError,
)
from phronomy_ray.events import EventType
from phronomy_ray.frozen import replace
from phronomy_ray.journal import (
    Channel,
    EventRow,
    ExecutionRow,
    ExecutionStatus,
    JournalRecord,
    Phase,
    QueuedRequest,
    RecordKind,
)
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Step, without_change
from phronomy_ray.kernel.ending import cancellation_error
from phronomy_ray.kernel.humans import request_cancel
from phronomy_ray.kernel.inputs import Cancel, Env, Start
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.kernel.root_step import root_step
from phronomy_ray.kernel.state import AgentState

#: Reason of an execution that was cancelled for another one.
INTERRUPTED = "interrupted"


def start_while_busy(state: AgentState, event: Start, env: Env) -> Step:
    """Refuse a start, or let it wait, with or without the end of what runs. A request that waits already goes on waiting,
    whatever the rule.

    Raises:
        AgentBusyError: the rule is to reject, or the very same execution runs already.
        StateConflictError: another request of this id waits.
        BackpressureError: too many wait.
    """
    root, running = state.root, state.execution
    waiting = next((item for item in state.queue if item.execution_id == event.execution_id), None)
    if waiting is not None:
        if waiting.input_hash == event.input_hash:
            return without_change(state)
        raise StateConflictError(
            f"a request {event.execution_id} with another input or durable context waits already",
            details={"execution_id": event.execution_id, "agent_id": root.agent_id},
        )
    held = running.row if running is not None else None
    if event.on_busy is BusyRule.REJECT or (held is not None and held.execution_id == event.execution_id):
        what = (
            f"the {held.status.value} execution {held.execution_id}"
            if held is not None
            else f"the request {state.held_by}, which is next"
        )
        raise AgentBusyError(
            f"agent {root.agent_id!r} has {what}",
            details={"agent_id": root.agent_id, "execution_id": state.held_by},
        )
    if len(state.queue) >= event.queue_limit:
        raise BackpressureError(
            f"agent {root.agent_id!r} has {len(state.queue)} queued requests, and at most {event.queue_limit} may wait",
            details={"agent_id": root.agent_id, "queued": len(state.queue)},
        )
    interrupts = event.on_busy is BusyRule.INTERRUPT
    request = QueuedRequest(
        execution_id=event.execution_id,
        agent_id=root.agent_id,
        position=root.agent_revision + 1,
        interrupts=interrupts,
        input_hash=event.input_hash,
        input=event.input,
        durable_context=event.durable_context,
        stream=event.stream,
        options={name: list(items) for name, items in event.options.items()},
        queued_at=env.now,
        deadline_at=deadline_of(event, env),
    )
    if running is None or not interrupts:
        return root_step(state, env, "queue", new_requests=(request,))
    draft = Draft(state, env, running)
    draft.queue(request)
    return request_cancel(draft, INTERRUPTED, "interrupt")


def deadline_of(event: Start, env: Env) -> datetime | None:
    """When the time of this start's caller is over: counted from its arrival, also when it has waited for its turn."""
    if event.from_queue or event.budget_s is None:
        return event.deadline_at
    try:
        return env.now + timedelta(seconds=max(0.0, event.budget_s))
    except OverflowError:  # later than there are dates
        return None


def is_next(state: AgentState, execution_id: str) -> bool:
    """Whether it is this request's turn."""
    return state.execution is None and bool(state.queue) and state.queue[0].execution_id == execution_id


def withdraw(state: AgentState, event: Cancel, env: Env) -> Step:
    """End a request that waits, as a cancelled execution that never began."""
    root = state.root
    request = next(item for item in state.queue if item.execution_id == event.execution_id)
    error = cancellation_error(
        f"execution {request.execution_id} was cancelled before it began", event.reason
    )
    row = ExecutionRow(
        execution_id=request.execution_id,
        agent_id=root.agent_id,
        status=ExecutionStatus.CANCELLED,
        phase=Phase.ENDED,
        revision=1,
        input_hash=request.input_hash,
        input=request.input,
        durable_context=request.durable_context,
        base_position=root.journal_position,
        state=Progress(stream=request.stream).to_wire(),
        created_at=request.queued_at,
        updated_at=env.now,
        ended_at=env.now,
        error=error.to_wire(),
        terminal_reason=event.reason,
        cancel_requested_at=env.now,
        deadline_at=request.deadline_at,
    )
    received = JournalRecord(
        position=root.journal_position + 1,
        kind=RecordKind.INPUT_RECEIVED,
        channel=Channel.EXTERNAL,
        occurred_at=env.now,
        execution_id=request.execution_id,
        role="user",
        content=request.input,
        generation=root.transcript_generation,
    )
    ended = replace(
        received,
        position=received.position + 1,
        kind=RecordKind.EXECUTION_CANCELLED,
        channel=Channel.AUDIT,
        role=None,
        content={"reason": event.reason},
    )
    told = EventRow(
        request.execution_id, 1, root.agent_id, EventType.CANCELLED.value, {"reason": event.reason}, env.now
    )
    return root_step(
        state,
        env,
        "withdraw",
        journal=(received, ended),
        new_execution=row,
        events=(told,),
        ended_requests=(request.execution_id,),
    )


def drop(state: AgentState, execution_id: str, env: Env) -> Step:
    """Forget a request whose id has become another execution's meanwhile."""
    if not any(item.execution_id == execution_id for item in state.queue):
        return without_change(state)
    return root_step(state, env, "drop_request", ended_requests=(execution_id,))
