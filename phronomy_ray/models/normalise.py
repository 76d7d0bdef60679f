"""From what providers really send to a `ModelAnswer`: pure functions over the chat-completions wire form.

Tolerated, because adapters do it: arguments as an object, ``finish_reason`` "stop" beside calls, an empty or missing
``choices`` list, missing content, content as a list of parts, reasoning without an answer, the old ``function_call``,
usage absent, or alone in the last chunk. Nothing is invented: an answer with neither text nor calls comes out as an
assistant message with empty text, which the caller treats as an empty answer; absent usage is ``None``, not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phronomy_ray.canonical_json import clean_text
from phronomy_ray.messages import Message, ToolCallRequest, Usage
from phronomy_ray.models.assembly import (
    UNNAMED_TOOL,
    ToolCallAssembler,
    argument_text,
    broken_arguments,
    with_unique_ids,
)
from phronomy_ray.models.port import FinishReason, ModelAnswer

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.CONTENT_FILTER,
}


def answer_from_response(response: Mapping[str, Any], *, call_id: str = "") -> ModelAnswer:
    """The answer in a whole (not streamed) response. Never raises on odd shapes.

    Args:
        response: the response body as plain JSON values.
        call_id: our id of the model call; provider call ids that are missing are derived from it.
    """
    choice = _first_mapping(response.get("choices"))
    message = _mapping(choice.get("message"))
    refusal = _text(message.get("refusal"))
    text = _text(message.get("content")) or refusal
    listed = message.get("tool_calls")
    raw_calls = list(listed) if isinstance(listed, list | tuple) else []
    if not raw_calls and _mapping(message.get("function_call")):
        raw_calls = [{"function": message["function_call"]}]
    calls = with_unique_ids((_whole_call(raw) for raw in raw_calls), seed=call_id)
    finish = choice.get("finish_reason")
    if refusal and not message.get("content") and finish in (None, "stop"):
        finish = "refusal"
    return _answer(text, calls, finish, usage_from_wire(response.get("usage")), response.get("model"))


class StreamCollector:
    """Builds the answer of one streamed attempt from its chunks."""

    def __init__(self, *, call_id: str = "") -> None:
        self._call_id = call_id
        self._assembler = ToolCallAssembler()
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._finish: Any = None
        self._usage: Usage | None = None
        self._model: Any = None
        self._half = ""

    def feed(self, chunk: Mapping[str, Any]) -> str:
        """Take one chunk; returns its text (empty for chunks without any, which are no event)."""
        self._usage = usage_from_wire(chunk.get("usage")) or self._usage
        self._model = chunk.get("model") or self._model
        choice = _first_mapping(chunk.get("choices"))
        self._finish = choice.get("finish_reason") or self._finish
        delta = _mapping(choice.get("delta")) or _mapping(choice.get("message"))
        calls = delta.get("tool_calls")
        if isinstance(calls, list | tuple):
            self._assembler.add(calls)
        elif _mapping(delta.get("function_call")):
            self._assembler.add([{"index": 0, "function": delta["function_call"]}])
        self._refusals.append(_text(delta.get("refusal")))
        text = self._half + _text(delta.get("content"))
        self._half = ""
        # Half of a character at the end: its other half is in the next chunk.
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = clean_text(text)
        if text:
            self._texts.append(text)
        return text

    def finish(self) -> ModelAnswer:
        """The answer of all chunks so far."""
        text = "".join((*self._texts, self._half))
        finish = self._finish
        refusal = "".join(self._refusals)
        if refusal and not text:
            text = refusal
            finish = "refusal" if finish in (None, "stop") else finish
        truncated = finish_reason(finish, has_calls=False) is FinishReason.LENGTH
        calls = self._assembler.finish(seed=self._call_id, truncated=truncated)
        return _answer(text, calls, finish, self._usage, self._model)


def finish_reason(raw: Any, *, has_calls: bool) -> FinishReason:
    """Our reason for the provider's; calls decide over a "stop", and their absence over "tool_calls"."""
    reason = _FINISH_REASONS.get(str(raw).lower(), FinishReason.OTHER) if raw else None
    if has_calls:
        return FinishReason.TOOL_CALLS if reason in (None, FinishReason.STOP, FinishReason.OTHER) else reason
    if reason is FinishReason.TOOL_CALLS:
        return FinishReason.STOP
    return FinishReason.OTHER if reason is None else reason


def usage_from_wire(raw: Any) -> Usage | None:
    """Tokens from an OpenAI or Anthropic usage object; ``None`` when the provider reported none.

    `Usage.input_tokens` always includes cached tokens: Anthropic's own form, which counts them apart, is added up.
    """
    usage = _mapping(raw)
    if not usage:
        return None
    details = _mapping(usage.get("prompt_tokens_details")) or _mapping(usage.get("input_tokens_details"))
    read = _count(usage.get("cache_read_input_tokens")) or _count(details.get("cached_tokens"))
    written = _count(usage.get("cache_creation_input_tokens")) or _count(details.get("cache_creation_tokens"))
    if usage.get("prompt_tokens") is not None or usage.get("completion_tokens") is not None:
        given, answered = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    elif usage.get("input_tokens") is not None or usage.get("output_tokens") is not None:
        given, answered = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
        if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
            given += read + written
    else:
        return None
    return Usage(given, answered, min(read, given) if given else read, written)


def _answer(
    text: str, calls: tuple[ToolCallRequest, ...], finish: Any, usage: Usage | None, model: Any
) -> ModelAnswer:
    content = clean_text(text)
    message = Message.assistant(content or (None if calls else ""), calls)
    return ModelAnswer(
        message,
        finish_reason(finish, has_calls=bool(calls)),
        usage,
        model=model if isinstance(model, str) else "",
    )


def _whole_call(raw: Any) -> ToolCallRequest:
    call = _mapping(raw)
    function = _mapping(call.get("function"))
    call_id = call.get("id")
    name = function.get("name")
    arguments = argument_text(function.get("arguments"))
    if not (isinstance(name, str) and name.strip()):
        name, arguments = UNNAMED_TOOL, broken_arguments("it has no tool name", arguments)
    return ToolCallRequest(
        clean_text(call_id) if isinstance(call_id, str) else "", clean_text(name), clean_text(arguments)
    )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first_mapping(value: Any) -> Mapping[str, Any]:
    return _mapping(value[0]) if isinstance(value, list | tuple) and value else {}


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0
