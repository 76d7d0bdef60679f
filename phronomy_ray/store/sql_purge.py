"""The end of an agent in SQL: a part of `SqlStore`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from phronomy_ray.errors import AgentBusyError, AgentRetainedError, OwnershipLostError
from phronomy_ray.store import statements
from phronomy_ray.store.codec import encode_time
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.store.sql_retentions import to_retention

#: Holds that an error names.
_NAMED_HOLDS = 100


class SqlPurge(SqlDatabase):
    """Deletes agents (see `store.port.Store` for the contract)."""

    def purge_agent(self, agent_id: str, *, epoch: int, created_at: datetime) -> bool:
        """As `Store.purge_agent`.

        After a lost connection it is tried once more: what was deleted is not there, and what was made anew since has
        another time of creation.
        """
        guards = {
            "the_agent_id": agent_id,
            "the_epoch": epoch,
            "the_created_at": encode_time(created_at),
        }

        def work(connection: Connection) -> bool:
            # under the root's lock, so that an execution or a hold that is being made comes first or not at all
            root = connection.execute(statements.LOCK_ROOT, {"the_agent_id": agent_id}).one_or_none()
            if root is None or root.created_at != guards["the_created_at"]:
                return False
            if root.epoch != epoch:
                raise OwnershipLostError(
                    f"agent {agent_id!r} is owned by epoch {root.epoch}; epoch {epoch} cannot purge it",
                    details={"agent_id": agent_id, "epoch": root.epoch},
                )
            check_deletable(connection, agent_id)
            return delete_agent(connection, guards)

        return self._write(work, repeat_unknown=True)


def check_deletable(connection: Connection, agent_id: str) -> None:
    """Raise `AgentBusyError` or `AgentRetainedError` if something needs the agent; its root is locked."""
    of = {"the_agent_id": agent_id}
    details: dict[str, Any] = {"agent_id": agent_id}
    running = connection.execute(statements.OPEN_EXECUTION, of).first()
    if running is not None:
        raise AgentBusyError(
            f"agent {agent_id!r} cannot be purged while it has a non-terminal execution",
            details=details | {"execution_id": running.execution_id, "status": running.status},
        )
    query = statements.retention_list(of_agent=True, of_owner=False)
    held = [to_retention(row) for row in connection.execute(query, of | {"row_limit": _NAMED_HOLDS})]
    if held:
        owners = sorted({hold.owner_key for hold in held})
        raise AgentRetainedError(
            f"agent {agent_id!r} cannot be purged: it is held by {', '.join(owners)}",
            details=details | {"owners": owners, "retentions": [hold.to_wire() for hold in held]},
        )


def delete_agent(connection: Connection, guards: dict[str, Any]) -> bool:
    """Delete the root that `guards` name (``the_agent_id``, ``the_epoch``, ``the_created_at``) with all that belongs to it."""
    if not connection.execute(statements.DELETE_ROOT, guards).rowcount:
        return False
    epoch = guards["the_epoch"]
    connection.execute(statements.DELETE_RULES_OF_AGENT, {"the_agent_id": guards["the_agent_id"]})
    pin = statements.pin_of(guards["the_agent_id"])
    connection.execute(statements.DELETE_PLACEMENT, {"the_subject": pin})
    marker = {"name": statements.EPOCH_FLOOR, "value": "0"}
    connection.execute(statements.INSERT_META[connection.dialect.name], marker)
    connection.execute(statements.RAISE_FLOOR, {"the_epoch": epoch, "new_floor": str(epoch)})
    return True
