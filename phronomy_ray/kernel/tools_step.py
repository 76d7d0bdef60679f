"""What one step does to the calls of a batch: announce, dispatch, settle, close, journal."""

from __future__ import annotations

from collections.abc import Sequence

from phronomy_ray.canonical_json import dumps
from phronomy_ray.definition.tool import OnError, Replay
from phronomy_ray.errors import ErrorRecord, ToolError
from phronomy_ray.events import EventType
from phronomy_ray.frozen import replace
from phronomy_ray.journal import (
    ApprovalStatus,
    Channel,
    ExecutionStatus,
    Phase,
    RecordKind,
    ResultStatus,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.kernel.display import CLOSING_TEXT, public_error, result_event, shown_arguments, spec_of
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import DispatchTools
from phronomy_ray.kernel.fingerprint import change_since
from phronomy_ray.kernel.repeats import duplicates, hold_twins, settle_twins
from phronomy_ray.kernel.shown import content_of_cut, fit_batch, result_status
from phronomy_ray.kernel.state import Execution
from phronomy_ray.kernel.tool_call import MAX_DISPATCHES, ToolCall
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.messages import Message
from phronomy_ray.tool_calls import ToolInvocation, ToolOutcome

# --- before anything runs --------------------------------------------------------------------------------------


def announce(draft: Draft) -> None:
    """Durable ``tool_call`` events of a new batch, and the results of calls that were refused at once."""
    same_as = duplicates(draft.execution.batch)
    for call in draft.execution.batch:
        row = call.row
        payload = {
            "tool_call_id": row.tool_call_id,
            "tool_name": row.tool_name,
            "arguments": shown_arguments(draft, row),
            "position": row.position,
            "model_call_id": row.model_call_id,
        }
        if row.tool_call_id in same_as:
            payload["duplicate_of"] = same_as[row.tool_call_id]
        draft.event(EventType.TOOL_CALL, payload)
        if call.is_settled:
            result_event(draft, row)


# --- dispatch and outcomes -------------------------------------------------------------------------------------


def answer_twins(draft: Draft) -> None:
    """Settle the calls that waited for the outcome of an equal one."""
    for row in settle_twins(draft):
        result_event(draft, row)


def dispatch(
    draft: Draft, ids: set[str] | None = None, *, alone: bool = False, checked: bool = False
) -> None:
    """Queue these calls, or every authorised one but the twins of others, for their next attempt.

    What the agent's gate has no place for stays authorised: in the ledger it has not begun (see `fill_gate`).
    `checked` closes those whose tool has changed since the model, or a human, was shown it: they do not run.
    """
    all_of_them = ids is None
    if ids is None:
        ids = {call.row.tool_call_id for call in draft.execution.batch if call.phase is ToolPhase.AUTHORIZED}
    if checked:
        ids = ids - _close_changed(draft, ids)
    if all_of_them:
        ids = hold_twins(draft, ids)
    ids = _with_a_place(draft, ids)
    if draft.execution.row.phase is not Phase.DISPATCHING_TOOLS:
        draft.move(ExecutionStatus.ACTIVE, Phase.DISPATCHING_TOOLS)
    if not ids:
        return
    draft.set_batch(
        call.dispatch() if call.row.tool_call_id in ids else call for call in draft.execution.batch
    )
    execution, epoch = draft.execution, draft.state.root.epoch
    draft.effects.append(
        DispatchTools(
            tuple(
                _invocation(execution, call, epoch, alone=alone)
                for call in execution.batch
                if call.row.tool_call_id in ids
            )
        )
    )


def fill_gate(draft: Draft) -> None:
    """Queue calls that waited until others had their outcome, as many as the agent's gate now lets through."""
    if draft.env.definition.max_parallel_tools is None or draft.execution.row.cancel_requested_at is not None:
        return
    twins = dict(draft.execution.progress.twins)
    waiting = {
        call.row.tool_call_id
        for call in draft.execution.batch
        if call.phase is ToolPhase.AUTHORIZED and call.row.tool_call_id not in twins
    }
    if waiting:
        dispatch(draft, waiting)


def _with_a_place(draft: Draft, ids: set[str]) -> set[str]:
    """Those of `ids` that may be under way now, in their order: the gate is `max_parallel_tools` wide.

    A call that is tried again keeps its place, and tools of the framework need none. A body that goes on after its
    timeout has had its outcome and holds none either: one that never ends would close the gate for good.
    """
    limit = draft.env.definition.max_parallel_tools
    if limit is None:
        return ids
    bound = draft.tools.tools
    free = {name for name, tool in bound.items() if tool.is_framework}
    room = limit - sum(call.is_live and call.row.tool_name not in free for call in draft.execution.batch)
    passing = set()
    for call in draft.execution.batch:
        row = call.row
        if row.tool_call_id not in ids:
            continue
        if call.is_live or row.tool_name in free:
            passing.add(row.tool_call_id)
        elif room > 0 or call.phase is not ToolPhase.AUTHORIZED:  # a human has said that it is to run now
            passing.add(row.tool_call_id)
            room -= 1
    return passing


def _invocation(execution: Execution, call: ToolCall, epoch: int, *, alone: bool = False) -> ToolInvocation:
    row = call.row
    binding = execution.progress.binding
    return ToolInvocation(
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        arguments=row.arguments,
        agent_id=row.agent_id,
        execution_id=row.execution_id,
        attempt=row.attempt,
        durable_context=execution.row.durable_context,
        alone=alone,
        epoch=epoch,
        registry_key=binding.registry_key(row.tool_name) if binding is not None else "",
    )


def live_invocations(execution: Execution, epoch: int) -> tuple[ToolInvocation, ...]:
    """The dispatches whose outcome is waited for, as the present owner would ask after them."""
    return tuple(_invocation(execution, call, epoch) for call in execution.batch if call.is_live)


def _close_changed(draft: Draft, ids: set[str]) -> set[str]:
    """Close those of `ids` that must not run as the agent's tools are now; returns them."""
    approvals = {item.tool_call_id: item for item in draft.execution.approvals}
    changed: set[str] = set()
    batch = []
    for call in draft.execution.batch:
        row = call.row
        why = None
        if row.tool_call_id in ids:
            why = change_since(row, draft.tools.tools, draft.env.definition, approvals.get(row.tool_call_id))
        if why is not None:
            changed.add(row.tool_call_id)
            spec = spec_of(draft, row)
            fatal = spec is None or spec.on_error is OnError.RAISE
            call = call.stop_for_change(why, fatal=fatal, now=draft.env.now)
        batch.append(call)
    if changed:
        draft.set_batch(batch)
        for call in batch:
            if call.row.tool_call_id in changed:
                result_event(draft, call.row)
    return changed


def apply_outcomes(draft: Draft, outcomes: Sequence[ToolOutcome]) -> bool:
    """Settle calls by the outcomes of their present attempts; whether any fitted. Others are consumed without effect."""
    reported: dict[tuple[str, int], ToolOutcome] = {}
    # the first report of an attempt counts, and a late one of an older attempt hides nothing
    for outcome in outcomes:
        reported.setdefault((outcome.tool_call_id, outcome.attempt), outcome)
    again: set[str] = set()
    settled: list[ToolCallRow] = []
    stopping = draft.execution.row.cancel_requested_at is not None
    batch = []
    for call in draft.execution.batch:
        found = reported.get((call.row.tool_call_id, call.row.attempt))
        if found is None or not call.is_live:
            batch.append(call)
            continue
        outcome = found
        if outcome.status is ToolCallStatus.UNKNOWN and call.row.replay != Replay.NEVER and not stopping:
            if call.row.attempt < MAX_DISPATCHES:
                batch.append(call.running().lost(outcome))
                again.add(call.row.tool_call_id)
                continue
            outcome = worker_died(outcome, call.row.attempt)
        fatal = not stopping and is_fatal(draft, call.row, outcome)
        moved = call.settle(outcome, fatal=fatal, now=draft.env.now)
        if moved.phase is ToolPhase.UNRESOLVED and stopping:
            moved = moved.close(ToolCallStatus.UNKNOWN, CLOSING_TEXT[ToolCallStatus.UNKNOWN], draft.env.now)
        batch.append(moved)
        settled.append(moved.row)
    draft.set_batch(batch)
    for row in settled:
        result_event(draft, row)
    if again:
        dispatch(draft, again, alone=True)
    return bool(again or settled)


def worker_died(outcome: ToolOutcome, attempts: int) -> ToolOutcome:
    """The failure of a call that has lost its process too often."""
    is_memory = outcome.error is not None and outcome.error.code == "out_of_memory"
    code = "out_of_memory" if is_memory else "worker_died"
    text = f"the process that ran the tool died {attempts} times"
    if is_memory and outcome.error is not None:
        text += f", at last because {outcome.error.message}"
    return replace(
        outcome,
        status=ToolCallStatus.FAILED,
        model_text=f"Error ({code}): {text}",
        error=ErrorRecord("ToolError", code, text),
    )


def is_fatal(draft: Draft, row: ToolCallRow, outcome: ToolOutcome) -> bool:
    """Whether this outcome of a call ends the execution."""
    if outcome.status not in (ToolCallStatus.FAILED, ToolCallStatus.TIMED_OUT):
        return False
    spec = spec_of(draft, row)
    return spec is None or spec.on_error is OnError.RAISE


# --- closing ---------------------------------------------------------------------------------------------------


def close_open_calls(draft: Draft) -> None:
    """Give every call and every approval request without outcome one, and journal the batch, so that none stays open."""
    if not draft.execution.batch:
        return
    closed = []
    for call in draft.execution.batch:
        if call.is_settled:
            closed.append(call)
        elif call.is_live or call.phase is ToolPhase.UNRESOLVED:
            closed.append(
                call.close(ToolCallStatus.UNKNOWN, CLOSING_TEXT[ToolCallStatus.UNKNOWN], draft.env.now)
            )
        elif call.phase in (ToolPhase.AUTHORIZING, ToolPhase.AWAITING_APPROVAL, ToolPhase.AUTHORIZED):
            text = CLOSING_TEXT[ToolCallStatus.NOT_PERFORMED]
            closed.append(call.close(ToolCallStatus.NOT_PERFORMED, text, draft.env.now))
        else:
            closed.append(call)
    for before, call in zip(draft.execution.batch, closed, strict=True):
        if before is not call:
            result_event(draft, call.row)
    draft.set_batch(closed)
    draft.set_approvals(
        replace(item, status=ApprovalStatus.VOID, decided_at=draft.env.now)
        if item.status is ApprovalStatus.PENDING
        else item
        for item in draft.execution.approvals
    )
    journal_batch(draft)


def journal_batch(draft: Draft, *, notice: str = "") -> ErrorRecord | None:
    """Append the results in request order and forget the batch; the error that ends the execution, if one does.

    `notice` is added to what the model is told by the last call.
    """
    fatal: ErrorRecord | None = None
    last = len(draft.execution.batch) - 1
    rows = [call.row for call in draft.execution.batch]
    whole = [
        row.model_text if row.model_text is not None else CLOSING_TEXT.get(row.status, "") for row in rows
    ]
    texts = fit_batch(rows, whole, draft.env.definition.max_batch_result_chars)
    for index, call in enumerate(draft.execution.batch):
        row = call.row
        status = result_status(row, cut=texts[index] is not whole[index])
        kept = content_of_cut(row) if status is ResultStatus.TRUNCATED else None
        if kept is not None:
            draft.content(kept)
        draft.record(
            RecordKind.TOOL_RESULT,
            Channel.TOOL,
            row.result,  # alone, so that a large one is the same content as in the ledger and stored once
            model_call=row.model_call_id,
            causation=row.tool_call_id,
            metadata={
                "tool_name": row.tool_name,
                "status": row.status.value,
                "result_status": status.value,
                "error": public_error(row.error),
            },
        )
        if (row.authorization or {}).get("edited_by"):
            texts[index] = (
                f"(A human changed the arguments of this call to {dumps(row.arguments)}.)\n{texts[index]}"
            )
        draft.message(
            RecordKind.TOOL_MESSAGE,
            Channel.TOOL,
            Message.tool(row.provider_call_id, texts[index] + (notice if index == last else "")),
            model_call=row.model_call_id,
            causation=row.tool_call_id,
        )
        if call.phase is ToolPhase.FAILED and fatal is None and row.error is not None:
            cause = ErrorRecord.from_wire(row.error)
            fatal = ErrorRecord(
                "ToolTimeoutError" if row.status is ToolCallStatus.TIMED_OUT else "ToolError",
                "tool_timeout" if row.status is ToolCallStatus.TIMED_OUT else ToolError.default_code,
                f"tool {row.tool_name!r} failed: {cause.told}",
                (replace(cause, causes=(), traceback=""), *cause.causes),
                details={"tool_name": row.tool_name, "tool_call_id": row.tool_call_id},
            )
    draft.close_batch()
    return fatal
