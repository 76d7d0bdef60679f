"""A loopback model provider: a real HTTP server that speaks the chat-completions protocol and answers from a script.

It exists because a library's mock answers are not what a provider sends: this one sends real bytes, streams real
server-sent events, breaks real connections and sees when the client hangs up. In a test::

    with ModelServer([calls(call("ping")), final("done")]) as server:
        ...  # api_base=server.base_url, api_key="test"
    assert server.requests[0].body["messages"]

or as a process of its own, which prints its base URL as the first line and serves until it is terminated::

    python -m phronomy_ray.testing.model_server --script package.module:script --port 0 --log requests.jsonl

Scripts are those of `phronomy_ray.models.script`. Which answer a conversation gets is computed from its messages (turn =
user messages, position = assistant messages since the last of them); only the attempt number is counted, by equal
request bodies. A script function runs on the server's event loop: an ``async`` one may wait for anything.

It also answers ``/v1/embeddings``, with the deterministic vectors of `phronomy_ray.retrieval.HashEmbeddings` unless
`ModelServer.embedding_script` says otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import importlib
import json
import os
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from aiohttp import web

from phronomy_ray.errors import ContextLengthError, ModelError
from phronomy_ray.models.http_status import status_for_error
from phronomy_ray.models.script import (
    Failure,
    Hang,
    PlainStep,
    RawChunks,
    Reply,
    Script,
    ScriptRequest,
    calls_since_user,
    final,
    step_for,
)
from phronomy_ray.models.script_wire import has_content, response_body, response_chunks
from phronomy_ray.retrieval.embeddings import hash_vector

__all__ = ["ModelServer", "RecordedEmbedding", "RecordedRequest"]

_KNOWN_FIELDS = frozenset({"model", "messages", "tools", "stream"})
MAX_BODY_BYTES = 64 * 1024 * 1024
#: Length of a vector when the request does not ask for ``dimensions``.
DEFAULT_DIMENSIONS = 64


@dataclass(slots=True)
class RecordedRequest:
    """One chat-completions request as it arrived. Times are `time.monotonic` seconds."""

    #: Position among all requests of the server, from 1.
    number: int
    #: The parsed body.
    body: dict[str, Any]
    #: Headers, names in lower case.
    headers: dict[str, str]
    #: What the script saw.
    view: ScriptRequest
    received_at: float
    #: Chunks sent so far (streamed answers).
    chunks_sent: int = 0
    #: When the answer was complete, or ``None``.
    answered_at: float | None = None
    #: When the client was seen to have closed the connection before the answer was complete, or ``None``.
    closed_by_client_at: float | None = None
    #: Set when the answer ended in any way.
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def closed_by_client(self) -> bool:
        """Whether the client hung up before the answer was complete."""
        return self.closed_by_client_at is not None

    def wait_done(self, timeout_s: float = 10.0) -> bool:
        """Wait until the answer ended (sent, cut or closed by the client); False on timeout."""
        return self.done.wait(timeout_s)


@dataclass(slots=True)
class RecordedEmbedding:
    """One embeddings request as it arrived."""

    #: Position among the embeddings requests of the server, from 1.
    number: int
    body: dict[str, Any]
    #: Headers, names in lower case.
    headers: dict[str, str]
    #: Set when the answer ended in any way.
    done: threading.Event = field(default_factory=threading.Event)
    #: Whether the client hung up before the answer was complete.
    closed_by_client: bool = False


#: What to answer instead of the vectors: a failure, silence, or a body of one's own; ``None`` for the vectors.
EmbeddingScript: TypeAlias = Callable[[RecordedEmbedding], "Failure | Hang | dict[str, Any] | None"]


class ModelServer:
    """A chat-completions server on a loopback port, in a thread of its own. Use as a context manager."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        port: int = 0,
        log_path: str | Path | None = None,
        api_key: str | None = None,
    ) -> None:
        """
        Args:
            script: the answers; without one every request is answered with "ok".
            port: 0 takes a free one.
            log_path: every request is appended to this file as one JSON line before it is answered.
            api_key: when given, requests with another bearer token get a 401.
        """
        self.script: Script = script if script is not None else _answer_ok
        self.requests: list[RecordedRequest] = []
        #: Embeddings requests in their order.
        self.embeddings: list[RecordedEmbedding] = []
        #: Called on the server's loop for each embeddings request.
        self.embedding_script: EmbeddingScript = lambda request: None
        self._port = port
        self._log_path = str(log_path) if log_path is not None else None
        self._api_key = api_key
        self._changed = threading.Condition()
        self._bodies: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._started = threading.Event()

    @property
    def base_url(self) -> str:
        """What goes into ``api_base``: ``http://127.0.0.1:<port>/v1``."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start serving; returns when the port is open."""
        self._thread = threading.Thread(target=self._run, name="model-server", daemon=True)
        self._thread.start()
        self._started.wait(30)
        if self._failure is not None:
            raise RuntimeError("the model server did not start") from self._failure

    def stop(self) -> None:
        """Break open connections and stop the thread."""
        if self._loop is not None and self._stop is not None and self._thread is not None:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)

    def wait_for_requests(self, count: int, timeout_s: float = 30.0) -> list[RecordedRequest]:
        """Wait until at least `count` requests have arrived; returns them all.

        Raises:
            TimeoutError: fewer arrived in time.
        """
        self._wait(lambda: len(self.requests) >= count, timeout_s, f"{count} requests")
        return list(self.requests)

    def wait_for_chunks(self, request: RecordedRequest, count: int, timeout_s: float = 30.0) -> None:
        """Wait until `count` chunks of the answer to `request` were sent.

        Raises:
            TimeoutError: fewer were sent in time.
        """
        self._wait(lambda: request.chunks_sent >= count, timeout_s, f"{count} chunks")

    # --- the server thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits in start()
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_get("/v1/models", self._models)
        # handler_cancellation: the handler's task is cancelled when the client hangs up, which is how we see it.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port)
        await site.start()
        self._port = runner.addresses[0][1]
        self._started.set()
        try:
            await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        models = sorted({entry.view.model for entry in self.requests} | {"scripted"})
        entries = [{"id": name, "object": "model", "created": 0, "owned_by": "phronomy"} for name in models]
        return web.json_response({"object": "list", "data": entries})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
            recorded = self._record(body, {name.lower(): value for name, value in request.headers.items()})
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            return _error_response(400, f"malformed request: {error}")
        try:
            response = await self._answer(request, recorded)
            if not recorded.closed_by_client:
                recorded.answered_at = time.monotonic()
            return response
        except (asyncio.CancelledError, ConnectionError):
            if not (self._stop and self._stop.is_set()):
                recorded.closed_by_client_at = time.monotonic()
            raise
        finally:
            recorded.done.set()
            self._notify()

    def _record(self, body: dict[str, Any], headers: dict[str, str]) -> RecordedRequest:
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode("utf-8", "replace")).hexdigest()
        self._bodies[digest] += 1
        view = ScriptRequest(
            model=str(body["model"]),
            messages=body["messages"],
            tools=body.get("tools") or (),
            sequence=calls_since_user(body["messages"]) + 1,
            attempt=self._bodies[digest],
            stream=bool(body.get("stream")),
            settings={key: value for key, value in body.items() if key not in _KNOWN_FIELDS},
            headers=headers,
        )
        recorded = RecordedRequest(len(self.requests) + 1, body, headers, view, time.monotonic())
        if self._log_path is not None:
            entry = {"number": recorded.number, "at": time.time(), "attempt": view.attempt, **body}
            with open(self._log_path, "a", encoding="utf-8", errors="replace") as log:
                log.write(json.dumps(entry) + "\n")
        with self._changed:
            self.requests.append(recorded)
            self._changed.notify_all()
        return recorded

    async def _answer(self, request: web.Request, recorded: RecordedRequest) -> web.StreamResponse:
        if self._api_key and recorded.headers.get("authorization") != f"Bearer {self._api_key}":
            return _error_response(401, f"Incorrect API key: {recorded.headers.get('authorization')}")
        try:
            step = await step_for(self.script, recorded.view)
        except ModelError as error:
            step = Failure(error, status=400 if error.code == "script_exhausted" else None)
        if isinstance(step, Hang):
            await asyncio.Event().wait()
        elif step.delay_s:
            await asyncio.sleep(step.delay_s)
        if isinstance(step, Failure):
            return self._fail(request, step)
        if recorded.view.stream:
            return await self._stream(request, recorded, step)
        assert not isinstance(step, Hang)
        if isinstance(step, Reply | RawChunks) and step.cut_after is not None:
            return self._cut(request)
        return web.json_response(response_body(step, recorded.view))

    def _fail(self, request: web.Request, step: Failure) -> web.StreamResponse:
        status = status_for_error(step.error) if step.status is None else step.status
        if status == 0:
            return self._cut(request)
        code = "context_length_exceeded" if isinstance(step.error, ContextLengthError) else step.error.code
        message = step.error.message
        if isinstance(step.error, ContextLengthError):
            message = f"This model's maximum context length is 8192 tokens. {message}"
        headers = dict(step.headers)
        if "retry_after" in step.error.details:
            headers.setdefault("Retry-After", str(step.error.details["retry_after"]))
        return _error_response(status, message, code=code, headers=headers)

    async def _stream(
        self, request: web.Request, recorded: RecordedRequest, step: PlainStep
    ) -> web.StreamResponse:
        assert not isinstance(step, Failure | Hang)
        pause_s = step.chunk_delay_s if isinstance(step, Reply | RawChunks) else 0.0
        left = step.cut_after if isinstance(step, Reply | RawChunks) else None
        wanted = bool((recorded.body.get("stream_options") or {}).get("include_usage"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in response_chunks(step, recorded.view, include_usage=wanted):
            if left is not None and has_content(chunk):
                if left == 0:
                    break
                left -= 1
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            recorded.chunks_sent += 1
            self._notify()
            if pause_s:
                await asyncio.sleep(pause_s)
        if left is not None:
            await asyncio.sleep(0)
            return self._cut(request, response)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _cut(self, request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
        """Break the connection: what was written is sent, then the socket closes without an end of the answer."""
        if request.transport is not None:
            request.transport.close()
        return response or web.Response()

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            body = json.loads(await request.read())
            recorded = RecordedEmbedding(len(self.embeddings) + 1, body, headers)
            vectors = embeddings_body(body)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            return _error_response(400, f"malformed request: {error}")
        with self._changed:
            self.embeddings.append(recorded)
            self._changed.notify_all()
        if self._api_key and headers.get("authorization") != f"Bearer {self._api_key}":
            return _error_response(401, f"Incorrect API key: {headers.get('authorization')}")
        try:
            step = self.embedding_script(recorded)
            if isinstance(step, Hang):
                await asyncio.Event().wait()
            if isinstance(step, Failure):
                return self._fail(request, step)
            return web.json_response(step if isinstance(step, dict) else vectors)
        except asyncio.CancelledError:
            recorded.closed_by_client = not (self._stop and self._stop.is_set())
            raise
        finally:
            recorded.done.set()
            self._notify()

    # --- waiting -----------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(
                    f"model server: waited {timeout_s} s for {what}, has {len(self.requests)} requests"
                )


def embeddings_body(body: dict[str, Any]) -> dict[str, Any]:
    """The answer to an embeddings request: the vectors of `hash_vector`, as lists or, when asked so, in base64."""
    given = body["input"]
    texts = [given] if isinstance(given, str) else list(given)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("input must be a text or a list of non-empty texts")
    vectors: list[Any] = [
        hash_vector(text, int(body.get("dimensions") or DEFAULT_DIMENSIONS)) for text in texts
    ]
    if body.get("encoding_format") == "base64":
        vectors = [
            base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii") for vector in vectors
        ]
    tokens = sum(len(text.split()) for text in texts)
    return {
        "object": "list",
        "model": str(body["model"]),
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _answer_ok(request: ScriptRequest) -> Reply:
    return final("ok")


def _error_response(
    status: int, message: str, *, code: str = "error", headers: dict[str, str] | None = None
) -> web.Response:
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
    body = {
        "error": {"message": message, "type": kinds.get(status, "server_error"), "param": None, "code": code}
    }
    return web.json_response(body, status=status, headers=headers)


def load_script(reference: str) -> Script:
    """The script named ``module:attribute`` (the working directory is importable)."""
    module, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    script: Script = getattr(importlib.import_module(module), attribute or "script")
    return script


def main(argv: list[str] | None = None) -> int:
    """Serve a script until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m phronomy_ray.testing.model_server", description=main.__doc__
    )
    parser.add_argument("--script", help="module:attribute of the script; without it every answer is 'ok'")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", help="append every request to this file, one JSON line each")
    options = parser.parse_args(argv)
    script = load_script(options.script) if options.script else None
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with ModelServer(script, port=options.port, log_path=options.log) as server:
        print(server.base_url, flush=True)  # noqa: T201 - the caller reads it
        while not ended.wait(0.5):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
