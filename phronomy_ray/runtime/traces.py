"""Tool traces: one masked row for each tool call, read from the effect ledger.

There is no second table (`docs/decisions/0011-traces-are-a-view-of-the-ledger.md`): the ledger has exactly one row per
call, and its durable events were masked by the tool's own rules when they were written. What a trace shows has besides
gone through masks by field name and by the shape of values, and is cut. Making a trace never fails: what cannot be shown
is replaced by the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from phronomy_ray.canonical_json import dumps
from phronomy_ray.errors import ErrorRecord, SerializationError, StoreError
from phronomy_ray.events import EventType
from phronomy_ray.journal import EventRow, ToolCallRow, ToolCallStatus
from phronomy_ray.redaction import REDACTED, is_secret_number, number_text, redact_text
from phronomy_ray.store.port import Store

_LOG = logging.getLogger("phronomy_ray.runtime")
#: Most characters of each of arguments, result and error.
MAX_FIELD_CHARS = 2_000
DEFAULT_LIMIT = 200
#: How much of a container is looked at.
_MAX_ITEMS = 200
_MAX_DEPTH = 20
_PAGE = 1_000
#: Names of fields whose values are secrets, wherever the words stand in the name.
_SECRET_NAME = re.compile(
    r"(?i)token(?!s)|secret|authori[sz]ation|passw(?:or)?d|passphrase|api[_-]?key|private[_-]?key|bearer|cookie|credential"
)


@dataclass(frozen=True, slots=True)
class ToolTrace:
    """One tool call, as it may be shown to people."""

    tool_call_id: str
    execution_id: str
    agent_id: str
    tool_name: str
    #: Whether it succeeded and its result does not itself report an error.
    ok: bool
    status: ToolCallStatus
    #: Masked and cut: JSON, or text that ends in a mark where it was cut.
    arguments: Any
    #: The same; ``None`` without one.
    result: Any
    #: What went wrong, masked and cut; empty when nothing did.
    error: str
    #: From its commit to the start of its (last) body: a human's answer, the queue and lost attempts included.
    waited_ms: float | None
    #: How long its (last) body ran.
    ran_ms: float | None
    #: Dispatches, also those that were lost.
    attempts: int
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    #: Why it shows less than it should; empty when it does not.
    problem: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        wire = asdict(self)
        for name in ("created_at", "started_at", "ended_at"):
            moment = wire[name]
            wire[name] = moment.isoformat() if moment is not None else None
        return {**wire, "status": self.status.value}


def read_traces(
    store: Store, *, execution_id: str | None = None, agent_id: str | None = None, limit: int = DEFAULT_LIMIT
) -> list[ToolTrace]:
    """The newest `limit` traces of an execution, of an agent, or of all, oldest first.

    An execution whose ledger cannot be read is left out with a warning, unless it is the one that was asked for.

    Raises:
        NotFoundError: no such execution or agent.
    """
    if execution_id is not None:
        row = store.load_execution(execution_id)
        if agent_id is not None and row.agent_id != agent_id:
            return []
        return _of_execution(store, execution_id)[-limit:]
    if agent_id is not None:
        store.load_root(agent_id)
    newest: list[ToolTrace] = []
    for execution in store.list_executions(agent_id=agent_id, limit=limit):
        try:
            newest = [*_of_execution(store, execution.execution_id), *newest]
        except StoreError as error:
            _LOG.warning("no traces of execution %s: %s", execution.execution_id, redact_text(error.message))
        if len(newest) >= limit:
            break
    return newest[-limit:]


def _of_execution(store: Store, execution_id: str) -> list[ToolTrace]:
    calls: dict[str, Any] = {}
    hidden: set[str] = set()
    for event in _events(store, execution_id):
        payload = event.payload
        if event.type == EventType.TOOL_CALL:
            calls[payload["tool_call_id"]] = payload.get("arguments")
        elif event.type == EventType.APPROVAL_DECIDED and payload.get("edited_arguments") is not None:
            calls[payload["tool_call_id"]] = payload["edited_arguments"]  # what ran
        elif event.type == EventType.TOOL_RESULT and payload.get("preview") == REDACTED:
            hidden.add(payload["tool_call_id"])
    return [
        trace_of(row, calls.get(row.tool_call_id, REDACTED), hide_result=row.tool_call_id in hidden)
        for row in store.tool_calls(execution_id)
    ]


def _events(store: Store, execution_id: str) -> Iterator[EventRow]:
    after = 0
    while page := store.events(execution_id, after=after, limit=_PAGE):
        yield from page
        after = page[-1].seq


def trace_of(row: ToolCallRow, shown_arguments: Any, *, hide_result: bool) -> ToolTrace:
    """The trace of one ledger row; never raises.

    Args:
        row: the call.
        shown_arguments: its arguments as its event shows them, that is after the tool's own rules.
        hide_result: whether the tool hides its results.
    """
    problem = ""
    arguments: Any = REDACTED
    result: Any = REDACTED
    error = ""
    try:
        secrets = frozenset(_hidden_texts(row.arguments, shown_arguments))
        arguments = _shown(shown_arguments, secrets)
        if row.result is None or not hide_result:
            result = _shown(row.result, secrets)
        told = ErrorRecord.from_wire(row.error).told if row.error else ""
        error = _clip(redact_text(told[: 2 * MAX_FIELD_CHARS], secrets))
        if told and hide_result:
            error = REDACTED
    except Exception as failure:  # noqa: BLE001 - a trace that cannot be made hides its values and harms nobody
        arguments, result, error = REDACTED, REDACTED, ""
        problem = f"cannot be shown: {type(failure).__name__}"
        _LOG.warning("tool call %s cannot be traced: %s", row.tool_call_id, type(failure).__name__)
    succeeded = row.status is ToolCallStatus.SUCCEEDED
    return ToolTrace(
        tool_call_id=row.tool_call_id,
        execution_id=row.execution_id,
        agent_id=row.agent_id,
        tool_name=row.tool_name,
        ok=succeeded and not (isinstance(row.result, Mapping) and row.result.get("error")),
        status=row.status,
        arguments=arguments,
        result=result,
        error=error,
        waited_ms=_milliseconds(row.created_at, row.started_at),
        ran_ms=_milliseconds(row.started_at, row.ended_at),
        attempts=row.attempt,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        problem=problem,
    )


def _shown(value: Any, secrets: frozenset[str]) -> Any:
    masked = _mask(value, secrets, 0)
    if isinstance(masked, str):
        return _clip(masked)
    try:
        text = dumps(masked)
    except SerializationError:
        return REDACTED
    return masked if len(text) <= MAX_FIELD_CHARS else _clip(text)


def _mask(value: Any, secrets: frozenset[str], depth: int) -> Any:
    """A bounded copy of `value` in which nothing is left that is known to be a secret or looks like one."""
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, str):
        # bounded before it is searched; what the cut may have torn apart lies behind what is shown
        return redact_text(value[: 2 * MAX_FIELD_CHARS], secrets)
    if isinstance(value, Mapping):
        return {
            redact_text(str(key)[:200], secrets): REDACTED
            if item is not None and _SECRET_NAME.search(str(key))
            else _mask(item, secrets, depth + 1)
            for key, item in list(value.items())[:_MAX_ITEMS]
        }
    if isinstance(value, Sequence):
        return [_mask(item, secrets, depth + 1) for item in value[:_MAX_ITEMS]]
    return REDACTED if is_secret_number(value, secrets) else value


def _hidden_texts(raw: Any, shown: Any) -> Iterator[str]:
    """Texts and numbers of `raw` that stand where `shown` hides something: what must not appear in the result either."""
    if shown == REDACTED and raw != REDACTED:
        yield from _texts(raw)
    elif isinstance(raw, Mapping) and isinstance(shown, Mapping):
        for key, item in raw.items():
            yield from _hidden_texts(item, shown.get(key))
    elif isinstance(raw, list) and isinstance(shown, list):
        for item, other in zip(raw, shown, strict=False):
            yield from _hidden_texts(item, other)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif text := number_text(value):
        yield text


def _clip(text: str) -> str:
    if len(text) <= MAX_FIELD_CHARS:
        return text
    return f"{text[:MAX_FIELD_CHARS]}… [cut at {MAX_FIELD_CHARS} characters]"


def _milliseconds(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or end is None:
        return None
    return max(0.0, round((end - start).total_seconds() * 1000, 3))  # clocks of two machines may disagree
