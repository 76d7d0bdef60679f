"""The end of a turn with an output: at once, or by way of the output filters.

With output filters the text is committed first, by hash and beside the journal, in the phase ``filtering_output``. What the
filters give is the output, and also what the journal keeps as the model's last message: text that they removed is never
sent to a model again and never shown as part of the conversation. What they block is in no message at all.
"""

from __future__ import annotations

from phronomy_ray.frozen import replace
from phronomy_ray.journal import Channel, ExecutionStatus, Phase, RecordKind
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import FilterOutput, Step, without_change
from phronomy_ray.kernel.ending import blocked, completed, failed
from phronomy_ray.kernel.inputs import Env, OutputFiltered, OutputFilterFailed
from phronomy_ray.kernel.state import AgentState, Execution, PendingOutput
from phronomy_ray.messages import Message


def deliver(draft: Draft, text: str, *, model_call: str = "") -> Step:
    """End the turn with `text`.

    `model_call`: the call that said it, when its message is not in the journal yet.
    """
    if not draft.env.filters_output:
        return completed(draft, text, "terminal")
    draft.progress(output_hash=draft.content(text), output_call=model_call)
    draft.execution = replace(draft.execution, output=PendingOutput(text, model_call))
    filter_output(draft)
    return draft.finish("output")


def filter_output(draft: Draft) -> None:
    """Have the pending output filtered; again after a crash."""
    output = draft.execution.output
    assert output is not None
    row = draft.execution.row
    draft.move(ExecutionStatus.ACTIVE, Phase.FILTERING_OUTPUT)
    draft.effects.append(FilterOutput(row.execution_id, output.text, row.durable_context))


def output_filtered(state: AgentState, event: OutputFiltered, env: Env) -> Step:
    """The filters let it pass, changed or not."""
    execution = _filtering(state, event.execution_id)
    if execution is None:
        return without_change(state)
    draft = Draft(state, env, execution)
    assert execution.output is not None
    said_by = execution.output.model_call
    draft.execution = replace(draft.execution, output=None)
    if said_by and event.text.strip():
        message = Message.assistant(event.text)
        draft.message(RecordKind.ASSISTANT_MESSAGE, Channel.MODEL, message, model_call=said_by)
    return completed(draft, event.text, "terminal")


def output_filter_failed(state: AgentState, event: OutputFilterFailed, env: Env) -> Step:
    """A filter blocked it, or failed."""
    execution = _filtering(state, event.execution_id)
    if execution is None:
        return without_change(state)
    draft = Draft(state, env, replace(execution, output=None))
    return blocked(draft, event.error, "blocked") if event.blocked else failed(draft, event.error, "failed")


def _filtering(state: AgentState, execution_id: str) -> Execution | None:
    execution = state.execution
    if execution is None or execution.row.execution_id != execution_id:
        return None
    return execution if execution.row.phase is Phase.FILTERING_OUTPUT else None
