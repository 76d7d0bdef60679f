"""How a step of a script looks on the wire: response bodies and stream chunks of the chat-completions form.

`ScriptedModel` reads the same wire form through the same normaliser as the real adapter, so what a script means does not
depend on whether it is served in process or over HTTP. Pure functions.
"""

from __future__ import annotations

import re
from typing import Any

from phronomy_ray.models.normalise import StreamCollector
from phronomy_ray.models.script import (
    RawBody,
    RawChunks,
    Reply,
    ScriptedCall,
    ScriptRequest,
    end_chunk,
    text_chunk,
    usage_chunk,
    usage_to_wire,
)

_WORDS = re.compile(r"\S*\s*")
#: Characters of one streamed piece of scripted call arguments.
ARGUMENT_CHARS = 16


def response_body(step: Reply | RawBody | RawChunks, request: ScriptRequest) -> dict[str, Any]:
    """The whole response; raw chunks are put together first."""
    if isinstance(step, RawBody):
        return _envelope(request, "chat.completion") | step.body
    if isinstance(step, RawChunks):
        collector = StreamCollector(call_id=_response_id(request))
        for chunk in step.chunks:
            collector.feed(chunk)
        answer = collector.finish()
        body = _whole(request, answer.message.to_wire(), answer.finish_reason.value)
        return body | ({"usage": usage_to_wire(answer.usage)} if answer.usage else {})
    message: dict[str, Any] = {"role": "assistant", "content": step.text}
    if step.reasoning is not None:
        message["reasoning_content"] = step.reasoning
    if step.calls:
        message["tool_calls"] = [
            _wire_call(call, request, position) for position, call in enumerate(step.calls)
        ]
    body = _whole(request, message, _finish_reason(step))
    return body | ({"usage": usage_to_wire(step.usage)} if step.usage else {})


def response_chunks(
    step: Reply | RawBody | RawChunks, request: ScriptRequest, *, include_usage: bool = True
) -> list[dict[str, Any]]:
    """The chunks of a streamed response; usage comes last, with an empty choice list."""
    if isinstance(step, RawBody):
        chunks = _chunks_of_body(step.body)
    elif isinstance(step, RawChunks):
        chunks = list(step.chunks)
    else:
        chunks = _chunks_of_reply(step, request)
        if step.usage and include_usage:
            chunks.append(usage_chunk(step.usage))
    envelope = _envelope(request, "chat.completion.chunk")
    return [envelope | chunk for chunk in chunks]


def has_content(chunk: dict[str, Any]) -> bool:
    """Whether a chunk carries text or call fragments (what ``cut_after`` counts)."""
    delta = (chunk.get("choices") or [{}])[0].get("delta") or {}
    return bool(delta.get("content") or delta.get("tool_calls"))


def split_text(text: str, chunk_chars: int | None) -> list[str]:
    """`text` in pieces of `chunk_chars` characters, or of one word each; joined they are `text`."""
    if chunk_chars:
        return [text[start : start + chunk_chars] for start in range(0, len(text), chunk_chars)]
    return [word for word in _WORDS.findall(text) if word]


def _chunks_of_reply(step: Reply, request: ScriptRequest) -> list[dict[str, Any]]:
    chunks: list[dict[str, Any]] = [{"choices": [_delta({"role": "assistant", "content": ""})]}]
    if step.reasoning:
        chunks.append({"choices": [_delta({"reasoning_content": step.reasoning})]})
    chunks += [text_chunk(piece) for piece in split_text(step.text or "", step.chunk_chars)]
    for position, call in enumerate(step.calls):
        wire = _wire_call(call, request, position) | {"index": position}
        arguments = wire["function"]["arguments"]
        if not isinstance(arguments, str):
            chunks.append({"choices": [_delta({"tool_calls": [wire]})]})
            continue
        first = wire | {"function": {"name": call.name, "arguments": ""}}
        chunks.append({"choices": [_delta({"tool_calls": [first]})]})
        for piece in split_text(arguments, ARGUMENT_CHARS):
            part = {"index": position, "function": {"arguments": piece}}
            chunks.append({"choices": [_delta({"tool_calls": [part]})]})
    chunks.append(end_chunk(_finish_reason(step)))
    return chunks


def _chunks_of_body(body: dict[str, Any]) -> list[dict[str, Any]]:
    rest = {key: value for key, value in body.items() if key not in ("choices", "object", "usage")}
    choices = [
        {"index": number, "delta": choice.get("message"), "finish_reason": choice.get("finish_reason")}
        for number, choice in enumerate(body.get("choices") or [])
    ]
    chunks: list[dict[str, Any]] = [rest | {"choices": choices}]
    if body.get("usage"):
        chunks.append(rest | {"choices": [], "usage": body["usage"]})
    return chunks


def _wire_call(call: ScriptedCall, request: ScriptRequest, position: int) -> dict[str, Any]:
    fresh = f"call_t{request.turn}m{request.sequence}_{position}"
    return {
        "id": fresh if call.id is None else call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish_reason(step: Reply) -> str:
    return step.finish_reason or ("tool_calls" if step.calls else "stop")


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": None}


def _whole(request: ScriptRequest, message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return _envelope(request, "chat.completion") | {"choices": [choice]}


def _response_id(request: ScriptRequest) -> str:
    return f"chatcmpl-t{request.turn}m{request.sequence}"


def _envelope(request: ScriptRequest, kind: str) -> dict[str, Any]:
    return {"id": _response_id(request), "object": kind, "created": 0, "model": request.model}
