"""Age-based deletion: a part of `SqlStore`. What a non-terminal execution, a pending approval or a hold needs is left alone.

Every step looks at a page of keys and deletes under the locks of the roots that it touches; a root that its owner holds just now is
passed over, so no agent waits for a collection and no collection for an agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, or_, select

from phronomy_ray.canonical_json import loads
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.retention import PARENT_KEY, Collectable, CollectedRows
from phronomy_ray.store.codec import encode_time
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.store.sql_purge import delete_agent
from phronomy_ray.store.tables import (
    IS_OPEN,
    IS_PENDING,
    IS_WAITING,
    agents,
    approvals,
    cancellations,
    deliveries,
    events,
    executions,
    queued_requests,
    retentions,
    subscriptions,
)


class SqlCollection(SqlDatabase):
    """Deletes what is old (see `store.port.Store` for the contract)."""

    def collect_rows(
        self,
        kind: Collectable,
        *,
        before: datetime,
        limit: int = 200,
        after: str = "",
        dry_run: bool = False,
    ) -> CollectedRows:
        """As `Store.collect_rows`."""
        if limit < 1:
            raise InvalidInputError(f"limit must be positive, got {limit}")
        moment = encode_time(before)
        if kind is Collectable.CLOSED_AGENTS:
            key, condition = agents.c.agent_id, _is_closed(moment)
        else:
            key, condition = executions.c.execution_id, _is_over(moment)
        page = [row[0] for row in self._all_of(select(key).where(key > after).order_by(key).limit(limit))]
        found = self._all_of(select(key, key.table.c.agent_id).where(key.in_(page), condition).order_by(key))
        needed = self._needed_by_parents({row.agent_id for row in found})
        ids = [row[0] for row in found if row.agent_id not in needed]
        owners = sorted({row.agent_id for row in found} - needed)
        if not ids:
            count = 0
        elif dry_run:
            count = self._count(kind, ids)
        elif kind is Collectable.CLOSED_AGENTS:
            count = sum(
                self._write(partial(_delete_closed, agent_id=id_, moment=moment), repeat_unknown=True)
                for id_ in ids
            )
        else:
            work = partial(_delete_over, kind=kind, ids=ids, owners=owners, moment=moment)
            count = self._write(work, repeat_unknown=True)
        return CollectedRows(len(page), count, page[-1] if len(page) == limit else "")

    def _all_of(self, query: Any) -> list[Any]:
        return self._read(lambda connection: list(connection.execute(query).all()))

    def _count(self, kind: Collectable, ids: list[str]) -> int:
        if kind is not Collectable.EVENTS:
            return len(ids)
        return len(self._all_of(select(events.c.seq).where(events.c.execution_id.in_(ids))))

    def _needed_by_parents(self, agent_ids: Iterable[str]) -> set[str]:
        """Child agents whose parent's execution goes on: it may still ask for what the child did."""
        parents: dict[str, str] = {}
        query = select(agents.c.agent_id, agents.c.metadata).where(agents.c.agent_id.in_(sorted(agent_ids)))
        for row in self._all_of(query):
            entry = loads(self._codec.unseal(row.metadata)).get(PARENT_KEY)
            if isinstance(entry, dict) and isinstance(entry.get("execution_id"), str):
                parents[row.agent_id] = entry["execution_id"]
        if not parents:
            return set()
        wanted = sorted(set(parents.values()))
        running = select(executions.c.execution_id).where(executions.c.execution_id.in_(wanted), IS_OPEN)
        open_ = {row.execution_id for row in self._all_of(running)}
        return {agent_id for agent_id, execution_id in parents.items() if execution_id in open_}


def _is_over(moment: str) -> ColumnElement[bool]:
    """An execution that ended until `moment` and that nobody needs."""
    return and_(
        ~IS_OPEN,
        executions.c.ended_at.is_not(None),
        executions.c.ended_at <= moment,
        ~exists().where(approvals.c.execution_id == executions.c.execution_id, IS_PENDING),
        ~exists().where(
            deliveries.c.execution_id == executions.c.execution_id,
            IS_WAITING,
            subscriptions.c.subscription_id == deliveries.c.subscription_id,
        ),
        ~exists().where(
            retentions.c.agent_id == executions.c.agent_id,
            or_(retentions.c.execution_id == "", retentions.c.execution_id == executions.c.execution_id),
        ),
    )


def _is_closed(moment: str) -> ColumnElement[bool]:
    """An agent that was closed, not used since `moment`, and that nobody needs."""
    return and_(
        agents.c.lifecycle == "closed",
        agents.c.updated_at <= moment,
        ~exists().where(executions.c.agent_id == agents.c.agent_id, IS_OPEN),
        ~exists().where(queued_requests.c.agent_id == agents.c.agent_id),
        ~exists().where(
            subscriptions.c.subscription_id == deliveries.c.subscription_id,
            deliveries.c.agent_id == agents.c.agent_id,
            IS_WAITING,
        ),
        ~exists().where(retentions.c.agent_id == agents.c.agent_id),
    )


def _delete_over(
    connection: Connection, *, kind: Collectable, ids: list[str], owners: list[str], moment: str
) -> int:
    free = select(agents.c.agent_id).where(agents.c.agent_id.in_(owners)).order_by(agents.c.agent_id)
    locked = [row.agent_id for row in connection.execute(free.with_for_update(skip_locked=True))]
    over = and_(executions.c.execution_id.in_(ids), executions.c.agent_id.in_(locked), _is_over(moment))
    if kind is Collectable.EVENTS:
        of_those = select(executions.c.execution_id).where(over)
        return connection.execute(delete(events).where(events.c.execution_id.in_(of_those))).rowcount
    count = connection.execute(delete(executions).where(over)).rowcount
    # a wish that an execution ends must not meet another one of its id
    gone = ~exists().where(executions.c.execution_id == cancellations.c.execution_id)
    connection.execute(delete(cancellations).where(cancellations.c.execution_id.in_(ids), gone))
    return count


def _delete_closed(connection: Connection, *, agent_id: str, moment: str) -> int:
    query = select(agents.c.epoch, agents.c.created_at).where(agents.c.agent_id == agent_id)
    if connection.execute(query.with_for_update(skip_locked=True)).one_or_none() is None:
        return 0
    root = connection.execute(query.where(_is_closed(moment))).one_or_none()  # seen under the lock
    if root is None:
        return 0
    guards = {"the_agent_id": agent_id, "the_epoch": root.epoch, "the_created_at": root.created_at}
    return int(delete_agent(connection, guards))


__all__ = ["SqlCollection"]
