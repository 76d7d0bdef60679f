"""A model that answers from a script, in process: for tests, examples and demonstrations without a provider.

It implements the whole port (retries, attempts, streaming, resets, timeouts) over the same wire form and normaliser as
the real adapter, and imports nothing heavy. It keeps no state between calls and pickles, so it can stand as a class
attribute of an agent in any module and give the same answers after a crash.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from phronomy_ray.clock import utc_now
from phronomy_ray.errors import ModelTimeoutError, PhronomyError, TransportError
from phronomy_ray.models.normalise import StreamCollector, answer_from_response
from phronomy_ray.models.port import ModelAnswer, ModelInfo, ModelRequest, StreamItem, TextDelta
from phronomy_ray.models.retry import ModelRetry, close_stream
from phronomy_ray.models.script import (
    Attempts,
    C,
    F,
    Failure,
    Hang,
    PlainStep,
    RawBody,
    RawChunks,
    Reply,
    Script,
    ScriptRequest,
    Step,
    attempts,
    call,
    calls,
    chunks,
    delay,
    error,
    final,
    hang,
    http_error,
    step_for,
)
from phronomy_ray.models.script_wire import has_content, response_body, response_chunks

__all__ = [
    "Attempts",
    "C",
    "F",
    "Failure",
    "Hang",
    "RawBody",
    "RawChunks",
    "Reply",
    "Script",
    "ScriptRequest",
    "ScriptedModel",
    "Step",
    "attempts",
    "call",
    "calls",
    "chunks",
    "delay",
    "error",
    "final",
    "hang",
    "http_error",
]


class ScriptedModel:
    """A `ModelPort` that answers from `script` (see `phronomy_ray.models.script`).

    Retryable failures are attempted again as often as the request allows, without waiting in between; the last one is
    raised. A script function may raise a `ModelError` itself, which counts as a failed attempt.
    """

    def __init__(
        self,
        script: Script,
        *,
        log_path: str | Path | None = None,
        max_input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> None:
        """
        Args:
            script: the answers.
            log_path: every attempt appends the request to this file as one JSON line (written before it is answered, in
                one write, so that several processes can share the file and a kill loses nothing).
            max_input_tokens: what `info` reports.
            max_output_tokens: what `info` reports.
        """
        self.script = script
        self.log_path = str(log_path) if log_path is not None else None
        self._info = ModelInfo(max_input_tokens, max_output_tokens)

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        """Answer from the script."""

        async def attempt(number: int) -> ModelAnswer:
            seen, step = await self._step(request, number, stream=False)
            if isinstance(step, Reply | RawChunks) and step.cut_after is not None:
                raise _cut()
            assert not isinstance(step, Failure | Hang)
            return answer_from_response(response_body(step, seen), call_id=request.call_id)

        return await _retry(request).run(attempt)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer from the script, the text in pieces."""

        async def attempt(number: int) -> AsyncIterator[StreamItem]:
            seen, step = await self._step(request, number, stream=True)
            assert not isinstance(step, Failure | Hang)
            pause_s = step.chunk_delay_s if isinstance(step, Reply | RawChunks) else 0.0
            left = step.cut_after if isinstance(step, Reply | RawChunks) else None
            collector = StreamCollector(call_id=request.call_id)
            for chunk in response_chunks(step, seen):
                if left is not None and has_content(chunk):
                    if left == 0:
                        raise _cut()
                    left -= 1
                text = collector.feed(chunk)
                if text:
                    yield TextDelta(text)
                if pause_s:
                    await asyncio.sleep(pause_s)
            if left is not None:
                raise _cut()
            yield collector.finish()

        items = _retry(request).stream(attempt)
        try:
            async for item in items:
                yield item
        finally:
            await close_stream(items)

    async def info(self, model: str) -> ModelInfo:
        """The limits given at construction."""
        return self._info

    async def _step(
        self, request: ModelRequest, attempt: int, *, stream: bool
    ) -> tuple[ScriptRequest, PlainStep]:
        """What the script answers to this attempt, its delay already waited for. Raises what it says to raise."""
        seen = ScriptRequest(
            model=request.model,
            messages=request.messages,
            tools=request.tools,
            sequence=request.sequence,
            attempt=attempt,
            stream=stream,
            settings=dict(request.settings),
        )
        if self.log_path is not None:
            _append_line(self.log_path, _log_entry(request, seen))
        step = await step_for(self.script, seen)
        delay_s = float("inf") if isinstance(step, Hang) else step.delay_s
        if delay_s:
            await asyncio.sleep(min(delay_s, request.timeout_s))
        if delay_s > request.timeout_s:
            raise ModelTimeoutError(f"no answer within {request.timeout_s} s")
        if isinstance(step, Failure):
            raise _fresh(step.error)
        return seen, step


def _retry(request: ModelRequest) -> ModelRetry:
    return ModelRetry(max_retries=request.max_retries, total_timeout_s=float("inf"), sleep=_no_sleep)


async def _no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def _cut() -> TransportError:
    return TransportError("the connection broke (scripted)")


def _fresh(error: PhronomyError) -> PhronomyError:
    """A copy, because the caller adds details to what it raises and a script answers many calls."""
    return type(error)(error.message, code=error.code, details=error.details)


def _log_entry(request: ModelRequest, seen: ScriptRequest) -> dict[str, Any]:
    return {
        "at": utc_now().isoformat(),
        "pid": os.getpid(),
        "call_id": request.call_id,
        "agent_id": request.agent_id,
        "execution_id": request.execution_id,
        "sequence": request.sequence,
        "turn": seen.turn,
        "attempt": seen.attempt,
        "stream": seen.stream,
        "model": request.model,
        "messages": list(request.messages),
        "tools": list(request.tools),
        "settings": sorted(request.settings),
    }


def _append_line(path: str, entry: dict[str, Any]) -> None:
    line = json.dumps(entry, default=repr) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode("utf-8", "replace"))
    finally:
        os.close(handle)
