"""Writes a store's contents anew under the key that writes now, so that an older key can be thrown away.

Agents may go on meanwhile. A row is changed only if its values are still those that were read, and never waited for: one
that somebody holds or has changed is looked at again. A content (`codec`) is kept under an id that belongs to its key, so it
is copied first, then the rows refer to the copy, and what is left under the old id goes last.

Each step is a transaction of a bounded number of rows, and what still has to be done is read from the rows themselves: a
run that was stopped, or several at once, cost nothing but time.

The rounds end when one that began after every earlier transaction had ended finds nothing under another key. So even a
process that still writes with an older key, against the rule, loses nothing while this runs: what it has written is found, and
what it refers to is known by its new id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Executable,
    Row,
    Table,
    Update,
    bindparam,
    func,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql import and_

from phronomy_ray.errors import ConfigurationError, InvalidInputError
from phronomy_ray.store import statements, tables
from phronomy_ray.store.batches import run_batch
from phronomy_ray.store.schema_state import set_writing_key
from phronomy_ray.store.sealed_columns import SEALED, SealedColumns
from phronomy_ray.store.sql_contents import SqlContents
from phronomy_ray.store.windows import Key, key_columns, windows

#: Rows that are looked at in one transaction.
DEFAULT_BATCH_ROWS = 200
#: Contents are large: so many times fewer of them.
_CONTENT_SHARE = 10
#: Rounds until whoever writes with another key is given up on.
_ROUNDS = 10
#: Pause before rows that somebody held are looked at again, in seconds.
_PAUSE_S = 0.2


@dataclass
class Reencrypted:
    """What a run has done."""

    #: Id of the key that everything is under now, but for what is left.
    key_id: str
    #: Rows that were written anew, by table.
    rows: dict[str, int] = field(default_factory=dict)
    #: Rows that the last round has found under another key: somebody holds them, or goes on writing with it.
    left: int = 0

    @property
    def total(self) -> int:
        """Rows that were written anew."""
        return sum(self.rows.values())


class Reencryption(SqlContents):
    """A database, opened with a ring whose first key is the one to write with and whose others still read."""

    def run(
        self,
        *,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        on_progress: Callable[[Reencrypted], None] = lambda done: None,
    ) -> Reencrypted:
        """Write everything anew that is under another key. Idempotent; `on_progress` is called after every batch.

        When nothing is left the database remembers the writing key as its own: a ring needs no other any more.

        Raises:
            ConfigurationError: there is no key.
            InvalidInputError: `batch_rows` is not positive.
            ContentIntegrityError: a value is damaged, or its key is not in the ring; what was done until then stays.
        """
        if not self._codec.encrypted:
            raise ConfigurationError(
                f"no content key is given, so there is nothing to encrypt {self.identity} with"
            )
        if batch_rows < 1:
            raise InvalidInputError(f"a batch has one row or more, not {batch_rows}")
        self._batch_rows = batch_rows
        self._done = Reencrypted(self._codec.key_id)
        self._on_progress = on_progress
        #: Old id of each content that was copied, and its new one.
        self._copies: dict[str, str] = {}
        self._restore_all()  # what is condemned is found by rows under its old id only
        for number in range(_ROUNDS):
            if number:
                self._let_writers_end()
            found, written = self._round()
            self._done.left = found - written
            if self._done.left:
                time.sleep(_PAUSE_S)  # somebody holds these rows
                continue
            self._done.left = found + self._move_contents()  # until a round has found nothing
            if not self._done.left:
                self._write(
                    lambda connection: set_writing_key(connection, self._opener()), repeat_unknown=True
                )
                break
        return self._done

    # --- rows --------------------------------------------------------------------------------------------------

    def _round(self) -> tuple[int, int]:
        """Look at every row once; how many were under another key, and how many of these are not any more."""
        found = written = 0
        for sealed in SEALED:
            columns = [sealed.table.c[name] for name in (*sealed.values, *sealed.references)]
            stale = or_(
                *(self._is_stale(sealed.table.c[name], self._codec.value_prefix) for name in sealed.values),
                *(self._is_stale(sealed.table.c[name], self._codec.id_prefix) for name in sealed.references),
            )
            for rows in self._windows(sealed.table, columns, stale, self._batch_rows):
                found += len(rows)
                count = self._rewrite(sealed, rows)
                written += count
                self._count(sealed.table, count)
        return found, written

    def _rewrite(self, sealed: SealedColumns, rows: Sequence[Row[Any]]) -> int:
        self._copy({value for row in rows for name in sealed.references if (value := row._mapping[name])})
        keys = key_columns(sealed.table)
        changes: dict[Key, dict[str, tuple[str, str]]] = {}
        for row in rows:
            of_row = self._changes(sealed, row)
            if of_row is not None:
                changes[_key_of(sealed.table, row)] = of_row
        if not changes:
            return 0

        def work(connection: Connection) -> int:
            # a row that somebody holds is left for the next round: who waits for nobody is in no deadlock
            free = select(*keys).where(tuple_(*keys).in_(list(changes)))
            held = connection.execute(free.with_for_update(key_share=True, skip_locked=True)).all()
            parameters: dict[tuple[str, ...], list[dict[str, Any]]] = {}
            for key in (tuple(row) for row in held):
                changed = changes[key]
                of_key = {f"the_{column.name}": value for column, value in zip(keys, key, strict=True)}
                of_row = {f"expected_{name}": old for name, (old, _) in changed.items()}
                values = {f"new_{name}": new for name, (_, new) in changed.items()}
                parameters.setdefault(tuple(changed), []).append(of_key | of_row | values)
            steps = [(_compare_and_set(sealed.table, names), rows) for names, rows in parameters.items()]
            return sum(run_batch(connection, steps))

        return self._write(work, repeat_unknown=True)

    def _changes(self, sealed: SealedColumns, row: Row[Any]) -> dict[str, tuple[str, str]] | None:
        """Old and new value of each column that is under another key; ``None`` when a content is gone: read it again."""
        changes: dict[str, tuple[str, str]] = {}
        for name in sealed.values:
            value = row._mapping[name]
            if value is not None and not value.startswith(self._codec.value_prefix):
                changes[name] = value, self._codec.seal(self._codec.unseal(value))
        for name in sealed.references:
            value = row._mapping[name]
            if value is not None and not value.startswith(self._codec.id_prefix):
                if value not in self._copies:
                    return None
                changes[name] = value, self._copies[value]
        return changes

    # --- contents ----------------------------------------------------------------------------------------------

    def _copy(self, ids: Iterable[str]) -> None:
        """Keep each of these contents under the writing key too, unless that was done."""
        wanted = sorted(
            id_ for id_ in ids if id_ not in self._copies and not id_.startswith(self._codec.id_prefix)
        )
        step = max(1, self._batch_rows // _CONTENT_SHARE)
        for start in range(0, len(wanted), step):
            query = {"content_ids": wanted[start : start + step]}
            self._keep(self._all(statements.CONTENTS, query), and_delete=False)

    def _move_contents(self) -> int:
        """Every content that is still under another key; no row refers to one any more."""
        columns = [tables.contents.c.content_id, tables.contents.c.body]
        stale = self._is_stale(tables.contents.c.content_id, self._codec.id_prefix)
        step = max(1, self._batch_rows // _CONTENT_SHARE)
        count = 0
        for rows in self._windows(tables.contents, columns, stale, step):
            self._keep(rows, and_delete=True)
            count += len(rows)
            self._count(tables.contents, len(rows))
        return count

    def _keep(self, rows: Sequence[Row[Any]], *, and_delete: bool) -> None:
        copies = {row.content_id: self._codec.rekey(row.content_id, row.body) for row in rows}
        # in the order of their ids, as commits do it
        new = [{"content_id": id_, "body": body} for id_, body in sorted(dict(copies.values()).items())]
        old = [{"the_content_id": id_} for id_ in sorted(copies)] if and_delete else []

        def work(connection: Connection) -> None:
            insert = statements.INSERT_CONTENT[connection.dialect.name]
            run_batch(connection, [(insert, new), (statements.DELETE_CONTENT, old)])

        self._write(work, repeat_unknown=True)
        self._copies.update((old_id, new_id) for old_id, (new_id, _) in copies.items())

    # --- inside ------------------------------------------------------------------------------------------------

    def _windows(
        self, table: Table, columns: Sequence[Column[Any]], stale: ColumnElement[bool], size: int
    ) -> Iterable[Sequence[Row[Any]]]:
        return windows(self._all, table, columns, stale, size)

    def _all(self, query: Executable, parameters: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        return self._read(lambda connection: connection.execute(query, parameters).all())

    def _count(self, table: Table, count: int) -> None:
        if count:
            self._done.rows[table.name] = self._done.rows.get(table.name, 0) + count
            self._on_progress(self._done)

    @staticmethod
    def _is_stale(column: Column[Any], prefix: str) -> ColumnElement[bool]:
        return and_(column.is_not(None), func.substr(column, 1, len(prefix)) != prefix)


@cache
def _compare_and_set(table: Table, names: tuple[str, ...]) -> Update:
    """New values for columns that still have the expected ones; few forms, since `run_batch` keeps each."""
    same = [column == bindparam(f"the_{column.name}") for column in key_columns(table)]
    unchanged = [table.c[name] == bindparam(f"expected_{name}") for name in names]
    return update(table).where(*same, *unchanged).values({name: bindparam(f"new_{name}") for name in names})


def _key_of(table: Table, row: Row[Any]) -> Key:
    return tuple(row._mapping[column.name] for column in key_columns(table))


__all__ = ["DEFAULT_BATCH_ROWS", "SEALED", "Reencrypted", "Reencryption", "SealedColumns"]
