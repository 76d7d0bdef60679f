"""The way from an agent to the gateways of MCP servers: an `McpAccess` that outlives a gateway.

A gateway that dies during a call is a lost server to that call: a typed error, and no second try. What was not sent yet is
sent to the restarted gateway.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from phronomy_ray.actors.mcp_gateway import McpGateway, UnknownEndpointError, gateway_options
from phronomy_ray.actors.ray_calls import first_line, live_actor, result_of, unwrap
from phronomy_ray.errors import PhronomyError
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.failures import PHASE_CALL, PHASE_CONNECT, broken, lost, timed_out
from phronomy_ray.mcp.listing import Listing
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: How much longer than the session's own deadline a caller waits for the gateway to say so, in seconds.
GRACE_S = 1.0
#: How long a gateway may take to answer its first ping, in seconds.
PING_TIMEOUT_S = 60.0


class GatewayAccess(WorkerInputRestricted):
    """An `McpAccess` over the gateways of a namespace. Use it on one event loop, in a process connected to Ray."""

    def __init__(self, *, namespace: str) -> None:
        self._namespace = namespace
        self._handles: dict[str, Any] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def list_tools(self, endpoint: McpEndpoint, *, timeout_s: float, refresh: bool = False) -> Listing:
        """See `McpAccess`."""

        def send(handle: Any, left_s: float) -> Any:
            return handle.list_tools.remote(endpoint.fingerprint, left_s, refresh)

        listing: Listing = await self._send(endpoint, send, timeout_s=timeout_s, phase=PHASE_CONNECT)
        return listing

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
        """See `McpAccess`."""
        ticket = uuid.uuid4().hex

        def send(handle: Any, left_s: float) -> Any:
            return handle.call.remote(
                endpoint.fingerprint,
                ticket,
                tool,
                arguments,
                timeout_s=left_s,
                tool_hash=tool_hash,
                idempotency_key=idempotency_key,
            )

        result = await self._send(endpoint, send, timeout_s=timeout_s, phase=PHASE_CALL, ticket=ticket)
        if result is None:
            raise lost(endpoint, "the call was cancelled in its gateway")
        found: dict[str, Any] = result
        return found

    # --- gateways ----------------------------------------------------------------------------------------------

    async def _send(
        self,
        endpoint: McpEndpoint,
        send: Callable[[Any, float], Any],
        *,
        timeout_s: float,
        phase: str,
        ticket: str = "",
    ) -> Any:
        """The result of one remote call. It is sent again only when the gateway says that it did nothing."""
        deadline = time.monotonic() + timeout_s
        while True:
            handle = await self._handle(endpoint, deadline, timeout_s)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise timed_out(endpoint, timeout_s, phase=PHASE_CONNECT)
            try:
                return await asyncio.wait_for(result_of(send(handle, left_s)), left_s + GRACE_S)
            except RayTaskError as error:  # before TimeoutError: Ray's wrapper is of the cause's class, too
                cause = unwrap(error)
                if isinstance(cause, PhronomyError):
                    raise cause from None
                if not isinstance(cause, UnknownEndpointError):
                    raise broken(endpoint, f"its gateway failed: {first_line(cause)}") from None
                await self._tell(endpoint, handle, deadline)
            except RayActorError as error:
                self._handles.pop(endpoint.name, None)
                raise lost(endpoint, f"its gateway died ({type(error).__name__})", phase=phase) from None
            except asyncio.CancelledError:
                _cancel(handle, ticket)
                raise
            except TimeoutError:  # the gateway does not even say that the deadline is over
                self._handles.pop(endpoint.name, None)
                _cancel(handle, ticket)
                raise timed_out(endpoint, timeout_s, phase=phase) from None

    async def _tell(self, endpoint: McpEndpoint, handle: Any, deadline: float) -> None:
        """Make the endpoint known to a gateway; one that dies meanwhile is looked for again."""
        try:
            await asyncio.wait_for(
                result_of(handle.open.remote(endpoint)), max(0.0, deadline - time.monotonic())
            )
        except (RayActorError, TimeoutError):
            self._handles.pop(endpoint.name, None)

    async def _handle(self, endpoint: McpEndpoint, deadline: float, timeout_s: float) -> Any:
        """A gateway that has answered a ping; made when there is none.

        Raises:
            ToolError: ``mcp_server_lost`` or ``mcp_timeout``: it does not come up in time. Nothing was sent.
        """
        name = endpoint.name
        found = self._handles.get(name)
        if found is not None:
            return found
        left_s = deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                async with self._locks.setdefault(name, asyncio.Lock()):
                    if name not in self._handles:
                        self._handles[name] = await live_actor(
                            lambda: _create(name, self._namespace),
                            patience_s=max(0.1, left_s),
                            ping_timeout_s=PING_TIMEOUT_S,
                        )
        except TimeoutError:
            raise timed_out(endpoint, timeout_s, phase=PHASE_CONNECT) from None
        except (RayActorError, ValueError) as error:
            reason = f"its gateway does not come up ({first_line(error)})"
            raise lost(endpoint, reason, phase=PHASE_CONNECT) from None
        return self._handles[name]


def _cancel(handle: Any, ticket: str) -> None:
    if ticket:
        try:
            handle.cancel.remote(ticket)
        except RayActorError:
            pass  # a dead gateway has no call to cancel


def _create(name: str, namespace: str) -> Any:
    return ray.remote(McpGateway).options(**gateway_options(name, namespace)).remote()
