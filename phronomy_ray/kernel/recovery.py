"""A new owner goes on with the execution that it has found: the stored phase says what was under way."""

from __future__ import annotations

from typing import assert_never

from phronomy_ray.definition.tool import Replay
from phronomy_ray.errors import IllegalTransitionError
from phronomy_ray.events import EventType
from phronomy_ray.frozen import replace
from phronomy_ray.journal import ExecutionStatus, Phase, ToolCallRow, ToolCallStatus
from phronomy_ray.kernel import humans
from phronomy_ray.kernel.after_batch import after_batch, carry_on
from phronomy_ray.kernel.authorization import wait_for_code
from phronomy_ray.kernel.display import result_event
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Prepare, Step, StopWork, without_change, without_progress
from phronomy_ray.kernel.ending import cancelled
from phronomy_ray.kernel.inputs import Env, Recover
from phronomy_ray.kernel.model_input import build_input
from phronomy_ray.kernel.output import filter_output
from phronomy_ray.kernel.state import AgentState, Execution
from phronomy_ray.kernel.tool_call import MAX_OWNER_LOSSES
from phronomy_ray.kernel.tools_step import dispatch, is_fatal, worker_died
from phronomy_ray.kernel.transitions import SETTLED_PHASES, ToolPhase
from phronomy_ray.tool_calls import Attachment, ToolOutcome


def recover(state: AgentState, event: Recover, env: Env) -> Step:
    """Go on from what is stored: begin again what has no effect, take calls as they are known. Raises as `machine.step`.

    What is only begun again is no progress: an owner that dies of it, and its successors, must be seen to go in circles.
    """
    execution = state.execution
    if execution is None:
        return without_change(state)
    wished = event.cancel_reason is not None and execution.row.cancel_requested_at is None
    if wished:
        row = replace(execution.row, cancel_requested_at=env.now, terminal_reason=event.cancel_reason)
        execution = replace(execution, row=row)
    if execution.row.status is ExecutionStatus.SUSPENDED:
        if wished:
            return cancelled(Draft(state, env, execution), "cancel")
        return carry_on(humans.expire(state, env), "expiry")
    begun = _go_on(state, execution, event, env)
    return begun if _settles_something(execution, begun) else without_progress(state, begun)


def _settles_something(before: Execution, decided: Step) -> bool:
    """Whether the next owner would find something else than this one: an end, a question to a human, the outcome of a call."""
    after = decided.state.execution
    if after is None or after.row.status is ExecutionStatus.SUSPENDED:
        return True
    return bool(_to_do(before) - _to_do(after))


def _to_do(execution: Execution) -> set[str]:
    """Calls of the present batch that have no outcome yet and wait for nobody's word about it."""
    done = {*SETTLED_PHASES, ToolPhase.UNRESOLVED}
    return {call.row.tool_call_id for call in execution.batch if call.phase not in done}


def _go_on(state: AgentState, execution: Execution, event: Recover, env: Env) -> Step:
    row = execution.row
    draft = Draft(state, env, execution)
    draft.event(EventType.RECOVERED, {"epoch": state.root.epoch, "phase": row.phase.value, **env.owner})
    if row.cancel_requested_at is not None:
        if _lose_running(draft, event.attachment):
            draft.move(row.status, row.phase)
            draft.effects.append(StopWork(row.execution_id))
            return draft.finish("recover")
        return cancelled(draft, "cancel")
    match row.phase:
        case Phase.PREPARING:
            draft.move(row.status, row.phase)
            draft.effects.append(Prepare(row.execution_id, row.input, row.durable_context))
            return draft.finish("recover")
        case Phase.BUILDING_INPUT:
            return build_input(draft, "recover")
        case Phase.FILTERING_OUTPUT:
            filter_output(draft)
            return draft.finish("recover")
        case Phase.CALLING_MODEL:
            draft.move(row.status, row.phase)
            draft.effects.append(draft.repeat_model_call())
            return draft.finish("recover")
        case Phase.AUTHORIZING:
            wait_for_code(draft)
            return draft.finish("recover")
        case Phase.DISPATCHING_TOOLS | Phase.RECOVERY_TOOLS:
            draft.move(row.status, row.phase)
            _redispatch_lost(draft, event.attachment)
            return after_batch(draft, "recover")
        case Phase.APPROVAL | Phase.ENDED:
            raise IllegalTransitionError(
                f"execution {row.execution_id} is stored as {row.status.value} in phase {row.phase.value}"
            )
    assert_never(row.phase)


def _redispatch_lost(draft: Draft, known: Attachment) -> None:
    """After a crash: wait for what still runs, run again what may run again, ask about the rest.

    A call that was running in each of `MAX_OWNER_LOSSES` crashes is taken for their cause and fails.
    """
    again: set[str] = set()
    settled: list[ToolCallRow] = []
    twins = dict(draft.execution.progress.twins)
    batch = []
    for call in draft.execution.batch:
        row = call.row
        if call.is_live and (row.tool_call_id, row.attempt) in known.attached:
            call = call.running()
        elif call.is_live and (row.tool_call_id, row.attempt) in known.not_started:
            call = call.running()
            again.add(row.tool_call_id)
        elif call.is_live and row.replay == Replay.NEVER:
            call = call.running().lost().move(ToolPhase.UNRESOLVED, status=ToolCallStatus.UNKNOWN)
        elif call.is_live and row.attempt >= MAX_OWNER_LOSSES:
            outcome = worker_died(
                ToolOutcome(row.tool_call_id, row.attempt, ToolCallStatus.FAILED), row.attempt
            )
            call = call.settle(outcome, fatal=is_fatal(draft, row, outcome), now=draft.env.now)
            settled.append(call.row)
        elif call.is_live:
            call = call.running().lost()
            again.add(row.tool_call_id)
        elif call.phase is ToolPhase.AUTHORIZED and row.tool_call_id not in twins:
            again.add(row.tool_call_id)
        batch.append(call)
    draft.set_batch(batch)
    for row in settled:
        result_event(draft, row)
    if again:
        dispatch(draft, again, checked=True)


def _lose_running(draft: Draft, known: Attachment) -> bool:
    """After a crash of a cancelled execution: what was running has an unknown outcome; whether any still runs."""
    batch = []
    runs = False
    for call in draft.execution.batch:
        if call.is_live:
            attached = (call.row.tool_call_id, call.row.attempt) in known.attached
            runs = runs or attached
            call = call.running() if attached else call.running().lost()
        batch.append(call)
    draft.set_batch(batch)
    return runs
