"""An agent goes on under a later definition: one commit with the new id and version, what was mapped, and a record of it.

It is the first commit of an owner that has found the agent under a definition that its class accepts, so it is guarded by the epoch
like every other. What other owners run meanwhile does not matter: they are fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from phronomy_ray.commits import Commit, DefinitionChange, Hydration
from phronomy_ray.ids import commit_id
from phronomy_ray.journal import Channel, JournalRecord, RecordKind

#: Commits that an owner has made with it.
COMMITS = 1


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a migration made of the values that are stored."""

    metadata: dict[str, Any]
    #: Durable contexts that have changed, by the id of their execution or request.
    durable_contexts: Mapping[str, dict[str, Any]]


def change_definition(
    hydration: Hydration,
    *,
    definition_id: str,
    definition_version: str,
    class_path: str,
    mapped: Mapped,
    now: datetime,
) -> tuple[Commit, Hydration]:
    """The commit, and what the owner knows after it."""
    root, row = hydration.root, hydration.execution
    changed = mapped.durable_contexts.items()
    record = JournalRecord(
        position=root.journal_position + 1,
        kind=RecordKind.DEFINITION_MIGRATED,
        channel=Channel.AUDIT,
        occurred_at=now,
        content={
            "from": [root.definition_id, root.definition_version],
            "to": [definition_id, definition_version],
        },
        generation=root.transcript_generation,
    )
    commit = Commit(
        commit_id=commit_id(root.agent_id, root.epoch, COMMITS),
        step="definition",
        agent_id=root.agent_id,
        epoch=root.epoch,
        expected_revision=root.agent_revision,
        expected_position=root.journal_position,
        now=now,
        lifecycle=root.lifecycle,
        context_revision=root.context_revision,
        transcript_generation=root.transcript_generation,
        journal=(record,),
        is_progress=False,
        definition=DefinitionChange(
            definition_id,
            definition_version,
            class_path,
            mapped.metadata,
            tuple(item for item in changed if row is not None and item[0] == row.execution_id),
            tuple(item for item in changed if row is None or item[0] != row.execution_id),
        ),
    )
    after = replace(
        hydration,
        root=replace(
            root,
            definition_id=definition_id,
            definition_version=definition_version,
            class_path=class_path,
            metadata=mapped.metadata,
            agent_revision=root.agent_revision + 1,
            journal_position=commit.position_after,
            updated_at=now,
        ),
        execution=None
        if row is None
        else replace(row, durable_context=mapped.durable_contexts.get(row.execution_id, row.durable_context)),
        queue=tuple(
            replace(
                item, durable_context=mapped.durable_contexts.get(item.execution_id, item.durable_context)
            )
            for item in hydration.queue
        ),
    )
    return commit, after


__all__ = ["COMMITS", "Mapped", "change_definition"]
