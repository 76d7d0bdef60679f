"""Wishes that executions end, in SQL: a part of `SqlStore` that no commit writes. A row is never changed."""

from __future__ import annotations

from sqlalchemy import Connection

from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.errors import NotFoundError
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.store import statements
from phronomy_ray.store.codec import decode_time, encode_time, plain_text
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.store.rows import AnyRow


class SqlCancellations(SqlDatabase):
    """The cancellation intents of one SQL database (see `store.port.Store` for the contract of each method)."""

    def request_cancellation(self, intent: CancellationIntent) -> CancellationIntent | None:
        """As `Store.request_cancellation`."""
        of = {"the_execution_id": intent.execution_id}
        row = {
            "execution_id": intent.execution_id,
            "agent_id": intent.agent_id,
            "reason": plain_text(intent.reason),
            "requested_at": encode_time(intent.requested_at),
        }

        def work(connection: Connection) -> CancellationIntent | None:
            # a request that waits and begins meanwhile is in both places or in the second one
            waiting = connection.execute(statements.REQUEST, of).one_or_none()
            stored = connection.execute(statements.EXECUTION_GUARDS, of).one_or_none()
            found = stored if stored is not None else waiting
            if found is None or found.agent_id != intent.agent_id:
                raise NotFoundError(
                    f"no execution {intent.execution_id!r} of agent {intent.agent_id!r} is stored",
                    details={"execution_id": intent.execution_id, "agent_id": intent.agent_id},
                )
            if stored is None or not ExecutionStatus(stored.status).is_terminal:
                connection.execute(statements.INSERT_CANCELLATION[connection.dialect.name], row)
            kept = connection.execute(statements.CANCELLATION, of).one_or_none()
            return _to_intent(kept) if kept is not None else None

        return self._write(work, repeat_unknown=True)

    def find_cancellation(self, execution_id: str) -> CancellationIntent | None:
        """As `Store.find_cancellation`."""
        of = {"the_execution_id": execution_id}
        row = self._read(lambda connection: connection.execute(statements.CANCELLATION, of).one_or_none())
        return _to_intent(row) if row is not None else None


def _to_intent(row: AnyRow) -> CancellationIntent:
    return CancellationIntent(row.execution_id, row.agent_id, row.reason, decode_time(row.requested_at))


__all__ = ["SqlCancellations"]
