"""What the store says of one execution, for whoever asks by its id: nothing is woken, and a failed read is never an absence."""

from __future__ import annotations

from phronomy_ray.detachment import ApprovalWait
from phronomy_ray.engine.reading import load_result
from phronomy_ray.errors import NotFoundError, StateConflictError
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.reservations import ExecutionObservation, ObservedState, ReservedExecution
from phronomy_ray.retention import PARENT_KEY
from phronomy_ray.store.port import Store

#: How often a wait that changes while it is read is read again.
_READS = 10


def observe(store: Store, execution_id: str) -> ExecutionObservation:
    """The execution as stored now. Raises what the store raises."""
    try:
        result = load_result(store, execution_id)
    except NotFoundError:
        return ExecutionObservation(execution_id, ObservedState.ABSENT)
    row = store.find_execution(execution_id)
    progress = Progress.from_wire(row.state) if row is not None else Progress()
    intent = store.find_cancellation(execution_id)
    asked_at = row.cancel_requested_at if row is not None else None
    reason = intent.reason if intent is not None else (row.terminal_reason if asked_at and row else None)
    return ExecutionObservation(
        execution_id,
        _state_of(result.status),
        result,
        ReservedExecution(result.agent_id, execution_id, progress.correlation),
        cancellation_requested=intent is not None or asked_at is not None,
        cancellation_reason=reason,
    )


def _state_of(status: ExecutionStatus) -> ObservedState:
    if status.is_terminal:
        return ObservedState.TERMINAL
    match status:
        case ExecutionStatus.QUEUED:
            return ObservedState.QUEUED
        case ExecutionStatus.SUSPENDED:
            return ObservedState.SUSPENDED
        case _:
            return ObservedState.ACTIVE


def approval_wait(store: Store, agent_id: str, execution_id: str) -> ApprovalWait | None:
    """The committed wait of an execution that stands alone, or ``None``: it is not stored, does not wait for an answer, is
    asked to end, or belongs to something. Where several answers are missing, the request that it was detached at, else the
    oldest, stands for all.

    Raises:
        StateConflictError: the execution is another agent's.
        StoreError: the store could not be read.
    """
    for _ in range(_READS):
        row = store.find_execution(execution_id)
        if row is None:
            return None
        if row.agent_id != agent_id:
            raise StateConflictError(
                f"execution {execution_id} is one of agent {row.agent_id!r}, not of {agent_id!r}",
                details={"execution_id": execution_id, "agent_id": row.agent_id},
            )
        progress = Progress.from_wire(row.state)
        if row.status is not ExecutionStatus.SUSPENDED or progress.correlation is not None:
            return None
        if row.cancel_requested_at is not None or store.find_cancellation(execution_id) is not None:
            return None
        if PARENT_KEY in store.load_root(agent_id).metadata:
            return None
        pending = [
            item.approval_request_id for item in store.approvals(execution_id=execution_id, pending_only=True)
        ]
        again = store.find_execution(execution_id)
        if again is None or again.revision != row.revision:
            continue  # it went on meanwhile
        if not pending:
            return None
        last = progress.detached
        request = last.approval_request_id if last and last.approval_request_id in pending else pending[0]
        return ApprovalWait(agent_id, execution_id, request, row.revision)
    raise StateConflictError(
        f"execution {execution_id} changes faster than it can be read",
        details={"execution_id": execution_id},
    )


__all__ = ["approval_wait", "observe"]
