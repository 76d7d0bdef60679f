"""The sessions of one process: one per server configuration, each opened at its first use.

A changed configuration under the same name (a new token, another address) gets a session of its own; the former one is
closed once it has been idle for a while, so that rotating a token needs no restart of anything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.listing import Listing
from phronomy_ray.mcp.session import McpSession
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: How long a session whose server has a newer configuration may be idle before it is closed, in seconds.
SUPERSEDED_IDLE_S = 60.0


class McpHub(WorkerInputRestricted):
    """Sessions by the fingerprint of their endpoint. Use it on one event loop."""

    def __init__(self, *, superseded_idle_s: float = SUPERSEDED_IDLE_S) -> None:
        self._superseded_idle_s = superseded_idle_s
        self._sessions: dict[str, McpSession] = {}
        #: Fingerprint of the newest configuration of each name.
        self._newest: dict[str, str] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, endpoint: McpEndpoint) -> McpSession:
        """The session of `endpoint`; nothing is connected yet when it is new."""
        session = self._sessions.get(endpoint.fingerprint)
        if session is None:
            session = self._sessions[endpoint.fingerprint] = McpSession(endpoint)
            former = self._newest.get(endpoint.name)
            self._newest[endpoint.name] = endpoint.fingerprint
            if former is not None:
                asyncio.get_running_loop().call_later(self._superseded_idle_s, self._close_superseded, former)
        return session

    def find(self, fingerprint: str) -> McpSession | None:
        """The session with that fingerprint, if it has been opened."""
        return self._sessions.get(fingerprint)

    async def list_tools(self, endpoint: McpEndpoint, *, timeout_s: float, refresh: bool = False) -> Listing:
        """See `McpSession.list_tools`."""
        return await self.open(endpoint).list_tools(timeout_s=timeout_s, refresh=refresh)

    async def call(
        self,
        endpoint: McpEndpoint,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float,
        tool_hash: str = "",
        idempotency_key: str = "",
    ) -> dict[str, Any]:
        """See `McpSession.call`."""
        return await self.open(endpoint).call(
            tool, arguments, timeout_s=timeout_s, tool_hash=tool_hash, idempotency_key=idempotency_key
        )

    async def close(self) -> None:
        """Close every session."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        self._newest.clear()
        closing = [asyncio.ensure_future(session.close()) for session in sessions]
        waiting = [*closing, *self._closing]
        if waiting:
            await asyncio.wait(waiting)

    def _close_superseded(self, fingerprint: str) -> None:
        session = self._sessions.get(fingerprint)
        if session is None or self._newest.get(session.endpoint.name) == fingerprint:
            return
        if session.idle_s < self._superseded_idle_s:
            wait_s = max(1.0, self._superseded_idle_s - session.idle_s)
            asyncio.get_running_loop().call_later(wait_s, self._close_superseded, fingerprint)
            return
        del self._sessions[fingerprint]
        task = asyncio.get_running_loop().create_task(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
