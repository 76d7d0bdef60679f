"""Letting go of an execution that waits for a human: the commit after which its owner serves nobody any more."""

from __future__ import annotations

from phronomy_ray.detachment import ApprovalWait, Detachment, DetachRefusal, refused
from phronomy_ray.errors import StateConflictError
from phronomy_ray.events import EventType
from phronomy_ray.journal import ExecutionRow, ExecutionStatus
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Step, without_change
from phronomy_ray.kernel.inputs import Detach, Env
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.kernel.state import AgentState, Execution, pending_approvals
from phronomy_ray.retention import PARENT_KEY


def detach(state: AgentState, event: Detach, env: Env) -> Step:
    """Commit the detach; the same one again changes nothing, whatever became of the execution since.

    Raises:
        AgentBusyError: it is refused; ``details["reason"]`` is a `DetachRefusal`.
        StateConflictError: the execution is not one of this agent's that has not ended.
    """
    execution = state.execution
    if execution is None or execution.row.execution_id != event.execution_id:
        raise StateConflictError(
            f"execution {event.execution_id} is not the running execution of agent {state.root.agent_id!r}",
            details={"execution_id": event.execution_id, "agent_id": state.root.agent_id},
        )
    if _is_repeated(execution, event):
        return without_change(state)
    _check(state, execution, event)
    draft = Draft(state, env, execution)
    revision = execution.row.revision + 1
    draft.progress(detached=Detachment(event.detach_id, event.approval_request_id, revision))
    draft.move(execution.row.status, execution.row.phase)
    draft.event(EventType.DETACHED, {"approval_request_id": event.approval_request_id, **env.owner})
    return draft.finish("detach")


def detached_wait(row: ExecutionRow, detach_id: str) -> ApprovalWait | None:
    """What the execution's last detach has handed on, if it is this one."""
    last = Progress.from_wire(row.state).detached
    if last is None or last.detach_id != detach_id:
        return None
    return ApprovalWait(row.agent_id, row.execution_id, last.approval_request_id, last.revision)


def _is_repeated(execution: Execution, event: Detach) -> bool:
    last = execution.progress.detached
    return last is not None and last.detach_id == event.detach_id


def _check(state: AgentState, execution: Execution, event: Detach) -> None:
    row = execution.row
    details = {"agent_id": row.agent_id, "execution_id": row.execution_id}
    if row.cancel_requested_at is not None or event.is_stopping:
        raise refused(
            DetachRefusal.CANCELLATION_PENDING, f"execution {row.execution_id} is asked to end", **details
        )
    if row.status is not ExecutionStatus.SUSPENDED:
        raise refused(
            DetachRefusal.NOT_WAITING,
            f"execution {row.execution_id} is {row.status.value} ({row.phase.value})",
            status=row.status.value,
            **details,
        )
    open_ids = [item.approval_request_id for item in pending_approvals(execution)]
    if event.approval_request_id not in open_ids:
        raise refused(
            DetachRefusal.STALE_APPROVAL,
            f"execution {row.execution_id} does not wait for the answer to {event.approval_request_id}",
            open=open_ids,
            **details,
        )
    if execution.progress.correlation is not None or PARENT_KEY in state.root.metadata:
        raise refused(
            DetachRefusal.COORDINATED,
            f"execution {row.execution_id} is a part of something that waits for it",
            **details,
        )
    if event.runs or any(call.is_live for call in execution.batch):
        raise refused(
            DetachRefusal.OUTSTANDING_WORK,
            f"bodies of execution {row.execution_id} still run although their calls have their outcomes",
            **details,
        )
    if event.is_disputed:
        raise refused(
            DetachRefusal.CONCURRENT_OPERATION,
            f"another call is changing agent {row.agent_id!r}",
            **details,
        )
    if event.retained_by:
        raise refused(
            DetachRefusal.RETAINED,
            f"agent {row.agent_id!r} is held by {', '.join(event.retained_by)}",
            owners=list(event.retained_by),
            **details,
        )


__all__ = ["detach", "detached_wait"]
