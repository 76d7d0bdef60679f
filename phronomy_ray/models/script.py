"""The script vocabulary: what a scripted model answers, as values.

One script drives both the in-process `ScriptedModel` and the loopback `ModelServer`, so a test can move from one to the other
without being rewritten::

    from phronomy_ray.models.script import call, calls, final

    script = [calls(call("search", {"q": "ray"}), call("ping", raw="")), final("done")]

A script is one of

* a list of steps: the answers to the model calls of *every* turn, by position within the turn;
* a list of such lists: one per turn (a turn is counted by the user messages in the prompt);
* a callable that takes a `ScriptRequest` and returns a step (or an awaitable of one);
* a mapping from model name (with or without provider prefix) to any of these.

Which step answers is computed from the request alone, so a script has no state to lose: a request that is repeated after a
crash gets the same answer. Values are frozen and picklable.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from phronomy_ray.errors import ModelError, PhronomyError
from phronomy_ray.messages import Usage
from phronomy_ray.models.http_status import error_for_status

#: Usage of a step that names none.
DEFAULT_USAGE = Usage(input_tokens=10, output_tokens=5)


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call of a scripted answer."""

    name: str
    #: Argument text, verbatim; an object is sent as an object (which real adapters do) instead of text.
    arguments: str | dict[str, Any]
    #: Provider call id; ``None`` gives a fresh one derived from turn, sequence and position.
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A normal answer: text, calls or both; with neither it is an empty answer."""

    text: str | None = None
    calls: tuple[ScriptedCall, ...] = ()
    #: ``None``: the provider reports no usage.
    usage: Usage | None = DEFAULT_USAGE
    #: As the provider writes it; ``None`` gives the natural one.
    finish_reason: str | None = None
    #: Text of a reasoning model, which is no answer.
    reasoning: str | None = None
    #: Seconds before the answer (its first byte) is sent.
    delay_s: float = 0.0
    #: Streaming: characters of one delta; ``None`` cuts after words.
    chunk_chars: int | None = None
    #: Streaming: seconds between chunks.
    chunk_delay_s: float = 0.0
    #: Streaming: the connection breaks after this many chunks with content. Whole answers: it breaks at once.
    cut_after: int | None = None


@dataclass(frozen=True, slots=True)
class RawChunks:
    """Verbatim stream chunks (``chat.completion.chunk`` objects, missing envelope fields are added)."""

    chunks: tuple[dict[str, Any], ...]
    delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    cut_after: int | None = None


@dataclass(frozen=True, slots=True)
class RawBody:
    """A verbatim response body (``chat.completion`` object, missing envelope fields are added)."""

    body: dict[str, Any]
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The provider fails. The server turns `error` into the HTTP answer (or silence) that causes it."""

    error: PhronomyError
    delay_s: float = 0.0
    #: HTTP status; ``None`` takes the usual one of the error's class, 0 breaks the connection without an answer.
    status: int | None = None
    #: Extra HTTP headers, e.g. ``Retry-After``.
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer at all until the client gives up; `ScriptedModel` waits for its cancellation or the request's timeout."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Different answers to the attempts of *one* model call; the last one repeats."""

    steps: tuple[Reply | RawChunks | RawBody | Failure | Hang, ...]


Step: TypeAlias = Reply | RawChunks | RawBody | Failure | Hang | Attempts
PlainStep: TypeAlias = Reply | RawChunks | RawBody | Failure | Hang


@dataclass(frozen=True, slots=True)
class ScriptRequest:
    """What a script may react to: the same view of a `ModelRequest` and of an HTTP request."""

    model: str
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] = ()
    #: Position of the model call within its turn, from 1.
    sequence: int = 1
    #: Attempt of this model call, from 1.
    attempt: int = 1
    stream: bool = False
    #: Everything else of the request.
    settings: dict[str, Any] = field(default_factory=dict)
    #: HTTP headers in lower case; empty in process.
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def turn(self) -> int:
        """Number of user messages in the prompt."""
        return sum(message.get("role") == "user" for message in self.messages)

    @property
    def last_user(self) -> str:
        """Text of the last user message, or empty."""
        texts = [message.get("content") for message in self.messages if message.get("role") == "user"]
        return texts[-1] if texts and isinstance(texts[-1], str) else ""

    @property
    def tool_results(self) -> dict[str, str]:
        """Text of the tool messages after the last assistant message, by provider call id."""
        results: dict[str, str] = {}
        for message in self.messages:
            if message.get("role") == "assistant":
                results = {}
            elif message.get("role") == "tool":
                results[str(message.get("tool_call_id"))] = str(message.get("content"))
        return results


ScriptFunction: TypeAlias = Callable[[ScriptRequest], "Step | Awaitable[Step]"]
FlatScript: TypeAlias = "Sequence[Step] | Sequence[Sequence[Step]] | ScriptFunction"
Script: TypeAlias = "FlatScript | Mapping[str, FlatScript]"


# --- how a script is written -----------------------------------------------------------------------------------


def final(
    text: str | None,
    *,
    usage: Usage | None = DEFAULT_USAGE,
    finish_reason: str | None = None,
    delay_s: float = 0.0,
    **more: Any,
) -> Reply:
    """A final answer; `more` are other fields of `Reply`."""
    return Reply(text, usage=usage, finish_reason=finish_reason, delay_s=delay_s, **more)


def call(
    name: str,
    arguments: dict[str, Any] | None = None,
    *,
    raw: str | None = None,
    id: str | None = None,
) -> ScriptedCall:
    """One tool call with `arguments` as JSON text, or the text `raw` verbatim."""
    text = raw if raw is not None else json.dumps(arguments or {}, ensure_ascii=False)
    return ScriptedCall(name, text, id)


def calls(
    *tool_calls: ScriptedCall,
    text: str | None = None,
    usage: Usage | None = DEFAULT_USAGE,
    finish_reason: str | None = None,
    delay_s: float = 0.0,
    **more: Any,
) -> Reply:
    """One assistant message with these calls; `more` are other fields of `Reply`."""
    return Reply(text, tool_calls, usage=usage, finish_reason=finish_reason, delay_s=delay_s, **more)


def error(
    failure: PhronomyError,
    *,
    status: int | None = None,
    retry_after: str | float | None = None,
    delay_s: float = 0.0,
) -> Failure:
    """The model call fails with `failure` (in process, what is raised; on the server, what the client will see)."""
    headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
    return Failure(failure, delay_s, status, headers)


def http_error(
    status: int, message: str = "scripted failure", *, retry_after: str | float | None = None
) -> Failure:
    """The provider answers with an HTTP error status (0: it breaks the connection)."""
    return error(error_for_status(status, message), status=status, retry_after=retry_after)


def attempts(*steps: PlainStep) -> Attempts:
    """Answers to the first, second, ... attempt of one model call."""
    return Attempts(steps)


def hang() -> Hang:
    """No answer until the client gives up."""
    return Hang()


def chunks(*parts: dict[str, Any], cut_after: int | None = None, chunk_delay_s: float = 0.0) -> RawChunks:
    """Verbatim stream chunks."""
    return RawChunks(parts, cut_after=cut_after, chunk_delay_s=chunk_delay_s)


def call_chunk(
    index: int | None, call_id: str | None, part: str | None, *, name: str | None = None
) -> dict[str, Any]:
    """A chunk with one tool-call fragment, fields that are ``None`` left out: ``(index, id, 'part')``."""
    return calls_chunk(fragment(index, call_id, part, name=name))


def calls_chunk(*fragments: dict[str, Any]) -> dict[str, Any]:
    """A chunk with several tool-call fragments."""
    return {"choices": [{"index": 0, "delta": {"tool_calls": list(fragments)}, "finish_reason": None}]}


def fragment(
    index: int | None, call_id: str | None, part: str | None, *, name: str | None = None
) -> dict[str, Any]:
    """One tool-call fragment, fields that are ``None`` left out."""
    function = {key: value for key, value in (("name", name), ("arguments", part)) if value is not None}
    entry: dict[str, Any] = {"function": function}
    if index is not None:
        entry["index"] = index
    if call_id is not None:
        entry |= {"id": call_id, "type": "function"}
    return entry


def text_chunk(text: str) -> dict[str, Any]:
    """A chunk with text."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def end_chunk(finish_reason: str = "stop") -> dict[str, Any]:
    """A chunk with the finish reason only."""
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]}


def usage_chunk(usage: Usage) -> dict[str, Any]:
    """The last chunk: usage and an empty choice list."""
    return {"choices": [], "usage": usage_to_wire(usage)}


StepT = TypeVar("StepT", Reply, RawChunks, RawBody, Failure)


def delay(seconds: float, step: StepT) -> StepT:
    """`step`, sent `seconds` later."""
    return replace(step, delay_s=seconds)


#: Short forms, as in ``[C(call("ping")), F("done")]``.
F = final
C = calls


# --- how a script is read --------------------------------------------------------------------------------------


async def step_for(script: Script, request: ScriptRequest) -> PlainStep:
    """The step of `script` that answers `request`, the attempt already chosen.

    Raises:
        ModelError: code ``script_exhausted``: the script has no answer for this request; ``script_failed``: a script
            function raised; or the `ModelError` that it raised.
    """
    if isinstance(script, Mapping):
        bare = request.model.rsplit("/", 1)[-1]
        chosen = script.get(request.model, script.get(bare))
        if chosen is None:
            raise _exhausted(f"the script has no entry for model {request.model!r}, only {sorted(script)}")
        script = chosen
    found: Any
    if callable(script):
        try:
            found = script(request)
            if inspect.isawaitable(found):
                found = await found
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the script raised {error!r}", code="script_failed") from error
    else:
        found = _by_position(script, request)
    if isinstance(found, Attempts):
        found = found.steps[min(request.attempt, len(found.steps)) - 1]
    if not isinstance(found, Reply | RawChunks | RawBody | Failure | Hang):
        raise _exhausted(f"the script answered with a {type(found).__name__}, which is no step")
    return found


def calls_since_user(messages: Sequence[Mapping[str, Any]]) -> int:
    """Assistant messages after the last user message: the model calls of the turn that are already answered."""
    count = 0
    for message in messages:
        if message.get("role") == "user":
            count = 0
        elif message.get("role") == "assistant":
            count += 1
    return count


def _by_position(script: Sequence[Step] | Sequence[Sequence[Step]], request: ScriptRequest) -> Any:
    steps: Any = script
    where = ""
    if any(isinstance(entry, list | tuple) for entry in steps):
        if not 1 <= request.turn <= len(steps):
            raise _exhausted(f"the script has {len(steps)} turns and this is turn {request.turn}")
        where = f" for turn {request.turn}"
        steps = steps[request.turn - 1]
    if not 1 <= request.sequence <= len(steps):
        raise _exhausted(
            f"the script has {len(steps)} answers{where} and this is model call {request.sequence}"
        )
    return steps[request.sequence - 1]


def _exhausted(message: str) -> ModelError:
    return ModelError(message, code="script_exhausted")


# --- how a step looks on the wire ------------------------------------------------------------------------------


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
