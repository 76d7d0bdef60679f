"""A real MCP server with scripted behaviours, over stdio and streamable HTTP, for tests.

As a program it is what a tool source starts: ``python -m phronomy_ray.testing.mcp_server [--log FILE] [--mode MODE]``, or
with ``--http`` a server on a loopback port whose address it prints. What happened is appended to the log file, one JSON
line each, by the process itself before it answers: whether a call ran once is read there and nowhere else.

| tool              | what it does                                                                          |
|-------------------|---------------------------------------------------------------------------------------|
| ``echo``          | returns its text                                                                      |
| ``add``           | structured output ``{"sum"}`` with an output schema, and the same as text             |
| ``search``        | nested arguments: ``$ref``, ``anyOf``, arrays, constraints; returns them as structured output |
| ``slow``          | answers after ``seconds``; a cancellation is logged                                   |
| ``hang``          | never answers                                                                         |
| ``block``         | blocks the server's only thread for ``seconds``: nothing is answered meanwhile        |
| ``leave``         | ends the process in the middle of the call                                            |
| ``fail``          | an ``isError`` result                                                                 |
| ``refuse``        | a JSON-RPC error                                                                      |
| ``break_promise`` | structured output that does not fit its output schema                                 |
| ``picture``       | text, an image, a resource and a link                                                 |
| ``reveal``        | returns an environment variable or a request header by name                           |
| ``change``        | changes the description of ``echo`` and tells the client that the tools changed       |

| mode         | what the process does                                             |
|--------------|-------------------------------------------------------------------|
| ``normal``   | serves the tools                                                  |
| ``silent``   | reads and never answers                                           |
| ``comments`` | HTTP only: answers with a comment every 0.1 s and nothing else    |
| ``stubborn`` | stdio only: serves, and ignores the end of its input and SIGTERM  |
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

#: By path and not as a module: a server inherits no PYTHONPATH.
_PROGRAM = (sys.executable, "-P", __file__)
_SEARCH_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "where": {"$ref": "#/$defs/place"},
        "filters": {"type": "array", "items": {"$ref": "#/$defs/filter"}, "maxItems": 3},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
        "order": {"anyOf": [{"enum": ["asc", "desc"]}, {"type": "null"}]},
    },
    "required": ["where"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "filter": {
            "type": "object",
            "properties": {"field": {"type": "string"}, "value": {"type": ["string", "number"]}},
            "required": ["field", "value"],
        },
    },
}
_SUM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
}


class Log:
    """What happened, in a file that outlives the process."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def write(self, event: str, **facts: Any) -> None:
        """Append one line."""
        if self._path:
            line = json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **facts})
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")


def read_log(path: str | Path, event: str = "") -> list[dict[str, Any]]:
    """Lines of a log, of one kind when `event` is given; none when nothing was written yet."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    entries = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [entry for entry in entries if event in ("", entry["event"])]


def wait_for_log(
    path: str | Path, event: str, *, count: int = 1, timeout_s: float = 20.0
) -> list[dict[str, Any]]:
    """Wait, blocking, until `event` stands in the log `count` times.

    Raises:
        TimeoutError: it does not in time; says what does.
    """
    deadline = time.monotonic() + timeout_s
    while len(found := read_log(path, event)) < count:
        if time.monotonic() > deadline:
            there = [entry["event"] for entry in read_log(path)]
            raise TimeoutError(f"waited {timeout_s} s for {count} x {event!r} in {path}, which has {there}")
        time.sleep(0.02)
    return found


def stdio_command(*, log: str | Path | None = None, mode: str = "normal", name: str = "") -> list[str]:
    """The command of a stdio server with this Python."""
    command = [*_PROGRAM, "--mode", mode]
    if log is not None:
        command += ["--log", str(log)]
    return [*command, "--name", name] if name else command


class HttpServer:
    """The server over HTTP in a process of its own; `restart` keeps the address."""

    def __init__(self, *, log: str | Path | None = None, mode: str = "normal") -> None:
        self._arguments = [*_PROGRAM, "--http", "--mode", mode]
        if log is not None:
            self._arguments += ["--log", str(log)]
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._process = subprocess.Popen(
            [*self._arguments, "--port", str(self._port)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the MCP server did not start (exit code {self._process.wait()})")
        self._port = int(self.url.rsplit(":", 1)[1].split("/")[0])

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again at the same address; it knows no earlier session."""
        self.kill()
        self.start()


# --- the server --------------------------------------------------------------------------------------------------


def _tools(state: dict[str, str]) -> list[types.Tool]:
    def tool(
        name: str,
        properties: dict[str, Any],
        *,
        required: list[str] | None = None,
        output: dict[str, Any] | None = None,
        description: str = "",
    ) -> types.Tool:
        schema = {
            "type": "object",
            "properties": properties,
            "required": sorted(properties) if required is None else required,
        }
        return types.Tool(
            name=name, description=description or name, input_schema=schema, output_schema=output
        )

    text, seconds = {"type": "string"}, {"type": "number", "minimum": 0}
    whole = {"type": "integer"}
    return [
        tool("echo", {"text": text}, description=state["echo"]),
        tool("add", {"a": whole, "b": whole}, output=_SUM_SCHEMA),
        types.Tool(
            name="search",
            description="Search.",
            input_schema=_SEARCH_SCHEMA,
            output_schema={"type": "object"},
        ),
        tool("slow", {"seconds": seconds}),
        tool("hang", {}),
        tool("block", {"seconds": seconds}),
        tool("leave", {"code": whole}),
        tool("fail", {"text": text}),
        tool("refuse", {}),
        tool("break_promise", {}, output=_SUM_SCHEMA),
        tool("picture", {}),
        tool("reveal", {"name": text}),
        tool("change", {"description": text}),
    ]


def make_server(log: Log, *, name: str = "scripted") -> Server[Any]:
    """The server of the tools above."""
    state = {"echo": "Say it again."}

    async def on_list(context: Any, parameters: Any) -> types.ListToolsResult:
        log.write("list")
        return types.ListToolsResult(tools=_tools(state))

    async def on_call(context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        meta = dict(parameters.meta or {})
        log.write("call", tool=parameters.name, arguments=parameters.arguments, meta=meta)
        try:
            result = await _behave(context, parameters.name, parameters.arguments or {}, state, log)
        except asyncio.CancelledError:
            log.write("cancelled", tool=parameters.name)
            raise
        log.write("answered", tool=parameters.name)
        return result

    return Server(name, on_list_tools=on_list, on_call_tool=on_call)


def _said(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def _behave(
    context: Any, tool: str, arguments: dict[str, Any], state: dict[str, str], log: Log
) -> types.CallToolResult:
    match tool:
        case "echo":
            return _said(arguments["text"])
        case "add":
            value = {"sum": arguments["a"] + arguments["b"]}
            return types.CallToolResult(
                content=[types.TextContent(text=json.dumps(value))], structured_content=value
            )
        case "search":
            return types.CallToolResult(content=[], structured_content=arguments)
        case "slow":
            await asyncio.sleep(arguments["seconds"])
            return _said(f"after {arguments['seconds']} s")
        case "hang":
            await asyncio.Event().wait()
        case "block":
            time.sleep(arguments["seconds"])  # noqa: ASYNC251 - the point of it
            return _said("done")
        case "leave":
            sys.stderr.write("scripted: leaving in the middle of a call\n")
            sys.stderr.flush()
            os._exit(arguments["code"])
        case "fail":
            return types.CallToolResult(content=[types.TextContent(text=arguments["text"])], is_error=True)
        case "refuse":
            raise MCPError(code=-32602, message="these arguments are refused")
        case "break_promise":
            return types.CallToolResult(content=[], structured_content={"sum": "many"})
        case "picture":
            return _picture()
        case "reveal":
            return _said(_reveal(context, arguments["name"]))
        case "change":
            state["echo"] = arguments["description"]
            await context.session.send_tool_list_changed()
            return _said("changed")
    raise MCPError(code=-32602, message=f"there is no tool {tool!r}")


def _picture() -> types.CallToolResult:
    return types.CallToolResult(
        content=[
            types.TextContent(text="a picture"),
            types.ImageContent(data="iVBORw0KGgo=", mime_type="image/png"),
            types.EmbeddedResource(
                resource=types.TextResourceContents(uri="file:///a.txt", mime_type="text/plain", text="words")
            ),
            types.ResourceLink(uri="file:///b.bin", name="b.bin"),
        ]
    )


def _reveal(context: Any, name: str) -> str:
    request = getattr(context, "request", None)
    if request is not None:
        return str(request.headers.get(name, ""))
    return os.environ.get(name, "")


# --- as a program ------------------------------------------------------------------------------------------------


async def _serve_stdio(log: Log, name: str) -> None:
    server = make_server(log, name=name)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _serve_http(log: Log, mode: str, port: int) -> None:
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    async def nothing(request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            while True:
                if mode == "comments":
                    yield b": keep-alive\n\n"
                await asyncio.sleep(0.1)

        log.write("request", method=request.method)
        if mode == "silent":
            await asyncio.Event().wait()
        return StreamingResponse(body(), media_type="text/event-stream")

    app = (
        make_server(log).streamable_http_app()
        if mode == "normal"
        else Starlette(routes=[Route("/mcp", nothing, methods=["GET", "POST", "DELETE"])])
    )
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(128)  # before anybody is told the address
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)  # noqa: T201 - the caller reads it
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


def main(argv: list[str] | None = None) -> int:
    """Serve until the input ends (stdio) or until the process is stopped (HTTP)."""
    parser = argparse.ArgumentParser(
        prog="python -m phronomy_ray.testing.mcp_server", description=main.__doc__
    )
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log")
    parser.add_argument("--name", default="scripted")
    parser.add_argument("--mode", choices=["normal", "silent", "comments", "stubborn"], default="normal")
    options = parser.parse_args(argv)
    log = Log(options.log)
    log.write("start", mode=options.mode)
    if options.http:
        _serve_http(log, options.mode, options.port)
        return 0
    if options.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.mode == "silent":
        sys.stdin.buffer.read()
    else:
        asyncio.run(_serve_stdio(log, options.name))
    if options.mode == "stubborn":
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
