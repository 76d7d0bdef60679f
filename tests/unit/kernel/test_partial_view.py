"""A view that was read in part selects exactly what the whole one would, and says when it was read too little for that."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phronomy_ray.errors import ContextBudgetExceededError
from phronomy_ray.journal import VIEW_KINDS, Channel, JournalRecord, RecordKind
from phronomy_ray.kernel.context import Conversation, OlderRecordsNeeded, Selection, select
from phronomy_ray.kernel.partial_view import newest_view, with_older

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = (
    RecordKind.EXECUTION_COMPLETED,
    RecordKind.EXECUTION_REJECTED,
    RecordKind.EXECUTION_FAILED,
    RecordKind.EXECUTION_CANCELLED,
    RecordKind.EXECUTION_BLOCKED,
)
EDITS = (
    RecordKind.KNOWLEDGE,
    RecordKind.TRANSCRIPT_CLEARED,
    RecordKind.KNOWLEDGE_CLEARED,
    RecordKind.CONTEXT_RESET,
    RecordKind.AGENT_CLOSED,
)


class History:
    """A journal as the kernel would write it, and where its running execution began."""

    def __init__(self) -> None:
        self.journal: list[JournalRecord] = []
        #: How far exchanges are over.
        self.base = 0
        self.is_running = False
        self.turns = 0

    def record(self, kind: RecordKind, content: Any = None, execution_id: str | None = None) -> None:
        position = len(self.journal) + 1
        self.journal.append(
            JournalRecord(position, kind, Channel.AUDIT, NOW, execution_id=execution_id, content=content)
        )

    def say(self, role: str, text: str, execution_id: str | None, calls: int = 0) -> None:
        kind = {
            "user": RecordKind.EXTERNAL_MESSAGE,
            "assistant": RecordKind.ASSISTANT_MESSAGE,
            "tool": RecordKind.TOOL_MESSAGE,
        }[role]
        message: dict[str, Any] = {"role": role, "content": text}
        if calls:
            message["tool_calls"] = [
                {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                for n in range(calls)
            ]
        self.record(kind, message, execution_id)

    def imported(self, sizes: list[int]) -> None:
        for number, size in enumerate(sizes):
            self.say("user", f"{number}" + "i" * size, None)
            for _ in range(size % 3):
                self.say("assistant", "a" * size, None)

    def turn(self, sizes: list[int], end: RecordKind | None, *, withdrawn: bool) -> None:
        """One turn with a batch for each of `sizes`; without `end` it still runs."""
        self.turns += 1
        self.base = len(self.journal)
        name = f"ex{self.turns}"
        self.record(RecordKind.INPUT_RECEIVED, None, name)
        self.say("user", f"question {self.turns}", name)
        for size in sizes:
            self.say("assistant", "t" * size, name, calls=1 + size % 2)
            for _ in range(1 + size % 2):
                self.record(RecordKind.TOOL_RESULT, None, name)
                self.say("tool", "r" * size, name)
            if withdrawn:
                self.record(RecordKind.EXECUTION_CANCELLED, None, f"withdrawn{self.turns}")
        if end is None:
            self.is_running = True
            return
        if end is RecordKind.EXECUTION_COMPLETED:
            self.say("assistant", "done", name)
        self.record(end, None, name)
        self.base = len(self.journal)

    def hydrated(self, limit: int) -> Conversation:
        """The view that a new owner starts from."""
        if not self.is_running:
            self.base = len(self.journal)
        records, has_older = self.recent(limit)
        base = self.base if self.is_running else None
        return newest_view(records, has_older=has_older, base=base, knowledge=self.knowledge())

    def recent(self, limit: int) -> tuple[list[JournalRecord], bool]:
        """What a store reads with a claim: `limit` records up to the base, and all that follow."""
        older, has_older = self.before(self.base + 1, limit)
        return [*older, *(item for item in self.journal[self.base :] if item.kind in VIEW_KINDS)], has_older

    def before(self, position: int, limit: int) -> tuple[list[JournalRecord], bool]:
        found = [item for item in self.journal[: position - 1] if item.kind in VIEW_KINDS][-limit:]
        return found, len(found) == limit

    def knowledge(self) -> list[JournalRecord]:
        cleared = (RecordKind.KNOWLEDGE_CLEARED, RecordKind.CONTEXT_RESET)
        last = max((item.position for item in self.journal if item.kind in cleared), default=0)
        return [item for item in self.journal if item.kind is RecordKind.KNOWLEDGE and item.position > last]


SIZES = st.lists(st.integers(0, 60), max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    history.imported(draw(SIZES))
    for _ in range(draw(st.integers(0, 12))):
        if draw(st.integers(0, 4)) == 0:
            kind = draw(st.sampled_from(EDITS))
            history.record(kind, {"content": f"fact {len(history.journal)}"})
        else:
            history.turn(draw(SIZES), draw(st.sampled_from(ENDS)), withdrawn=draw(st.booleans()))
    if draw(st.booleans()):
        history.turn(draw(SIZES), None, withdrawn=False)
    return history


def read_as_asked(
    history: History, view: Conversation, first_page: int, **wanted: Any
) -> tuple[Conversation, Selection]:
    """Select as the engine does: older records are read as long as they are asked for, in growing pages."""
    page = first_page
    while True:
        try:
            return view, select(view, **wanted)
        except OlderRecordsNeeded:
            page *= 2
            records, has_older = history.before(view.floor, page)
            view = with_older(view, records, has_older=has_older)


@settings(max_examples=200, deadline=None)
@given(history=histories(), limit=st.integers(1, 40), data=st.data())
def test_a_view_that_was_read_in_part_selects_what_the_whole_one_selects(
    history: History, limit: int, data: st.DataObject
) -> None:
    whole = Conversation().apply(history.journal)
    view = history.hydrated(limit)
    assert (view.knowledge, view.current) == (whole.knowledge, whole.current)
    # several calls on one view: budgets rise and fall as models change, earlier selections are repeated
    for budget in data.draw(st.lists(st.one_of(st.none(), st.integers(1, 700)), min_size=1, max_size=4)):
        wanted: dict[str, Any] = {"instructions": "Be brief.", "tool_tokens": 7, "budget": budget}
        least = select(replace(whole, exchanges=()), **wanted | {"budget": None}).estimated_tokens
        if budget is not None and least > budget:
            for either in (whole, view):
                with pytest.raises(ContextBudgetExceededError):
                    select(either, **wanted)
            continue
        expected = select(whole, **wanted)
        if data.draw(st.booleans()):  # its pending call is made again by a new owner
            wanted |= {"budget": 1, "first_position": expected.first_position}
            expected = select(whole, **wanted)
        view, chosen = read_as_asked(history, view, limit, **wanted)
        assert chosen == expected
    later = replace(history.journal[-1], position=len(history.journal) + 1) if history.journal else None
    if later is not None:
        for kind in (RecordKind.KNOWLEDGE, RecordKind.TRANSCRIPT_CLEARED):
            new = replace(later, kind=kind, content={"content": "new"}, execution_id=None)
            view, whole = view.apply([new]), whole.apply([new])
            assert view.knowledge == whole.knowledge
        assert view == whole, "nothing from before the clearing is left to be read"


def test_what_is_read_does_not_grow_with_the_history() -> None:
    read = []
    for turns in (50, 500):
        history = History()
        history.record(RecordKind.KNOWLEDGE, {"content": "the oldest fact"})
        for _ in range(turns):
            history.turn([40], RecordKind.EXECUTION_COMPLETED, withdrawn=False)
        history.turn([], None, withdrawn=False)
        view = history.hydrated(16)
        view, chosen = read_as_asked(history, view, 16, instructions="", budget=400)
        assert "the oldest fact" in chosen.messages[0]["content"]
        assert chosen.messages[-1]["content"] == f"question {turns + 1}"
        read.append(len(view.exchanges))
    assert read[0] == read[1] < 50


def test_a_part_that_begins_within_one_exchange_adds_nothing_and_loses_nothing() -> None:
    history = History()
    history.turn([1, 2, 3, 4], RecordKind.EXECUTION_COMPLETED, withdrawn=False)
    history.turn([], None, withdrawn=False)
    view = history.hydrated(3)
    assert view.exchanges == ()
    records, has_older = history.before(view.floor, 3)
    assert with_older(view, records, has_older=has_older).exchanges == ()
    view, _ = read_as_asked(history, view, 3, instructions="", budget=None)
    assert view == Conversation().apply(history.journal)
