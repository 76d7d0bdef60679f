"""The execution machine: `step` takes state and input and gives the next state, its commit and the effects.

Pure: no Ray, SQL, HTTP or clock. The shell executes the commit, installs the state only when it is durable, and then
performs the effects. An input that belongs to an older call or attempt is consumed without a change.
"""

from __future__ import annotations

from typing import assert_never

from phronomy_ray.kernel import humans, queue, tools_step
from phronomy_ray.kernel.admission import preparation_done, preparation_failed, start
from phronomy_ray.kernel.after_batch import after_batch, carry_on
from phronomy_ray.kernel.answers import model_answered, model_failed, model_stopped
from phronomy_ray.kernel.approvals import settle_batch
from phronomy_ray.kernel.authorization import apply_verdicts, is_awaited
from phronomy_ray.kernel.detaching import detach
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.edits import edit
from phronomy_ray.kernel.effects import Step, without_change
from phronomy_ray.kernel.ending import cancelled
from phronomy_ray.kernel.inputs import (
    Authorized,
    Cancel,
    Decide,
    Detach,
    DropRequest,
    Edit,
    Env,
    Expire,
    Input,
    InputBuildFailed,
    InputBuilt,
    ModelAnswered,
    ModelFailed,
    ModelStopped,
    OutputFiltered,
    OutputFilterFailed,
    PreparationDone,
    PreparationFailed,
    Recover,
    Resolve,
    Start,
    ToolOutcomes,
    ToolsLate,
)
from phronomy_ray.kernel.late import record_late
from phronomy_ray.kernel.model_input import input_build_failed, input_built
from phronomy_ray.kernel.output import output_filter_failed, output_filtered
from phronomy_ray.kernel.recovery import recover
from phronomy_ray.kernel.state import AgentState


def step(state: AgentState, event: Input, env: Env) -> Step:
    """Decide what `event` does to `state`.

    Raises:
        AgentBusyError: `Start` or `Edit` while an execution is non-terminal, or `Detach` (with a reason).
        BackpressureError: `Start` while too many requests wait.
        AgentParkedError: `Start` of an agent that was parked.
        AgentClosedError: `Start` or `Edit` of an agent that was closed.
        NotFoundError, StateConflictError, InvalidInputError: a human's `Decide`, `Resolve` or `Cancel` does not fit.
        IllegalTransitionError: a fault of this package: the tables forbid what was about to happen.
    """
    match event:
        case Start():
            return start(state, event, env)
        case PreparationDone():
            return preparation_done(state, event, env)
        case PreparationFailed():
            return preparation_failed(state, event, env)
        case InputBuilt():
            return input_built(state, event, env)
        case InputBuildFailed():
            return input_build_failed(state, event, env)
        case OutputFiltered():
            return output_filtered(state, event, env)
        case OutputFilterFailed():
            return output_filter_failed(state, event, env)
        case ModelAnswered():
            return model_answered(state, event, env)
        case ModelFailed():
            return model_failed(state, event, env)
        case ModelStopped():
            return model_stopped(state, event, env)
        case Authorized():
            return _authorized(state, event, env)
        case ToolOutcomes():
            return _tool_outcomes(state, event, env)
        case ToolsLate():
            return record_late(state, event, env)
        case Edit():
            return edit(state, event, env)
        case Decide():
            return carry_on(humans.decide(state, event, env), "decision")
        case Resolve():
            return carry_on(humans.resolve(state, event, env), "resolution")
        case Cancel():
            if any(item.execution_id == event.execution_id for item in state.queue):
                return queue.withdraw(state, event, env)
            return humans.cancel(state, event, env)
        case Detach():
            return detach(state, event, env)
        case DropRequest():
            return queue.drop(state, event.execution_id, env)
        case Expire():
            return carry_on(humans.expire(state, env), "expiry")
        case Recover():
            return recover(state, event, env)
    assert_never(event)


def _authorized(state: AgentState, event: Authorized, env: Env) -> Step:
    if state.execution is None:
        return without_change(state)
    draft = Draft(state, env, state.execution)
    if not is_awaited(draft, event):
        return without_change(state)
    apply_verdicts(draft, event)
    if draft.execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    return settle_batch(draft, "authorized") or after_batch(draft, "authorized")


def _tool_outcomes(state: AgentState, event: ToolOutcomes, env: Env) -> Step:
    execution = state.execution
    if execution is None or not execution.batch:
        return without_change(state)
    draft = Draft(state, env, execution)
    if not tools_step.apply_outcomes(draft, event.outcomes):
        return without_change(state)
    return after_batch(draft, "results")
