"""What happens to an idle agent beside its executions: its conversation is edited, it is closed, or deleted."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import datetime
from typing import Any

from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.engine.creation import check_knowledge
from phronomy_ray.engine.kept_results import revisions_of
from phronomy_ray.engine.parts import EngineParts
from phronomy_ray.engine.queueing import QueueingAgent
from phronomy_ray.errors import (
    AgentBusyError,
    CommitOutcomeUnknownError,
    InvalidInputError,
    OwnershipLostError,
)
from phronomy_ray.ids import check_id
from phronomy_ray.kernel.inputs import Edit, EditKind

#: Edits whose repetition is recognised in memory, and records that are looked through for one that another owner has made.
KEPT_EDITS = 500
RECORDS_LOOKED_AT = 500


class EditableAgent(QueueingAgent):
    """An owner that edits and deletes its agent."""

    def __init__(self, agent_id: str, definition: AgentDefinition, parts: EngineParts) -> None:
        super().__init__(agent_id, definition, parts)
        self._edits: OrderedDict[str, asyncio.Task[dict[str, int]]] = OrderedDict()
        #: Newest edits of earlier owners, read once under each epoch.
        self._earlier: tuple[int, frozenset[str | None]] = (0, frozenset())

    async def edit(
        self, kind: EditKind, *, knowledge: Any = None, edit_id: str | None = None
    ) -> dict[str, int]:
        """Edit the idle agent; the same `edit_id` again is one edit. Returns how far the agent is.

        Args:
            kind: what to do.
            knowledge: with `EditKind.ADD_KNOWLEDGE`: text, or a mapping with ``content`` and ``metadata``.
            edit_id: the same for every repetition.

        Raises:
            AgentBusyError: an execution is non-terminal.
            AgentClosedError: the agent was closed.
            InvalidInputError: the knowledge is malformed.
        """
        given = check_knowledge(knowledge) if kind is EditKind.ADD_KNOWLEDGE else None
        if kind is not EditKind.ADD_KNOWLEDGE and knowledge is not None:
            raise InvalidInputError(f"{kind.value} takes no knowledge")
        event = Edit(kind, given, edit_id)
        await self.activate()
        if edit_id is None:
            return await self._edit(event)
        check_id(edit_id, "edit_id")
        known = self._edits.get(edit_id)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._edits[edit_id] = asyncio.get_running_loop().create_task(self._edit(event))
            if len(self._edits) > KEPT_EDITS:
                self._edits.popitem(last=False)
        return await asyncio.shield(known)

    async def _edit(self, event: Edit) -> dict[str, int]:
        if event.edit_id is None or not await self._was_made(event.edit_id):
            await self._apply(event)
        return revisions_of(self.state.root)

    async def _was_made(self, edit_id: str) -> bool:
        """Whether an earlier owner has made this edit: its answer was lost, and the caller has repeated it."""
        epoch = self.state.root.epoch
        if self._earlier[0] != epoch:
            records = await self._store.run(
                self._store.store.read_journal, self.agent_id, limit=RECORDS_LOOKED_AT, newest_first=True
            )
            found = frozenset(record.causation_id for record in records if record.execution_id is None)
            self._earlier = (epoch, found)
        return edit_id in self._earlier[1]

    async def purge(self, created_at: datetime | None = None) -> bool:
        """Delete the agent with everything that belongs to it, and stop for good; returns whether it was there.

        Args:
            created_at: when the agent that is meant was created, the present one by default. Another one of its id is left alone
                and goes on: a deletion may be repeated because its answer was lost, and the id was free meanwhile.

        Raises:
            AgentBusyError: an execution is non-terminal; nothing was deleted.
            AgentUnloadedError: it was unloaded, or deleted, meanwhile.
            OwnershipLostError: another owner has taken the agent; nothing was deleted, and this owner has stopped.
            CommitOutcomeUnknownError: nobody knows whether it is deleted; this owner has stopped.
        """
        await self.activate()
        async with self._lock:
            self._check_serving()
            root, held = self.state.root, self.state.held_by
            if created_at is not None and root.created_at != created_at:
                return False
            if held is not None:
                raise AgentBusyError(
                    f"agent {self.agent_id!r} cannot be purged: it has the execution {held}",
                    details={"agent_id": self.agent_id, "execution_id": held},
                )
            assert root.created_at is not None
            try:
                was_there = await self._store.run(
                    self._store.store.purge_agent,
                    self.agent_id,
                    epoch=root.epoch,
                    created_at=root.created_at,
                )
            except (CommitOutcomeUnknownError, OwnershipLostError) as error:
                self._halt(error)
                raise
            self._close_down()
        await self._hear_out()
        return was_there
