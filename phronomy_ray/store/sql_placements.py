"""Where agents live, in SQL: a part of `SqlStore` that no commit writes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from phronomy_ray.canonical_json import loads
from phronomy_ray.store import statements
from phronomy_ray.store.codec import encode_time, plain_text
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.whereabouts import Whereabouts


class SqlPlacements(SqlDatabase):
    """Pins of agents and closed hosts (see `store.port.Store` for the contract)."""

    def whereabouts(self, agent_id: str) -> Whereabouts:
        """As `Store.whereabouts`."""

        def work(connection: Connection) -> Whereabouts:
            row = connection.execute(
                statements.WHEREABOUTS, {"the_agent_id": agent_id, "the_subject": statements.pin_of(agent_id)}
            ).one()
            owner = loads(row.owner) if row.owner else {}
            return Whereabouts(last=str(owner.get("actor", "")), pin=row.pin or "")

        return self._read(work)

    def pin_agent(self, agent_id: str, pin: str | None, *, now: datetime) -> None:
        """As `Store.pin_agent`."""
        self._place(statements.pin_of(agent_id), pin, now)

    def close_host(self, host: str, *, closed: bool, now: datetime) -> None:
        """As `Store.close_host`."""
        self._place(statements.host_of(host), "closed" if closed else None, now)

    def is_host_closed(self, host: str) -> bool:
        """As `Store.is_host_closed`."""

        def work(connection: Connection) -> bool:
            found = connection.execute(statements.PLACEMENT, {"the_subject": statements.host_of(host)})
            return found.first() is not None

        return self._read(work)

    def _place(self, subject: str, value: str | None, now: datetime) -> None:
        def work(connection: Connection) -> None:
            connection.execute(statements.DELETE_PLACEMENT, {"the_subject": subject})
            if value is not None:
                row = {
                    "subject": plain_text(subject),
                    "value": plain_text(value),
                    "changed_at": encode_time(now),
                }
                connection.execute(statements.INSERT_PLACEMENT[connection.dialect.name], row)

        self._write(work, repeat_unknown=True)
