"""What a model sees: a view over the journal, kept up to date record by record, and the selection for one call.

The journal is never edited. View rule 1, a function of journal facts alone:

* user, assistant and tool messages of every execution, in order of position, and imported ones;
* without the final tool batch of an execution that a human rejected, so no call in it is left unanswered;
* without executions that ended before the model answered anything (a repeated question would stand there twice);
* nothing from before the last `transcript_cleared` / `context_reset`; knowledge from after the last
  `knowledge_cleared` / `context_reset`.

For one call, instructions, knowledge and the running execution's messages are always sent; of the earlier exchanges
(a user message and all that answers it) the newest whole ones that fit the budget. The manifest names the journal
range and the rule, never a list of messages, so its size does not grow with the conversation.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from phronomy_ray.errors import ContextBudgetExceededError, InvalidConversationError
from phronomy_ray.frozen import replace
from phronomy_ray.journal import MESSAGE_KINDS, TERMINAL_KINDS, VIEW_KINDS, JournalRecord, RecordKind
from phronomy_ray.messages import Message, Role

VIEW_RULE = 1
#: Estimated characters per token; estimates are deterministic, never exact.
CHARS_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
MAX_ARGUMENT_ECHO = 200


class OlderRecordsNeeded(Exception):
    """The view was read only in part, and what a model call needs may lie further back: read older records, decide again.

    Never leaves the engine: a step is pure, so one that was given up has changed nothing.
    """


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and everything that answers it: in or out as a whole."""

    #: Journal position of its first message.
    position: int
    messages: tuple[dict[str, Any], ...]
    #: Estimated size of this and all earlier exchanges that were read.
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """The view of one agent's journal: finished exchanges, and the messages of the running execution."""

    exchanges: tuple[Exchange, ...] = ()
    #: Messages of the running execution, with their positions.
    current: tuple[tuple[int, dict[str, Any]], ...] = ()
    #: Texts of the visible knowledge.
    knowledge: tuple[str, ...] = ()
    #: Whose messages `current` are.
    current_id: str | None = None
    #: Exchanges that begin before this position were not read, 0 when all were. See `kernel.partial_view`.
    floor: int = 0

    def apply(self, records: Iterable[JournalRecord]) -> Conversation:
        """The view after `records`, which follow what it has seen."""
        view = self
        # messages of the running execution: a batch joins the view at once
        fresh: list[tuple[int, dict[str, Any]]] = []
        writer = self.current_id
        for record in records:
            if record.kind in MESSAGE_KINDS and record.execution_id is not None:
                fresh.append((record.position, sendable(record.content)))
                writer = record.execution_id
            elif record.kind in VIEW_KINDS:
                view = view._with_current(fresh, writer)._apply_one(record)
                fresh = []
        return view._with_current(fresh, writer)

    def _with_current(self, fresh: list[tuple[int, dict[str, Any]]], writer: str | None) -> Conversation:
        return replace(self, current=(*self.current, *fresh), current_id=writer) if fresh else self

    def _apply_one(self, record: JournalRecord) -> Conversation:
        kind = record.kind
        if kind in MESSAGE_KINDS:
            message = sendable(record.content)
            return replace(self, exchanges=_append(self.exchanges, record.position, message))
        if kind in TERMINAL_KINDS:
            if record.execution_id != self.current_id:
                return self  # a request that was withdrawn while another execution ran, or one that ended before it began
            kept = self.current
            if kind is RecordKind.EXECUTION_REJECTED:
                kept = _without_final_batch(kept)
            elif not any(message["role"] == "assistant" for _, message in kept):
                kept = ()
            exchanges = self.exchanges
            if kept:
                exchanges = _added(exchanges, kept[0][0], [message for _, message in kept])
            return replace(self, exchanges=exchanges, current=(), current_id=None)
        if kind is RecordKind.KNOWLEDGE:
            return replace(self, knowledge=(*self.knowledge, str(record.content.get("content", ""))))
        if kind is RecordKind.TRANSCRIPT_CLEARED:
            return replace(self, exchanges=(), floor=0)
        if kind is RecordKind.KNOWLEDGE_CLEARED:
            return replace(self, knowledge=())
        if kind is RecordKind.CONTEXT_RESET:
            return replace(self, exchanges=(), knowledge=(), floor=0)
        return self


@dataclass(frozen=True, slots=True)
class Selection:
    """What one model call is shown."""

    messages: list[dict[str, Any]]
    #: Position of the first journal message sent, 0 for none.
    first_position: int
    estimated_tokens: int


def select(
    view: Conversation,
    *,
    instructions: str,
    tool_tokens: int = 0,
    budget: int | None,
    first_position: int | None = None,
    extra: Sequence[dict[str, Any]] = (),
) -> Selection:
    """Choose the messages of one call.

    Args:
        view: the conversation with the running execution's messages.
        instructions: system text, may be empty.
        tool_tokens: estimated size of the tool definitions.
        budget: tokens that the input may have, ``None`` for no limit.
        first_position: repeat an earlier selection instead of choosing: its first position.
        extra: messages for this call only; system ones follow the instructions, others the conversation.

    Raises:
        ContextBudgetExceededError: what must be sent does not fit.
        OlderRecordsNeeded: exchanges that were not read would be chosen, or might be.
    """
    head: list[dict[str, Any]] = []
    if instructions:
        head.append({"role": "system", "content": instructions})
    if view.knowledge:
        head.append({"role": "system", "content": "Knowledge:\n" + "\n\n".join(view.knowledge)})
    head.extend(message for message in extra if message["role"] == "system")
    current = [message for _, message in view.current]
    current.extend(message for message in extra if message["role"] != "system")
    required = sum(map(estimate_tokens, head)) + sum(map(estimate_tokens, current)) + tool_tokens
    if budget is not None and required > budget and first_position is None:
        raise ContextBudgetExceededError(
            f"instructions, tools, knowledge and this turn's messages need about {required} tokens, and the model takes "
            f"{budget}",
            details={"required_tokens": required, "budget_tokens": budget},
        )
    earlier = view.exchanges[-1].total_tokens if view.exchanges else 0
    if first_position is not None:
        if first_position < view.floor:
            raise OlderRecordsNeeded
        start = bisect_left(view.exchanges, first_position, key=lambda exchange: exchange.position)
    elif budget is None or required + earlier <= budget:
        if view.floor:
            raise OlderRecordsNeeded
        start = 0
    else:
        left_out = earlier - (budget - required)  # at least so many tokens of the oldest exchanges stay out
        start = bisect_left(view.exchanges, left_out, key=lambda exchange: exchange.total_tokens) + 1
    total = required + earlier - (view.exchanges[start - 1].total_tokens if start else 0)
    chosen = view.exchanges[start:]
    first = chosen[0].position if chosen else view.current[0][0] if view.current else 0
    messages = [*head, *chain.from_iterable(exchange.messages for exchange in chosen), *current]
    return Selection(messages, first, total)


def estimate_tokens(message: dict[str, Any]) -> int:
    """Estimated tokens of one message."""
    size = len(message.get("content") or "")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        size += len(function["name"]) + len(function["arguments"])
    return TOKENS_PER_MESSAGE + size // CHARS_PER_TOKEN


def sendable(message: dict[str, Any]) -> dict[str, Any]:
    """A journaled message as it can be sent again: call arguments are always a JSON object."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    fixed = []
    for call in calls:
        raw = call["function"]["arguments"]
        text = raw if _is_object(raw) else "{}" if not raw.strip() else _unparsed(raw)
        fixed.append(call if text is raw else {**call, "function": {**call["function"], "arguments": text}})
    return {**message, "tool_calls": fixed}


def check_conversation(messages: Sequence[Message]) -> None:
    """Check the tool-exchange protocol of an imported conversation; nothing is repaired.

    Raises:
        InvalidConversationError: names the index and the fault.
    """
    open_calls: dict[str, int] = {}
    seen_any = False
    for index, message in enumerate(messages):
        where = f"context[{index}]"
        if message.role is Role.SYSTEM:
            raise InvalidConversationError(f"{where}: a system message belongs into the agent's instructions")
        if message.role is not Role.TOOL and open_calls:
            missing = next(iter(open_calls))
            raise InvalidConversationError(
                f"{where}: the call {missing!r} of context[{open_calls[missing]}] has no tool message before this one"
            )
        if message.role is Role.TOOL:
            if message.tool_call_id not in open_calls:
                raise InvalidConversationError(
                    f"{where}: answers the call {message.tool_call_id!r}, which is not open here"
                )
            del open_calls[message.tool_call_id]
        if message.role is Role.ASSISTANT:
            for call in message.tool_calls:
                if call.id in open_calls:
                    raise InvalidConversationError(f"{where}: two calls have the id {call.id!r}")
                open_calls[call.id] = index
            if message.content is None and not message.tool_calls:
                raise InvalidConversationError(f"{where}: an assistant message needs text or tool calls")
        elif message.tool_calls:
            raise InvalidConversationError(f"{where}: a {message.role.value} message cannot have tool calls")
        if message.role is not Role.ASSISTANT and message.content is None:
            raise InvalidConversationError(f"{where}: a {message.role.value} message needs content")
        if not seen_any and message.role is not Role.USER:
            raise InvalidConversationError(f"{where}: a conversation starts with a user message")
        seen_any = True
    if open_calls:
        missing = next(iter(open_calls))
        raise InvalidConversationError(
            f"the call {missing!r} of context[{open_calls[missing]}] has no tool message"
        )


def _append(exchanges: tuple[Exchange, ...], position: int, message: dict[str, Any]) -> tuple[Exchange, ...]:
    if message["role"] == "user" or not exchanges:
        return _added(exchanges, position, [message])
    last = exchanges[-1]
    return _added(exchanges[:-1], last.position, [*last.messages, message])


def _added(
    exchanges: tuple[Exchange, ...], position: int, messages: list[dict[str, Any]]
) -> tuple[Exchange, ...]:
    before = exchanges[-1].total_tokens if exchanges else 0
    total = before + sum(map(estimate_tokens, messages))
    return (*exchanges, Exchange(position, tuple(messages), total))


def _without_final_batch(
    current: tuple[tuple[int, dict[str, Any]], ...],
) -> tuple[tuple[int, dict[str, Any]], ...]:
    for index in range(len(current) - 1, -1, -1):
        if current[index][1].get("tool_calls"):
            return current[:index]
    return current


def _is_object(raw: str) -> bool:
    try:
        return isinstance(json.loads(raw), dict)
    except (ValueError, RecursionError):
        return False


def _unparsed(raw: str) -> str:
    return json.dumps({"_unparsed": raw[:MAX_ARGUMENT_ECHO]}, ensure_ascii=False)
