"""The store port: what the runtime asks of a database, with a contract per method.

All methods are synchronous and thread-safe; the actors call them on a small thread pool. Every method is one
transaction. Values that are returned belong to the caller. Any method may raise `StoreUnavailableError` (nothing was
written) and `SchemaVersionError` (the database is older or newer than this release).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from phronomy_ray.approvals import RulesAsked, StandingRule
from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.commits import Commit, Hydration, NewAgent
from phronomy_ray.errors import PhronomyError
from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    EventRow,
    ExecutionRow,
    JournalRecord,
    ModelCallRow,
    QueuedRequest,
    ToolCallRow,
)
from phronomy_ray.retention import Collectable, CollectedContents, CollectedRows, Retention
from phronomy_ray.store.delivery_port import DeliveryStore
from phronomy_ray.store.supervision_port import SupervisionStore
from phronomy_ray.whereabouts import Whereabouts

#: Contents that one step of a collection looks at.
LOOKED_AT_ONCE = 250_000


class Store(SupervisionStore, DeliveryStore, Protocol):
    """One database of agents."""

    @property
    def identity(self) -> str:
        """URL without credentials: equal for two handles on one store, safe to show."""
        ...

    # --- agents ------------------------------------------------------------------------------------------------

    def create_agent(self, new: NewAgent) -> AgentRoot:
        """Insert a root at revision 0, or at revision 1 and context revision 1 with its first records.

        Atomic. Raises `AgentAlreadyExistsError` when the id is stored; the loser of a race gets the same. Creating what was
        created with the same non-empty `commit_id`, and not changed since, succeeds and writes nothing.
        `CommitOutcomeUnknownError`: the connection was lost while committing; creating again tells.
        """
        ...

    def load_root(self, agent_id: str) -> AgentRoot:
        """The committed root. Raises `NotFoundError`."""
        ...

    def claim(self, agent_id: str, *, owner: dict[str, Any], now: datetime) -> Hydration:
        """Take ownership: epoch + 1, ``starts_without_progress`` + 1, and read what the new owner starts from.

        Atomic; whoever held a lower epoch can no longer commit. Raises `NotFoundError`. After a lost connection the
        claim may have happened twice, which is harmless: the answer holds the newest epoch.
        """
        ...

    def claim_served(
        self,
        agent_id: str,
        *,
        definition_id: str,
        definition_version: str,
        recent: int,
        owner: dict[str, Any],
        now: datetime,
    ) -> Hydration | None:
        """`claim` by an owner that serves one definition, with the journal that it begins with: one unit of work for all of it.

        An agent that is not stored, is stored under another definition or version, or is parked, is left as it is.

        Args:
            agent_id: the agent.
            definition_id: what it must be stored under.
            definition_version: likewise.
            recent: how many of the newest records to read, beside those of the running execution.
            owner: who takes it, for people.
            now: the time of the claim.

        Returns ``None`` when nothing was claimed; its root says why.
        """
        ...

    def execute(self, commit: Commit) -> None:
        """Execute `commit` in one transaction, or nothing of it.

        The first statement is the guarded ``UPDATE`` of the root row. Sets ``starts_without_progress`` to 0 if the commit is
        progress.
        Executing a commit that already happened (same ``commit_id`` is the root's last one) succeeds and writes nothing.

        Raises:
            OwnershipLostError: a newer epoch holds the agent (also when the agent is gone).
            ConflictError: revision or journal position moved although the epoch is current, or an execution's revision
                moved, or a row to insert exists.
            AgentBusyError: `commit.new_execution` while the agent has a non-terminal execution.
            StateConflictError: `commit.new_execution` has an id that is stored already, or one of `commit.new_requests` an id
                under which a request of another agent waits.
            StoreUnavailableError: known not to have happened.
            CommitOutcomeUnknownError: the connection was lost while committing.
        """
        ...

    def execute_group(self, commits: Sequence[Commit]) -> list[PhronomyError | None]:
        """Execute commits of *different* agents, together where that can be done: one transaction and one flush for many.

        Each is executed as by `execute`, whole or not at all, and none takes another with it; they are durable when this
        returns. Whether two of them are executed in one transaction or in two, and then in which order, is open.

        Returns for each commit ``None``, or the error that `execute` would have raised: a connection that is lost while
        committing makes the outcome of all commits of that transaction unknown. `StoreUnavailableError` also where `execute` would
        wait for another transaction that holds the agent's root.

        Raises:
            InvalidInputError: two of the commits are of one agent; nothing was executed.
        """
        ...

    def settle(self, agent_id: str, *, epoch: int, commit_id: str) -> bool:
        """Whether `commit_id` happened, decided while holding the root row's lock.

        Raises `OwnershipLostError` when the epoch is not current any more and the commit is not the last one.
        """
        ...

    def purge_agent(self, agent_id: str, *, epoch: int, created_at: datetime) -> bool:
        """Delete the agent with everything that belongs to it, its standing rules included, in one transaction; its id is free
        then, and an agent of this id that is made later begins with a higher epoch. Contents stay: they are shared by their hash.

        Args:
            agent_id: the agent.
            epoch: the owner's; nobody else may delete it.
            created_at: when this agent was created: another one of the same id is left alone.

        Returns whether it was there.

        Raises:
            OwnershipLostError: a newer epoch holds the agent.
            AgentBusyError: it has a non-terminal execution.
            AgentRetainedError: somebody holds it, or one of its executions (says who).
        """
        ...

    # --- retentions --------------------------------------------------------------------------------------------

    def retain(self, retention: Retention) -> Retention:
        """Hold an agent, or one of its executions: neither is deleted until every hold is released.

        The same owner's hold of the same thing again is one hold. Returns the one in force, which keeps its first time. A
        deletion that is under way comes first or sees the hold, never both.

        Raises:
            NotFoundError: the agent is not stored, or the execution is not stored as one of it.
        """
        ...

    def release(self, owner_key: str, *, agent_id: str, execution_id: str | None = None) -> bool:
        """End a hold; whether there was one. `execution_id` must be that of the hold, ``None`` for one of the whole agent."""
        ...

    def retentions(
        self, *, agent_id: str | None = None, owner_key: str | None = None, limit: int = 1000
    ) -> list[Retention]:
        """Holds, oldest first: of an agent and its executions, of an owner, or all."""
        ...

    # --- cancellations -----------------------------------------------------------------------------------------

    def request_cancellation(self, intent: CancellationIntent) -> CancellationIntent | None:
        """Keep the wish that an execution, or a request that waits, ends; anybody may have it, and an owner is not needed.

        The first one counts and is what every later one returns. ``None`` for an execution that ended without one.
        `CommitOutcomeUnknownError`: asking again tells.

        Raises:
            NotFoundError: neither an execution nor a request of this id and agent is stored.
        """
        ...

    def find_cancellation(self, execution_id: str) -> CancellationIntent | None:
        """The wish in force, also after the end."""
        ...

    # --- journal and content -----------------------------------------------------------------------------------

    def read_journal(
        self,
        agent_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 500,
        newest_first: bool = False,
        view_only: bool = False,
    ) -> list[JournalRecord]:
        """Records with ``after < position`` (``< before``), ascending or, with `newest_first`, descending; with `view_only` those of
        `journal.VIEW_KINDS`.
        """
        ...

    def journal_of_execution(self, execution_id: str) -> list[JournalRecord]:
        """All records of one execution, ascending."""
        ...

    def read_content(self, content_hash: str) -> str:
        """Text by hash. Raises `NotFoundError`, `ContentIntegrityError`."""
        ...

    def read_contents(self, content_hashes: Collection[str]) -> dict[str, str]:
        """Texts by their hashes. Raises `NotFoundError` when one is missing, `ContentIntegrityError`."""
        ...

    def collect_rows(
        self,
        kind: Collectable,
        *,
        before: datetime,
        limit: int = 200,
        after: str = "",
        dry_run: bool = False,
    ) -> CollectedRows:
        """One step of deleting what ended, or was last used, until `before`; safe while agents work.

        Looks at `limit` executions (or agents) behind `after`. Left alone is what a non-terminal execution needs (its own, and that of a
        child agent whose parent's execution goes on), what waits for a human, what is held, what is still to be delivered to a subscription,
        and what its owner is writing just now: a later step finds it.
        """
        ...

    def collect_contents(
        self,
        *,
        now: datetime,
        older_than: timedelta,
        limit: int = LOOKED_AT_ONCE,
        after: str = "",
        dry_run: bool = False,
    ) -> CollectedContents:
        """One step of deleting contents that no row refers to, safe while agents work.

        Looks at `limit` contents behind `after`: what nothing refers to is condemned, and stays readable. What was condemned `older_than`
        before `now` is deleted if still nothing refers to it, else it comes back. Each step is several short transactions that a
        crash may cut anywhere. It reads every row that can refer to a content once, so let a step look at
        many: by default at all of a store of some size, of which it holds the ids (about 60 MB).

        Raises:
            InvalidInputError: `older_than` is shorter than twice `commits.KEPT_CONTENT_IS_KNOWN`, or `limit` is not positive.
            ContentIntegrityError: a stored value cannot be read with the given content key; nothing was deleted.
            StoreUnavailableError: among others, a transaction that has written contents does not end; nothing was deleted.
        """
        ...

    # --- executions --------------------------------------------------------------------------------------------

    def load_execution(self, execution_id: str) -> ExecutionRow:
        """One execution. Raises `NotFoundError`."""
        ...

    def find_execution(self, execution_id: str) -> ExecutionRow | None:
        """One execution or ``None``."""
        ...

    def list_executions(
        self, *, agent_id: str | None = None, non_terminal_only: bool = False, limit: int = 100
    ) -> list[ExecutionRow]:
        """Newest first."""
        ...

    def list_agents(self, *, limit: int = 100, after: str = "") -> list[AgentRoot]:
        """By agent id, ascending, ids greater than `after`."""
        ...

    def queued_requests(self, agent_id: str) -> list[QueuedRequest]:
        """Requests that wait for an agent, the next one first."""
        ...

    def find_request(self, execution_id: str) -> QueuedRequest | None:
        """The queued request that will be this execution, ``None`` when none waits under this id."""
        ...

    def model_calls(self, execution_id: str) -> list[ModelCallRow]:
        """By sequence."""
        ...

    def tool_calls(self, execution_id: str) -> list[ToolCallRow]:
        """By model call sequence, then position."""
        ...

    def approvals(
        self,
        *,
        execution_id: str | None = None,
        agent_id: str | None = None,
        pending_only: bool = False,
        limit: int = 1000,
    ) -> list[ApprovalRow]:
        """Oldest first."""
        ...

    # --- standing rules ----------------------------------------------------------------------------------------

    def add_rule(self, rule: StandingRule) -> StandingRule:
        """Keep `rule`; the same one again is one rule. Returns the stored one.

        Raises `ConflictError` when another rule has its id. `CommitOutcomeUnknownError`: adding again tells.
        """
        ...

    def revoke_rule(self, rule_id: str, *, revoked_by: str, now: datetime) -> StandingRule:
        """End a rule; the first revocation counts and is what every later one returns. Raises `NotFoundError`."""
        ...

    def rules_in_force(self, *, agent_id: str, definition_id: str, now: datetime) -> list[StandingRule]:
        """Rules that hold for this agent at `now`, oldest first: one indexed query."""
        ...

    def rules_of(self, asked: Sequence[RulesAsked]) -> list[list[StandingRule]]:
        """As `rules_in_force` for each, with one query for all."""
        ...

    def list_rules(self, *, limit: int = 1000) -> list[StandingRule]:
        """All rules, also revoked and expired ones, oldest first."""
        ...

    # --- placements --------------------------------------------------------------------------------------------

    def whereabouts(self, agent_id: str) -> Whereabouts:
        """Where an agent lived last and where it must live; for one that is not stored, where it must. One query."""
        ...

    def pin_agent(self, agent_id: str, pin: str | None, *, now: datetime) -> None:
        """Say where an agent must live, or with ``None`` nowhere in particular; it goes with `purge_agent`."""
        ...

    def close_host(self, host: str, *, closed: bool, now: datetime) -> None:
        """Remember that a host takes no agents, or (not `closed`) that it does."""
        ...

    def is_host_closed(self, host: str) -> bool:
        """Whether a host takes no agents."""
        ...

    # --- events ------------------------------------------------------------------------------------------------

    def events(self, execution_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """Durable events with ``seq > after``, ascending."""
        ...

    def close(self) -> None:
        """Release all connections; the object can be used again and reconnects. Call it when an owner goes idle."""
        ...


class MigrationTool(Protocol):
    """Schema versions of one database."""

    def upgrade(self) -> str:
        """Bring the schema to this release's version; idempotent, safe to call from several processes at once."""
        ...

    def current(self) -> str | None:
        """Version that the database has, ``None`` for an empty one."""
        ...

    def head(self) -> str:
        """Version that this release wants."""
        ...


__all__ = ["MigrationTool", "Store"]
