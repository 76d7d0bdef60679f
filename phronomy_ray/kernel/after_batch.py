"""What follows when something happened to the present batch of tool calls."""

from __future__ import annotations

from phronomy_ray.errors import ErrorRecord, FilterBlockError, MaxIterationsError
from phronomy_ray.frozen import replace
from phronomy_ray.kernel import tools_step
from phronomy_ray.kernel.direct import direct_output
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.effects import Step
from phronomy_ray.kernel.ending import blocked, cancelled, failed
from phronomy_ray.kernel.model_input import next_model_call
from phronomy_ray.kernel.output import deliver
from phronomy_ray.kernel.repeats import count_repeats
from phronomy_ray.kernel.resolution import ask_for_resolution
from phronomy_ray.kernel.transitions import ToolPhase


def after_batch(draft: Draft, name: str) -> Step:
    """Go on as the present batch allows: wait, ask a human, end, or call the model with the results."""
    tools_step.answer_twins(draft)
    tools_step.fill_gate(draft)
    batch = draft.execution.batch
    if any(call.is_live for call in batch):
        return draft.finish(name)
    if draft.execution.row.cancel_requested_at is not None:
        return cancelled(draft, "cancel")
    if any(call.phase is ToolPhase.UNRESOLVED for call in batch):
        ask_for_resolution(draft)
        return draft.finish("unresolved")
    output = direct_output(draft)
    is_fatal = any(call.phase is ToolPhase.FAILED for call in batch)
    notice = count_repeats(draft, goes_on=not is_fatal and output is None and not at_limit(draft))
    fatal = tools_step.journal_batch(draft, notice=notice)
    if fatal is not None:
        cause = fatal.causes[0]
        if cause.code == FilterBlockError.default_code:
            return blocked(draft, replace(cause, details=fatal.details), "blocked")
        return failed(draft, fatal, "failed")
    if output is not None:
        return deliver(draft, output)
    if at_limit(draft):
        return failed(draft, _iteration_limit(draft), "failed")
    return next_model_call(draft, name)


def carry_on(found: Step | Draft, name: str) -> Step:
    """`after_batch`, unless a step was found already."""
    return found if isinstance(found, Step) else after_batch(found, name)


def at_limit(draft: Draft) -> bool:
    """Whether the execution has made all model calls that it may."""
    return draft.execution.progress.model_calls >= draft.env.definition.max_iterations


def _iteration_limit(draft: Draft) -> ErrorRecord:
    """The end of an execution that has used all its model calls."""
    limit = draft.env.definition.max_iterations
    return ErrorRecord.from_exception(
        MaxIterationsError(
            f"the execution made {limit} model calls without a final answer; the results so far are kept "
            "(raise max_iterations, or go on with another message)",
            details={"max_iterations": limit},
        )
    )
