"""Reading stored agents and executions back: results, the messages of a journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.journal import MESSAGE_KINDS, ExecutionStatus, JournalRecord
from phronomy_ray.kernel.context import sendable
from phronomy_ray.messages import Message
from phronomy_ray.results import ResultParts, RunResult, result_of, result_of_request
from phronomy_ray.store.port import Store


def check_options(options: InstanceOptions, wanted: Mapping[str, Sequence[str]], agent_id: str) -> None:
    """Raise `ConfigurationError` unless the instance has every filter, hook and policy that an execution, or a request that
    waits, came with.

    Going on without them would let through what they are there to stop.
    """
    present = options.names()
    missing = {
        name: [item for item in items if item not in present.get(name, ())] for name, items in wanted.items()
    }
    missing = {name: items for name, items in missing.items() if items}
    if missing:
        raise ConfigurationError(
            f"an execution of agent {agent_id!r} was started with instance options that are not here "
            f"({', '.join(sorted(missing))}); load the agent with them",
            code="instance_options",
            details={"agent_id": agent_id, "missing": missing},
        )


def load_result(store: Store, execution_id: str) -> RunResult:
    """A result read back from the store, or the state of a request that waits. Raises `NotFoundError`."""
    row = store.find_execution(execution_id)
    if row is None:
        waiting = store.find_request(execution_id)
        if waiting is not None:
            return result_of_request(waiting)
        row = store.load_execution(execution_id)  # it may have begun between the two
    parts = ResultParts(
        approvals=tuple(store.approvals(execution_id=execution_id, pending_only=True)),
        tool_calls=tuple(store.tool_calls(execution_id)) if row.status is ExecutionStatus.SUSPENDED else (),
        messages=tuple(
            Message.from_wire(item) for item in messages_of(store.journal_of_execution(execution_id))
        ),
    )
    return result_of(row, parts)


def load_status(store: Store, execution_id: str) -> tuple[str, ExecutionStatus]:
    """Whose execution, or request that waits, it is, and how far. Raises `NotFoundError`."""
    row = store.find_execution(execution_id)
    if row is None:
        waiting = store.find_request(execution_id)
        if waiting is not None:
            return waiting.agent_id, ExecutionStatus.QUEUED
        row = store.load_execution(execution_id)  # as above
    return row.agent_id, row.status


def messages_of(journal: Iterable[JournalRecord]) -> list[dict[str, Any]]:
    """Wire forms of the messages among `journal`, as a model could be sent them."""
    return [sendable(record.content) for record in journal if record.kind in MESSAGE_KINDS]
