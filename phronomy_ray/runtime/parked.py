"""What can be seen and done of an agent that is out of service: from the store alone, no process takes part."""

from __future__ import annotations

import asyncio
from typing import Any

from phronomy_ray.clock import utc_now
from phronomy_ray.hosting.agent_service import record_wire
from phronomy_ray.journal import AgentRoot
from phronomy_ray.store.port import Store

#: Parked agents that are read at once.
PAGE = 500


async def parked_status(store: Store, agent_id: str) -> dict[str, Any]:
    """`status` of an agent that no process serves. Raises `NotFoundError`."""
    root = await asyncio.to_thread(store.load_root, agent_id)
    running = await asyncio.to_thread(
        store.list_executions, agent_id=agent_id, non_terminal_only=True, limit=1
    )
    return {
        "agent_id": agent_id,
        "definition_id": root.definition_id,
        "definition_version": root.definition_version,
        "store": store.identity,
        "epoch": None,
        "lifecycle": root.lifecycle.value,
        "agent_revision": root.agent_revision,
        "journal_position": root.journal_position,
        "execution_id": running[0].execution_id if running else None,
        "execution_status": running[0].status.value if running else None,
        "phase": running[0].phase.value if running else None,
        "parked": root.parked.to_wire() if root.parked is not None else None,
        "owner": root.owner,
    }


async def stored_transcript(store: Store, agent_id: str, *, after: int, limit: int) -> list[dict[str, Any]]:
    """Journal records behind position `after`, as JSON."""
    records = await asyncio.to_thread(store.read_journal, agent_id, after=after, limit=limit)
    return [record_wire(record) for record in records]


async def unpark(store: Store, agent_id: str, *, cancel_reason: str = "") -> bool:
    """As `AgentHandle.unpark_async`."""
    return await asyncio.to_thread(store.unpark_agent, agent_id, now=utc_now(), cancel_reason=cancel_reason)


async def parked_agents(store: Store) -> list[AgentRoot]:
    """All agents that are out of service, by id."""
    found: list[AgentRoot] = []
    while True:
        page = await asyncio.to_thread(
            store.parked_agents, limit=PAGE, after=found[-1].agent_id if found else ""
        )
        found += page
        if len(page) < PAGE:
            return found


__all__ = ["parked_agents", "parked_status", "stored_transcript", "unpark"]
