"""`SqlStore`: the store port on SQLite and PostgreSQL.

The class holds no SQL and no rows: `statements` and `rows` do, `commit_writer` executes a commit, `transactions` owns
connections. What remains here is the contract: which unit of work each method is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Executable

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.commits import Commit, Hydration, NewAgent
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    OwnershipLostError,
    PhronomyError,
    StateConflictError,
)
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
from phronomy_ray.store import approval_rows, delivery_statements, rows, statements
from phronomy_ray.store.batches import end_batches, run_batch
from phronomy_ray.store.codec import RowDecoder, RowEncoder, encode_time, plain_json, plain_text
from phronomy_ray.store.commit_writer import PreparedCommit
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.group_writer import execute_in_groups
from phronomy_ray.store.hydration import read_bodies, read_hydration
from phronomy_ray.store.sql_cancellations import SqlCancellations
from phronomy_ray.store.sql_collection import SqlCollection
from phronomy_ray.store.sql_contents import SqlContents
from phronomy_ray.store.sql_deliveries import SqlDeliveries, to_delivery
from phronomy_ray.store.sql_placements import SqlPlacements
from phronomy_ray.store.sql_purge import SqlPurge
from phronomy_ray.store.sql_retentions import SqlRetentions
from phronomy_ray.store.sql_rules import SqlRules
from phronomy_ray.store.sql_supervision import SqlSupervision
from phronomy_ray.subscriptions import Delivery
from phronomy_ray.worker_inputs import WorkerInputRestricted

T = TypeVar("T")


class SqlStore(
    SqlRules,
    SqlPurge,
    SqlRetentions,
    SqlContents,
    SqlCollection,
    SqlCancellations,
    SqlSupervision,
    SqlPlacements,
    SqlDeliveries,
    WorkerInputRestricted,
):
    """One SQL database of agents (see `store.port.Store` for the contract of each method).

    Nothing is connected before the first call. A store can be pickled, forked and shared by threads: only its URL and
    options travel, connections never do. A key given as argument travels too; one from the environment does not.
    """

    def __repr__(self) -> str:
        return f"SqlStore({self.identity!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        url = self._location.url.render_as_string(hide_password=False)
        return _rebuild, (url, self._content_key, self._options, self._host_id)

    # --- agents ------------------------------------------------------------------------------------------------

    def create_agent(self, new: NewAgent) -> AgentRoot:
        """As `Store.create_agent`."""
        for offset, record in enumerate(new.journal, start=1):
            if record.position != offset:
                raise StateConflictError(f"first records start at 1 without a gap; found {record.position}")
        revision = 1 if new.journal else 0
        metadata = cast("dict[str, Any]", to_json_value(new.metadata))
        encoder = RowEncoder(self._codec)
        now = encode_time(new.now)
        root = {
            "agent_id": new.agent_id,
            "definition_id": plain_text(new.definition_id),
            "definition_version": plain_text(new.definition_version),
            "class_path": plain_text(new.class_path),
            "agent_revision": revision,
            "context_revision": revision,
            "transcript_generation": 0,
            "journal_position": len(new.journal),
            "lifecycle": Lifecycle.IDLE.value,
            "epoch": 0,
            "last_commit_id": plain_text(new.commit_id) or None,
            "metadata": encoder.sealed(metadata),
            "owner": plain_json({}),
            "starts_without_progress": 0,
            "parked": None,
            "created_at": now,
            "updated_at": now,
        }
        records = [rows.journal_columns(new.agent_id, record, encoder) for record in new.journal]

        contents = encoder.content_rows()

        def work(connection: Connection) -> bool:
            engine_name = connection.dialect.name
            [created] = run_batch(connection, [(statements.INSERT_ROOT[engine_name], [root])])
            if not created:
                end_batches(connection)
                stored = connection.execute(statements.GUARDS_OF_ROOT, {"the_agent_id": new.agent_id}).one()
                if new.commit_id and stored.last_commit_id == new.commit_id:
                    return False
                raise AgentAlreadyExistsError(
                    f"agent {new.agent_id!r} exists already", details={"agent_id": new.agent_id}
                )
            is_raised, *_ = run_batch(
                connection,
                [
                    (statements.BEGIN_ABOVE_FLOOR, [{"the_agent_id": new.agent_id}]),
                    (statements.INSERT_CONTENT[engine_name], contents),
                    (statements.INSERT_JOURNAL, records),
                ],
            )
            return not is_raised

        if not self._write(work):
            return self.load_root(new.agent_id)
        return AgentRoot(
            agent_id=new.agent_id,
            definition_id=new.definition_id,
            definition_version=new.definition_version,
            class_path=new.class_path,
            agent_revision=revision,
            context_revision=revision,
            journal_position=len(new.journal),
            metadata=metadata,
            created_at=new.now,
            updated_at=new.now,
        )

    def load_root(self, agent_id: str) -> AgentRoot:
        """As `Store.load_root`."""

        def work(connection: Connection) -> AgentRoot:
            row = connection.execute(statements.ROOT, {"the_agent_id": agent_id}).one_or_none()
            if row is None:
                raise _no_agent(agent_id)
            return rows.to_root(row, RowDecoder(self._codec, {}))

        return self._read(work)

    def list_agents(self, *, limit: int = 100, after: str = "") -> list[AgentRoot]:
        """As `Store.list_agents`."""
        return self._select(statements.AGENTS, {"after": after, "row_limit": _limit(limit)}, rows.to_root)

    def claim(self, agent_id: str, *, owner: dict[str, Any], now: datetime) -> Hydration:
        """As `Store.claim`.

        After a lost connection it is tried once more whatever its outcome: a second claim is as good as the first.
        """
        guards = {"the_agent_id": agent_id}
        found = self._claim(statements.CLAIM_ROOT, guards, owner, now, recent=0)
        if found is None:
            raise _no_agent(agent_id)
        return found

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
        """As `Store.claim_served`; see `claim`."""
        guards = {
            "the_agent_id": agent_id,
            "the_definition_id": definition_id,
            "the_definition_version": definition_version,
        }
        return self._claim(statements.CLAIM_SERVED_ROOT, guards, owner, now, recent=_limit(recent))

    def _claim(
        self, query: Executable, guards: dict[str, Any], owner: dict[str, Any], now: datetime, *, recent: int
    ) -> Hydration | None:
        parameters = guards | {"new_owner": plain_json(owner), "new_updated_at": encode_time(now)}

        def work(connection: Connection) -> Hydration | None:
            row = connection.execute(query, parameters).one_or_none()
            if row is None:
                return None
            root = rows.to_root(row, RowDecoder(self._codec, {}))
            return read_hydration(connection, root, self._decoder, recent=recent)

        return self._write(work, repeat_unknown=True)

    def execute(self, commit: Commit) -> None:
        """As `Store.execute`."""
        self._write(PreparedCommit(commit, self._codec).write)

    def execute_group(self, commits: Sequence[Commit]) -> list[PhronomyError | None]:
        """As `Store.execute_group`."""
        if len({commit.agent_id for commit in commits}) != len(commits):
            raise InvalidInputError("a group holds at most one commit of each agent")
        outcomes: list[PhronomyError | None] = [None] * len(commits)
        prepared: dict[int, PreparedCommit] = {}
        for index, commit in enumerate(commits):
            try:
                prepared[index] = PreparedCommit(commit, self._codec)
            except PhronomyError as error:
                outcomes[index] = error
        found = execute_in_groups(
            list(prepared.values()),
            self._write,
            self._write_statement,
            skips_locked=self._location.backend == "postgresql",
        )
        for index, outcome in zip(prepared, found, strict=True):
            outcomes[index] = outcome
        return outcomes

    def settle(self, agent_id: str, *, epoch: int, commit_id: str) -> bool:
        """As `Store.settle`.

        Waits while the first attempt is still in flight: it holds the root row's lock from its first statement on.
        """

        def work(connection: Connection) -> bool:
            row = connection.execute(statements.LOCK_ROOT, {"the_agent_id": agent_id}).one_or_none()
            if row is not None and row.last_commit_id == commit_id:
                return True
            if row is None or row.epoch != epoch:
                raise OwnershipLostError(
                    f"agent {agent_id!r} has a newer owner; commit {commit_id} is not its last one",
                    details={"agent_id": agent_id, "epoch": None if row is None else row.epoch},
                )
            return False

        return self._write(work, repeat_unknown=True)

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
        """As `Store.read_journal`."""
        query = statements.journal_page(
            bounded=before is not None, newest_first=newest_first, view_only=view_only
        )
        parameters: dict[str, Any] = {"the_agent_id": agent_id, "after": after, "row_limit": _limit(limit)}
        if before is not None:
            parameters["before"] = before
        return self._select(query, parameters, rows.to_record, rows.JOURNAL_REFS)

    def journal_of_execution(self, execution_id: str) -> list[JournalRecord]:
        """As `Store.journal_of_execution`."""
        of = {"the_execution_id": execution_id}
        return self._select(statements.JOURNAL_OF_EXECUTION, of, rows.to_record, rows.JOURNAL_REFS)

    def read_content(self, content_hash: str) -> str:
        """As `Store.read_content`."""
        return self.read_contents([content_hash])[content_hash]

    def read_contents(self, content_hashes: Collection[str]) -> dict[str, str]:
        """As `Store.read_contents`."""
        hashes = {id_: hash_ for hash_ in content_hashes for id_ in self._codec.content_ids(hash_)}

        def work(connection: Connection) -> dict[str, str]:
            bodies = read_bodies(connection, hashes)
            return {hashes[id_]: self._codec.unseal_body(id_, body) for id_, body in bodies.items()}

        found = self._read(work) if hashes else {}
        for hash_ in content_hashes:
            if hash_ not in found:
                raise NotFoundError(f"no content {hash_}", details={"content_hash": hash_})
        return found

    # --- executions --------------------------------------------------------------------------------------------

    def load_execution(self, execution_id: str) -> ExecutionRow:
        """As `Store.load_execution`."""
        found = self.find_execution(execution_id)
        if found is None:
            raise NotFoundError(f"no execution {execution_id!r}", details={"execution_id": execution_id})
        return found

    def find_execution(self, execution_id: str) -> ExecutionRow | None:
        """As `Store.find_execution`."""
        of = {"the_execution_id": execution_id}
        found = self._select(statements.EXECUTION, of, rows.to_execution, rows.EXECUTION_REFS)
        return found[0] if found else None

    def list_executions(
        self, *, agent_id: str | None = None, non_terminal_only: bool = False, limit: int = 100
    ) -> list[ExecutionRow]:
        """As `Store.list_executions`."""
        query = statements.execution_list(of_agent=agent_id is not None, open_only=non_terminal_only)
        parameters: dict[str, Any] = {"row_limit": _limit(limit)}
        if agent_id is not None:
            parameters["the_agent_id"] = agent_id
        return self._select(query, parameters, rows.to_execution, rows.EXECUTION_REFS)

    def queued_requests(self, agent_id: str) -> list[QueuedRequest]:
        """As `Store.queued_requests`."""
        return self._select(statements.QUEUE, {"the_agent_id": agent_id}, rows.to_request, rows.REQUEST_REFS)

    def find_request(self, execution_id: str) -> QueuedRequest | None:
        """As `Store.find_request`."""
        of = {"the_execution_id": execution_id}
        found = self._select(statements.REQUEST, of, rows.to_request, rows.REQUEST_REFS)
        return found[0] if found else None

    def model_calls(self, execution_id: str) -> list[ModelCallRow]:
        """As `Store.model_calls`."""
        return self._select(statements.MODEL_CALLS, {"the_execution_id": execution_id}, rows.to_model_call)

    def tool_calls(self, execution_id: str) -> list[ToolCallRow]:
        """As `Store.tool_calls`."""
        of = {"the_execution_id": execution_id}
        return self._select(statements.TOOL_CALLS, of, rows.to_tool_call, rows.TOOL_CALL_REFS)

    def approvals(
        self,
        *,
        execution_id: str | None = None,
        agent_id: str | None = None,
        pending_only: bool = False,
        limit: int = 1000,
    ) -> list[ApprovalRow]:
        """As `Store.approvals`."""
        query = statements.approval_list(
            of_execution=execution_id is not None, of_agent=agent_id is not None, pending_only=pending_only
        )
        parameters: dict[str, Any] = {"row_limit": _limit(limit)}
        if execution_id is not None:
            parameters["the_execution_id"] = execution_id
        if agent_id is not None:
            parameters["the_agent_id"] = agent_id
        return self._select(query, parameters, approval_rows.to_approval, approval_rows.APPROVAL_REFS)

    # --- events ------------------------------------------------------------------------------------------------

    def events(self, execution_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """As `Store.events`."""
        parameters = {"the_execution_id": execution_id, "after": after, "row_limit": _limit(limit)}
        return self._select(statements.EVENTS, parameters, rows.to_event, rows.EVENT_REFS)

    def deliveries_of(self, subscription_id: str, agent_id: str, *, limit: int = 50) -> list[Delivery]:
        """As `DeliveryStore.deliveries_of`."""
        parameters = {
            "the_subscription_id": subscription_id,
            "the_agent_id": agent_id,
            "row_limit": _limit(limit),
        }
        return self._select(delivery_statements.DELIVERIES_OF, parameters, to_delivery, rows.EVENT_REFS)

    def dead_letters(
        self, *, subscription_id: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Delivery]:
        """As `DeliveryStore.dead_letters`."""
        query = delivery_statements.dead_letters(of_subscription=subscription_id is not None)
        parameters: dict[str, Any] = {"after": after, "row_limit": _limit(limit)}
        if subscription_id is not None:
            parameters["the_subscription_id"] = subscription_id
        return self._select(query, parameters, to_delivery, rows.EVENT_REFS)

    # --- inside --------------------------------------------------------------------------------------------------

    def _select(
        self,
        query: Executable,
        parameters: dict[str, Any],
        build: Callable[[rows.AnyRow, RowDecoder], T],
        ref_columns: Sequence[str] = (),
    ) -> list[T]:
        def work(connection: Connection) -> list[T]:
            for _ in range(2):
                found = connection.execute(query, parameters).all()
                decoder = self._decoder(connection, rows.references(found, *ref_columns))
                if decoder.is_whole:
                    break
                # contents were put under another key between the two queries: read it again
            return [build(row, decoder) for row in found]

        return self._read(work)

    def _decoder(self, connection: Connection, wanted: Iterable[str]) -> RowDecoder:
        ids = frozenset(wanted)
        bodies = read_bodies(connection, ids)
        return RowDecoder(self._codec, bodies, is_whole=len(bodies) == len(ids))


def _limit(limit: int) -> int:
    if limit < 0:
        raise InvalidInputError(f"limit must not be negative, got {limit}")
    return limit


def _no_agent(agent_id: str) -> NotFoundError:
    return NotFoundError(f"no agent {agent_id!r}", details={"agent_id": agent_id})


def _rebuild(
    url: str, content_key: str | bytes | None, options: StoreOptions, host_id: str | None
) -> SqlStore:
    return SqlStore(url, content_key=content_key, options=options, host_id=host_id)


def open_store(
    url: str,
    *,
    content_key: str | bytes | None = None,
    application_name: str = "phronomy-ray",
    create: bool = False,
    options: StoreOptions | None = None,
    host_id: str | None = None,
) -> SqlStore:
    """A store for `url`: ``sqlite:///path`` or ``postgresql://user@host/database``.

    Args:
        url: a relative SQLite path is made absolute now.
        content_key: key ring for the contents (`store.content_keys`); default is the environment's ``PHRONOMY_CONTENT_KEY``, else plain text.
        application_name: shown by the database server.
        create: give an empty database its schema now (`SqlStore.ensure_schema`); otherwise nothing is connected yet.
        options: pool size and time limits.
        host_id: identity of this machine for SQLite's host check; for tests.

    Raises:
        ConfigurationError: the URL or the key cannot be used.
    """
    options = replace(options or StoreOptions(), application_name=application_name)
    store = SqlStore(url, content_key=content_key, options=options, host_id=host_id)
    if create:
        store.ensure_schema()
    return store


__all__ = ["SqlStore", "StoreOptions", "open_store"]
