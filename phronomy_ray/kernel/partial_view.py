"""A view that was read from the newest records of a journal only.

A new owner does not know yet what its next turn needs, and most of a long history is not: a model call is shown the newest
whole exchanges that fit. So it begins with a few of the newest records, and reads older ones when a step asks for them
(`kernel.context.OlderRecordsNeeded`). What is read begins where an exchange begins, and every selection from the part is the
one that would have been made from the whole: exchanges are chosen from the newest on, and a selection that would take all
of a part asks for more of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from phronomy_ray.frozen import replace
from phronomy_ray.journal import MESSAGE_KINDS, TERMINAL_KINDS, JournalRecord, RecordKind
from phronomy_ray.kernel.context import Conversation

_CLEARED = (RecordKind.TRANSCRIPT_CLEARED, RecordKind.CONTEXT_RESET)


def newest_view(
    records: Sequence[JournalRecord],
    *,
    has_older: bool,
    base: int | None = None,
    knowledge: Sequence[JournalRecord] = (),
) -> Conversation:
    """The view of the newest records of a journal.

    Args:
        records: those of `journal.VIEW_KINDS`, ascending up to the newest; all of the running execution's among them.
        has_older: whether there may be records before them.
        base: where the running execution began, ``None`` when none runs.
        knowledge: the records of all knowledge that is visible, however old.
    """
    if not has_older:
        return Conversation().apply(records)
    start = _first_clean_point(records, base)
    floor = records[start].position if start < len(records) else records[-1].position + 1
    view = Conversation(floor=floor).apply(records[start:])
    return replace(view, knowledge=Conversation().apply(knowledge).knowledge)


def with_older(view: Conversation, records: Sequence[JournalRecord], *, has_older: bool) -> Conversation:
    """`view` with exchanges from before its floor.

    Args:
        view: a view with a floor.
        records: those of `journal.VIEW_KINDS` that lie directly before the floor, ascending.
        has_older: whether there may be records before them. A part that begins within one exchange adds nothing; read more.
    """
    older = newest_view(records, has_older=has_older)
    size = older.exchanges[-1].total_tokens if older.exchanges else 0
    newer = tuple(replace(exchange, total_tokens=exchange.total_tokens + size) for exchange in view.exchanges)
    return replace(view, exchanges=(*older.exchanges, *newer), floor=older.floor)


def _first_clean_point(records: Sequence[JournalRecord], base: int | None) -> int:
    """Index of the first record before which no exchange can be open, whatever came before `records`; their number for none.

    An imported exchange begins with its user message, that of an execution with its first message, and it ends with the
    execution. Nothing is cleared while an execution runs.
    """
    writer: str | None = None
    for index, record in enumerate(records):
        if base is not None and record.position > base:
            return index
        if record.kind in MESSAGE_KINDS:
            if record.execution_id is None:
                if record.content["role"] == "user":
                    return index
            elif writer is not None and record.execution_id != writer:
                return index
            writer = record.execution_id or ""
        elif record.kind in _CLEARED:
            return index
        elif record.kind in TERMINAL_KINDS and record.execution_id == writer:
            return index + 1
    return len(records)
