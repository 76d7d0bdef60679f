"""Provider answers in every shape that was reported, made into one."""

from __future__ import annotations

from typing import Any

import pytest

from phronomy_ray.messages import Usage
from phronomy_ray.models.normalise import (
    StreamCollector,
    answer_from_response,
    finish_reason,
    usage_from_wire,
)
from phronomy_ray.models.port import FinishReason, ModelAnswer
from phronomy_ray.models.script import call_chunk, end_chunk, text_chunk, usage_chunk


def body(message: dict[str, Any] | None, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


def streamed(*parts: dict[str, Any]) -> tuple[list[str], ModelAnswer]:
    collector = StreamCollector(call_id="ex:m1")
    texts = [text for part in parts if (text := collector.feed(part))]
    return texts, collector.finish()


CALL = {"id": "a", "type": "function", "function": {"name": "t", "arguments": '{"x":1}'}}


def test_X04_calls_count_by_their_presence() -> None:
    odd = {"id": "a", "function": {"name": "t", "arguments": {"a": 1}}}
    answer = answer_from_response(body({"content": None, "tool_calls": [odd]}))
    assert [(c.id, c.name, c.arguments) for c in answer.message.tool_calls] == [("a", "t", '{"a": 1}')]
    assert answer.finish_reason is FinishReason.TOOL_CALLS
    assert answer.message.content is None
    without = answer_from_response(body({"content": "hi"}, "tool_calls"))
    assert without.finish_reason is FinishReason.STOP
    assert without.message.content == "hi"


def test_X04_missing_ids_names_and_old_function_calls() -> None:
    raw = [
        {"function": {"name": "t", "arguments": None}},
        {"id": "", "function": {"arguments": "{}"}},
        "junk",
    ]
    answer = answer_from_response(body({"tool_calls": raw}), call_id="ex:m1")
    calls = answer.message.tool_calls
    assert [c.name for c in calls] == ["t", "unnamed_tool", "unnamed_tool"]
    assert calls[0].arguments == ""
    assert all(c.arguments.startswith("<broken") for c in calls[1:])
    assert len({c.id for c in calls}) == 3
    old = answer_from_response(body({"function_call": {"name": "t", "arguments": "{}"}}, "function_call"))
    assert [(c.name, c.arguments) for c in old.message.tool_calls] == [("t", "{}")]
    doubled = answer_from_response(body({"tool_calls": [CALL, CALL]}))
    assert [c.id for c in doubled.message.tool_calls] == ["a", "a_2"]


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [None]},
        body(None),
        body({"content": None}),
        body({"content": ""}),
        body({"content": [], "reasoning_content": "thinking"}),
        body({"content": None, "tool_calls": []}),
    ],
)
def test_L07_an_empty_answer_is_an_assistant_message_with_empty_text(response: dict[str, Any]) -> None:
    answer = answer_from_response(response)
    assert answer.message.content == ""
    assert answer.message.tool_calls == ()
    assert answer.usage is None


def test_texts_in_parts_and_refusals() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert answer_from_response(body({"content": parts})).message.content == "ab"
    refused = answer_from_response(body({"content": None, "refusal": "I will not"}))
    assert refused.message.content == "I will not"
    assert refused.finish_reason is FinishReason.CONTENT_FILTER
    texts, answer = streamed({"choices": [{"delta": {"refusal": "no"}}]}, end_chunk())
    assert texts == []
    assert (answer.message.content, answer.finish_reason) == ("no", FinishReason.CONTENT_FILTER)


@pytest.mark.parametrize(
    ("raw", "has_calls", "expected"),
    [
        ("stop", True, FinishReason.TOOL_CALLS),
        (None, True, FinishReason.TOOL_CALLS),
        (None, False, FinishReason.OTHER),
        ("length", True, FinishReason.LENGTH),
        ("max_tokens", False, FinishReason.LENGTH),
        ("end_turn", False, FinishReason.STOP),
        ("tool_calls", False, FinishReason.STOP),
        ("content_filter", False, FinishReason.CONTENT_FILTER),
        ("something new", False, FinishReason.OTHER),
    ],
)
def test_finish_reasons(raw: str | None, has_calls: bool, expected: FinishReason) -> None:
    assert finish_reason(raw, has_calls=has_calls) is expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, None),
        ({}, None),
        ({"total_tokens": None}, None),
        ({"prompt_tokens": 7, "completion_tokens": 3}, Usage(7, 3)),
        (
            {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}},
            Usage(7, 3, cached_tokens=5),
        ),
        ({"prompt_tokens": 7, "completion_tokens": None, "prompt_tokens_details": None}, Usage(7, 0)),
        (
            {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}},
            Usage(7, 3, 2),
        ),
        (
            {
                "input_tokens": 7,
                "output_tokens": 3,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 20,
            },
            Usage(127, 3, cached_tokens=100, cache_creation_tokens=20),
        ),
        (
            {
                "prompt_tokens": 127,
                "completion_tokens": 3,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 20,
            },
            Usage(127, 3, cached_tokens=100, cache_creation_tokens=20),
        ),
        ("junk", None),
    ],
)
def test_usage_of_both_dialects(raw: Any, expected: Usage | None) -> None:
    assert usage_from_wire(raw) == expected


def test_Y08_usage_in_the_last_chunk_and_no_empty_text() -> None:
    texts, answer = streamed(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        text_chunk("a"),
        text_chunk("b"),
        end_chunk(),
        usage_chunk(Usage(7, 3, cached_tokens=1)),
    )
    assert texts == ["a", "b"]
    assert answer.message.content == "ab"
    assert answer.usage == Usage(7, 3, cached_tokens=1)
    _, unreported = streamed(text_chunk("a"), end_chunk(), {"choices": []}, {})
    assert unreported.usage is None


def test_X04_a_stream_whose_response_id_changes_and_whose_reason_says_stop() -> None:
    texts, answer = streamed(
        {"id": "r1", **call_chunk(0, "a", '{"x":', name="t")},
        {"id": "r2", **call_chunk(0, None, "1}")},
        {"id": "r3", **end_chunk("stop")},
    )
    assert texts == []
    assert [(c.id, c.arguments) for c in answer.message.tool_calls] == [("a", '{"x":1}')]
    assert answer.finish_reason is FinishReason.TOOL_CALLS
    _, old = streamed(
        {"choices": [{"delta": {"function_call": {"name": "t", "arguments": "{}"}}}]}, end_chunk()
    )
    assert [c.name for c in old.message.tool_calls] == ["t"]


def test_T13_half_characters_at_chunk_borders() -> None:
    texts, answer = streamed(
        text_chunk("x\ud83c"), text_chunk("\udf78y"), text_chunk("\ud835"), text_chunk("z")
    )
    assert "".join(texts) == answer.message.content == "x\U0001f378y\ufffdz"
    _, ended = streamed(text_chunk("x\ud83c"))
    assert ended.message.content == "x\ufffd"
