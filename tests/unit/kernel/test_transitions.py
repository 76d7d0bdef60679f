"""The two transition tables, written out again as the specification has them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from phronomy_ray.errors import IllegalTransitionError
from phronomy_ray.journal import ExecutionStatus as S
from phronomy_ray.journal import ToolCallRow, ToolCallStatus
from phronomy_ray.kernel.tool_call import ToolCall
from phronomy_ray.kernel.transitions import (
    EXECUTION_MOVES,
    TOOL_MOVES,
    ToolPhase,
    check_execution_move,
    check_tool_move,
)
from phronomy_ray.tool_calls import ToolOutcome

P = ToolPhase

EXECUTION_TABLE = {
    "preparing": "preparing active failed cancelled blocked",
    "active": "active suspended completed handed_off failed cancelled rejected blocked",
    "suspended": "suspended active failed cancelled",
    "completed": "completed",
    "handed_off": "handed_off",
    "failed": "failed",
    "cancelled": "cancelled",
    "rejected": "rejected",
    "blocked": "blocked",
}

#: Phronomy's machine; the last two lines, ``completed`` and ``failed`` after ``authorized``, ``completed`` after ``authorizing``, and ``queued`` / ``unresolved`` after
#: ``running`` are ours.
TOOL_TABLE = {
    "idle": "validating",
    "validating": "failed completed authorizing",
    "authorizing": "cancelled failed completed rejected awaiting_approval authorized",
    "awaiting_approval": "authorized rejected cancelled",
    "authorized": "queued cancelled completed failed",
    "queued": "running cancelled",
    "running": "cancelled failed completed unresolved queued",
    "completed": "",
    "failed": "",
    "rejected": "",
    "cancelled": "",
    "unresolved": "queued completed failed cancelled",
}


#: What waits is no execution yet, so it makes no move.
STATUSES = [status for status in S if status is not S.QUEUED]


@pytest.mark.parametrize("current", STATUSES)
def test_execution_moves_are_those_of_the_table_and_no_others(current: S) -> None:
    allowed = set(EXECUTION_TABLE[current.value].split())
    for target in S:
        if target.value in allowed:
            assert check_execution_move("ex", current, target) is target
        else:
            with pytest.raises(IllegalTransitionError) as caught:
                check_execution_move("ex", current, target)
            assert "ex" in caught.value.message
            assert current.value in caught.value.message
            assert target.value in caught.value.message
            assert caught.value.code == "illegal_transition"


@pytest.mark.parametrize("current", list(P))
def test_tool_moves_are_those_of_the_table_and_no_others(current: P) -> None:
    allowed = set(TOOL_TABLE[current.value].split())
    for target in P:
        if target.value in allowed:
            assert check_tool_move("tc", current, target) is target
        else:
            with pytest.raises(IllegalTransitionError, match=f"tc: {current.value} -> {target.value} "):
                check_tool_move("tc", current, target)


def test_the_tables_cover_every_state() -> None:
    assert set(EXECUTION_MOVES) == set(STATUSES)
    assert set(TOOL_MOVES) == set(P)


def test_terminal_executions_move_to_themselves_only() -> None:
    assert not S.QUEUED.is_terminal
    for status in STATUSES:
        assert (EXECUTION_MOVES[status] == {status}) is status.is_terminal


def row(status: ToolCallStatus = ToolCallStatus.INTENT, **changes: object) -> ToolCallRow:
    values: dict[str, object] = {
        "tool_call_id": "tc",
        "execution_id": "ex",
        "agent_id": "a",
        "model_call_id": "m",
        "position": 0,
        "provider_call_id": "c",
        "tool_name": "t",
        "arguments": {},
        "status": status,
        "replay": "never",
        "requires_approval": False,
        "schema_hash": "",
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return ToolCallRow(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        (ToolCallStatus.AUTHORIZING, P.AUTHORIZING),
        (ToolCallStatus.INTENT, P.AUTHORIZED),
        (ToolCallStatus.AWAITING_APPROVAL, P.AWAITING_APPROVAL),
        (ToolCallStatus.DISPATCHED, P.RUNNING),
        (ToolCallStatus.UNKNOWN, P.UNRESOLVED),
        (ToolCallStatus.SUCCEEDED, P.COMPLETED),
        (ToolCallStatus.FAILED, P.COMPLETED),
        (ToolCallStatus.TIMED_OUT, P.COMPLETED),
        (ToolCallStatus.CANCELLED, P.CANCELLED),
        (ToolCallStatus.NOT_PERFORMED, P.CANCELLED),
        (ToolCallStatus.REJECTED, P.REJECTED),
    ],
)
def test_every_stored_status_is_restored(status: ToolCallStatus, phase: P) -> None:
    assert ToolCall.restore(row(status)).phase is phase


def test_a_failure_that_ends_the_execution_stays_one_when_it_is_restored() -> None:
    running = ToolCall.restore(row(ToolCallStatus.DISPATCHED, attempt=1))
    from phronomy_ray.errors import ErrorRecord

    outcome = ToolOutcome(
        "tc", 1, ToolCallStatus.FAILED, "Error", error=ErrorRecord("ToolError", "x", "boom")
    )
    now = datetime(2026, 1, 1, tzinfo=UTC)
    fatal = running.settle(outcome, fatal=True, now=now)
    told = running.settle(outcome, fatal=False, now=now)
    assert (fatal.phase, told.phase) == (P.FAILED, P.COMPLETED)
    assert ToolCall.restore(fatal.row).phase is P.FAILED
    assert ToolCall.restore(told.row).phase is P.COMPLETED
