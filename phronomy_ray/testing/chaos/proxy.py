"""A TCP proxy before a database, which can cut connections, also in the middle of a commit."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable

#: What the message that makes a commit durable holds: a transaction's end, or the roots that a group's one statement advances.
COMMITS = (b"COMMIT", b'"new_last_commit_id"')


class Cut(enum.Enum):
    """Where the next commit is cut."""

    #: The server never hears of it.
    BEFORE = "before"
    #: The server has done it, and the client never hears of that.
    AFTER = "after"


class CuttingProxy:
    """Listens on loopback and passes everything on.

    Args:
        host, port: the database; a host that begins with ``/`` is a folder of UNIX sockets.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._to_port = port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._armed: Cut | None = None
        #: Commits that were cut.
        self.cuts = 0
        self.port = 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting-proxy", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def cut_all(self) -> None:
        """Close every connection."""
        self._call(self._close_all)

    def arm(self, cut: Cut | None) -> None:
        """Cut the next connection that commits, or none any more."""
        self._call(lambda: setattr(self, "_armed", cut))

    def close(self) -> None:
        """Listen no more."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        self._close_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=5)

    def _close_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._host.startswith("/"):
                path = f"{self._host}/.s.PGSQL.{self._to_port}"
                up_reader, up_writer = await asyncio.open_unix_connection(path)
            else:
                up_reader, up_writer = await asyncio.open_connection(self._host, self._to_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, up_writer)
        self._writers.update(pair)
        done = asyncio.Event()
        tasks = [
            self._loop.create_task(self._pass(reader, up_writer, done, pair, watches=True)),
            self._loop.create_task(self._pass(up_reader, writer, done, pair, watches=False)),
        ]
        await done.wait()
        for item in pair:
            item.transport.abort()
            self._writers.discard(item)
        for task in tasks:
            task.cancel()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        done: asyncio.Event,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        watches: bool,
    ) -> None:
        client = pair[0]
        try:
            while data := await reader.read(65_536):
                cut = self._armed if watches and any(mark in data for mark in COMMITS) else None
                if cut is not None:
                    self._armed = None
                    self.cuts += 1
                if cut is Cut.BEFORE:
                    break
                if cut is Cut.AFTER:
                    client.transport.abort()
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(0.2)  # the server is to finish what it was told
                    break
                writer.write(data)
                await writer.drain()
        except (OSError, ConnectionError):
            pass  # one of the two ends has closed
        finally:
            done.set()
