"""A new agent's first commit: its root with an imported conversation and first knowledge."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.commits import NewAgent
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.ids import check_id
from phronomy_ray.journal import Channel, JournalRecord, RecordKind
from phronomy_ray.kernel.context import check_conversation
from phronomy_ray.messages import Message, Role

_KINDS = {
    Role.USER: (RecordKind.EXTERNAL_MESSAGE, Channel.EXTERNAL),
    Role.ASSISTANT: (RecordKind.ASSISTANT_MESSAGE, Channel.MODEL),
    Role.TOOL: (RecordKind.TOOL_MESSAGE, Channel.TOOL),
}


def new_agent(
    agent_id: str,
    definition: AgentDefinition,
    *,
    context: Iterable[Any] = (),
    knowledge: Iterable[Any] = (),
    metadata: dict[str, Any] | None = None,
    now: datetime,
    request_id: str = "",
) -> NewAgent:
    """The value that the store inserts.

    Raises:
        InvalidConversationError: `context` breaks the tool-exchange protocol; it is refused, never repaired.
        InvalidInputError: the id, the knowledge or the metadata is malformed.
    """
    check_id(agent_id, "agent_id")
    messages = [Message.from_wire(item) for item in context]
    check_conversation(messages)
    records: list[JournalRecord] = []
    for message in messages:
        kind, channel = _KINDS[message.role]
        records.append(
            _record(
                len(records) + 1, kind, channel, to_json_value(message.to_wire()), message.role.value, now
            )
        )
    for item in knowledge:
        content = check_knowledge(item)
        records.append(_record(len(records) + 1, RecordKind.KNOWLEDGE, Channel.CONTEXT, content, "user", now))
    kept = to_json_value(metadata or {})
    if not isinstance(kept, dict):
        raise InvalidInputError(f"metadata must be a mapping, not {type(metadata).__name__}")
    return NewAgent(
        agent_id,
        definition.definition_id,
        definition.definition_version,
        definition.class_path,
        kept,
        tuple(records),
        now,
        f"create:{request_id}" if request_id else "",
    )


def check_knowledge(item: Any) -> dict[str, Any]:
    """``{"content": text, "metadata": {...}}`` of a knowledge item given as text or mapping."""
    value = {"content": item} if isinstance(item, str) else item
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("content"), str)
        or not value["content"].strip()
    ):
        raise InvalidInputError(f"knowledge must be text or a mapping with a text 'content', not {item!r}")
    unknown = set(value) - {"content", "metadata"}
    if unknown or not isinstance(value.get("metadata", {}), dict):
        raise InvalidInputError("a knowledge item has 'content' (text) and optionally 'metadata' (a mapping)")
    checked = to_json_value({"content": value["content"], "metadata": value.get("metadata", {})})
    assert isinstance(checked, dict)
    return checked


def _record(
    position: int, kind: RecordKind, channel: Channel, content: Any, role: str, now: datetime
) -> JournalRecord:
    return JournalRecord(
        position=position,
        kind=kind,
        channel=channel,
        occurred_at=now,
        role=role,
        content=content,
        context_candidate=True,
        metadata={"imported": True},
    )
