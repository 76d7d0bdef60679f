"""The litellm adapter against the loopback provider. The only test file that imports litellm."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from phronomy_ray.errors import (
    AuthenticationError,
    ContextLengthError,
    ErrorRecord,
    ModelError,
    ModelRequestError,
    ModelTimeoutError,
    RateLimitError,
    TransportError,
)
from phronomy_ray.messages import Usage
from phronomy_ray.models.litellm_model import LitellmModel, mark_instructions, takes_cache_marks
from phronomy_ray.models.port import (
    FinishReason,
    ModelAnswer,
    ModelInfo,
    ModelPort,
    ModelRequest,
    StreamItem,
    StreamReset,
    TextDelta,
)
from phronomy_ray.models.retry import Backoff
from phronomy_ray.models.script import (
    RawBody,
    Script,
    ScriptedCall,
    attempts,
    call,
    call_chunk,
    calls,
    calls_chunk,
    chunks,
    end_chunk,
    error,
    final,
    fragment,
    hang,
    http_error,
    text_chunk,
    usage_chunk,
)
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.testing.model_server import ModelServer

pytestmark = [
    # litellm dumps an answer with object arguments through pydantic, which says so.
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    # litellm keeps its HTTP clients per event loop and leaves closing them to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FAST = Backoff(initial_s=0.0, max_s=0.0, jitter_s=0.0)
KEY = "sk-CANARY"


def ask(server: ModelServer, text: str = "hi", **more: Any) -> ModelRequest:
    settings = {"api_base": server.base_url, "api_key": KEY} | more.pop("settings", {})
    fields: dict[str, Any] = {"timeout_s": 20.0, "settings": settings} | more
    return ModelRequest("ex:m1", 1, "openai/scripted", [{"role": "user", "content": text}], **fields)


async def answers(model: ModelPort, request: ModelRequest) -> tuple[ModelAnswer, ModelAnswer]:
    """The whole and the streamed answer."""
    items = [item async for item in model.stream(request)]
    assert isinstance(items[-1], ModelAnswer)
    assert sum(isinstance(item, ModelAnswer) for item in items) == 1
    streamed = "".join(item.text for item in items if isinstance(item, TextDelta))
    assert streamed == (items[-1].message.content or "")
    assert all(item.text for item in items if isinstance(item, TextDelta))
    return await model.complete(request), items[-1]


async def failure(model: ModelPort, request: ModelRequest, *, stream: bool = False) -> ModelError:
    try:
        if stream:
            async for _ in model.stream(request):
                pass
        else:
            await model.complete(request)
    except ModelError as found:
        return found
    raise AssertionError("the call did not fail")


async def test_plain_and_streamed_answers_with_tools_and_settings() -> None:
    step = calls(call("search", {"q": "é" * 30}, id="a"), call("ping", raw="", id="b"), text="let me see")
    with ModelServer([step]) as server:
        request = ask(server, tools=[{"type": "function", "function": {"name": "search"}}])
        request.settings["temperature"] = 0.5
        for answer in await answers(LitellmModel(), request):
            assert answer.message.content == "let me see"
            assert [(c.id, c.name, c.arguments) for c in answer.message.tool_calls] == [
                ("a", "search", '{"q": "' + "é" * 30 + '"}'),
                ("b", "ping", ""),
            ]
            assert answer.finish_reason is FinishReason.TOOL_CALLS
            assert answer.usage == Usage(10, 5)
            assert [a.number for a in answer.attempts] == [1]
            assert answer.model == "scripted"
        for entry in server.requests:
            assert entry.body["temperature"] == 0.5
            assert entry.body["tools"][0]["function"]["name"] == "search"
            assert entry.headers["authorization"] == f"Bearer {KEY}"


async def test_X01_a_refused_call_makes_exactly_retries_plus_one_requests() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with ModelServer([error(RateLimitError("slow down"), retry_after=3)]) as server:
        model = LitellmModel(sleep=sleep)
        for stream in (False, True):
            refused = await failure(model, ask(server, max_retries=2), stream=stream)
            assert isinstance(refused, RateLimitError)
            assert len(refused.details["attempts"]) == 3
        assert len(server.requests) == 6
        assert waits == [3.0] * 4


async def test_X01_retry_after_as_a_date_and_beyond_the_total_limit() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    date = format_datetime(now + timedelta(seconds=9), usegmt=True)
    with ModelServer([attempts(error(RateLimitError(), retry_after=date), final("ok"))]) as server:
        answer = await LitellmModel(sleep=sleep, now=lambda: now).complete(ask(server))
        assert answer.message.content == "ok"
        assert waits == [9.0]
    with ModelServer([error(RateLimitError(), retry_after=3600)]) as server:
        refused = await failure(LitellmModel(sleep=sleep), ask(server, max_retries=5))
        assert isinstance(refused, RateLimitError)
        assert len(server.requests) == 1
        assert waits == [9.0]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_X02_cancelling_closes_the_upstream_connection(stream: bool) -> None:
    def script(request: Any) -> Any:
        return final(" ".join(map(str, range(100))), chunk_delay_s=0.2) if request.stream else hang()

    with ModelServer(script) as server:
        model = LitellmModel()
        seen: list[StreamItem] = []
        third = asyncio.Event()

        async def consume() -> None:
            if not stream:
                await model.complete(ask(server))
            async for item in model.stream(ask(server)):
                seen.append(item)
                if len(seen) == 3:
                    third.set()

        task = asyncio.create_task(consume())
        (entry,) = await asyncio.to_thread(server.wait_for_requests, 1)
        if stream:
            await third.wait()
        cancelled_at = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(entry.wait_done, 5)
        assert entry.closed_by_client_at is not None
        assert entry.closed_by_client_at - cancelled_at < 1.0
        assert len(server.requests) == 1


async def test_X02_leaving_the_stream_early_closes_the_upstream_connection() -> None:
    with ModelServer([final(" ".join(map(str, range(100))), chunk_delay_s=0.2)]) as server:
        items = LitellmModel().stream(ask(server))
        assert isinstance(await anext(items), TextDelta)
        left_at = time.monotonic()
        await items.aclose()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(server.requests[0].wait_done, 5)
        assert server.requests[0].closed_by_client_at is not None
        assert server.requests[0].closed_by_client_at - left_at < 1.0


async def test_L19_no_attempt_is_made_after_a_cancellation() -> None:
    """Cancelled during the answer and during the wait between attempts."""
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    with ModelServer([attempts(http_error(503), hang())]) as server:
        task = asyncio.create_task(LitellmModel(sleep=sleep).complete(ask(server, max_retries=5)))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.create_task(LitellmModel().complete(ask(server, max_retries=5)))
        await asyncio.to_thread(server.wait_for_requests, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.requests[1].wait_done, 5)
        assert len(server.requests) == 2


async def test_X04_odd_adapters_are_normalised() -> None:
    step = calls(ScriptedCall("t", {"a": 1}, "a"), finish_reason="stop", usage=None)
    parts = [
        {
            **calls_chunk({"index": 0, "id": "a", "function": {"name": "t", "arguments": {"a": 1}}}),
            "id": "r1",
        },
        {**end_chunk("stop"), "id": "r2"},
    ]
    with ModelServer({"scripted": lambda request: chunks(*parts) if request.stream else step}) as server:
        for answer in await answers(LitellmModel(), ask(server)):
            assert [(c.id, c.name, c.arguments) for c in answer.message.tool_calls] == [
                ("a", "t", '{"a": 1}')
            ]
            assert answer.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    "parts",
    [
        [
            fragment(0, "a", '{"x":', name="t"),
            fragment(1, "b", '{"y":', name="u"),
            fragment(0, None, "1}"),
            fragment(1, None, "2}"),
        ],
        [fragment(0, "a", '{"x":1}', name="t"), fragment(0, "b", '{"y":2}', name="u")],
        [
            fragment(None, "a", '{"x":', name="t"),
            fragment(None, None, "1}"),
            fragment(None, "b", '{"y":2}', name="u"),
        ],
        [fragment(0, "a", '{"x":'), fragment(0, None, "1}", name="t"), fragment(1, "b", '{"y":2}', name="u")],
        [fragment(0, None, '{"x":', name="t"), fragment(0, "a", "1}"), fragment(1, "b", '{"y":2}', name="u")],
    ],
    ids=["interleaved", "both index 0", "no index", "late name", "late id"],
)
async def test_Y01_call_fragments_through_litellm(parts: list[dict[str, Any]]) -> None:
    script = [chunks(*[calls_chunk(part) for part in parts], end_chunk("tool_calls"))]
    with ModelServer(script) as server:
        _, answer = await answers(LitellmModel(), ask(server))
        found = [(c.id, c.name, c.arguments) for c in answer.message.tool_calls]
        assert found == [("a", "t", '{"x":1}'), ("b", "u", '{"y":2}')]


async def test_Y01_interleaved_fragments_without_id_never_run() -> None:
    parts = [call_chunk(0, "a", '{"x":', name="t"), call_chunk(0, "b", '{"y":', name="u")]
    parts += [call_chunk(0, None, "1}"), call_chunk(0, None, "2}"), end_chunk("tool_calls")]
    with ModelServer([chunks(*parts)]) as server:
        _, answer = await answers(LitellmModel(), ask(server))
        assert [c.name for c in answer.message.tool_calls] == ["t", "u"]
        assert all(c.arguments.startswith("<broken") for c in answer.message.tool_calls)


async def test_Y02_a_list_sent_again_through_litellm() -> None:
    whole = [fragment(n, call_id, f'{{"n":{n}}}', name="t") for n, call_id in enumerate("abc")]
    script = [chunks(*[calls_chunk(*whole[:n]) for n in (1, 2, 3)], end_chunk("tool_calls"))]
    with ModelServer(script) as server:
        _, answer = await answers(LitellmModel(), ask(server))
        assert [(c.id, c.arguments) for c in answer.message.tool_calls] == [
            (call_id, f'{{"n":{n}}}') for n, call_id in enumerate("abc")
        ]


async def test_Y04_a_dropped_stream_is_reset_and_read_once() -> None:
    text = "one two three four five six"
    with ModelServer([attempts(final(text, cut_after=5), final(text))]) as server:
        items = [item async for item in LitellmModel(backoff=FAST).stream(ask(server))]
        reset = items.index(StreamReset(2))
        assert (
            "".join(i.text for i in items[:reset] if isinstance(i, TextDelta)) == "one two three four five "
        )
        assert "".join(i.text for i in items[reset:] if isinstance(i, TextDelta)) == text
        answer = items[-1]
        assert isinstance(answer, ModelAnswer)
        assert answer.message.content == text
        assert [(a.number, a.error.type if a.error else None) for a in answer.attempts] == [
            (1, "TransportError"),
            (2, None),
        ]
        assert len(server.requests) == 2


async def test_Y08_usage_in_a_last_chunk_without_choices_or_not_at_all() -> None:
    with ModelServer(
        [chunks(text_chunk("x"), end_chunk(), usage_chunk(Usage(7, 3, cached_tokens=2)))]
    ) as server:
        items = [item async for item in LitellmModel().stream(ask(server))]
        assert items[0] == TextDelta("x")
        assert len(items) == 2
        assert isinstance(items[1], ModelAnswer)
        assert items[1].usage == Usage(7, 3, cached_tokens=2)
        assert server.requests[0].body["stream_options"] == {"include_usage": True}
    with ModelServer([final("some text that could be counted", usage=None)]) as server:
        for answer in await answers(LitellmModel(), ask(server)):
            assert answer.usage is None


async def test_L07_empty_answers_come_through_as_empty() -> None:
    empties = {
        "empty": final(""),
        "none": final(None),
        "reasoning": final(None, reasoning="hm"),
        "no choices": RawBody({"choices": []}),
    }
    with ModelServer(lambda request: empties[request.last_user]) as server:
        for text in empties:
            answer = await LitellmModel().complete(ask(server, text))
            assert answer.message.content == ""
            assert not answer.message.tool_calls
        for text in ("empty", "none", "reasoning"):
            _, streamed = await answers(LitellmModel(), ask(server, text))
            assert streamed.message.content == ""
        # Streamed, a list of choices that stays empty never finishes: that is a broken stream, tried again, then typed.
        broken = await failure(
            LitellmModel(backoff=FAST), ask(server, "no choices", max_retries=1), stream=True
        )
        assert isinstance(broken, TransportError)


async def test_T13_surrogates_in_model_text_and_arguments() -> None:
    step = calls(call("t", raw='{"x":"\ud835"}', id="a"), text="half \ud835 pair \ud83c\udf78", chunk_chars=1)
    with ModelServer([step]) as server:
        for answer in await answers(LitellmModel(), ask(server)):
            assert answer.message.content == "half \ufffd pair \U0001f378"
            assert answer.message.tool_calls[0].arguments == '{"x":"\ufffd"}'


@pytest.mark.parametrize(
    ("step", "cls", "code", "requests"),
    [
        (error(AuthenticationError("key " + KEY)), AuthenticationError, "model_authentication", 1),
        (http_error(403), AuthenticationError, "model_authentication", 1),
        (http_error(404), ModelRequestError, "model_not_found", 1),
        (http_error(400, "bad field"), ModelRequestError, "model_request", 1),
        (http_error(422), ModelRequestError, "model_request", 1),
        (error(ContextLengthError("too long")), ContextLengthError, "context_length", 1),
        (http_error(500), TransportError, "model_unavailable", 2),
        (http_error(503), TransportError, "model_unavailable", 2),
        (
            http_error(0),
            TransportError,
            "model_unavailable",
            2,
        ),  # litellm reports a broken connection as a 500
        (http_error(429), RateLimitError, "model_rate_limit", 2),
    ],
    ids=["401", "403", "404", "400", "422", "context", "500", "503", "cut", "429"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_provider_failures_become_our_errors(
    step: Any, cls: type[ModelError], code: str, requests: int, stream: bool
) -> None:
    with ModelServer([step]) as server:
        found = await failure(LitellmModel(backoff=FAST), ask(server, max_retries=1), stream=stream)
        assert (type(found), found.code) == (cls, code), found
        assert len(server.requests) == requests == len(found.details["attempts"])
        assert ErrorRecord.from_exception(found).to_exception().code == code


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_silent_provider_times_out_per_attempt(stream: bool) -> None:
    with ModelServer([hang()]) as server:
        request = ask(server, max_retries=1, timeout_s=0.3)
        found = await failure(LitellmModel(backoff=FAST, total_timeout_s=60), request, stream=stream)
        assert isinstance(found, ModelTimeoutError)
        assert len(server.requests) == 2
        assert await asyncio.to_thread(server.requests[1].wait_done, 5)
        assert server.requests[1].closed_by_client


async def test_a_missing_key_is_no_fault_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was asked, so nothing is tried again."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with ModelServer() as server:
        request = ask(server, settings={"api_key": None}, max_retries=3)
        found = await failure(LitellmModel(backoff=FAST), request)
    assert (type(found), found.code) == (AuthenticationError, "missing_credentials")
    assert len(found.details["attempts"]) == 1
    assert server.requests == []


async def test_an_unreachable_provider_is_a_transport_error() -> None:
    with ModelServer() as server:
        request = ask(server, max_retries=0)
    found = await failure(LitellmModel(), request)
    assert type(found) is TransportError


async def test_O01_no_key_in_errors_records_or_tracebacks(
    capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    settings = {"api_key": "canary-without-shape", "extra_headers": {"X-Api-Key": "header-canary"}}

    def script(request: Any) -> Any:
        return http_error(401, f"no: {request.headers['authorization']} {request.headers['x-api-key']} {KEY}")

    with ModelServer(script) as server:
        for stream in (False, True):
            found = await failure(LitellmModel(), ask(server, settings=settings), stream=stream)
            shown = "".join(traceback.format_exception(found))
            record = str(ErrorRecord.from_exception(found, with_traceback=True).to_wire())
            for text in (str(found), str(found.details), record, shown):
                assert "canary" not in text.lower(), text
    output = capfd.readouterr()
    assert "canary" not in (output.out + output.err + caplog.text).lower()


async def test_reserved_settings_and_unknown_models_are_refused_without_a_request() -> None:
    with ModelServer() as server:
        reserved = await failure(LitellmModel(), ask(server, settings={"max_retries": 5}))
        assert reserved.code == "reserved_setting"
        assert isinstance(reserved, ModelRequestError)
        unknown = ModelRequest("ex:m1", 1, "no-such-provider/x", [{"role": "user", "content": "x"}])
        assert isinstance(await failure(LitellmModel(), unknown), ModelRequestError)
        assert server.requests == []


async def test_info_comes_from_the_local_registry() -> None:
    model = LitellmModel()
    known = await model.info("openai/gpt-4o")
    assert known.max_input_tokens == 128_000
    assert known == await model.info("gpt-4o")
    assert await model.info("openai/claude-3-haiku-20240307") == ModelInfo()
    assert await model.info("ollama/whatever") == ModelInfo()
    assert await model.info("") == ModelInfo()


def test_instructions_are_marked_for_caching_only_where_that_is_understood() -> None:
    assert takes_cache_marks("anthropic/claude-sonnet-4-5")
    assert takes_cache_marks("claude-sonnet-4-5")
    assert takes_cache_marks("bedrock/anthropic.claude-3-haiku")
    assert not takes_cache_marks("openai/gpt-4o")
    assert not takes_cache_marks("bedrock/amazon.nova-lite")
    messages = [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    marked = mark_instructions(messages)
    assert marked[0] == messages[0]
    assert marked[1]["content"] == [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert messages[1]["content"] == "b"
    assert mark_instructions([{"role": "user", "content": "c"}]) == [{"role": "user", "content": "c"}]


async def test_X05_why_we_have_a_server_of_our_own() -> None:
    """litellm's mock against real bytes: same text, but other events, no calls and invented usage."""
    text = "one two three"
    script: Script = [calls(call("t", {"x": 1}, id="a"), text=text, usage=Usage(123, 45))]

    async def events(model: ModelPort, request: ModelRequest) -> tuple[list[str], ModelAnswer]:
        items = [item async for item in model.stream(request)]
        assert isinstance(items[-1], ModelAnswer)
        return [item.text for item in items if isinstance(item, TextDelta)], items[-1]

    with ModelServer(script) as server:
        real = await events(LitellmModel(), ask(server))
        ours = await events(ScriptedModel(script), ask(server))
        mock = await events(LitellmModel(), ask(server, settings={"mock_response": text}))
        assert len(server.requests) == 1
    assert real[0] == ours[0] == ["one ", "two ", "three"]
    assert real[1].message == ours[1].message
    assert real[1].usage == ours[1].usage == Usage(123, 45)
    assert "".join(mock[0]) == text
    assert mock[0] != real[0]
    assert mock[1].message.tool_calls == ()
    assert mock[1].usage != real[1].usage


async def test_many_calls_share_one_loop() -> None:
    with ModelServer([final("ok", delay_s=0.3)]) as server:
        model = LitellmModel()
        await model.load()
        started = time.monotonic()
        await asyncio.gather(*(model.complete(ask(server, str(n))) for n in range(20)))
        assert time.monotonic() - started < 0.3 * 20 / 2


def test_each_event_loop_gets_working_connections() -> None:
    """Clients that litellm caches must not be tied to a loop that is gone."""
    with ModelServer([final("ok")]) as server:
        model = LitellmModel()
        results: list[str | None] = []

        def one() -> None:
            results.append(asyncio.run(model.complete(ask(server))).message.content)

        for _ in range(2):
            thread = threading.Thread(target=one)
            thread.start()
            thread.join()
        assert results == ["ok", "ok"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_cached_instructions_reach_an_anthropic_provider_as_marks(stream: bool) -> None:
    """The Messages API is not ours to serve: the request is recorded and refused."""
    bodies: list[dict[str, Any]] = []

    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(400)
            self.end_headers()
            self.wfile.write(
                b'{"type":"error","error":{"type":"invalid_request_error","message":"recorded"}}'
            )

        def log_message(self, *arguments: Any) -> None:
            pass

    listener = HTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        base = f"http://127.0.0.1:{listener.server_port}"
        for cache in (True, False):
            request = ModelRequest(
                "ex:m1",
                1,
                "anthropic/claude-sonnet-4-5",
                [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
                settings={"api_base": base, "api_key": KEY},
                cache_instructions=cache,
            )
            assert isinstance(await failure(LitellmModel(), request, stream=stream), ModelRequestError)
    finally:
        await asyncio.to_thread(listener.shutdown)
        listener.server_close()
        thread.join()
    marked, plain = (body["system"][0] for body in bodies)
    assert marked == {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}
    assert "cache_control" not in plain
