"""Commits as values: guards and writes that the kernel makes and a store executes.

A commit belongs to one agent and one ownership epoch. The store executes it in one transaction whose first statement
is an ``UPDATE`` of the agent's root row with the epoch, the revision and the journal position in its ``WHERE``; if that
touches no row nothing else is written. `commit_id` is kept in the root row, so that after a lost connection the
question "did it happen" has an answer while the row is locked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    EventRow,
    ExecutionRow,
    JournalRecord,
    Lifecycle,
    ModelCallRow,
    QueuedRequest,
    ToolCallRow,
)

#: How long an owner may refer to a text that it has kept by hash without giving it again. Nothing is deleted that fast.
KEPT_CONTENT_IS_KNOWN = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ExecutionUpdate:
    """New values of an execution's changing columns; refused unless its revision is `expected_revision`."""

    expected_revision: int
    #: The row after the change (its revision is ``expected_revision + 1``); identity and input columns are not written.
    row: ExecutionRow


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """The definition that an agent goes on under."""

    definition_id: str
    definition_version: str
    #: ``module:Class``; empty when it cannot be imported.
    class_path: str
    #: The root's metadata from now on.
    metadata: dict[str, Any]
    #: New durable contexts: ``(execution_id, context)`` of its non-terminal execution, and of requests that wait.
    execution_contexts: tuple[tuple[str, dict[str, Any]], ...] = ()
    request_contexts: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything that changes in one durable step of one agent."""

    commit_id: str
    #: Name of the step, for fault points, logs and benchmarks: ``admit``, ``batch``, ``results``, ...
    step: str
    agent_id: str
    epoch: int
    #: Guard: the root's revision before this commit. Afterwards it is one more.
    expected_revision: int
    #: Guard: the journal position before this commit.
    expected_position: int
    now: datetime
    #: New root values.
    lifecycle: Lifecycle
    context_revision: int
    transcript_generation: int
    #: Records to append; positions continue from `expected_position` without a gap.
    journal: tuple[JournalRecord, ...] = ()
    #: Whether the agent got on by it. What a new owner only begins again is none: a crash loop must be seen.
    is_progress: bool = True
    #: A new execution; refused if its id exists or the agent has a non-terminal one.
    new_execution: ExecutionRow | None = None
    execution: ExecutionUpdate | None = None
    new_model_calls: tuple[ModelCallRow, ...] = ()
    #: Rows whose changing columns are overwritten (status, manifest, ended_at, usage, attempts, error).
    model_calls: tuple[ModelCallRow, ...] = ()
    new_tool_calls: tuple[ToolCallRow, ...] = ()
    #: Rows whose changing columns are overwritten (status, attempt(s), model_text, result, error, times).
    tool_calls: tuple[ToolCallRow, ...] = ()
    #: The same for calls that authorization has changed: arguments, requires_approval and authorization are written too.
    revised_tool_calls: tuple[ToolCallRow, ...] = ()
    new_approvals: tuple[ApprovalRow, ...] = ()
    #: Rows whose decision columns are overwritten (status, decided_at, decided_by, reason, fingerprint, edited_arguments).
    approvals: tuple[ApprovalRow, ...] = ()
    events: tuple[EventRow, ...] = ()
    new_requests: tuple[QueuedRequest, ...] = ()
    #: Ids of queued requests that are queued no more: they have begun, or were withdrawn.
    ended_requests: tuple[str, ...] = ()
    #: Rare: a new owner's class accepts the definition that the agent is stored under.
    definition: DefinitionChange | None = None
    #: Texts to keep by hash (instructions, tool definitions): ``(hash, canonical text)``.
    contents: tuple[tuple[str, str], ...] = ()

    @property
    def position_after(self) -> int:
        """Journal position after this commit."""
        return self.expected_position + len(self.journal)


@dataclass(frozen=True, slots=True)
class NewAgent:
    """A root with its imported conversation and first knowledge: one transaction."""

    agent_id: str
    definition_id: str
    definition_version: str
    class_path: str
    metadata: dict[str, Any]
    journal: tuple[JournalRecord, ...]
    now: datetime
    #: The same for every repetition of one creation, whose first answer may have been lost; empty for no repetition.
    commit_id: str = ""


@dataclass(frozen=True, slots=True)
class Hydration:
    """What an owner reads when it takes an agent: the state that its kernel starts from."""

    #: The root after the claim, with the new epoch.
    root: AgentRoot
    #: The non-terminal execution, if any, and everything that belongs to it.
    execution: ExecutionRow | None
    model_calls: tuple[ModelCallRow, ...] = ()
    tool_calls: tuple[ToolCallRow, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    #: Highest durable event seq of the execution, 0 for none.
    last_event_seq: int = 0
    #: Requests that wait for their turn, the next one first.
    queue: tuple[QueuedRequest, ...] = ()
    #: The newest records that decide what a model sees (`journal.VIEW_KINDS`), ascending: as many as were asked for, and all of the
    #: execution's.
    recent: tuple[JournalRecord, ...] = ()
    #: Whether there may be records before `recent`.
    has_older: bool = True
    #: The records of all that the agent knows, ascending; read when there may be records before `recent`.
    knowledge: tuple[JournalRecord, ...] = ()
