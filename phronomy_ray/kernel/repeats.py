"""Calls that repeat: within one batch, and step after step without anything new.

*Within a batch*: a call with the name and arguments of an earlier call of its batch is a duplicate. Both run by default,
since they are two requests, and the event of the later one names the earlier. An agent with ``deduplicate_tool_calls``
runs the first one only, and both ids get its outcome; which call waits for which is kept in `Progress`, so that a change
of the code between a crash and the recovery changes nothing.

*Step after step*: what counts is the set of calls of a batch that really ran, by name and canonical arguments; their order
within the batch and the order of keys do not matter, and a call that was refused or denied neither counts nor breaks the
row. When the same set has run ``max_tool_repeats`` times in a row the model is warned, in its last tool message of that
batch; asking for it once more ends the execution before anything of that batch runs or asks a human. Arguments are never
quoted. The rule follows Insika's loop detector; the set is ours, because models shuffle parallel calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.errors import ErrorRecord, RepeatedToolCallError
from phronomy_ray.events import EventType
from phronomy_ray.journal import ToolCallRow
from phronomy_ray.kernel.draft import Draft
from phronomy_ray.kernel.tool_call import ToolCall
from phronomy_ray.kernel.transitions import ToolPhase

#: As `canonical_json.dumps_plain` writes; an encoder made once is twice as fast for the many small arguments of a batch.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
#: Phases of a fresh batch in which a call would run, once it is allowed to.
_WOULD_RUN = frozenset({ToolPhase.AUTHORIZING, ToolPhase.AUTHORIZED, ToolPhase.AWAITING_APPROVAL})
#: A limit below this turns the detector off: one call is no repetition.
LEAST_REPEATS = 2


# --- step after step -------------------------------------------------------------------------------------------


def refuse_repeat(draft: Draft) -> ErrorRecord | None:
    """Why the fresh batch of `draft` must not run: it is what the model was warned about, once more."""
    limit = draft.env.definition.max_tool_repeats
    progress = draft.execution.progress
    if limit < LEAST_REPEATS or progress.repeats < limit:
        return None
    wanted = [call.row for call in draft.execution.batch if call.phase in _WOULD_RUN]
    if not wanted or _set_hash(wanted) != progress.repeated:
        return None
    names = sorted({row.tool_name for row in wanted})
    return ErrorRecord.from_exception(
        RepeatedToolCallError(
            f"the model asked again for the same calls of {', '.join(names)} after they had run {progress.repeats} times "
            "in a row with the same arguments and it had been warned (max_tool_repeats sets the limit)",
            details={"tool_names": names, "repeats": progress.repeats},
        )
    )


def count_repeats(draft: Draft, *, goes_on: bool) -> str:
    """Count the settled batch; the warning that its last tool message carries, empty for none.

    `goes_on`: whether the model is called with the results; a batch that ends the execution warns nobody.
    """
    limit = draft.env.definition.max_tool_repeats
    ran = [call.row for call in draft.execution.batch if call.row.attempt > 0]
    if limit < LEAST_REPEATS or not ran:
        return ""
    found = _set_hash(ran)
    progress = draft.execution.progress
    repeats = progress.repeats + 1 if found == progress.repeated else 1
    draft.progress(repeated=found, repeats=repeats)
    if repeats < limit or not goes_on:
        return ""
    names = sorted({row.tool_name for row in ran})
    draft.event(EventType.TOOL_REPEATED, {"tool_names": names, "repeats": repeats})
    return (
        f"\n\n[Notice: {', '.join(names)} ran {repeats} times in a row with the same arguments. Use what you have, change the "
        "arguments, or answer; the same once more ends this turn.]"
    )


def _set_hash(rows: Iterable[ToolCallRow]) -> str:
    return content_hash("\n".join(sorted({_identity(row) for row in rows})))


def _identity(row: ToolCallRow) -> str:
    """Equal for calls that ask for the same: canonical JSON, so key order does not matter."""
    return f"{row.tool_name} {_CANONICAL(row.arguments)}"


# --- within a batch --------------------------------------------------------------------------------------------


def duplicates(batch: Iterable[ToolCall]) -> dict[str, str]:
    """Id of the first equal call for each later one of the batch; refused calls have no part in it."""
    asked = [call for call in batch if call.row.arguments is not None]
    if _all_differ(asked):
        return {}
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for call in asked:
        original = first.setdefault(_identity(call.row), call.row.tool_call_id)
        if original != call.row.tool_call_id:
            found[call.row.tool_call_id] = original
    return found


def _all_differ(calls: list[ToolCall]) -> bool:
    """Whether no two can be equal, by a look that is cheaper than their JSON; large batches hardly ever repeat a call."""
    try:
        return len({(call.row.tool_name, frozenset(call.row.arguments.items())) for call in calls}) == len(
            calls
        )
    except (TypeError, AttributeError):  # nested arguments
        return False


def hold_twins(draft: Draft, ids: set[str]) -> set[str]:
    """Those of the authorised calls `ids` that run; the others wait for the outcome of an equal one among them."""
    if not draft.env.definition.deduplicate_tool_calls:
        return ids
    twins = duplicates(call for call in draft.execution.batch if call.row.tool_call_id in ids)
    if twins:
        draft.progress(twins=tuple(twins.items()))
    return ids - twins.keys()


def settle_twins(draft: Draft) -> list[ToolCallRow]:
    """Give each waiting twin the outcome of its original, where that has one; the rows that changed."""
    originals = dict(draft.execution.progress.twins)
    if not originals:
        return []
    by_id = {call.row.tool_call_id: call for call in draft.execution.batch}
    settled: list[ToolCallRow] = []
    batch = []
    for call in draft.execution.batch:
        original = by_id.get(originals.get(call.row.tool_call_id, ""))
        if original is not None and original.is_settled and call.phase is ToolPhase.AUTHORIZED:
            call = call.answer_as(original, draft.env.now)
            settled.append(call.row)
        batch.append(call)
    if settled:
        draft.set_batch(batch)
    return settled
