"""The session with one server over time: connects when needed, reconnects after a loss, and repeats nothing.

* One connection at a time takes new calls. A lost one is replaced at the next call; whoever was waiting on it has been told.
* A call that got no answer in time makes its connection *suspect*: before the next call uses it, the server must answer a
  small request within `PROBE_TIMEOUT_S`. If it does not, the connection is *retired*: it takes no new call and is closed when its
  last one has ended, each by its own deadline.
* So is, over HTTP, a connection that nobody has used for `IDLE_PROBE_S`: a server that was restarted has forgotten it, and says
  so only when it is asked.
* After every connect, and when the server says that its tools have changed, they are listed again before the next call, and a
  call of a tool that is not what the caller was shown is refused.

Use it on one event loop. Any caller may be cancelled at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from phronomy_ray.errors import ToolError, ToolTimeoutError
from phronomy_ray.mcp.connection import McpConnection, remaining
from phronomy_ray.mcp.endpoint import McpEndpoint, Transport
from phronomy_ray.mcp.failures import PHASE_CONNECT, SERVER_LOST, changed, lost, timed_out
from phronomy_ray.mcp.listing import Listing
from phronomy_ray.mcp.transport import need_sdk
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.mcp")
#: How long a server that left a call unanswered has to show that it lives, in seconds.
PROBE_TIMEOUT_S = 5.0
#: Idle time after which an HTTP server must show that it still knows us, in seconds.
IDLE_PROBE_S = 60.0
#: Calls given up on one connection after which it is replaced, healthy or not: over HTTP each may still hold a request open.
MAX_GIVEN_UP = 32
#: How long a listing is given out, in seconds: not every server says when its tools change.
MAX_LISTING_AGE_S = 300.0


class _Line:
    """A connection with what the session knows of it."""

    def __init__(self, connection: McpConnection) -> None:
        self.connection = connection
        #: The tools as of now; ``None`` until they have been listed, and again after the server said that they changed.
        self.listing: Listing | None = None
        self.listed_at = time.monotonic()
        self.listing_task: asyncio.Task[Listing] | None = None
        self.probe: asyncio.Task[None] | None = None
        self.given_up = 0
        #: When it last answered something that we asked.
        self.answered_at = time.monotonic()


class McpSession(WorkerInputRestricted):
    """Calls of many callers to one server."""

    def __init__(self, endpoint: McpEndpoint) -> None:
        self.endpoint = endpoint
        self._line: _Line | None = None
        self._opening: asyncio.Task[_Line] | None = None
        #: Connections that take no new call, with the tasks that wait for their end.
        self._retired: dict[McpConnection, asyncio.Task[None]] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._used_at = time.monotonic()
        #: Connections opened so far.
        self.connects = 0

    @property
    def running(self) -> int:
        """Calls without an answer on the present connection."""
        return self._line.connection.running if self._line is not None else 0

    @property
    def idle_s(self) -> float:
        """Seconds since the last use ended; 0 while a call runs."""
        return 0.0 if self.running else time.monotonic() - self._used_at

    async def list_tools(self, *, timeout_s: float, refresh: bool = False) -> Listing:
        """The server's tools as of now; with `refresh` asked for again in any case.

        Raises:
            ToolError: as `call`.
        """
        deadline = time.monotonic() + timeout_s
        line = await self._usable(deadline, timeout_s)
        if refresh or time.monotonic() - line.listed_at > MAX_LISTING_AGE_S:
            line.listing = None
        return await self._listing(line, deadline, timeout_s)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float,
        tool_hash: str = "",
        idempotency_key: str = "",
    ) -> dict[str, Any]:
        """The result of one call, as the JSON that the server sent; `timeout_s` is the limit of everything, connecting included.

        Args:
            tool_hash: `RemoteTool.hash` of what the caller was shown; empty for no check.

        Raises:
            ToolError: ``mcp_server_lost``, ``mcp_timeout``, ``mcp_protocol`` or ``definition_changed``; see `failures`.
        """
        deadline = time.monotonic() + timeout_s
        line = await self._usable(deadline, timeout_s)
        listing = await self._listing(line, deadline, timeout_s)
        if tool_hash:
            self._check(listing, tool, tool_hash)
        if remaining(deadline) <= 0:
            raise timed_out(self.endpoint, timeout_s, phase=PHASE_CONNECT)
        sent_at = time.monotonic()
        try:
            result = await line.connection.call_tool(
                tool, arguments, timeout_s=remaining(deadline), idempotency_key=idempotency_key
            )
            line.answered_at = time.monotonic()
            return result
        except ToolTimeoutError:
            self._unanswered(line, sent_at)
            raise timed_out(self.endpoint, timeout_s) from None  # of the whole, not of what was left of it
        except ToolError as error:
            if error.code == SERVER_LOST and line.connection.is_usable:
                self._suspect(
                    line
                )  # over HTTP one answer can break off by itself, or be the first sign of the end
            raise
        finally:
            self._used_at = time.monotonic()
            self._arm_idle()

    async def close(self) -> None:
        """Close every connection, in order; calls that still run fail with ``mcp_server_lost``."""
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._line is not None:
            self._retire(self._line.connection)
        closing = [asyncio.ensure_future(connection.close()) for connection in self._retired]
        if closing:
            await asyncio.wait([*closing, *self._retired.values()])

    # --- the connection in use ---------------------------------------------------------------------------------

    async def _usable(self, deadline: float, timeout_s: float) -> _Line:
        while True:
            if self._is_closed:
                raise lost(self.endpoint, "the session was closed", phase=PHASE_CONNECT)
            line = self._line
            if line is not None and not line.connection.is_usable:
                self._retire(line.connection)
                line = None
            if line is None:
                return await self._open(deadline, timeout_s)
            idle_s = time.monotonic() - line.answered_at
            if idle_s > IDLE_PROBE_S and self.endpoint.transport is Transport.HTTP:
                self._suspect(line)
            if line.probe is None:
                return line
            await self._wait(line.probe, deadline, timeout_s)  # then look again: it may have been retired

    async def _open(self, deadline: float, timeout_s: float) -> _Line:
        """The next connection; all who need it wait for the same one, each with its own deadline."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(
                self._connect(), name=f"mcp-connect:{self.endpoint.name}"
            )
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        await self._wait(opening, deadline, timeout_s)
        return opening.result()

    async def _connect(self) -> _Line:
        need_sdk()
        connection = McpConnection(self.endpoint, on_tools_changed=lambda: self._tools_changed(connection))
        try:
            await connection.open()
        except BaseException:
            self._retire(connection)  # it may take a while to end what it has started
            raise
        self.connects += 1
        self._line = _Line(connection)
        return self._line

    def _opened(self, task: asyncio.Task[_Line]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # looked at: every waiter may have given up

    async def _wait(self, task: asyncio.Task[Any], deadline: float, timeout_s: float) -> None:
        """Wait for work that is shared with others, and leave it running when the deadline comes first."""
        done, _ = await asyncio.wait({task}, timeout=remaining(deadline))
        if not done:
            raise timed_out(self.endpoint, timeout_s, phase=PHASE_CONNECT)
        if task.cancelled():
            raise lost(self.endpoint, "the session was closed", phase=PHASE_CONNECT)

    def _retire(self, connection: McpConnection) -> None:
        """Give it no new call, and close it when its last one has ended."""
        if self._line is not None and self._line.connection is connection:
            self._line = None
        if connection in self._retired:
            return

        async def drain() -> None:
            await connection.drained()
            await connection.close()

        task = asyncio.get_running_loop().create_task(drain(), name=f"mcp-retire:{self.endpoint.name}")
        self._retired[connection] = task
        task.add_done_callback(lambda _: self._retired.pop(connection, None))

    # --- the tools ---------------------------------------------------------------------------------------------

    async def _listing(self, line: _Line, deadline: float, timeout_s: float) -> Listing:
        while line.listing is None:
            if line.listing_task is None:
                line.listing_task = asyncio.get_running_loop().create_task(self._list(line))
            task = line.listing_task
            await self._wait(task, deadline, timeout_s)
            if task.exception() is not None:
                task.result()
        return line.listing

    async def _list(self, line: _Line) -> Listing:
        started = time.monotonic()
        try:
            listing = await line.connection.list_tools(timeout_s=self.endpoint.connect_timeout_s)
            line.listing = listing
            line.listed_at = line.answered_at = time.monotonic()
            return listing
        except ToolError as error:
            if isinstance(error, ToolTimeoutError):
                self._unanswered(line, started)
            # nothing was called: what failed was the question before the call
            error.details.update(phase=PHASE_CONNECT, may_have_run=False)
            raise
        finally:
            line.listing_task = None

    def _tools_changed(self, connection: McpConnection) -> None:
        if self._line is not None and self._line.connection is connection:
            self._line.listing = None

    def _check(self, listing: Listing, tool: str, tool_hash: str) -> None:
        found = listing.find(tool)
        if found is None:
            raise changed(self.endpoint, tool, "is gone")
        if found.hash != tool_hash:
            raise changed(self.endpoint, tool, "has changed")

    # --- silence -----------------------------------------------------------------------------------------------

    def _unanswered(self, line: _Line, since: float) -> None:
        """A request got no answer in time: find out whether anybody is there."""
        line.given_up += 1
        if line.given_up >= MAX_GIVEN_UP:
            self._retire(line.connection)
        elif line.connection.signals.heard_at <= since:
            self._suspect(line)

    def _suspect(self, line: _Line) -> None:
        if line.probe is None:
            line.probe = asyncio.get_running_loop().create_task(self._probe(line))

    async def _probe(self, line: _Line) -> None:
        try:
            line.listing = await line.connection.list_tools(timeout_s=PROBE_TIMEOUT_S)
            line.listed_at = line.answered_at = time.monotonic()
        except ToolError as error:
            _LOG.warning(
                "mcp server %s answers nothing and is connected again: %s", self.endpoint.name, error
            )
            self._retire(line.connection)
        finally:
            line.probe = None  # however it ended: whoever waits for it looks again

    def _arm_idle(self) -> None:
        limit_s = self.endpoint.idle_close_s
        if limit_s is None or self._is_closed:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(limit_s, self._close_idle)

    def _close_idle(self) -> None:
        line = self._line
        if line is not None and not line.connection.running:
            self._retire(line.connection)
