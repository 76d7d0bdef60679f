"""The two ways to a server, opened for one owner task: a child process, or streamable HTTP.

Both yield the SDK's pair of message streams. The incoming one is wrapped so that its owner knows when something was
last heard and when the other side ended. The ``mcp`` package is imported when the first connection is opened.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.mcp import child
from phronomy_ray.mcp.endpoint import McpEndpoint, Transport
from phronomy_ray.mcp.failures import PHASE_CONNECT, lost

if TYPE_CHECKING:
    from httpx2 import Response
    from mcp.client._transport import ReadStream, WriteStream
    from mcp.shared.message import SessionMessage

_LOG = logging.getLogger("phronomy_ray.mcp")
#: How much of a server's error output is kept for error texts, in bytes.
MAX_TAIL_BYTES = 2_000
_GONE_STATUS = 404
#: Loggers of what travels, and the level that they are given. The last one writes each line of a server that is no message,
#: as it came and with a traceback; `connection` tells of it without secrets.
_WIRE_LOGGERS = {
    "mcp": logging.WARNING,
    "client": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore2": logging.WARNING,
    "mcp.client.stdio": logging.CRITICAL,
}
_FIRST_ERROR_STATUS = 400


class Signals:
    """What a transport notices beside the messages."""

    def __init__(self) -> None:
        #: When the last message came, by the monotonic clock.
        self.heard_at = time.monotonic()
        #: Whether the other side has ended.
        self.gone = False
        #: Whether the other side says that it does not know the session: the request that it answered so has not run.
        self.forgotten = False
        #: Last HTTP error status, 0 for none.
        self.http_status = 0
        #: Called when `gone` becomes true.
        self.on_gone: Callable[[], None] = lambda: None
        self._tail = bytearray()

    def heard(self) -> None:
        """A message came."""
        self.heard_at = time.monotonic()

    def end(self) -> None:
        """The other side ended."""
        if not self.gone:
            self.gone = True
            self.on_gone()

    def stderr(self, data: bytes) -> None:
        """Error output came."""
        self._tail += data
        del self._tail[:-MAX_TAIL_BYTES]

    @property
    def hint(self) -> str:
        """What may explain a loss: the last lines of the error output, or the HTTP status."""
        if self.http_status:
            return f"HTTP status {self.http_status}"
        lines = self._tail.decode("utf-8", "replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-3:])


class HeardStream:
    """The incoming messages of a transport, noting when they come and when they end."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], signals: Signals) -> None:
        self._stream = stream
        self._signals = signals

    @property
    def last_context(self) -> Any:
        """Context of the sender of the last message, where the transport keeps one."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        item = await self._stream.receive()
        self._signals.heard()
        return item

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item = await self._stream.__anext__()
        except StopAsyncIteration:
            self._signals.end()
            raise
        self._signals.heard()
        return item

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._signals.end()
        return await self._stream.__aexit__(kind, error, trace)


def need_sdk() -> None:
    """Load the ``mcp`` package, and keep the loggers quiet that write addresses and messages with the secrets in them; one
    that has a level of its own keeps it.

    Raises:
        ConfigurationError: the ``mcp`` package is not installed here.
    """
    try:
        importlib.import_module("mcp")
    except ImportError as error:
        raise ConfigurationError(
            "tools of MCP servers need the `mcp` package where the servers are reached: install phronomy-ray[mcp]"
        ) from error
    for name, level in _WIRE_LOGGERS.items():
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(level)


def open_streams(
    endpoint: McpEndpoint, signals: Signals
) -> AbstractAsyncContextManager[tuple[HeardStream, WriteStream[SessionMessage]]]:
    """The message streams of `endpoint`; enter and leave it in one task.

    Raises (on entering):
        ToolError: code ``mcp_server_lost``: there is no such program.
    """
    if endpoint.transport is Transport.STDIO:
        return _stdio(endpoint, signals)
    return _http(endpoint, signals)


@asynccontextmanager
async def _stdio(
    endpoint: McpEndpoint, signals: Signals
) -> AsyncIterator[tuple[HeardStream, WriteStream[SessionMessage]]]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program, *arguments = endpoint.command
    found = await asyncio.to_thread(_find, program, endpoint)
    if found is None:
        raise lost(endpoint, f"there is no program {program!r} on this node", phase=PHASE_CONNECT)
    watched = StdioServerParameters(
        command=sys.executable,
        args=["-I", "-S", child.__file__, str(os.getpid()), found, *arguments],
        env=dict(endpoint.env),
        cwd=endpoint.cwd,
    )
    async with _stderr_of(endpoint, signals) as errors, stdio_client(watched, errors) as (read, write):
        yield HeardStream(read, signals), write


def _find(program: str, endpoint: McpEndpoint) -> str | None:
    """Absolute path of a program; a relative path is relative to the server's working directory."""
    if "/" in program:
        path = Path(endpoint.cwd or ".", program).absolute()
        return str(path) if path.is_file() else None
    return shutil.which(program, path=endpoint.env.get("PATH", os.environ.get("PATH")))


@asynccontextmanager
async def _http(
    endpoint: McpEndpoint, signals: Signals
) -> AsyncIterator[tuple[HeardStream, WriteStream[SessionMessage]]]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def note(response: Response) -> None:
        if response.status_code < _FIRST_ERROR_STATUS or response.request.method != "POST":
            return
        signals.http_status = response.status_code
        if response.status_code == _GONE_STATUS and "mcp-session-id" in response.request.headers:
            signals.forgotten = True

    # No read timeout: any byte would set it back, so the deadlines are ours. No limit of connections: each running call
    # holds one, and a limit would let calls wait for each other out of sight.
    client = httpx2.AsyncClient(
        headers=dict(endpoint.headers),
        timeout=httpx2.Timeout(endpoint.connect_timeout_s, read=None, pool=None),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        event_hooks={"response": [note]},
    )
    async with client, streamable_http_client(endpoint.url, http_client=client) as (read, write):
        yield HeardStream(read, signals), write


class _Tail(asyncio.Protocol):
    def __init__(self, endpoint: McpEndpoint, signals: Signals) -> None:
        self._endpoint = endpoint
        self._signals = signals

    def data_received(self, data: bytes) -> None:
        self._signals.stderr(data)
        if _LOG.isEnabledFor(logging.DEBUG):
            text = self._endpoint.clean(data.decode("utf-8", "replace").rstrip())
            _LOG.debug("mcp server %s: %s", self._endpoint.name, text)


@asynccontextmanager
async def _stderr_of(endpoint: McpEndpoint, signals: Signals) -> AsyncIterator[TextIO]:
    """A file for the server's error output, which is read as it comes, so that it never blocks the server."""
    reading, writing = os.pipe()
    output = os.fdopen(writing, "w")
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: _Tail(endpoint, signals), os.fdopen(reading, "rb"))
    try:
        yield cast("TextIO", output)
    finally:
        output.close()
        pipe.close()
