"""The gateway of one MCP server: an async Ray actor that holds the sessions, so that a server runs once per cluster.

Agents' tool bodies await its methods; no worker is held. A call carries a *ticket*, by which it can be cancelled; a
cancelled ticket is remembered, so the order in which call and cancellation arrive does not matter. Ray repeats nothing
(``max_task_retries=0``) and restarts the actor for ever. When its process dies, so do the servers that it started: their
input closes, and the small parent of each (`phronomy_ray.mcp.child`) ends those that do not care.

An endpoint, which holds secrets, travels once per process and configuration (`open`); calls name it by its fingerprint.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from phronomy_ray.actors.ray_calls import service_options
from phronomy_ray.actors.signals import die_at_sigterm
from phronomy_ray.actors.tickets import CancelledTickets
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.hub import McpHub
from phronomy_ray.mcp.listing import Listing
from phronomy_ray.mcp.session import McpSession


class UnknownEndpointError(Exception):
    """The gateway has not been told of this endpoint, because it is new or was restarted; nothing was done."""


def gateway_name(server: str) -> str:
    """Ray name of the gateway of a server."""
    return f"mcp:{server}"


def gateway_options(server: str, namespace: str) -> dict[str, Any]:
    """Options of the actor."""
    return service_options(gateway_name(server), namespace)


class McpGateway:
    """Sessions with one server for the agents of a cluster. The class is plain Python; `gateway_options` makes it an actor."""

    def __init__(self) -> None:
        die_at_sigterm()
        self._hub = McpHub()
        self._calls: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._cancelled = CancelledTickets()
        self._started = time.monotonic()

    async def open(self, endpoint: McpEndpoint) -> None:
        """Know this endpoint from now on; nothing is connected yet."""
        self._hub.open(endpoint)

    async def list_tools(self, fingerprint: str, timeout_s: float, refresh: bool) -> Listing:
        """See `McpSession.list_tools`. Raises `UnknownEndpointError`."""
        return await self._session(fingerprint).list_tools(timeout_s=timeout_s, refresh=refresh)

    async def call(
        self,
        fingerprint: str,
        ticket: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float,
        tool_hash: str,
        idempotency_key: str,
    ) -> dict[str, Any] | None:
        """See `McpSession.call`; ``None`` when the ticket was cancelled. Raises `UnknownEndpointError`."""
        session = self._session(fingerprint)
        if self._cancelled.take(ticket):
            return None
        task = asyncio.get_running_loop().create_task(
            session.call(
                tool,
                arguments,
                timeout_s=timeout_s,
                tool_hash=tool_hash,
                idempotency_key=idempotency_key,
            )
        )
        self._calls[ticket] = task
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._calls.pop(ticket, None)
        return None if task.cancelled() else task.result()

    async def cancel(self, ticket: str) -> bool:
        """Cancel the call with this ticket, now or when it arrives; tells whether it was running."""
        task = self._calls.get(ticket)
        if task is not None:
            task.cancel()
            return True
        self._cancelled.add(ticket)
        return False

    async def ping(self) -> dict[str, Any]:
        """Sign of life: process id, running calls, seconds since the start."""
        return {
            "pid": os.getpid(),
            "running": len(self._calls),
            "uptime_s": time.monotonic() - self._started,
        }

    async def close(self) -> None:
        """Close every session; a later call opens them again."""
        await self._hub.close()

    def _session(self, fingerprint: str) -> McpSession:
        session = self._hub.find(fingerprint)
        if session is None:
            raise UnknownEndpointError(fingerprint)
        return session
