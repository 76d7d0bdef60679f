"""Executes commits of different agents in one transaction: one round trip and one flush of the log.

Optimistic: the rows of all commits are merged, table by table, and sent together behind the fence of all roots (on PostgreSQL as one
statement, `group_statement`); only the numbers of rows touched are looked at. If one is not what it would be with every commit accepted, or the database refuses a
statement, nothing is committed and the group is taken apart (`execute_in_groups`) until the refused commit stands alone and
is executed as it always was, with its own error. So a group can never do what its commits one by one could not.

A root that another transaction holds is not waited for: on PostgreSQL a stopped owner can hold one for seconds, and that is
its agent's affair. Its commit is reported as not having happened, to be tried again by whoever asked for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from phronomy_ray.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    PhronomyError,
    SchemaVersionError,
    StoreUnavailableError,
)
from phronomy_ray.store import statements
from phronomy_ray.store.batches import Step, run_batch
from phronomy_ray.store.commit_writer import PreparedCommit
from phronomy_ray.store.group_statement import run_statement
from phronomy_ray.store.rows import Columns

T = TypeVar("T")

#: Characters of values in one transaction: what is written while all agents of a group wait for it.
MAX_GROUP_CHARS = 4_000_000
#: Most commits of one transaction.
MAX_GROUP_COMMITS = 256

#: These meet all commits of a transaction alike; alone they would have met the same.
_OF_ALL = (CommitOutcomeUnknownError, StoreUnavailableError, ConfigurationError, SchemaVersionError)


class Write(Protocol):
    """Runs a unit of work and has it committed; `Transactions.write`, as far as it is needed here."""

    def __call__(self, work: Callable[[Connection], T], /) -> T: ...


class GroupRefused(Exception):
    """Not every commit of the group can be executed; which one is not known."""


def execute_in_groups(
    prepared: Sequence[PreparedCommit], write: Write, write_together: Write, *, skips_locked: bool
) -> list[PhronomyError | None]:
    """Execute commits of different agents in as few transactions as their size and their fate allow.

    Args:
        prepared: the commits; earlier ones are executed earlier when they cannot be executed together.
        write: runs a unit of work in a transaction of its own.
        write_together: the same for `write_group`: on PostgreSQL its statement is its own transaction.
        skips_locked: whether the database can pass over rows that others hold.

    Returns what `Store.execute` would have raised for each.
    """
    outcomes: list[PhronomyError | None] = []
    for group in _sized(prepared):
        outcomes += _execute(group, write, write_together, skips_locked=skips_locked)
    return outcomes


def write_group(connection: Connection, group: Sequence[PreparedCommit]) -> None:
    """Execute `group` on `connection`: on SQLite inside its transaction, on PostgreSQL as one statement in autocommit mode.

    Raises `GroupRefused`, or as the database says; nothing may be committed then.
    """
    engine_name = connection.dialect.name
    roots = [item.root for item in group]
    counted: list[Step] = [
        (
            statements.INSERT_EXECUTION[engine_name],
            _by_id(item.new_execution for item in group if item.new_execution is not None),
        ),
        (statements.UPDATE_EXECUTION, [item.execution for item in group if item.execution is not None]),
        (statements.DELETE_REQUEST, [row for item in group for row in item.ended_requests]),
        (
            statements.INSERT_REQUEST[engine_name],
            _by_id(row for item in group for row in item.new_requests),
        ),
        *_merged([item.updates for item in group]),
    ]
    contents = {row["content_id"]: row for item in group for row in item.contents}
    others: list[Step] = [
        (statements.INSERT_CONTENT[engine_name], [contents[key] for key in sorted(contents)]),
        *_merged([item.inserts for item in group]),
    ]
    if engine_name == "postgresql":
        run_statement(connection, roots, counted, others)
        return
    expected = [len(roots), *(len(rows) for _, rows in counted)]
    counts = run_batch(connection, [(statements.ADVANCE_ROOT, roots), *counted, *others])
    if counts[: len(expected)] != expected:
        raise GroupRefused


def _merged(steps: Sequence[Sequence[tuple[Any, ...]]]) -> list[Step]:
    """Steps of the same statements, each with the rows of all; a step ends with its statement and its rows."""
    return [
        (column[0][-2], [row for step in column for row in step[-1]]) for column in zip(*steps, strict=True)
    ]


def _by_id(rows: Iterable[Columns]) -> list[Columns]:
    """In one order whoever inserts them, so that two groups with the same ids do not wait for each other."""
    return sorted(rows, key=lambda row: str(row["execution_id"]))


def _execute(
    group: Sequence[PreparedCommit], write: Write, write_together: Write, *, skips_locked: bool
) -> list[PhronomyError | None]:
    try:
        write_together(lambda connection: write_group(connection, group))
    except GroupRefused:
        pass
    except _OF_ALL as error:
        return [error, *(_same(error) for _ in group[1:])]
    except PhronomyError:
        pass  # a root is not to be had, or one of them holds what the database does not take
    else:
        return [None] * len(group)
    held = _held(group, write) if skips_locked else set()
    outcomes: dict[int, PhronomyError | None] = {}
    others = []
    for index, item in enumerate(group):
        if item.commit.agent_id in held:
            outcomes[index] = _is_held(item)
        else:
            others.append(index)
    for part in _halves(others):
        found = (
            _execute([group[index] for index in part], write, write_together, skips_locked=skips_locked)
            if len(part) > 1
            else [_alone(group[part[0]], write)]
        )
        outcomes.update(zip(part, found, strict=True))
    return [outcomes[index] for index in range(len(group))]


def _halves(indices: list[int]) -> list[list[int]]:
    middle = (len(indices) + 1) // 2
    return [part for part in (indices[:middle], indices[middle:]) if part]


def _alone(item: PreparedCommit, write: Write) -> PhronomyError | None:
    try:
        write(item.write)
    except PhronomyError as error:
        return error
    return None


def _held(group: Sequence[PreparedCommit], write: Write) -> set[str]:
    """Agents of `group` whose root another transaction holds at this moment."""
    names = {item.commit.agent_id for item in group}

    def work(connection: Connection) -> set[str]:
        stored = connection.execute(statements.STORED_ROOTS, {"agent_ids": list(names)}).scalars().all()
        free = connection.execute(statements.FREE_ROOTS, {"agent_ids": list(names)}).scalars().all()
        return set(stored) - set(free)

    try:
        return write(work)
    except PhronomyError:
        return set()  # the commits themselves will tell what is wrong


def _is_held(item: PreparedCommit) -> PhronomyError:
    commit = item.commit
    return StoreUnavailableError(
        f"another transaction holds the root of agent {commit.agent_id!r}",
        details={"agent_id": commit.agent_id, "step": commit.step, "commit_id": commit.commit_id},
    )


def _same(error: PhronomyError) -> PhronomyError:
    """The same for somebody else: an exception that two tasks raise would collect the traces of both."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


def _sized(prepared: Sequence[PreparedCommit]) -> list[list[PreparedCommit]]:
    groups: list[list[PreparedCommit]] = []
    chars = 0
    for item in prepared:
        chars += item.chars
        if not groups or chars > MAX_GROUP_CHARS or len(groups[-1]) >= MAX_GROUP_COMMITS:
            groups.append([])
            chars = item.chars
        groups[-1].append(item)
    return groups


__all__ = ["MAX_GROUP_CHARS", "MAX_GROUP_COMMITS", "GroupRefused", "execute_in_groups", "write_group"]
