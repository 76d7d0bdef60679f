"""Holds in SQL: a part of `SqlStore`. A hold is made under the lock of its agent's root, and so is the deletion that it prevents."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from phronomy_ray.errors import InvalidInputError, NotFoundError
from phronomy_ray.retention import Retention
from phronomy_ray.store import statements
from phronomy_ray.store.codec import decode_time, encode_time
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.store.rows import AnyRow


class SqlRetentions(SqlDatabase):
    """The holds of one SQL database (see `store.port.Store` for the contract of each method)."""

    def retain(self, retention: Retention) -> Retention:
        """As `Store.retain`."""
        row = {
            "owner_key": retention.owner_key,
            "agent_id": retention.agent_id,
            "execution_id": retention.execution_id or "",
            "created_at": encode_time(retention.created_at),
        }
        of_agent = {"the_agent_id": retention.agent_id}

        def work(connection: Connection) -> Retention:
            if connection.execute(statements.LOCK_ROOT, of_agent).one_or_none() is None:
                raise NotFoundError(
                    f"no agent {retention.agent_id!r}", details={"agent_id": retention.agent_id}
                )
            if retention.execution_id is not None:
                _check_execution(connection, retention.agent_id, retention.execution_id)
            connection.execute(statements.INSERT_RETENTION[connection.dialect.name], row)
            return to_retention(connection.execute(statements.RETENTION, _key(row)).one())

        return self._write(work, repeat_unknown=True)

    def release(self, owner_key: str, *, agent_id: str, execution_id: str | None = None) -> bool:
        """As `Store.release`."""
        key = _key({"owner_key": owner_key, "agent_id": agent_id, "execution_id": execution_id or ""})
        return self._write(
            lambda connection: bool(connection.execute(statements.DELETE_RETENTION, key).rowcount),
            repeat_unknown=True,
        )

    def retentions(
        self, *, agent_id: str | None = None, owner_key: str | None = None, limit: int = 1000
    ) -> list[Retention]:
        """As `Store.retentions`."""
        if limit < 0:
            raise InvalidInputError(f"limit must not be negative, got {limit}")
        query = statements.retention_list(of_agent=agent_id is not None, of_owner=owner_key is not None)
        given = {"the_agent_id": agent_id, "the_owner_key": owner_key}
        parameters: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        parameters["row_limit"] = limit
        return self._read(
            lambda connection: [to_retention(row) for row in connection.execute(query, parameters)]
        )


def to_retention(row: AnyRow) -> Retention:
    """One hold."""
    return Retention(row.owner_key, row.agent_id, row.execution_id or None, decode_time(row.created_at))


def _key(row: dict[str, str]) -> dict[str, str]:
    return {f"the_{name}": row[name] for name in ("owner_key", "agent_id", "execution_id")}


def _check_execution(connection: Connection, agent_id: str, execution_id: str) -> None:
    found = connection.execute(statements.EXECUTION_GUARDS, {"the_execution_id": execution_id}).one_or_none()
    if found is None or found.agent_id != agent_id:
        raise NotFoundError(
            f"no execution {execution_id!r} of agent {agent_id!r} is stored",
            details={"agent_id": agent_id, "execution_id": execution_id},
        )


__all__ = ["SqlRetentions", "to_retention"]
