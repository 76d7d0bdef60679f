"""The loopback provider, seen by a plain HTTP client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from phronomy_ray.errors import ContextLengthError, RateLimitError
from phronomy_ray.messages import Usage
from phronomy_ray.models.script import (
    RawBody,
    ScriptRequest,
    attempts,
    call,
    call_chunk,
    calls,
    chunks,
    end_chunk,
    error,
    final,
    hang,
    http_error,
)
from phronomy_ray.testing.model_server import ModelServer


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "hello"}


def post(server: ModelServer, payload: dict[str, Any], **more: Any) -> httpx.Response:
    return httpx.post(
        f"{server.base_url}/chat/completions", json=payload, timeout=10, trust_env=False, **more
    )


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_answers_by_position_records_requests_and_lists_models(tmp_path) -> None:  # type: ignore[no-untyped-def]
    log = tmp_path / "requests.jsonl"
    script = [
        [calls(call("a", {"x": 1}), call("b", raw="{bad")), final("one")],
        [final("two", usage=Usage(3, 4))],
    ]
    with ModelServer(script, log_path=log) as server:
        first = post(server, body(USER)).json()["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        assert [c["function"]["arguments"] for c in first["message"]["tool_calls"]] == ['{"x": 1}', "{bad"]
        assert post(server, body(USER, ASSISTANT)).json()["choices"][0]["message"]["content"] == "one"
        second = post(server, body(USER, ASSISTANT, USER)).json()
        assert second["choices"][0]["message"]["content"] == "two"
        assert second["usage"]["prompt_tokens"] == 3
        models = httpx.get(f"{server.base_url}/models", trust_env=False).json()
        assert {"m", "scripted"} == {entry["id"] for entry in models["data"]}
        assert server.requests[0].body["messages"] == [USER]
        assert not any(entry.closed_by_client for entry in server.requests)
    assert len(log.read_text().splitlines()) == 3


def test_streams_with_usage_in_a_last_chunk_without_choices_when_asked() -> None:
    with ModelServer([calls(call("a", {"x": "y" * 40}), text="so be it")]) as server:
        asked = events(post(server, body(USER, stream=True, stream_options={"include_usage": True})))
        assert asked[-1]["choices"] == []
        assert asked[-1]["usage"]["completion_tokens"] == 5
        deltas = [chunk["choices"][0]["delta"] for chunk in asked[:-1]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "so be it"
        plain = events(post(server, body(USER, stream=True)))
        assert all(chunk["choices"] for chunk in plain)


def test_scripted_failures_have_their_status_and_headers() -> None:
    async def script(request: ScriptRequest) -> Any:
        await asyncio.sleep(0)
        return {
            "429": error(RateLimitError("slow"), retry_after=7),
            "500": http_error(500),
            "long": error(ContextLengthError("too long")),
            "empty": RawBody({"choices": []}),
            "twice": attempts(http_error(503), final("ok")),
        }[request.last_user]

    with ModelServer(script, api_key="good") as server:

        def ask(text: str, key: str = "good") -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            return post(server, body({"role": "user", "content": text}), headers=headers)

        limited = ask("429")
        assert (limited.status_code, limited.headers["Retry-After"]) == (429, "7")
        assert ask("500").status_code == 500
        assert ask("long").json()["error"]["code"] == "context_length_exceeded"
        assert ask("empty").json()["choices"] == []
        assert [ask("twice").status_code for _ in range(3)] == [503, 200, 200]
        assert ask("500", key="bad").status_code == 401
        assert post(server, {"no": "model"}).status_code == 400


def test_cut_connections_and_clients_that_hang_up_are_seen() -> None:
    def script(request: ScriptRequest) -> Any:
        return {
            "cut": http_error(0),
            "part": final("a b c d", cut_after=2),
            "raw": chunks(call_chunk(0, "x", "{}", name="t"), end_chunk(), cut_after=1),
            "hang": hang(),
        }[request.last_user]

    with ModelServer(script) as server:

        def ask(text: str, **more: Any) -> httpx.Response:
            return post(server, body({"role": "user", "content": text}, **more))

        with pytest.raises(httpx.RemoteProtocolError):
            ask("cut")
        with pytest.raises(httpx.RemoteProtocolError):
            ask("part", stream=True)
        with pytest.raises(httpx.RemoteProtocolError):
            ask("raw", stream=True)
        server.wait_for_chunks(server.requests[1], 3)  # role, "a ", "b "
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.base_url}/chat/completions",
                json=body({"role": "user", "content": "hang"}),
                timeout=0.2,
                trust_env=False,
            )
        (*_, hanging) = server.wait_for_requests(4)
        assert hanging.wait_done(5)
        assert hanging.closed_by_client
        assert [entry.closed_by_client for entry in server.requests[:3]] == [False, False, False]


def test_runs_as_a_process(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "my_script.py").write_text(
        "from phronomy_ray.models.script import final\nscript = [final('from a process')]\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "phronomy_ray.testing.model_server", "--script", "my_script:script"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=env)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        answer = httpx.post(f"{url}/chat/completions", json=body(USER), trust_env=False).json()
        assert answer["choices"][0]["message"]["content"] == "from a process"
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()
