"""`AgentRecord`: what a driver reads and changes of an agent beside its executions: status, conversation, knowledge, holds, life.

The part of an `AgentHandle` that needs no execution.
"""

from __future__ import annotations

import asyncio
from typing import Any

from phronomy_ray.errors import AgentParkedError
from phronomy_ray.ids import new_edit_id
from phronomy_ray.journal import QueuedRequest
from phronomy_ray.messages import Message
from phronomy_ray.results import ApprovalRequest
from phronomy_ray.retention import Retention
from phronomy_ray.runtime.agent_link import AgentLink
from phronomy_ray.runtime.bridge import Bridge, blocking
from phronomy_ray.runtime.parked import parked_status, stored_transcript, unpark
from phronomy_ray.runtime.retentions import Retentions
from phronomy_ray.runtime.transcript import read_transcript
from phronomy_ray.worker_inputs import WorkerInputRestricted


class AgentRecord(WorkerInputRestricted):
    """An agent by its id, live or not."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._client = link.client
        #: The agent's id.
        self.agent_id = link.client.agent_id
        self._holds = Retentions(lambda: link.store, lambda: link.bridge)

    @property
    def _bridge(self) -> Bridge:
        return self._link.bridge

    async def status_async(self) -> dict[str, Any]:
        """What the live agent is doing, from its memory; wakes it if need be. Of a parked agent it tells the reason instead."""
        try:
            return dict(await self._client.call("status"))
        except AgentParkedError:
            return await parked_status(self._link.store, self.agent_id)

    status = blocking(status_async)

    async def transcript_async(self, *, after: int = 0, limit: int = 500) -> list[dict[str, Any]]:
        """Journal records behind position `after`, as JSON; also of a parked agent."""
        try:
            return list(await self._client.call("transcript", after, limit))
        except AgentParkedError:
            return await stored_transcript(self._link.store, self.agent_id, after=after, limit=limit)

    transcript = blocking(transcript_async)

    async def unpark_async(self, *, cancel_execution: bool = False, reason: str = "unparked") -> bool:
        """Put a parked agent back into service; its supervisor, or the next call, wakes it. Whether it was parked.

        Args:
            cancel_execution: end what it was working on instead of going on with it.
            reason: why that is cancelled.

        Raises:
            NotFoundError: no such agent is stored.
        """
        cancel_reason = reason or "unparked" if cancel_execution else ""
        return await unpark(self._link.store, self.agent_id, cancel_reason=cancel_reason)

    unpark = blocking(unpark_async)

    async def transcript_messages_async(self) -> tuple[Message, ...]:
        """The messages of the present transcript, from the store; wakes nothing.

        All that was said since the last `clear_transcript` or `reset_context`, also what a model is not shown any more for its
        length or because a human rejected it.

        Raises:
            NotFoundError: no such agent is stored.
        """
        return await asyncio.to_thread(read_transcript, self._link.store, self.agent_id)

    transcript_messages = blocking(transcript_messages_async)

    async def add_knowledge_async(self, content: str, *, metadata: dict[str, Any] | None = None) -> None:
        """Add knowledge, which every later model call is shown; the agent must be idle.

        Args:
            content: the text.
            metadata: JSON for you; no model sees it.

        Raises:
            AgentBusyError: an execution is non-terminal.
            AgentClosedError: the agent was closed.
            InvalidInputError: content or metadata is not what it must be.
        """
        knowledge = {"content": content, "metadata": {} if metadata is None else metadata}
        await self._client.call("add_knowledge", knowledge, new_edit_id())

    add_knowledge = blocking(add_knowledge_async)

    async def clear_transcript_async(self) -> None:
        """Show models no earlier message any more. Nothing is deleted: the journal keeps it. Raises as `add_knowledge`."""
        await self._client.call("clear_transcript", new_edit_id())

    clear_transcript = blocking(clear_transcript_async)

    async def clear_knowledge_async(self) -> None:
        """Show models no earlier knowledge any more; else as `clear_transcript`."""
        await self._client.call("clear_knowledge", new_edit_id())

    clear_knowledge = blocking(clear_knowledge_async)

    async def reset_context_async(self) -> None:
        """`clear_transcript` and `clear_knowledge` in one commit."""
        await self._client.call("reset_context", new_edit_id())

    reset_context = blocking(reset_context_async)

    async def close_async(self) -> None:
        """Let the agent take no more work, for ever; what it did stays readable. Closing again changes nothing.

        Raises:
            AgentBusyError: an execution is non-terminal.
        """
        await self._client.call("close", new_edit_id())

    close = blocking(close_async)

    async def purge_async(self) -> bool:
        """Delete the agent with its journal, executions, approvals, events and standing rules, in one transaction. Its id is free
        then. Returns whether it was there.

        Raises:
            AgentBusyError: an execution is non-terminal; nothing was deleted.
            AgentRetainedError: somebody holds the agent or one of its executions (says who); nothing was deleted.
            CommitOutcomeUnknownError: the connection was lost; call it again to know.
        """
        return await self._client.purge()

    purge = blocking(purge_async)

    async def retain_async(self, owner_key: str, *, execution_id: str | None = None) -> Retention:
        """Hold the agent, or one of its executions, so that nobody deletes it; see `Retentions.retain_async`. Wakes nothing."""
        return await self._holds.retain_async(owner_key, agent_id=self.agent_id, execution_id=execution_id)

    retain = blocking(retain_async)

    async def release_async(self, owner_key: str, *, execution_id: str | None = None) -> bool:
        """End a hold, named as it was made; whether there was one."""
        return await self._holds.release_async(owner_key, agent_id=self.agent_id, execution_id=execution_id)

    release = blocking(release_async)

    async def retentions_async(self) -> list[Retention]:
        """Who holds the agent or one of its executions, oldest first; wakes nothing."""
        return await self._holds.list_async(agent_id=self.agent_id)

    retentions = blocking(retentions_async)

    async def pending_approvals_async(self) -> list[ApprovalRequest]:
        """Requests that wait for an answer, from the store; wakes nothing."""
        rows = await asyncio.to_thread(self._link.store.approvals, agent_id=self.agent_id, pending_only=True)
        return [ApprovalRequest.from_row(row) for row in rows]

    pending_approvals = blocking(pending_approvals_async)

    async def queued_requests_async(self) -> list[QueuedRequest]:
        """Requests that wait for their turn, the next one first, from the store; wakes nothing."""
        return await asyncio.to_thread(self._link.store.queued_requests, self.agent_id)

    queued_requests = blocking(queued_requests_async)

    async def unload_async(self) -> bool:
        """Free the agent's process and keep everything; this handle wakes it again on its next use.

        Returns whether there was a process to free.

        Raises:
            AgentBusyError: work is running.
            WaitTimeoutError: its process does not answer.
        """
        return await self._client.unload()

    unload = blocking(unload_async)
