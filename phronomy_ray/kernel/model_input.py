"""The step before a model call of an agent with ``before_llm_input`` hooks.

Without hooks a call is committed together with what led to it. With them the execution is committed in the phase
``building_input`` first; the hooks run beside the writer, and the commit that makes the call pending keeps their patch: settings in the
manifest, messages as one content by hash. A call that is repeated after a crash is made from those, never from hooks.
"""

from __future__ import annotations

from phronomy_ray.errors import ContextBudgetExceededError, ErrorRecord
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import BuildInput, Step, without_change
from phronomy_ray.kernel.ending import failed
from phronomy_ray.kernel.inputs import Env, InputBuildFailed, InputBuilt, InputPatch
from phronomy_ray.kernel.state import AgentState, Execution


def next_model_call(draft: Draft, name: str) -> Step:
    """Go on with the next model call, by way of the hooks where there are any, or end by the budget."""
    if draft.env.builds_input:
        return build_input(draft, name)
    return call_model(draft, name, None)


def build_input(draft: Draft, name: str) -> Step:
    """Wait for the hooks; also after a crash that they did not survive."""
    try:
        request = draft.preview_request()
    except ContextBudgetExceededError as error:
        return failed(draft, ErrorRecord.from_exception(error), "failed")
    draft.move(ExecutionStatus.ACTIVE, Phase.BUILDING_INPUT)
    draft.effects.append(BuildInput(request, draft.execution.row.durable_context))
    return draft.finish(name)


def call_model(draft: Draft, name: str, patch: InputPatch | None) -> Step:
    """Commit the pending call and make it."""
    try:
        draft.request_model(patch)
    except ContextBudgetExceededError as error:
        return failed(draft, ErrorRecord.from_exception(error), "failed")
    return draft.finish(name)


def input_built(state: AgentState, event: InputBuilt, env: Env) -> Step:
    """The hooks have given their patch."""
    execution = _building(state, event.execution_id, event.sequence)
    if execution is None:
        return without_change(state)
    return call_model(Draft(state, env, execution), "call", event.patch)


def input_build_failed(state: AgentState, event: InputBuildFailed, env: Env) -> Step:
    """A hook has failed, and the execution with it."""
    execution = _building(state, event.execution_id, event.sequence)
    if execution is None:
        return without_change(state)
    return failed(Draft(state, env, execution), event.error, "failed")


def _building(state: AgentState, execution_id: str, sequence: int) -> Execution | None:
    execution = state.execution
    if execution is None or execution.row.execution_id != execution_id:
        return None
    if execution.row.phase is not Phase.BUILDING_INPUT or execution.progress.model_calls + 1 != sequence:
        return None
    return execution
