"""One tool call as a state machine around its ledger row."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from phronomy_ray.errors import DefinitionChangedError, ErrorRecord
from phronomy_ray.frozen import replace
from phronomy_ray.journal import ToolCallRow, ToolCallStatus
from phronomy_ray.kernel.transitions import (
    LIVE_PHASES,
    RESTORED_PHASE,
    SETTLED_PHASES,
    ToolPhase,
    check_tool_move,
)
from phronomy_ray.tool_calls import ToolOutcome

#: Dispatches of a replayable call before its worker's death counts as its failure.
MAX_DISPATCHES = 3
#: The same for the death of its owner, which may have other causes: lost nodes, an operator. Not more than the starts without
#: progress after which an agent is parked (by default): a call that kills its agent is told to the model, not to an operator.
MAX_OWNER_LOSSES = 5


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call and where it is. Every change of phase goes through `move`."""

    phase: ToolPhase
    row: ToolCallRow

    @classmethod
    def restore(cls, row: ToolCallRow) -> ToolCall:
        """The call that a stored row describes."""
        phase = RESTORED_PHASE[row.status]
        if phase is ToolPhase.COMPLETED and (row.error or {}).get("fatal"):
            phase = ToolPhase.FAILED
        return cls(phase, row)

    @property
    def is_settled(self) -> bool:
        """Whether it has its one outcome."""
        return self.phase in SETTLED_PHASES

    @property
    def is_live(self) -> bool:
        """Whether its body may be running."""
        return self.phase in LIVE_PHASES

    def move(self, target: ToolPhase, **changes: Any) -> ToolCall:
        """The call in `target` with `changes` to its row. Raises `IllegalTransitionError`."""
        phase = check_tool_move(self.row.tool_call_id, self.phase, target)
        return ToolCall(phase, _changed(self.row, changes) if changes else self.row)

    def dispatch(self) -> ToolCall:
        """Queue it for its next attempt."""
        return self.move(
            ToolPhase.QUEUED, status=ToolCallStatus.DISPATCHED, attempt=self.row.attempt + 1, ended_at=None
        )

    def running(self) -> ToolCall:
        """Its body has begun, as far as anybody knows."""
        return self if self.phase is ToolPhase.RUNNING else self.move(ToolPhase.RUNNING)

    def settle(self, outcome: ToolOutcome, *, fatal: bool, now: datetime) -> ToolCall:
        """Record the outcome of the present attempt (settled or unknown)."""
        call = self.running() if self.is_live else self
        changes: dict[str, Any] = {
            "status": outcome.status,
            "model_text": outcome.model_text,
            "result": outcome.result,
            "error": error_wire(outcome.error, fatal=fatal),
            "attempts": [*call.row.attempts, attempt_record(outcome)],
            "started_at": _time(outcome.started_at),
            "ended_at": _time(outcome.ended_at) or now,
        }
        if outcome.status is ToolCallStatus.UNKNOWN:
            return call.move(ToolPhase.UNRESOLVED, **changes)
        if outcome.status in (ToolCallStatus.CANCELLED, ToolCallStatus.NOT_PERFORMED):
            return call.move(ToolPhase.CANCELLED, **changes)
        return call.move(ToolPhase.FAILED if fatal else ToolPhase.COMPLETED, **changes)

    def answer_as(self, twin: ToolCall, now: datetime) -> ToolCall:
        """Give it the outcome of `twin`, which ran for both."""
        row = twin.row
        cut = {"truncated": True} if row.attempts and row.attempts[-1].get("truncated") else {}
        return self.move(
            twin.phase,
            status=row.status,
            model_text=row.model_text,
            result=row.result,
            error=row.error,
            attempts=[{"number": 0, "status": row.status.value, "answered_by": row.tool_call_id, **cut}],
            ended_at=now,
        )

    def lost(self, outcome: ToolOutcome | None = None) -> ToolCall:
        """Its owner or worker died before an outcome arrived: note the lost attempt, keep the phase.

        `outcome` is what is told of a lost worker.
        """
        entry: dict[str, Any] = {"number": self.row.attempt, "status": "lost"}
        if outcome is not None:
            entry |= {"node": outcome.node, "pid": outcome.pid, "started_at": outcome.started_at}
            entry["reason"] = outcome.error.message if outcome.error is not None else ""
        return ToolCall(self.phase, replace(self.row, attempts=[*self.row.attempts, entry]))

    def stop_for_change(self, why: str, *, fatal: bool, now: datetime) -> ToolCall:
        """Fail it because its tool is not the one any more that it was made for; this dispatch does not happen."""
        error = ErrorRecord("DefinitionChangedError", DefinitionChangedError.default_code, why)
        changes: dict[str, Any] = {
            "status": ToolCallStatus.FAILED,
            "error": error_wire(error, fatal=fatal),
            "model_text": f"Error ({error.code}): {why}; this call was not performed.",
            "ended_at": now,
        }
        call = self.running() if self.is_live else self
        return call.move(ToolPhase.FAILED if fatal else ToolPhase.COMPLETED, **changes)

    def close(self, status: ToolCallStatus, text: str, now: datetime) -> ToolCall:
        """End it without its body having run, or without knowing (`UNKNOWN` at a cancellation)."""
        target = ToolPhase.REJECTED if status is ToolCallStatus.REJECTED else ToolPhase.CANCELLED
        call = self.running() if self.phase is ToolPhase.QUEUED else self
        return call.move(target, status=status, model_text=text, ended_at=now)


_FIELDS = tuple(item.name for item in fields(ToolCallRow))
_INDEX = {name: index for index, name in enumerate(_FIELDS)}
_values_of = attrgetter(*_FIELDS)


def _changed(row: ToolCallRow, changes: dict[str, Any]) -> ToolCallRow:
    """As `dataclasses.replace`, in half the time: a large batch changes each of its rows several times."""
    values = list(_values_of(row))
    for name, value in changes.items():
        values[_INDEX[name]] = value
    return ToolCallRow(*values)


def attempt_record(outcome: ToolOutcome) -> dict[str, Any]:
    """What the ledger keeps of one dispatch."""
    record = {
        "number": outcome.attempt,
        "status": outcome.status.value,
        "node": outcome.node,
        "pid": outcome.pid,
        "started_at": outcome.started_at,
        "ended_at": outcome.ended_at,
    }
    if outcome.truncated:
        record["truncated"] = True
    return record


def error_wire(error: ErrorRecord | None, *, fatal: bool) -> dict[str, Any] | None:
    """What the ledger keeps of an error; a `fatal` one ends the execution, also after a restart."""
    if error is None:
        return None
    wire = error.to_wire()
    if fatal:
        wire["fatal"] = True
    return wire


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
