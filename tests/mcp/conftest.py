"""Real MCP servers over stdio and HTTP on loopback, and sessions that are closed and leave no process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.clock import SystemClock
from phronomy_ray.commits import NewAgent
from phronomy_ray.definition.agent import Agent
from phronomy_ray.engine.engine import AgentEngine, EngineParts
from phronomy_ray.mcp import McpServer, close_local
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.session import McpSession
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.results import RunResult
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing import processes
from phronomy_ray.testing.mcp_server import HttpServer, read_log, stdio_command
from phronomy_ray.tools.local_executor import LocalToolExecutor


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

    def server(self, **options: Any) -> McpServer:
        """As an agent's author declares it."""
        name = options.pop("name", "site")
        if self.http is not None:
            return McpServer(name, url=self.http.url, **options)
        return McpServer(name, command=stdio_command(log=self.log, mode=self._mode), **options)

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


@pytest.fixture
def shared_site(shared_http: tuple[HttpServer, Path]) -> Site:
    """The shared server, for tests to which the transport does not matter."""
    server, log = shared_http
    return Site("http", log, "normal", server)


@pytest.fixture(params=["stdio", "http"])
def site(request: pytest.FixtureRequest, make_site: Callable[..., Site]) -> Site:
    """The same test over both transports."""
    if request.param == "stdio":
        return make_site("stdio")
    found: Site = request.getfixturevalue("shared_site")
    return found


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


class Desk:
    """An agent's engine on a store of its own, with tools in this process and no Ray."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_store(f"sqlite:///{folder}/agents.db")
        self._executors: list[LocalToolExecutor] = []
        self._made = 0

    def engine(self, script: Any, *tools: Any, **attributes: Any) -> AgentEngine:
        """A new owner of the agent."""
        model = ScriptedModel(script, log_path=self.folder / "prompts.jsonl")
        body = {"model": model, "tools": list(tools), "definition_id": "clerk", **attributes}
        definition = type("Clerk", (Agent,), body).definition()
        self._made += 1
        if self._made == 1:
            self.store.create_agent(NewAgent("a1", "clerk", "1", "", {}, (), SystemClock().now()))
        executor = LocalToolExecutor(threads=2)
        self._executors.append(executor)
        return AgentEngine("a1", definition, EngineParts(store=self.store, model=model, tools=executor))

    async def run(self, engine: AgentEngine, id: str = "ex1", *, until: str = "terminal") -> RunResult:
        """Start, or find, the execution and wait."""
        await engine.start(id, "go")  # the same again is found
        result = await engine.wait(id, until=until, timeout_s=60)
        assert result is not None, engine.status()
        return result

    def answers(self, result: RunResult) -> list[str]:
        """What the model was told by the tools."""
        return [str(message.content) for message in result.messages if message.role == "tool"]

    def shown(self) -> list[str]:
        """Names of the tools that the last model call was shown."""
        lines = (self.folder / "prompts.jsonl").read_text().splitlines()
        return [item["function"]["name"] for item in json.loads(lines[-1])["tools"]]

    def close(self) -> None:
        for executor in self._executors:
            executor.close()
        self.store.close()


@pytest.fixture
async def desk(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Desk]:
    folder = tmp_path / "desk"
    folder.mkdir()
    shutil.copyfile(sqlite_template, folder / "agents.db")
    made = Desk(folder)
    yield made
    await close_local()
    made.close()
