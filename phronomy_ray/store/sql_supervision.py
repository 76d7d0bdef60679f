"""What a supervisor asks of a SQL database: a part of `SqlStore` that no commit writes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from phronomy_ray.canonical_json import loads
from phronomy_ray.errors import InvalidInputError, NotFoundError
from phronomy_ray.journal import AgentRoot, Lifecycle
from phronomy_ray.open_work import OpenWork, SupervisorBeat, WorkKind
from phronomy_ray.parking import ParkReason
from phronomy_ray.store import rows
from phronomy_ray.store import supervision_statements as statements
from phronomy_ray.store.codec import RowDecoder, decode_time, encode_time, plain_json, plain_text
from phronomy_ray.store.database import SqlDatabase

_QUERIES = {
    WorkKind.RUNNING: statements.RUNNING,
    WorkKind.QUEUED: statements.QUEUED,
    WorkKind.EXPIRED: statements.EXPIRED,
    WorkKind.WISHED: statements.WISHED,
    WorkKind.OVERDUE: statements.OVERDUE,
}
#: Work that is due at a moment.
_DUE = (WorkKind.EXPIRED, WorkKind.OVERDUE)


class SqlSupervision(SqlDatabase):
    """See `store.supervision_port` for the contract of each method."""

    def open_work(
        self, kind: WorkKind, *, now: datetime, after: OpenWork | None = None, limit: int = 500
    ) -> list[OpenWork]:
        """As `SupervisionStore.open_work`."""
        parameters: dict[str, Any] = {
            "after_key": after.key if after is not None else "",
            "row_limit": _checked(limit),
        }
        if kind is not WorkKind.QUEUED:
            parameters["after_since"] = encode_time(after.since) if after is not None else ""
        if kind in _DUE:
            parameters["due"] = encode_time(now)
        found = self._read(lambda connection: connection.execute(_QUERIES[kind], parameters).all())
        return [
            OpenWork(
                kind=kind,
                agent_id=row.agent_id,
                since=decode_time(row.since),
                key=row.key,
                epoch=row.epoch,
                revision=row.agent_revision,
                cluster=str(owner.get("cluster", "")),
                process=str(owner.get("actor", "")),
            )
            for row in found
            for owner in (loads(row.owner),)
        ]

    def park_agent(self, agent_id: str, *, epoch: int, reason: ParkReason) -> bool:
        """As `SupervisionStore.park_agent`; after a lost connection it is tried once more."""
        parameters = {
            "the_agent_id": agent_id,
            "the_epoch": epoch,
            "new_parked": plain_json(reason.to_wire()),
            "new_updated_at": encode_time(reason.at),
        }

        def work(connection: Connection) -> bool:
            if connection.execute(statements.PARK, parameters).rowcount:
                return True
            row = connection.execute(statements.LIFECYCLE, {"the_agent_id": agent_id}).one_or_none()
            return row is not None and row.lifecycle == Lifecycle.PARKED.value

        return self._write(work, repeat_unknown=True)

    def uncount_start(self, agent_id: str, *, epoch: int) -> None:
        """As `SupervisionStore.uncount_start`."""
        parameters = {"the_agent_id": agent_id, "the_epoch": epoch}

        def work(connection: Connection) -> None:
            connection.execute(statements.UNCOUNT, parameters)

        self._write(work)

    def unpark_agent(self, agent_id: str, *, now: datetime, cancel_reason: str = "") -> bool:
        """As `SupervisionStore.unpark_agent`; after a lost connection it is tried once more."""
        of = {"the_agent_id": agent_id}
        moment = encode_time(now)

        def work(connection: Connection) -> bool:
            row = connection.execute(statements.LIFECYCLE, of).one_or_none()
            if row is None:
                raise NotFoundError(f"no agent {agent_id!r}", details=of)
            if row.lifecycle != Lifecycle.PARKED.value:
                return False
            held = connection.execute(statements.OPEN_EXECUTION, of).first()
            lifecycle = Lifecycle.IDLE
            if held is not None:
                lifecycle = Lifecycle.SUSPENDED if held.status == "suspended" else Lifecycle.ACTIVE
            changes = {"new_lifecycle": lifecycle.value, "new_updated_at": moment}
            connection.execute(statements.UNPARK, of | changes)
            if held is not None and cancel_reason:
                intent = {
                    "new_cancel_requested_at": moment,
                    "new_terminal_reason": plain_text(cancel_reason),
                }
                connection.execute(statements.INTEND_CANCEL, of | intent)
            return True

        return self._write(work, repeat_unknown=True)

    def parked_agents(self, *, limit: int = 100, after: str = "") -> list[AgentRoot]:
        """As `SupervisionStore.parked_agents`."""
        decoder = RowDecoder(self._codec, {})
        parameters = {"after": after, "row_limit": _checked(limit)}
        found = self._read(lambda connection: connection.execute(statements.PARKED, parameters).all())
        return [rows.to_root(row, decoder) for row in found]

    def beat(self, cluster: str, *, info: dict[str, Any], now: datetime) -> list[SupervisorBeat]:
        """As `SupervisionStore.beat`. After a lost connection it may count twice, which is as good a sign of life."""
        values = {"info": plain_json(info), "updated_at": encode_time(now)}

        def work(connection: Connection) -> list[SupervisorBeat]:
            changes = {f"new_{name}": value for name, value in values.items()}
            if not connection.execute(statements.BEAT, changes | {"the_cluster": cluster}).rowcount:
                new = values | {"cluster": cluster, "beats": 1}
                connection.execute(statements.INSERT_SUPERVISOR[connection.dialect.name], new)
            return [
                SupervisorBeat(row.cluster, row.beats, loads(row.info), decode_time(row.updated_at))
                for row in connection.execute(statements.SUPERVISORS)
            ]

        return self._write(work, repeat_unknown=True)

    def forget_cluster(self, cluster: str, *, beats: int) -> bool:
        """As `SupervisionStore.forget_cluster`."""
        parameters = {"the_cluster": cluster, "the_beats": beats}

        def work(connection: Connection) -> bool:
            return bool(connection.execute(statements.FORGET, parameters).rowcount)

        return self._write(work, repeat_unknown=True)


def _checked(limit: int) -> int:
    if limit < 0:
        raise InvalidInputError(f"limit must not be negative, got {limit}")
    return limit


__all__ = ["SqlSupervision"]
