"""One connection to one server, which lives in one task.

The SDK's sessions and transports are made of task groups and cancel scopes: they must be closed by the task that opened
them, innermost first. So each connection has an *owner task* that opens it, serves it and closes it; calls, cancellations
and the wish to close are messages to that task. Whoever sends one may be cancelled at any moment without disturbing it.

A caller waits on its own future with its own deadline, which runs on the wall clock: nothing that arrives in the
meantime, a keep-alive, a progress report or another call's answer, sets it back. A caller that gives up, by its deadline or by
being cancelled, goes on at once; the owner tells the server (``notifications/cancelled``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from phronomy_ray.errors import ToolError
from phronomy_ray.mcp.endpoint import McpEndpoint, Transport
from phronomy_ray.mcp.failures import PHASE_CALL, PHASE_CONNECT, broken, lost, timed_out
from phronomy_ray.mcp.listing import MAX_PAGES, MAX_TOOLS, Listing, listing_of
from phronomy_ray.mcp.transport import Signals, open_streams
from phronomy_ray.worker_inputs import WorkerInputRestricted

if TYPE_CHECKING:
    import anyio
    from mcp import ClientSession
    from mcp.client.session import IncomingMessage

_LOG = logging.getLogger("phronomy_ray.mcp")
#: How long an orderly close may take before it is cut short, in seconds; ending a stdio server has its own limits.
CLOSE_TIMEOUT_S = 3.0
#: Key under which the server gets the call's idempotency key.
IDEMPOTENCY_META = "phronomy-ray/idempotency-key"

Work = Callable[["ClientSession"], Awaitable[Any]]


class _Request:
    """One message to the owner: something to do with the session, and who waits for it."""

    def __init__(self, work: Work) -> None:
        import anyio

        self.work = work
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.scope: anyio.CancelScope = anyio.CancelScope()


class McpConnection(WorkerInputRestricted):
    """A connection; make it, `open` it once, `close` it. Use it on one event loop."""

    def __init__(self, endpoint: McpEndpoint, *, on_tools_changed: Callable[[], None]) -> None:
        self._endpoint = endpoint
        self._on_tools_changed = on_tools_changed
        self.signals = Signals()
        self._inbox: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._running: set[_Request] = set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._owner: asyncio.Task[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closed = asyncio.Event()
        #: Why it ended, for the errors of its calls.
        self._reason = "the connection was closed"

    @property
    def is_usable(self) -> bool:
        """Whether a new call can be sent."""
        over = self.signals.gone or self.signals.forgotten or self._closed.is_set()
        return self._ready.done() and not over

    @property
    def running(self) -> int:
        """Calls that have no answer yet."""
        return len(self._running)

    async def open(self) -> None:
        """Start the owner and wait until the handshake is done; cancelling the wait closes it.

        Raises:
            ToolError: ``mcp_server_lost``, ``mcp_timeout`` or ``mcp_protocol``.
        """
        self._owner = asyncio.get_running_loop().create_task(
            self._own(), name=f"mcp-owner:{self._endpoint.name}"
        )
        try:
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            self._abort()
            raise

    async def request(self, work: Work, *, timeout_s: float) -> Any:
        """What `work` returns, done by the owner.

        Raises:
            ToolError: ``mcp_server_lost`` when the connection ends first, ``mcp_timeout`` after `timeout_s` seconds,
                ``mcp_protocol`` for what the server must not answer.
        """
        if not self.is_usable:
            raise lost(self._endpoint, self._reason, phase=PHASE_CONNECT)
        request = _Request(work)
        self._running.add(request)
        self._drained.clear()
        request.answer.add_done_callback(lambda _: self._done(request))
        self._inbox.put_nowait(request)
        try:
            await asyncio.wait({request.answer}, timeout=max(timeout_s, 0.0))
        except asyncio.CancelledError:
            self._give_up(request)
            raise
        if not request.answer.done():
            self._give_up(request)
            raise timed_out(self._endpoint, timeout_s)
        return request.answer.result()

    async def drained(self) -> None:
        """Wait until no call runs."""
        await self._drained.wait()

    async def list_tools(self, *, timeout_s: float) -> Listing:
        """All tools of the server, page by page. Raises `ToolError` as `request` does."""
        declared: list[dict[str, Any]] = await self.request(self._list_all, timeout_s=timeout_s)
        return listing_of(self._endpoint, declared)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], *, timeout_s: float, idempotency_key: str = ""
    ) -> dict[str, Any]:
        """The server's result as the JSON that it sent. Raises `ToolError` as `request` does."""

        async def call(session: ClientSession) -> dict[str, Any]:
            import mcp_types as types
            from pydantic import TypeAdapter

            meta: Any = {IDEMPOTENCY_META: idempotency_key} if idempotency_key else None
            parameters = types.CallToolRequestParams(name=name, arguments=arguments, _meta=meta)
            adapter: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
                types.CallToolResult | types.InputRequiredResult
            )
            # not the session's own `call_tool`: it lists the tools again and checks results in its own way
            result = await session.send_request(types.CallToolRequest(params=parameters), adapter)
            if isinstance(result, types.InputRequiredResult):
                raise broken(self._endpoint, f"{name!r} asks for more input, which is not supported")
            wire: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_unset=True)
            return wire

        answer: dict[str, Any] = await self.request(call, timeout_s=timeout_s)
        return answer

    async def close(self) -> None:
        """End it in order; calls that still run are cancelled on the server and fail here. Returns when all is gone.

        May be called by any task and more than once; cancelling it does not stop the closing.
        """
        if self._owner is None:
            return
        self._inbox.put_nowait(None)
        if not self._ready.done():
            self._abort()
        await self._closed.wait()

    # --- the owner task ----------------------------------------------------------------------------------------

    async def _own(self) -> None:
        import anyio

        self.signals.on_gone = lambda: self._inbox.put_nowait(None)
        try:
            with anyio.CancelScope() as self._scope:
                # a deadline that is lifted, not a scope that is left: what is opened inside must be closed inside
                self._scope.deadline = anyio.current_time() + self._endpoint.connect_timeout_s
                async with AsyncExitStack() as stack:
                    session = await self._connect(stack)
                    self._scope.deadline = math.inf
                    self._answer_ready(None)
                    await self._serve(session)
                    self._scope.deadline = anyio.current_time() + CLOSE_TIMEOUT_S
            if not self._ready.done():
                timeout = timed_out(self._endpoint, self._endpoint.connect_timeout_s, phase=PHASE_CONNECT)
                self._answer_ready(timeout)
        except BaseException as error:
            self._failed(error)  # whatever a transport raises, waiters must learn that it is over
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.signals.gone = True
            self._end_all()
            self._closed.set()

    async def _connect(self, stack: AsyncExitStack) -> ClientSession:
        from mcp import ClientSession, MCPError
        from mcp_types import UNSUPPORTED_PROTOCOL_VERSION, Implementation

        read, write = await stack.enter_async_context(open_streams(self._endpoint, self.signals))
        session = await stack.enter_async_context(
            ClientSession(
                read,
                write,
                message_handler=self._on_message,
                client_info=Implementation(name="phronomy-ray", version="1"),
            )
        )
        # The handshake first: every server in the field knows it, and some end at any other first message.
        try:
            await session.initialize()
        except MCPError as error:
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()
        return session

    async def _serve(self, session: ClientSession) -> None:
        import anyio

        async with anyio.create_task_group() as calls:
            while (request := await self._inbox.get()) is not None:
                if not request.answer.done():
                    calls.start_soon(self._answer, session, request)
            if self.signals.gone:
                self._reason = "it ended"
            self._end_all()  # now: taking the transport down may take seconds
            calls.cancel_scope.cancel()

    async def _answer(self, session: ClientSession, request: _Request) -> None:
        with request.scope:
            try:
                result = await request.work(session)
            except Exception as error:  # noqa: BLE001 - one failed call must not end the others
                if not request.answer.done():
                    request.answer.set_exception(self._typed(error))
                return
            if not request.answer.done():
                request.answer.set_result(result)

    async def _on_message(self, message: IncomingMessage) -> None:
        import mcp_types as types

        if isinstance(message, types.ToolListChangedNotification):
            self._on_tools_changed()
        elif isinstance(message, Exception):
            text = self._endpoint.clean(str(message).splitlines()[0] if str(message) else "")
            _LOG.warning(
                "mcp server %s sent what is no message: %s %s",
                self._endpoint.name,
                type(message).__name__,
                text,
            )

    async def _list_all(self, session: ClientSession) -> list[dict[str, Any]]:
        import mcp_types as types

        declared: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            declared += [
                tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in page.tools
            ]
            if len(declared) > MAX_TOOLS:
                break
            cursor = page.next_cursor
            if not cursor:
                return declared
        raise broken(
            self._endpoint,
            f"its list of tools does not end ({len(declared)} tools)",
            may_have_run=False,
        )

    # --- errors ------------------------------------------------------------------------------------------------

    def _typed(self, error: Exception) -> ToolError:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED
        from pydantic import ValidationError

        if isinstance(error, ToolError):
            return error
        if isinstance(error, MCPError):
            # Over HTTP the SDK makes this code for a request whose answer broke off, while the others go on.
            if self.signals.forgotten and error.code != CONNECTION_CLOSED:
                return lost(self._endpoint, "it has forgotten the session", phase=PHASE_CONNECT)
            closed = error.code == CONNECTION_CLOSED and (
                self.signals.gone or self._endpoint.transport is Transport.HTTP
            )
            if closed or self.signals.gone:
                return lost(self._endpoint, self._why(error.message))
            hint = self.signals.hint if self._endpoint.transport is Transport.HTTP else ""
            said = f"{error.message} ({hint})" if hint else error.message
            return broken(self._endpoint, f"error {error.code}: {said}", rpc_code=error.code)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return broken(self._endpoint, f"its answer is malformed at {where or '$'}: {first['msg']}")
        if self.signals.gone:
            return lost(self._endpoint, self._why(f"{type(error).__name__}"))
        return broken(self._endpoint, f"{type(error).__name__}: {error}")

    def _why(self, reason: str) -> str:
        hint = self.signals.hint
        return f"{reason} ({hint})" if hint else reason

    def _failed(self, error: BaseException) -> None:
        leaf = _leaf(error)
        if isinstance(leaf, ToolError):
            self._reason = leaf.message
            self._answer_ready(leaf)
            return
        text = str(leaf).splitlines()[0] if str(leaf) else ""
        self._reason = self._why(f"{type(leaf).__name__}: {text}" if text else type(leaf).__name__)
        self._answer_ready(lost(self._endpoint, self._reason, phase=PHASE_CONNECT))

    def _answer_ready(self, error: ToolError | None) -> None:
        if self._ready.done():
            return
        if error is None:
            self._ready.set_result(None)
        else:
            self._ready.set_exception(error)
            self._ready.exception()  # looked at: the opener may have been cancelled

    def _end_all(self) -> None:
        self._answer_ready(lost(self._endpoint, self._reason, phase=PHASE_CONNECT))
        for request in list(self._running):  # those that the owner has not taken yet included
            if not request.answer.done():
                request.answer.set_exception(lost(self._endpoint, self._why(self._reason), phase=PHASE_CALL))
                request.answer.exception()

    # --- giving up ---------------------------------------------------------------------------------------------

    def _done(self, request: _Request) -> None:
        self._running.discard(request)
        if not self._running:
            self._drained.set()

    def _give_up(self, request: _Request) -> None:
        """Nobody waits any more: the owner's call is cancelled, which tells the server."""
        request.answer.cancel()
        request.scope.cancel()

    def _abort(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        elif self._owner is not None:
            self._owner.cancel()  # not yet at its first step: nothing is open


def _leaf(error: BaseException) -> BaseException:
    """The first real error of a tree of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        inner = [part for part in error.exceptions if not isinstance(part, asyncio.CancelledError)]
        error = (inner or list(error.exceptions))[0]
    return error


def remaining(deadline: float) -> float:
    """Seconds until a deadline of the monotonic clock, at least 0."""
    return max(0.0, deadline - time.monotonic())
