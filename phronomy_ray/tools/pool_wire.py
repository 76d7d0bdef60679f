"""Values between an agent, its pool and the pool's workers.

Invocations and outcomes cross the pool as bytes: it schedules them and needs neither arguments nor results, and a tool's
own classes are never imported in its process.
"""

from __future__ import annotations

import enum
import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from phronomy_ray.tool_calls import CallKey, ToolOutcome, ToolProgress, TravelsAsCall
from phronomy_ray.tools.pool_placement import Lane


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker process needs to find an agent's modules: calls of different setups never share one."""

    #: Ray runtime environment of the agent's actor, as JSON.
    runtime_env: str
    #: ``sys.path`` of the agent's actor.
    sys_path: tuple[str, ...]

    def key(self) -> str:
        """Equal for equal setups."""
        text = "\0".join((self.runtime_env, *self.sys_path))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PoolCall(TravelsAsCall):
    """One attempt of one tool call, as the pool sees it."""

    key: CallKey
    tool_name: str
    lane: Lane
    #: Longest that the body may take, all its attempts and the waits between them included, in seconds.
    limit_s: float
    #: A pickled `ToolInvocation`.
    payload: bytes = field(repr=False)
    #: Ray options of a task of its own; ``None`` for a thread of a worker.
    task_options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PoolBatch:
    """Calls of one execution that are dispatched together."""

    agent_id: str
    execution_id: str
    #: Ownership epoch of the agent.
    epoch: int
    setup: WorkerSetup
    #: A pickled `DefinitionSource`, and a key that is equal for equal ones.
    source: bytes = field(repr=False)
    source_key: str
    calls: tuple[PoolCall, ...]


class ItemKind(enum.IntEnum):
    """What an item says of a call."""

    #: Its outcome; nothing of it runs any more.
    OUTCOME = 1
    #: Its outcome; the body was given up and still runs.
    GIVEN_UP = 2
    #: The end of a body whose outcome was given before: what it did; nothing of it runs any more.
    LATE = 3
    #: A given-up body was ended with its process.
    ENDED = 4
    #: Its outcome; the tool has said that its work outlives its result, and nobody minds.
    GOES_ON = 5
    #: How far its body says it is: a pickled JSON value; nothing else changes.
    PROGRESS = 6


class PoolItem(NamedTuple):
    """News of one call."""

    kind: ItemKind
    key: CallKey
    #: A pickled `ToolOutcome`; empty for ``ENDED``, plain JSON for ``PROGRESS``.
    payload: bytes = b""
    status: str = ""


class StartedCalls(NamedTuple):
    """Bodies that have begun."""

    keys: tuple[CallKey, ...]
    node: str
    pid: int
    #: ISO 8601 UTC.
    at: str


class WorkerEnds(NamedTuple):
    """The last news of a process: why it is about to end itself."""

    reason: str
    code: str


News: TypeAlias = PoolItem | StartedCalls | WorkerEnds
OUT_OF_MEMORY = "out_of_memory"


def item_of(outcome: ToolOutcome, kind: ItemKind = ItemKind.OUTCOME) -> PoolItem:
    """An outcome as it travels."""
    return PoolItem(kind, outcome.key, pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL), outcome.status.value)


def progress_item(key: CallKey, value: Any) -> PoolItem:
    """A report of progress as it travels."""
    return PoolItem(ItemKind.PROGRESS, key, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def progress_of(item: PoolItem) -> ToolProgress:
    """The report in an item."""
    return ToolProgress(*item.key, pickle.loads(item.payload))  # noqa: S301 - written by our own worker


def outcome_of(item: PoolItem) -> ToolOutcome:
    """The outcome in an item."""
    outcome: ToolOutcome = pickle.loads(item.payload)  # noqa: S301 - written by our own worker
    return outcome
