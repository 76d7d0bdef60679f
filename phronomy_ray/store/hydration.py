"""What a new owner reads of its agent, within the transaction of its claim: nobody else changes the agent meanwhile.

Nothing here grows with the history: the newest records, those of the running execution, and what the agent knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from sqlalchemy import Connection

from phronomy_ray.commits import Hydration
from phronomy_ray.journal import AgentRoot
from phronomy_ray.store import approval_rows, rows, statements
from phronomy_ray.store.codec import RowDecoder

#: Gives what reads the rows that refer to these contents.
MakeDecoder: TypeAlias = Callable[[Connection, Collection[str]], RowDecoder]

#: Content ids in one ``IN`` list; far below both engines' limits.
_IDS_PER_QUERY = 5_000
NO_LIMIT = 2**31 - 1


def read_hydration(
    connection: Connection, root: AgentRoot, decoder_of: MakeDecoder, *, recent: int
) -> Hydration:
    """The agent of `root` as it is stored, with `recent` of the newest records; with 0 without any, and without knowledge."""
    of_agent = {"the_agent_id": root.agent_id}
    for _ in range(2):
        queue = connection.execute(statements.QUEUE, of_agent).all()
        wanted = rows.references(queue, *rows.REQUEST_REFS)
        found: rows.AnyRow | None = connection.execute(statements.OPEN_EXECUTION, of_agent).one_or_none()
        model_calls: Sequence[rows.AnyRow] = ()
        tool_calls: Sequence[rows.AnyRow] = ()
        approvals: Sequence[rows.AnyRow] = ()
        last_seq = 0
        if found is not None:
            of = {"the_execution_id": found.execution_id}
            model_calls = connection.execute(statements.MODEL_CALLS, of).all()
            tool_calls = connection.execute(statements.TOOL_CALLS, of).all()
            approvals = connection.execute(
                statements.approval_list(of_execution=True, of_agent=False, pending_only=False),
                of | {"row_limit": NO_LIMIT},
            ).all()
            last_seq = connection.execute(statements.LAST_EVENT_SEQ, of).scalar_one()
            wanted |= (
                rows.references([found], *rows.EXECUTION_REFS)
                | rows.references(tool_calls, *rows.TOOL_CALL_REFS)
                | rows.references(approvals, *approval_rows.APPROVAL_REFS)
            )
        journal: Sequence[rows.AnyRow] = ()
        knowledge: Sequence[rows.AnyRow] = ()
        has_older = root.journal_position > 0
        if recent and has_older:
            base = found.base_position if found is not None else root.journal_position
            journal, has_older = _newest_records(connection, of_agent, base, recent)
            if found is not None:
                since = of_agent | {"after": base, "row_limit": NO_LIMIT}
                page = statements.journal_page(bounded=False, newest_first=False, view_only=True)
                journal = [*journal, *connection.execute(page, since).all()]
            if has_older:
                knowledge = connection.execute(statements.KNOWLEDGE, of_agent).all()
            wanted |= rows.references(journal, *rows.JOURNAL_REFS)
            wanted |= rows.references(knowledge, *rows.JOURNAL_REFS)
        decoder = decoder_of(connection, wanted)
        if decoder.is_whole:
            break  # else contents were put under another key between the queries: read it again
    return Hydration(
        root=root,
        execution=rows.to_execution(found, decoder) if found is not None else None,
        model_calls=tuple(rows.to_model_call(row, decoder) for row in model_calls),
        tool_calls=tuple(rows.to_tool_call(row, decoder) for row in tool_calls),
        approvals=tuple(approval_rows.to_approval(row, decoder) for row in approvals),
        last_event_seq=last_seq,
        queue=tuple(rows.to_request(row, decoder) for row in queue),
        recent=tuple(rows.to_record(row, decoder) for row in journal),
        has_older=has_older,
        knowledge=tuple(rows.to_record(row, decoder) for row in knowledge),
    )


def _newest_records(
    connection: Connection, of_agent: dict[str, str], last: int, limit: int
) -> tuple[list[rows.AnyRow], bool]:
    """The newest records up to position `last`, ascending, and whether there may be older ones."""
    page = statements.journal_page(bounded=True, newest_first=True, view_only=True)
    parameters = of_agent | {"after": 0, "before": last + 1, "row_limit": limit}
    found = connection.execute(page, parameters).all()
    return list(reversed(found)), len(found) == limit


def read_bodies(connection: Connection, content_ids: Collection[str]) -> dict[str, str]:
    """Stored forms of contents by their ids; one that is missing is left out."""
    ids = sorted(content_ids)
    bodies: dict[str, str] = {}
    for start in range(0, len(ids), _IDS_PER_QUERY):
        part = {"content_ids": ids[start : start + _IDS_PER_QUERY]}
        bodies.update((row.content_id, row.body) for row in connection.execute(statements.CONTENTS, part))
        missing = [id_ for id_ in part["content_ids"] if id_ not in bodies]
        if missing:  # taken for garbage in the moment in which somebody referred to it (`sql_contents`)
            found = connection.execute(statements.CONDEMNED_CONTENTS, {"content_ids": missing})
            bodies.update((row.content_id, row.body) for row in found)
    return bodies
