"""The end of an agent in SQL: a part of `SqlStore`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from phronomy_ray.errors import AgentBusyError, OwnershipLostError
from phronomy_ray.store import statements
from phronomy_ray.store.codec import encode_time
from phronomy_ray.store.database import SqlDatabase


class SqlPurge(SqlDatabase):
    """Deletes agents (see `store.port.Store` for the contract)."""

    def purge_agent(self, agent_id: str, *, epoch: int, created_at: datetime) -> bool:
        """As `Store.purge_agent`.

        After a lost connection it is tried once more: what was deleted is not there, and what was made anew since has
        another time of creation.
        """
        of = {"the_agent_id": agent_id}
        guards: dict[str, Any] = of | {"the_epoch": epoch, "the_created_at": encode_time(created_at)}

        def work(connection: Connection) -> bool:
            if connection.execute(statements.DELETE_ROOT, guards).rowcount:
                connection.execute(statements.DELETE_RULES_OF_AGENT, of)
                marker = {"name": statements.EPOCH_FLOOR, "value": "0"}
                connection.execute(statements.INSERT_META[connection.dialect.name], marker)
                connection.execute(statements.RAISE_FLOOR, {"the_epoch": epoch, "new_floor": str(epoch)})
                return True
            root = connection.execute(statements.LOCK_ROOT, of).one_or_none()
            if root is None or root.created_at != guards["the_created_at"]:
                return False
            details: dict[str, Any] = {"agent_id": agent_id}
            if root.epoch != epoch:
                raise OwnershipLostError(
                    f"agent {agent_id!r} is owned by epoch {root.epoch}; epoch {epoch} cannot purge it",
                    details=details | {"epoch": root.epoch},
                )
            held = connection.execute(statements.OPEN_EXECUTION, of).first()
            if held is not None:
                details |= {"execution_id": held.execution_id, "status": held.status}
            raise AgentBusyError(
                f"agent {agent_id!r} cannot be purged while it has a non-terminal execution", details=details
            )

        return self._write(work, repeat_unknown=True)
