"""``return_direct``: a tool's result that is the turn's output, without another model call.

Which calls have that contract is written down with their batch, so an approval, a restart or a change of the code in
between does not lose it. The turn ends with the result of the last such call, in request order, that succeeded; when none
did, the results go to the model as always.
"""

from __future__ import annotations

from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.tool_results import result_text


def remember_direct(draft: Draft) -> None:
    """Keep which calls of the fresh batch give their result as the output."""
    tools = draft.tools.tools
    found = tuple(
        call.row.tool_call_id
        for call in draft.execution.batch
        if (bound := tools.get(call.row.tool_name)) is not None and bound.spec.return_direct
    )
    if found:
        draft.progress(direct_calls=found)


def direct_output(draft: Draft) -> str | None:
    """The whole text (not what the model would be shown of it) that ends the turn after the settled batch."""
    direct = draft.execution.progress.direct_calls
    if not direct:
        return None
    for call in reversed(draft.execution.batch):
        if call.row.tool_call_id in direct and call.row.status is ToolCallStatus.SUCCEEDED:
            return result_text(call.row.result)
    return None
