"""Which columns hold what a content key has sealed, and which refer to contents: read by whoever goes through all of them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Table

from phronomy_ray.store import tables
from phronomy_ray.store.approval_rows import APPROVAL_REFS
from phronomy_ray.store.rows import EVENT_REFS, EXECUTION_REFS, JOURNAL_REFS, REQUEST_REFS, TOOL_CALL_REFS


@dataclass(frozen=True, slots=True)
class SealedColumns:
    """Where one table holds what a key has sealed."""

    table: Table
    #: Ciphertext.
    values: tuple[str, ...]
    #: Ids in ``contents``.
    references: tuple[str, ...] = ()


#: Every column that goes through a `ContentCodec`, ``contents`` itself aside.
SEALED = (
    SealedColumns(tables.agents, ("metadata",)),
    SealedColumns(
        tables.executions,
        ("input_hash", "input", "durable_context", "state", "output", "error"),
        EXECUTION_REFS,
    ),
    SealedColumns(
        tables.queued_requests, ("input_hash", "input", "durable_context", "options"), REQUEST_REFS
    ),
    SealedColumns(tables.journal, ("content", "metadata"), JOURNAL_REFS),
    SealedColumns(tables.model_calls, ("manifest", "attempts", "error")),
    SealedColumns(
        tables.tool_calls,
        ("arguments", "model_text", "result", "error", "attempts", "authorization", "contract"),
        TOOL_CALL_REFS,
    ),
    SealedColumns(
        tables.approvals,
        ("arguments", "decided_by", "reason", "metadata", "facts", "fingerprint", "edited_arguments"),
        APPROVAL_REFS,
    ),
    SealedColumns(tables.standing_rules, ("created_by", "reason", "revoked_by")),
    SealedColumns(tables.events, ("payload",), EVENT_REFS),
    SealedColumns(tables.vector_documents, ("content", "metadata")),
)

__all__ = ["SEALED", "SealedColumns"]
