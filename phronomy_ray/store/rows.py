"""Rows of each table: what a value writes into its columns, and the value that a row gives back.

``*_columns`` makes the parameters of an insert, ``*_changes`` those of an update (its keys are the update statement's
bind names, see `statements`), ``to_*`` reads. Nothing here touches a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import Row

from phronomy_ray.canonical_json import loads
from phronomy_ray.commits import DefinitionChange
from phronomy_ray.errors import SerializationError
from phronomy_ray.journal import (
    AgentRoot,
    Channel,
    EventRow,
    ExecutionRow,
    ExecutionStatus,
    JournalRecord,
    Lifecycle,
    ModelCallRow,
    ModelCallStatus,
    Phase,
    QueuedRequest,
    RecordKind,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.parking import ParkReason
from phronomy_ray.store.codec import (
    RowDecoder,
    RowEncoder,
    decode_optional_time,
    decode_time,
    encode_optional_time,
    encode_time,
    optional_text,
    plain_json,
    plain_text,
)

AnyRow = Row[Any]
Columns = dict[str, Any]
_E = TypeVar("_E")


def member(enum: Callable[[str], _E], stored: str) -> _E:
    """The enum member that a text column holds. Raises `SerializationError`."""
    try:
        return enum(stored)
    except ValueError as error:
        name = getattr(enum, "__name__", "value")
        raise SerializationError(f"the store holds {stored!r} where a {name} belongs") from error


def references(rows: Iterable[AnyRow], *columns: str) -> set[str]:
    """Content ids that `rows` refer to in `columns`."""
    return {value for row in rows for name in columns if (value := getattr(row, name)) is not None}


# --- agents ----------------------------------------------------------------------------------------------------


def definition_changes(agent_id: str, change: DefinitionChange, encoder: RowEncoder) -> Columns:
    """The columns of a root that change with its definition."""
    return {
        "the_agent_id": agent_id,
        "new_definition_id": plain_text(change.definition_id),
        "new_definition_version": plain_text(change.definition_version),
        "new_class_path": change.class_path,
        "new_metadata": encoder.sealed(change.metadata),
    }


def context_changes(
    agent_id: str, contexts: Iterable[tuple[str, dict[str, Any]]], encoder: RowEncoder
) -> list[Columns]:
    """The columns of executions or requests that change with their agent's definition."""
    changes: list[Columns] = []
    for execution_id, context in contexts:
        inline, reference = encoder.content(context)
        changes.append(
            {
                "the_execution_id": execution_id,
                "the_agent_id": agent_id,
                "new_durable_context": inline,
                "new_durable_context_ref": reference,
            }
        )
    return changes


def to_root(row: AnyRow, decoder: RowDecoder) -> AgentRoot:
    """One agent's root."""
    return AgentRoot(
        agent_id=row.agent_id,
        definition_id=row.definition_id,
        definition_version=row.definition_version,
        class_path=row.class_path,
        agent_revision=row.agent_revision,
        context_revision=row.context_revision,
        transcript_generation=row.transcript_generation,
        journal_position=row.journal_position,
        lifecycle=member(Lifecycle, row.lifecycle),
        epoch=row.epoch,
        metadata=decoder.sealed(row.metadata),
        created_at=decode_time(row.created_at),
        updated_at=decode_time(row.updated_at),
        owner=loads(row.owner),
        starts_without_progress=row.starts_without_progress,
        parked=ParkReason.from_wire(loads(row.parked)) if row.parked is not None else None,
    )


# --- executions ------------------------------------------------------------------------------------------------

EXECUTION_REFS = ("input_ref", "durable_context_ref", "output_ref")


def execution_columns(row: ExecutionRow, encoder: RowEncoder) -> Columns:
    """All columns of a new execution."""
    input_, input_ref = encoder.content(row.input)
    context, context_ref = encoder.content(row.durable_context)
    output, output_ref = encoder.content(row.output)
    return {
        "execution_id": row.execution_id,
        "agent_id": row.agent_id,
        "status": row.status.value,
        "phase": row.phase.value,
        "revision": row.revision,
        "input_hash": encoder.sealed(row.input_hash),
        "input": input_,
        "input_ref": input_ref,
        "durable_context": context,
        "durable_context_ref": context_ref,
        "base_position": row.base_position,
        "state": encoder.sealed(row.state),
        "output": output,
        "output_ref": output_ref,
        "error": encoder.sealed(row.error),
        "terminal_reason": optional_text(row.terminal_reason),
        "cancel_requested_at": encode_optional_time(row.cancel_requested_at),
        "created_at": encode_time(row.created_at),
        "updated_at": encode_time(row.updated_at),
        "ended_at": encode_optional_time(row.ended_at),
        "deadline_at": encode_optional_time(row.deadline_at),
    }


def execution_changes(row: ExecutionRow, encoder: RowEncoder) -> Columns:
    """The columns of an execution that change."""
    output, output_ref = encoder.content(row.output)
    return {
        "new_status": row.status.value,
        "new_phase": row.phase.value,
        "new_revision": row.revision,
        "new_state": encoder.sealed(row.state),
        "new_output": output,
        "new_output_ref": output_ref,
        "new_error": encoder.sealed(row.error),
        "new_terminal_reason": optional_text(row.terminal_reason),
        "new_cancel_requested_at": encode_optional_time(row.cancel_requested_at),
        "new_updated_at": encode_time(row.updated_at),
        "new_ended_at": encode_optional_time(row.ended_at),
    }


def to_execution(row: AnyRow, decoder: RowDecoder) -> ExecutionRow:
    """One execution."""
    return ExecutionRow(
        execution_id=row.execution_id,
        agent_id=row.agent_id,
        status=member(ExecutionStatus, row.status),
        phase=member(Phase, row.phase),
        revision=row.revision,
        input_hash=decoder.sealed(row.input_hash),
        input=decoder.content(row.input, row.input_ref),
        durable_context=decoder.content(row.durable_context, row.durable_context_ref),
        base_position=row.base_position,
        state=decoder.sealed(row.state),
        created_at=decode_time(row.created_at),
        updated_at=decode_time(row.updated_at),
        ended_at=decode_optional_time(row.ended_at),
        output=decoder.content(row.output, row.output_ref),
        error=decoder.sealed(row.error),
        terminal_reason=row.terminal_reason,
        cancel_requested_at=decode_optional_time(row.cancel_requested_at),
        deadline_at=decode_optional_time(row.deadline_at),
    )


# --- queued requests -------------------------------------------------------------------------------------------

REQUEST_REFS = ("input_ref", "durable_context_ref")


def request_columns(row: QueuedRequest, encoder: RowEncoder) -> Columns:
    """All columns of a queued request."""
    input_, input_ref = encoder.content(row.input)
    context, context_ref = encoder.content(row.durable_context)
    return {
        "execution_id": row.execution_id,
        "agent_id": row.agent_id,
        "position": row.position,
        "interrupts": row.interrupts,
        "input_hash": encoder.sealed(row.input_hash),
        "input": input_,
        "input_ref": input_ref,
        "durable_context": context,
        "durable_context_ref": context_ref,
        "stream": row.stream,
        "options": encoder.sealed(row.options),
        "queued_at": encode_time(row.queued_at),
        "deadline_at": encode_optional_time(row.deadline_at),
    }


def to_request(row: AnyRow, decoder: RowDecoder) -> QueuedRequest:
    """One queued request."""
    return QueuedRequest(
        execution_id=row.execution_id,
        agent_id=row.agent_id,
        position=row.position,
        interrupts=row.interrupts,
        input_hash=decoder.sealed(row.input_hash),
        input=decoder.content(row.input, row.input_ref),
        durable_context=decoder.content(row.durable_context, row.durable_context_ref),
        stream=row.stream,
        options=decoder.sealed(row.options),
        queued_at=decode_time(row.queued_at),
        deadline_at=decode_optional_time(row.deadline_at),
    )


# --- journal ---------------------------------------------------------------------------------------------------

JOURNAL_REFS = ("content_ref",)


def journal_columns(agent_id: str, record: JournalRecord, encoder: RowEncoder) -> Columns:
    """All columns of one journal record."""
    content, content_ref = encoder.content(record.content)
    return {
        "agent_id": agent_id,
        "position": record.position,
        "kind": record.kind.value,
        "channel": record.channel.value,
        "occurred_at": encode_time(record.occurred_at),
        "execution_id": record.execution_id,
        "model_call_id": record.model_call_id,
        "role": optional_text(record.role),
        "content": content,
        "content_ref": content_ref,
        "causation_id": optional_text(record.causation_id),
        "context_candidate": record.context_candidate,
        "generation": record.generation,
        "metadata": encoder.sealed(record.metadata) if record.metadata else None,
    }


def to_record(row: AnyRow, decoder: RowDecoder) -> JournalRecord:
    """One journal record."""
    return JournalRecord(
        position=row.position,
        kind=member(RecordKind, row.kind),
        channel=member(Channel, row.channel),
        occurred_at=decode_time(row.occurred_at),
        execution_id=row.execution_id,
        model_call_id=row.model_call_id,
        role=row.role,
        content=decoder.content(row.content, row.content_ref),
        causation_id=row.causation_id,
        context_candidate=bool(row.context_candidate),
        generation=row.generation,
        metadata=decoder.sealed(row.metadata) or {},
    )


# --- model calls -----------------------------------------------------------------------------------------------


def model_call_columns(row: ModelCallRow, encoder: RowEncoder) -> Columns:
    """All columns of a new model call."""
    return {
        "model_call_id": row.model_call_id,
        "execution_id": row.execution_id,
        "sequence": row.sequence,
        "status": row.status.value,
        "manifest": encoder.sealed(row.manifest),
        "started_at": encode_time(row.started_at),
        "ended_at": encode_optional_time(row.ended_at),
        "usage": None if row.usage is None else plain_json(row.usage),
        "attempts": encoder.sealed(row.attempts) if row.attempts else None,
        "error": encoder.sealed(row.error),
    }


def model_call_changes(row: ModelCallRow, encoder: RowEncoder) -> Columns:
    """The columns of a model call that change."""
    return {
        "the_model_call_id": row.model_call_id,
        "the_execution_id": row.execution_id,
        "new_status": row.status.value,
        "new_manifest": encoder.sealed(row.manifest),
        "new_ended_at": encode_optional_time(row.ended_at),
        "new_usage": None if row.usage is None else plain_json(row.usage),
        "new_attempts": encoder.sealed(row.attempts) if row.attempts else None,
        "new_error": encoder.sealed(row.error),
    }


def to_model_call(row: AnyRow, decoder: RowDecoder) -> ModelCallRow:
    """One model call."""
    return ModelCallRow(
        model_call_id=row.model_call_id,
        execution_id=row.execution_id,
        sequence=row.sequence,
        status=member(ModelCallStatus, row.status),
        manifest=decoder.sealed(row.manifest),
        started_at=decode_time(row.started_at),
        ended_at=decode_optional_time(row.ended_at),
        usage=None if row.usage is None else loads(row.usage),
        attempts=decoder.sealed(row.attempts) or [],
        error=decoder.sealed(row.error),
    )


# --- tool calls ------------------------------------------------------------------------------------------------

TOOL_CALL_REFS = ("arguments_ref", "model_text_ref", "result_ref")


def tool_call_columns(row: ToolCallRow, encoder: RowEncoder) -> Columns:
    """All columns of a new ledger entry."""
    arguments, arguments_ref = encoder.content(row.arguments)
    model_text, model_text_ref = encoder.content(row.model_text)
    result, result_ref = encoder.content(row.result)
    return {
        "tool_call_id": row.tool_call_id,
        "execution_id": row.execution_id,
        "agent_id": row.agent_id,
        "model_call_id": row.model_call_id,
        "position": row.position,
        "provider_call_id": plain_text(row.provider_call_id),
        "tool_name": plain_text(row.tool_name),
        "arguments": arguments,
        "arguments_ref": arguments_ref,
        "status": row.status.value,
        "replay": row.replay,
        "requires_approval": row.requires_approval,
        "schema_hash": row.schema_hash,
        "attempt": row.attempt,
        "model_text": model_text,
        "model_text_ref": model_text_ref,
        "result": result,
        "result_ref": result_ref,
        "error": encoder.sealed(row.error),
        "attempts": encoder.sealed(row.attempts) if row.attempts else None,
        "created_at": encode_time(row.created_at),
        "started_at": encode_optional_time(row.started_at),
        "ended_at": encode_optional_time(row.ended_at),
        "authorization": encoder.sealed(row.authorization),
        "contract": encoder.sealed(row.contract) if row.contract else None,
    }


def tool_call_changes(row: ToolCallRow, encoder: RowEncoder) -> Columns:
    """The columns of a ledger entry that change."""
    model_text, model_text_ref = encoder.content(row.model_text)
    result, result_ref = encoder.content(row.result)
    return {
        "the_tool_call_id": row.tool_call_id,
        "the_agent_id": row.agent_id,
        "new_status": row.status.value,
        "new_attempt": row.attempt,
        "new_model_text": model_text,
        "new_model_text_ref": model_text_ref,
        "new_result": result,
        "new_result_ref": result_ref,
        "new_error": encoder.sealed(row.error),
        "new_attempts": encoder.sealed(row.attempts) if row.attempts else None,
        "new_started_at": encode_optional_time(row.started_at),
        "new_ended_at": encode_optional_time(row.ended_at),
    }


def tool_call_revision(row: ToolCallRow, encoder: RowEncoder) -> Columns:
    """The columns of a ledger entry that authorization may change, with those that always change."""
    arguments, arguments_ref = encoder.content(row.arguments)
    return tool_call_changes(row, encoder) | {
        "new_arguments": arguments,
        "new_arguments_ref": arguments_ref,
        "new_requires_approval": row.requires_approval,
        "new_authorization": encoder.sealed(row.authorization),
    }


def to_tool_call(row: AnyRow, decoder: RowDecoder) -> ToolCallRow:
    """One ledger entry."""
    return ToolCallRow(
        tool_call_id=row.tool_call_id,
        execution_id=row.execution_id,
        agent_id=row.agent_id,
        model_call_id=row.model_call_id,
        position=row.position,
        provider_call_id=row.provider_call_id,
        tool_name=row.tool_name,
        arguments=decoder.content(row.arguments, row.arguments_ref),
        status=member(ToolCallStatus, row.status),
        replay=row.replay,
        requires_approval=bool(row.requires_approval),
        schema_hash=row.schema_hash,
        created_at=decode_time(row.created_at),
        attempt=row.attempt,
        model_text=decoder.content(row.model_text, row.model_text_ref),
        result=decoder.content(row.result, row.result_ref),
        error=decoder.sealed(row.error),
        attempts=decoder.sealed(row.attempts) or [],
        started_at=decode_optional_time(row.started_at),
        ended_at=decode_optional_time(row.ended_at),
        authorization=decoder.sealed(row.authorization),
        contract=decoder.sealed(row.contract) or {},
    )


# --- events ----------------------------------------------------------------------------------------------------

EVENT_REFS = ("payload_ref",)


def event_columns(row: EventRow, encoder: RowEncoder) -> Columns:
    """All columns of one durable event."""
    payload, payload_ref = encoder.content(row.payload)
    return {
        "execution_id": row.execution_id,
        "seq": row.seq,
        "agent_id": row.agent_id,
        "type": row.type,
        "payload": payload,
        "payload_ref": payload_ref,
        "created_at": encode_time(row.created_at),
    }


def to_event(row: AnyRow, decoder: RowDecoder) -> EventRow:
    """One durable event."""
    return EventRow(
        execution_id=row.execution_id,
        seq=row.seq,
        agent_id=row.agent_id,
        type=row.type,
        payload=decoder.content(row.payload, row.payload_ref),
        created_at=decode_time(row.created_at),
    )
