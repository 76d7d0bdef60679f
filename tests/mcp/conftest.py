"""Real MCP servers over stdio and HTTP on loopback, and sessions that are closed and leave no process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.session import McpSession
from phronomy_ray.testing import processes
from phronomy_ray.testing.mcp_server import HttpServer, read_log, stdio_command


class Site:
    """One server with its log."""

    def __init__(self, kind: str, log: Path, mode: str, http: HttpServer | None) -> None:
        self.kind = kind
        self.log = log
        self.http = http
        self._mode = mode
        #: Lines of the log that were there before: a shared server has served other tests.
        self._before = len(read_log(log))

    def endpoint(self, **options: Any) -> McpEndpoint:
        name = options.pop("name", "site")
        if self.http is not None:
            return McpEndpoint(name, url=self.http.url, **options)
        return McpEndpoint(name, command=tuple(stdio_command(log=self.log, mode=self._mode)), **options)

    def events(self, event: str = "") -> list[dict[str, Any]]:
        return [entry for entry in read_log(self.log)[self._before :] if event in ("", entry["event"])]

    def calls(self, tool: str) -> int:
        return len([entry for entry in self.events("call") if entry["tool"] == tool])

    def pids(self) -> set[int]:
        return {entry["pid"] for entry in self.events("start")}


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    with ExitStack() as stack:
        count = 0

        def make(kind: str, mode: str = "normal") -> Site:
            nonlocal count
            count += 1
            log = tmp_path / f"server-{count}.log"
            http = stack.enter_context(HttpServer(log=log, mode=mode)) if kind == "http" else None
            return Site(kind, log, mode, http)

        yield make


@pytest.fixture(scope="session")
def shared_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HttpServer, Path]]:
    """One HTTP server for all tests that leave it alive: starting one takes a second."""
    log = tmp_path_factory.mktemp("mcp") / "shared.log"
    with HttpServer(log=log) as server:
        yield server, log


@pytest.fixture(params=["stdio", "http"])
def site(request: pytest.FixtureRequest, make_site: Callable[..., Site]) -> Site:
    if request.param == "stdio":
        return make_site("stdio")
    server, log = request.getfixturevalue("shared_http")
    return Site("http", log, "normal", server)


@pytest.fixture
async def open_session() -> AsyncIterator[Callable[[McpEndpoint], McpSession]]:
    """Sessions that are closed after the test, which must leave no child."""
    sessions: list[McpSession] = []
    before = processes.descendants(os.getpid())

    def open_one(endpoint: McpEndpoint) -> McpSession:
        sessions.append(McpSession(endpoint))
        return sessions[-1]

    yield open_one
    for session in sessions:
        await session.close()
    children = {pid for pid in processes.descendants(os.getpid()) - before if "stdio" in _kind(pid)}
    late = await asyncio.to_thread(processes.wait_dead, children, timeout_s=10)
    assert not late, "a stdio server outlived its session"


def _kind(pid: int) -> str:
    line = processes.command_line(pid)
    return "http" if "--http" in line else "stdio" if "mcp_server" in line else ""
