"""Executes one commit on an open transaction: the guarded root update first, then the rows.

The first statement is the fence. It takes the root row's lock and checks epoch, revision and journal position in its
``WHERE``, so a stale owner blocks behind its successor and then touches no row; a ``SELECT`` of the epoch would let both
commit. Everything after it runs under that lock, which is why a refusal can be explained inside the same transaction.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Executable

from phronomy_ray.canonical_json import loads
from phronomy_ray.commits import Commit, DefinitionChange, ExecutionUpdate
from phronomy_ray.errors import (
    AgentBusyError,
    ConflictError,
    InvalidInputError,
    OwnershipLostError,
    StateConflictError,
)
from phronomy_ray.journal import ExecutionRow, ExecutionStatus
from phronomy_ray.store import approval_rows, rows, statements
from phronomy_ray.store.batches import Step, end_batches, run_batch
from phronomy_ray.store.codec import RowEncoder, encode_time
from phronomy_ray.store.content_codec import ContentCodec


class PreparedCommit:
    """A commit as statement parameters: encoded (and encrypted) before a transaction is opened, so that no lock is
    held meanwhile and a second try costs no second encoding.

    Raises:
        StateConflictError: the journal positions do not continue from the commit's base.
        SerializationError: a value cannot be stored.
    """

    def __init__(self, commit: Commit, codec: ContentCodec) -> None:
        _check_shape(commit)
        self.commit = commit
        encoder = RowEncoder(codec)
        agent_id = commit.agent_id
        self.root = {
            "the_agent_id": agent_id,
            "the_epoch": commit.epoch,
            "expected_revision": commit.expected_revision,
            "expected_position": commit.expected_position,
            "new_agent_revision": commit.expected_revision + 1,
            "new_journal_position": commit.position_after,
            "new_last_commit_id": commit.commit_id,
            "new_lifecycle": commit.lifecycle.value,
            "new_context_revision": commit.context_revision,
            "new_transcript_generation": commit.transcript_generation,
            "new_updated_at": encode_time(commit.now),
            "kept_starts": 0 if commit.is_progress else 1,
        }
        new = commit.new_execution
        self.new_execution = None if new is None else rows.execution_columns(new, encoder)
        self.execution = None
        if commit.execution is not None:
            self.execution = rows.execution_changes(commit.execution.row, encoder) | {
                "the_execution_id": commit.execution.row.execution_id,
                "the_agent_id": agent_id,
                "expected_revision": commit.execution.expected_revision,
            }
        #: ``(what, statement, rows)`` of updates; each row must exist.
        self.updates: list[tuple[str, Executable, list[rows.Columns]]] = [
            (
                "model call",
                statements.UPDATE_MODEL_CALL,
                [rows.model_call_changes(r, encoder) for r in commit.model_calls],
            ),
            (
                "tool call",
                statements.UPDATE_TOOL_CALL,
                [rows.tool_call_changes(r, encoder) for r in commit.tool_calls],
            ),
            (
                "tool call",
                statements.UPDATE_REVISED_TOOL_CALL,
                [rows.tool_call_revision(r, encoder) for r in commit.revised_tool_calls],
            ),
            (
                "approval",
                statements.UPDATE_APPROVAL,
                [approval_rows.approval_changes(r, encoder) for r in commit.approvals],
            ),
            *_definition_updates(agent_id, commit.definition, encoder),
        ]
        #: ``(statement, rows)`` of inserts, in an order that satisfies the foreign keys.
        self.inserts: list[Step] = [
            (
                statements.INSERT_MODEL_CALL,
                [rows.model_call_columns(r, encoder) for r in commit.new_model_calls],
            ),
            (
                statements.INSERT_TOOL_CALL,
                [rows.tool_call_columns(r, encoder) for r in commit.new_tool_calls],
            ),
            (
                statements.INSERT_APPROVAL,
                [approval_rows.approval_columns(r, encoder) for r in commit.new_approvals],
            ),
            (statements.INSERT_JOURNAL, [rows.journal_columns(agent_id, r, encoder) for r in commit.journal]),
            (statements.INSERT_EVENT, [rows.event_columns(r, encoder) for r in commit.events]),
        ]
        self.new_requests = [rows.request_columns(r, encoder) for r in commit.new_requests]
        self.ended_requests = [
            {"the_execution_id": execution_id, "the_agent_id": agent_id}
            for execution_id in commit.ended_requests
        ]
        for hash_, text in commit.contents:
            encoder.named_content(hash_, text)
        self.contents = encoder.content_rows()
        #: Characters of its values, about.
        self.chars = encoder.chars + sum(len(text) for _, text in commit.contents)

    def write(self, connection: Connection) -> None:
        """Execute on `connection`, inside its transaction: the fence, the admission if any, then all rows at once.

        Raises:
            OwnershipLostError, ConflictError, AgentBusyError, StateConflictError: as `Store.execute`; roll back.
        """
        [advanced] = run_batch(connection, [(statements.ADVANCE_ROOT, [self.root])])
        if not advanced:
            self._explain_refusal(connection)
            return
        engine_name = connection.dialect.name
        if self.new_execution is not None:
            [admitted] = run_batch(
                connection, [(statements.INSERT_EXECUTION[engine_name], [self.new_execution])]
            )
            if not admitted:
                self._explain_admission(connection)
        execution_rows = [] if self.execution is None else [self.execution]
        changed, ended, queued, _, *touched = run_batch(
            connection,
            [
                (statements.UPDATE_EXECUTION, execution_rows),
                (statements.DELETE_REQUEST, self.ended_requests),
                (statements.INSERT_REQUEST[engine_name], self.new_requests),
                (statements.INSERT_CONTENT[engine_name], self.contents),
                *((statement, parameters) for _, statement, parameters in self.updates),
                *self.inserts,
            ],
        )
        if changed != len(execution_rows):
            self._explain_execution(connection)
        if ended != len(self.ended_requests):
            raise ConflictError(f"{len(self.ended_requests) - ended} queued requests to end are not stored")
        if queued != len(self.new_requests):
            self._explain_request(connection)
        for (what, _, parameters), count in zip(self.updates, touched, strict=False):
            if count != len(parameters):
                raise ConflictError(
                    f"{len(parameters) - count} of {len(parameters)} {what} rows to change are not stored"
                )

    def _explain_refusal(self, connection: Connection) -> None:
        """Return if the commit has happened already; else raise why it was refused."""
        end_batches(connection)
        commit = self.commit
        root = connection.execute(statements.GUARDS_OF_ROOT, {"the_agent_id": commit.agent_id}).one_or_none()
        details: dict[str, Any] = {
            "agent_id": commit.agent_id,
            "step": commit.step,
            "commit_id": commit.commit_id,
        }
        if root is None:
            raise OwnershipLostError(f"agent {commit.agent_id!r} is not stored any more", details=details)
        if root.last_commit_id == commit.commit_id:
            return
        if root.epoch != commit.epoch:
            raise OwnershipLostError(
                f"agent {commit.agent_id!r} is owned by epoch {root.epoch}; this commit came from {commit.epoch}",
                details=details
                | {"epoch": root.epoch, "commit_epoch": commit.epoch, "owner": loads(root.owner)},
            )
        raise ConflictError(
            f"agent {commit.agent_id!r} is at revision {root.agent_revision} and position {root.journal_position}; "
            f"the commit expected {commit.expected_revision} and {commit.expected_position}",
            details=details | {"revision": root.agent_revision, "position": root.journal_position},
        )

    def _explain_admission(self, connection: Connection) -> None:
        end_batches(connection)
        new = self.commit.new_execution
        assert new is not None
        same = connection.execute(
            statements.EXECUTION_GUARDS, {"the_execution_id": new.execution_id}
        ).one_or_none()
        if same is not None:
            raise StateConflictError(
                f"execution {new.execution_id!r} is stored already ({same.status}, agent {same.agent_id!r})",
                details={"execution_id": new.execution_id, "agent_id": same.agent_id, "status": same.status},
            )
        open_ = connection.execute(statements.OPEN_EXECUTION, {"the_agent_id": new.agent_id}).first()
        details = {"agent_id": new.agent_id}
        if open_ is not None:
            details |= {"execution_id": open_.execution_id, "status": open_.status}
        raise AgentBusyError(f"agent {new.agent_id!r} has a non-terminal execution", details=details)

    def _explain_request(self, connection: Connection) -> None:
        end_batches(connection)
        agent_id = self.commit.agent_id
        for request in self.commit.new_requests:
            found = connection.execute(
                statements.REQUEST, {"the_execution_id": request.execution_id}
            ).one_or_none()
            if found is not None and found.agent_id != agent_id:
                raise StateConflictError(
                    f"a request {request.execution_id!r} waits already: it is one of agent {found.agent_id!r}",
                    details={"execution_id": request.execution_id, "agent_id": found.agent_id},
                )
        raise ConflictError(  # the owner would have known it
            f"a request to queue for agent {agent_id!r} waits already", details={"agent_id": agent_id}
        )

    def _explain_execution(self, connection: Connection) -> None:
        end_batches(connection)
        update = self.commit.execution
        assert update is not None
        execution_id = update.row.execution_id
        found = connection.execute(
            statements.EXECUTION_GUARDS, {"the_execution_id": execution_id}
        ).one_or_none()
        if found is None or found.agent_id != self.commit.agent_id:
            state = f"is not stored for agent {self.commit.agent_id!r}"
        elif ExecutionStatus(found.status).is_terminal:
            state = f"is {found.status} and never changes again"
        else:
            state = f"is at revision {found.revision}; the commit expected {update.expected_revision}"
        raise ConflictError(f"execution {execution_id!r} {state}", details={"execution_id": execution_id})


def _definition_updates(
    agent_id: str, change: DefinitionChange | None, encoder: RowEncoder
) -> list[tuple[str, Executable, list[rows.Columns]]]:
    executions = change.execution_contexts if change is not None else ()
    requests = change.request_contexts if change is not None else ()
    return [
        (
            "agent",
            statements.UPDATE_DEFINITION,
            [] if change is None else [rows.definition_changes(agent_id, change, encoder)],
        ),
        (
            "execution",
            statements.UPDATE_EXECUTION_CONTEXT,
            rows.context_changes(agent_id, executions, encoder),
        ),
        (
            "queued request",
            statements.UPDATE_REQUEST_CONTEXT,
            rows.context_changes(agent_id, requests, encoder),
        ),
    ]


def _check_shape(commit: Commit) -> None:
    for offset, record in enumerate(commit.journal, start=1):
        if record.position != commit.expected_position + offset:
            raise StateConflictError(
                f"journal record {record.position} cannot follow position {commit.expected_position + offset - 1} "
                f"of agent {commit.agent_id!r}: positions have neither gaps nor repeats",
                details={"agent_id": commit.agent_id, "position": record.position},
            )
    executions: list[ExecutionRow | None] = [commit.new_execution]
    if isinstance(commit.execution, ExecutionUpdate):
        executions.append(commit.execution.row)
        if commit.execution.row.revision != commit.execution.expected_revision + 1:
            raise InvalidInputError(
                f"execution {commit.execution.row.execution_id!r}: the revision after a change is one more than before"
            )
    owners = [
        *executions,
        *commit.tool_calls,
        *commit.revised_tool_calls,
        *commit.new_tool_calls,
        *commit.approvals,
        *commit.new_approvals,
        *commit.events,
        *commit.new_requests,
    ]
    if any(row is not None and row.status is ExecutionStatus.QUEUED for row in executions):
        raise InvalidInputError(
            "what is queued is a request, not an execution: no stored row has this status"
        )
    for row in owners:
        if row is not None and row.agent_id != commit.agent_id:
            raise InvalidInputError(
                f"a commit of agent {commit.agent_id!r} holds a row of agent {row.agent_id!r}"
            )
