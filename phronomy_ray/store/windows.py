"""A whole table in steps: every query looks at so many rows at the most, in the order of their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Column, ColumnElement, Executable, Row, Table, literal, select, tuple_
from sqlalchemy.sql import and_

Key: TypeAlias = tuple[Any, ...]


def windows(
    read: Callable[[Executable], Sequence[Row[Any]]],
    table: Table,
    columns: Sequence[Column[Any]],
    condition: ColumnElement[bool],
    size: int,
) -> Iterable[Sequence[Row[Any]]]:
    """Of each `size` rows those that meet `condition`, where there are any; `read` runs a query in a transaction of its own."""
    keys = key_columns(table)
    wanted = [*keys, *(column for column in columns if column not in set(keys))]
    after: Key | None = None
    while True:
        behind = [] if after is None else [tuple_(*keys) > _literal(keys, after)]
        last = select(*keys).where(*behind).order_by(*keys).limit(1).offset(size - 1)
        end = next(iter(read(last)), None)
        bounds = behind if end is None else [*behind, tuple_(*keys) <= _literal(keys, tuple(end))]
        rows = read(select(*wanted).where(and_(*bounds, condition)).order_by(*keys))
        if rows:
            yield rows
        if end is None:
            return
        after = tuple(end)


def key_columns(table: Table) -> list[Column[Any]]:
    """The columns of its primary key."""
    return list(table.primary_key.columns)


def _literal(keys: Sequence[Column[Any]], values: Key) -> Any:
    return tuple_(*(literal(value, column.type) for column, value in zip(keys, values, strict=True)))


__all__ = ["Key", "key_columns", "windows"]
