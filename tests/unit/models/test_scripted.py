"""The scripted model: positions, turns, streaming, failures, and that it has no state to lose."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys

import pytest

from phronomy_ray.errors import (
    AuthenticationError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
    TransportError,
)
from phronomy_ray.messages import Usage
from phronomy_ray.models.port import (
    FinishReason,
    ModelAnswer,
    ModelPort,
    ModelRequest,
    StreamReset,
    TextDelta,
)
from phronomy_ray.models.scripted import (
    C,
    F,
    ScriptedModel,
    ScriptRequest,
    attempts,
    call,
    calls,
    delay,
    error,
    final,
    hang,
)


def ask(*texts: str, sequence: int = 1, **more: object) -> ModelRequest:
    messages = [{"role": "user", "content": text} for text in texts]
    return ModelRequest(f"ex:m{sequence}", sequence, "scripted", messages, **more)  # type: ignore[arg-type]


async def drain(model: ScriptedModel, request: ModelRequest) -> list[object]:
    return [item async for item in model.stream(request)]


async def test_answers_by_position_and_by_turn() -> None:
    model = ScriptedModel([[C(call("ping", {"x": 1}, id="a"), call("pong", raw="")), F("one")], [F("two")]])
    assert isinstance(model, ModelPort)
    first = await model.complete(ask("hi"))
    assert [(c.id, c.name, c.arguments) for c in first.message.tool_calls] == [
        ("a", "ping", '{"x": 1}'),
        ("call_t1m1_1", "pong", ""),
    ]
    assert first.finish_reason is FinishReason.TOOL_CALLS
    assert first.message.content is None
    assert first.usage == Usage(10, 5)
    assert [a.number for a in first.attempts] == [1]
    assert (await model.complete(ask("hi", sequence=2))).message.content == "one"
    assert (await model.complete(ask("hi", "again"))).message.content == "two"
    with pytest.raises(ModelError, match="2 turns and this is turn 3") as caught:
        await model.complete(ask("a", "b", "c"))
    assert caught.value.code == "script_exhausted"
    with pytest.raises(ModelError, match="model call 3"):
        await model.complete(ask("a", sequence=3))


async def test_the_same_request_gets_the_same_answer_also_from_a_pickled_copy() -> None:
    model = ScriptedModel([F("a"), F("b")])
    copy = pickle.loads(pickle.dumps(model))
    for each in (model, model, copy):
        assert (await each.complete(ask("x", sequence=2))).message.content == "b"


async def test_streaming_gives_the_text_in_pieces_and_the_same_answer() -> None:
    model = ScriptedModel(
        [C(call("t", {"a": [1, 2, 3], "b": "long enough to split"}), text="let me see ...")]
    )
    items = await drain(model, ask("x"))
    assert isinstance(items[-1], ModelAnswer)
    assert [item.text for item in items[:-1] if isinstance(item, TextDelta)] == ["let ", "me ", "see ", "..."]
    whole = await model.complete(ask("x"))
    assert items[-1].message == whole.message
    assert items[-1].usage == whole.usage


async def test_failures_are_attempted_again_and_recorded() -> None:
    model = ScriptedModel([attempts(error(RateLimitError("slow down")), error(TransportError()), F("ok"))])
    answer = await model.complete(ask("x"))
    assert answer.message.content == "ok"
    assert [(a.number, a.error.type if a.error else None) for a in answer.attempts] == [
        (1, "RateLimitError"),
        (2, "TransportError"),
        (3, None),
    ]
    with pytest.raises(TransportError) as caught:
        await model.complete(ask("x", max_retries=1))
    assert [a["number"] for a in caught.value.details["attempts"]] == [1, 2]
    refused = ScriptedModel([error(AuthenticationError("no"))])
    for _ in range(2):
        with pytest.raises(AuthenticationError) as caught_auth:
            await refused.complete(ask("x"))
        assert len(caught_auth.value.details["attempts"]) == 1


async def test_Y04_a_cut_stream_is_reset_and_read_once() -> None:
    model = ScriptedModel([attempts(final("one two three", cut_after=2), F("one two three"))])
    items = await drain(model, ask("x"))
    assert items[:3] == [TextDelta("one "), TextDelta("two "), StreamReset(2)]
    after = [item.text for item in items[3:] if isinstance(item, TextDelta)]
    assert "".join(after) == "one two three" == items[-1].message.content  # type: ignore[attr-defined]


async def test_a_hanging_answer_times_out_and_can_be_cancelled() -> None:
    model = ScriptedModel([hang()])
    with pytest.raises(ModelTimeoutError):
        await model.complete(ask("x", timeout_s=0.01, max_retries=0))
    task = asyncio.create_task(model.complete(ask("x")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_functions_mappings_and_the_log(tmp_path) -> None:  # type: ignore[no-untyped-def]
    async def echo(request: ScriptRequest) -> object:
        return delay(0.001, final(f"{request.turn}:{request.last_user}:{request.tool_results}"))

    log = tmp_path / "log.jsonl"
    model = ScriptedModel({"small": [F("s")], "scripted": echo}, log_path=log)
    answer = await model.complete(ask("x", "y", settings={"api_key": "sk-CANARY"}))
    assert answer.message.content == "2:y:{}"
    (line,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (line["call_id"], line["turn"], line["attempt"]) == ("ex:m1", 2, 1)
    assert "CANARY" not in log.read_text()


async def test_a_script_function_that_fails_gives_a_model_error() -> None:
    def raises(request: ScriptRequest) -> object:
        raise ZeroDivisionError("no")

    with pytest.raises(ModelError) as caught:
        await ScriptedModel(raises).complete(ask("x"))  # type: ignore[arg-type]
    assert caught.value.code == "script_failed"
    with pytest.raises(ModelError, match="no step"):
        await ScriptedModel([calls, F("x")]).complete(ask("x"))  # type: ignore[list-item]


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, phronomy_ray.models.scripted\n"
        "print([m for m in ('litellm', 'openai', 'aiohttp', 'httpx', 'ray', 'sqlalchemy') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
