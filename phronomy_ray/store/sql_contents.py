"""Collection of contents that nothing refers to: a part of `SqlStore`.

A content that no row refers to is condemned first: moved to a table of its own, where readers still find it. Only one that has been
there for long, and that still nothing refers to, is deleted; one that somebody refers to comes back.

That is what makes it safe beside writers without any cost for them. A commit may meet a content in the moment in which it is
condemned: it saw that the content is there, wrote nothing, and refers to it. Whatever it did, its reference leads to the condemned
one until the next look brings it back. A commit that begins later does not see the condemned content: it writes the text
anew. The one thing that writers promise is not to refer for longer than `commits.KEPT_CONTENT_IS_KNOWN` to what they have not given
again (a running execution's own references are rows, so they count).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import tenacity
from sqlalchemy import Connection, Executable, Row, or_, select, text

from phronomy_ray.commits import KEPT_CONTENT_IS_KNOWN
from phronomy_ray.errors import InvalidInputError, StoreUnavailableError
from phronomy_ray.retention import CollectedContents
from phronomy_ray.store import statements, tables
from phronomy_ray.store.batches import run_batch
from phronomy_ray.store.codec import encode_time
from phronomy_ray.store.database import SqlDatabase
from phronomy_ray.store.driver_errors import is_lock_timeout
from phronomy_ray.store.port import LOOKED_AT_ONCE
from phronomy_ray.store.sealed_columns import SEALED
from phronomy_ray.store.windows import windows

#: Shortest time between condemning and deleting.
MIN_AGE = 2 * KEPT_CONTENT_IS_KNOWN
#: Columns in whose JSON the kernel names contents by the hash of their text.
NAMING = (tables.model_calls.c.manifest, tables.executions.c.state)
#: Rows that are looked at in one transaction, and contents that are moved in one.
_WINDOW_ROWS = 1_000
_MOVED_AT_ONCE = 100
#: How long a look for writers may hold up new ones, in milliseconds, and how often it is tried, with pauses that begin at so many seconds.
LOCK_TIMEOUT_MS = 300
LOCK_TRIES = 20
LOCK_PAUSE_S = 0.2
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class SqlContents(SqlDatabase):
    """Deletes contents (see `store.port.Store` for the contract)."""

    def collect_contents(
        self,
        *,
        now: datetime,
        older_than: timedelta,
        limit: int = LOOKED_AT_ONCE,
        after: str = "",
        dry_run: bool = False,
    ) -> CollectedContents:
        """As `Store.collect_contents`."""
        if older_than < MIN_AGE:
            raise InvalidInputError(
                f"contents are deleted {MIN_AGE} after they were condemned or later, not {older_than}: an agent may just be about "
                "to refer to one"
            )
        if limit < 1:
            raise InvalidInputError(f"limit must be positive, got {limit}")
        living = tables.contents.c.content_id
        condemned = tables.condemned_contents.c
        self._let_writers_end()
        page = self._ids(select(living).where(living > after).order_by(living).limit(limit))
        old = self._ids(
            select(condemned.content_id)
            .where(condemned.condemned_at <= encode_time(now - older_than))
            .order_by(condemned.content_id)
            .limit(limit)
        )
        unreferenced = self._unreferenced({*page, *old})
        to_condemn = [id_ for id_ in page if id_ in unreferenced]
        to_delete = [id_ for id_ in old if id_ in unreferenced]
        to_restore = [id_ for id_ in old if id_ not in unreferenced]
        if not dry_run:
            for part in _parts(to_restore):
                self._write(partial(_restore, ids=part), repeat_unknown=True)
            for part in _parts(to_condemn):
                at = encode_time(now)
                self._write(partial(_condemn, ids=part, at=at), repeat_unknown=True)
            for part in _parts(to_delete):
                self._write(partial(_delete, ids=part), repeat_unknown=True)
        return CollectedContents(
            looked_at=len(page),
            condemned=len(to_condemn),
            restored=len(to_restore),
            deleted=len(to_delete),
            next=page[-1] if len(page) == limit else "",
        )

    # --- inside ------------------------------------------------------------------------------------------------

    def _unreferenced(self, ids: set[str]) -> set[str]:
        """Those of `ids` that no row refers to."""
        left = set(ids)
        if not left:
            return left
        for sealed in SEALED:
            columns = [sealed.table.c[name] for name in sealed.references]
            if columns:
                condition = or_(*(column.is_not(None) for column in columns))
                for rows in windows(self._rows, sealed.table, columns, condition, _WINDOW_ROWS):
                    left.difference_update(row._mapping[name] for row in rows for name in sealed.references)
        for column in NAMING:
            for rows in windows(self._rows, column.table, [column], column.is_not(None), _WINDOW_ROWS):
                for row in rows:
                    for hash_ in _HASH.findall(self._codec.unseal(row._mapping[column.name])):
                        left.difference_update(self._codec.content_ids(hash_))
        return left

    def _restore_all(self) -> None:
        """Bring every condemned content back."""
        condemned = tables.condemned_contents.c.content_id
        while ids := self._ids(select(condemned).order_by(condemned).limit(_MOVED_AT_ONCE)):
            self._write(partial(_restore, ids=ids), repeat_unknown=True)

    def _let_writers_end(self) -> None:
        """Return when every transaction that has written contents is over; new ones wait for a moment at the most.

        Raises:
            StoreUnavailableError: there was one that did not end, however often it was tried.
        """

        def work(connection: Connection) -> None:
            if connection.dialect.name == "postgresql":  # SQLite has one writer at a time: us
                # whoever writes contents queues behind this: rather give up, let them pass and come again
                connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
                connection.execute(text("LOCK TABLE contents IN EXCLUSIVE MODE"))

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_lock_timeout),
            wait=tenacity.wait_random_exponential(multiplier=LOCK_PAUSE_S, max=10 * LOCK_PAUSE_S),
            stop=tenacity.stop_after_attempt(LOCK_TRIES),
            reraise=True,
        )
        try:
            retrying(self._write, work, repeat_unknown=True)
        except StoreUnavailableError as error:
            if not is_lock_timeout(error):
                raise
            raise StoreUnavailableError(
                f"a transaction that writes contents did not end in {LOCK_TRIES} looks of {LOCK_TIMEOUT_MS} ms "
                f"({self.identity}): try again when it is over",
                details=error.details,
            ) from error

    def _ids(self, query: Executable) -> list[str]:
        return [row.content_id for row in self._rows(query)]

    def _rows(self, query: Executable) -> Sequence[Row[Any]]:
        return self._read(lambda connection: connection.execute(query).all())


def _condemn(connection: Connection, ids: list[str], at: str) -> None:
    living = tables.contents
    found = connection.execute(
        select(living.c.content_id, living.c.body).where(living.c.content_id.in_(ids)).with_for_update()
    ).all()
    rows = [{"content_id": row.content_id, "body": row.body, "condemned_at": at} for row in found]
    keys = [{"the_content_id": row.content_id} for row in found]
    run_batch(
        connection,
        [
            (statements.DELETE_CONDEMNED, keys),  # condemned once before: its time begins anew
            (statements.INSERT_CONDEMNED, rows),
            (statements.DELETE_CONTENT, keys),
        ],
    )


def _restore(connection: Connection, ids: list[str]) -> None:
    condemned = tables.condemned_contents
    found = connection.execute(
        select(condemned.c.content_id, condemned.c.body)
        .where(condemned.c.content_id.in_(ids))
        .order_by(condemned.c.content_id)
        .with_for_update()
    ).all()
    rows = [{"content_id": row.content_id, "body": row.body} for row in found]
    keys = [{"the_content_id": row.content_id} for row in found]
    insert = statements.INSERT_CONTENT[connection.dialect.name]
    run_batch(connection, [(insert, rows), (statements.DELETE_CONDEMNED, keys)])


def _delete(connection: Connection, ids: list[str]) -> None:
    run_batch(connection, [(statements.DELETE_CONDEMNED, [{"the_content_id": id_} for id_ in ids])])


def _parts(ids: Iterable[str]) -> Iterable[list[str]]:
    listed = list(ids)
    return (listed[start : start + _MOVED_AT_ONCE] for start in range(0, len(listed), _MOVED_AT_ONCE))


__all__ = ["MIN_AGE", "SqlContents"]
