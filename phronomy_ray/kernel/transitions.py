"""The legal moves of an execution and of a tool call; anything else is an `IllegalTransitionError`.

The tables follow Phronomy's AgentExecution and ToolInvocation machines, with one state of ours: a call whose body may
have run, but whose outcome nobody knows, is ``unresolved`` until a human says what happened.
"""

from __future__ import annotations

from enum import StrEnum

from phronomy_ray.errors import IllegalTransitionError
from phronomy_ray.journal import ExecutionStatus as Status
from phronomy_ray.journal import ToolCallStatus

EXECUTION_MOVES: dict[Status, frozenset[Status]] = {
    Status.PREPARING: frozenset(
        {Status.PREPARING, Status.ACTIVE, Status.FAILED, Status.CANCELLED, Status.BLOCKED}
    ),
    Status.ACTIVE: frozenset(Status) - {Status.PREPARING, Status.QUEUED},
    Status.SUSPENDED: frozenset({Status.SUSPENDED, Status.ACTIVE, Status.FAILED, Status.CANCELLED}),
    **{status: frozenset({status}) for status in Status if status.is_terminal},
}


class ToolPhase(StrEnum):
    """Where one tool call is."""

    IDLE = "idle"
    VALIDATING = "validating"
    AUTHORIZING = "authorizing"
    AWAITING_APPROVAL = "awaiting_approval"
    #: Passed preflight; waits until its whole batch has, and for the commit that allows dispatch.
    AUTHORIZED = "authorized"
    QUEUED = "queued"
    RUNNING = "running"
    #: Its outcome is unknown and a human is asked.
    UNRESOLVED = "unresolved"
    #: Has an outcome that the model is told.
    COMPLETED = "completed"
    #: Has an outcome that ends the execution.
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


TOOL_MOVES: dict[ToolPhase, frozenset[ToolPhase]] = {
    ToolPhase.IDLE: frozenset({ToolPhase.VALIDATING}),
    ToolPhase.VALIDATING: frozenset({ToolPhase.AUTHORIZING, ToolPhase.COMPLETED, ToolPhase.FAILED}),
    ToolPhase.AUTHORIZING: frozenset(
        {
            ToolPhase.AUTHORIZED,
            ToolPhase.AWAITING_APPROVAL,
            ToolPhase.REJECTED,
            ToolPhase.FAILED,
            ToolPhase.COMPLETED,  # could not be authorised, and its tool's failures are told to the model
            ToolPhase.CANCELLED,
        }
    ),
    ToolPhase.AWAITING_APPROVAL: frozenset({ToolPhase.AUTHORIZED, ToolPhase.REJECTED, ToolPhase.CANCELLED}),
    ToolPhase.AUTHORIZED: frozenset(
        {
            ToolPhase.QUEUED,
            ToolPhase.CANCELLED,
            # its tool has changed since, so it is not dispatched; or it gets the outcome of an equal call of its batch
            ToolPhase.COMPLETED,
            ToolPhase.FAILED,
        }
    ),
    ToolPhase.QUEUED: frozenset({ToolPhase.RUNNING, ToolPhase.CANCELLED}),
    ToolPhase.RUNNING: frozenset(
        {
            ToolPhase.COMPLETED,
            ToolPhase.FAILED,
            ToolPhase.CANCELLED,
            ToolPhase.UNRESOLVED,
            ToolPhase.QUEUED,  # lost, and its replay rule lets it run again
        }
    ),
    ToolPhase.UNRESOLVED: frozenset(
        {ToolPhase.QUEUED, ToolPhase.COMPLETED, ToolPhase.FAILED, ToolPhase.CANCELLED}
    ),
    ToolPhase.COMPLETED: frozenset(),
    ToolPhase.FAILED: frozenset(),
    ToolPhase.REJECTED: frozenset(),
    ToolPhase.CANCELLED: frozenset(),
}

SETTLED_PHASES = frozenset({ToolPhase.COMPLETED, ToolPhase.FAILED, ToolPhase.REJECTED, ToolPhase.CANCELLED})
#: Phases in which a body may be running.
LIVE_PHASES = frozenset({ToolPhase.QUEUED, ToolPhase.RUNNING})

#: Phase that a stored call is restored to; settled statuses are refined by `ToolCall.restore`.
RESTORED_PHASE: dict[ToolCallStatus, ToolPhase] = {
    ToolCallStatus.AUTHORIZING: ToolPhase.AUTHORIZING,
    ToolCallStatus.INTENT: ToolPhase.AUTHORIZED,
    ToolCallStatus.AWAITING_APPROVAL: ToolPhase.AWAITING_APPROVAL,
    ToolCallStatus.DISPATCHED: ToolPhase.RUNNING,
    ToolCallStatus.UNKNOWN: ToolPhase.UNRESOLVED,
    ToolCallStatus.SUCCEEDED: ToolPhase.COMPLETED,
    ToolCallStatus.FAILED: ToolPhase.COMPLETED,
    ToolCallStatus.TIMED_OUT: ToolPhase.COMPLETED,
    ToolCallStatus.CANCELLED: ToolPhase.CANCELLED,
    ToolCallStatus.NOT_PERFORMED: ToolPhase.CANCELLED,
    ToolCallStatus.REJECTED: ToolPhase.REJECTED,
}


def check_execution_move(execution_id: str, current: Status, target: Status) -> Status:
    """`target` if the move is legal. Raises `IllegalTransitionError`."""
    if target not in EXECUTION_MOVES[current]:
        raise IllegalTransitionError(
            f"execution {execution_id}: {current.value} -> {target.value} is not a legal move"
        )
    return target


def check_tool_move(tool_call_id: str, current: ToolPhase, target: ToolPhase) -> ToolPhase:
    """`target` if the move is legal. Raises `IllegalTransitionError`."""
    if target not in TOOL_MOVES[current]:
        raise IllegalTransitionError(
            f"tool call {tool_call_id}: {current.value} -> {target.value} is not a legal move"
        )
    return target
