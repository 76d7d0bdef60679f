"""A new owner reads what its next turn needs, and its model sees what it would have seen after reading everything."""

from __future__ import annotations

from typing import Any

import pytest

from phronomy_ray.engine import single_writer
from phronomy_ray.engine.activation import RECENT_RECORDS
from phronomy_ray.journal import VIEW_KINDS, JournalRecord
from phronomy_ray.kernel.inputs import EditKind
from phronomy_ray.models.scripted import call, calls, final, hang
from phronomy_ray.testing.faulty_store import FaultyStore

TURNS = 30


class CountingStore(FaultyStore):
    """Counts the journal records that owners have read."""

    read = 0

    def claim_served(self, *args: Any, **kwargs: Any) -> Any:
        found = super().claim_served(*args, **kwargs)
        self.read += len(found.recent) + len(found.knowledge) if found is not None else 0
        return found

    def read_journal(self, *args: Any, **kwargs: Any) -> list[JournalRecord]:
        found = super().read_journal(*args, **kwargs)
        self.read += len(found)
        return found


def reader(n: int) -> Any:
    """A script: one tool call, then an answer."""

    def script(request: Any) -> Any:
        if request.messages[-1]["role"] == "user":
            return calls(call("look", {"x": n}))
        return final("seen " + "y" * 30)

    return script


async def talk(lab: Any, engine: Any, turns: int, prefix: str) -> None:
    for number in range(turns):
        await lab.run(engine, f"question {number}", id=f"{prefix}{number}")


def definition(lab: Any, window: int | None) -> Any:
    from phronomy_ray.definition.tool import tool

    @tool(replay="safe")
    async def look(x: int) -> int:
        return x

    return lab.define(reader(3), look, instructions="Be brief.", context_window=window)


async def test_every_new_owner_shows_its_model_what_one_owner_would_have_shown(lab: Any) -> None:
    """One agent with one owner, the other with a new owner for every other turn; knowledge and clearings between."""
    clerk = definition(lab, 700)
    lab.create(clerk, "a2")
    one = lab.engine(clerk)
    await one.edit(EditKind.ADD_KNOWLEDGE, knowledge="It rains.")
    other = lab.engine(clerk, "a2")
    await other.edit(EditKind.ADD_KNOWLEDGE, knowledge="It rains.")
    for number in range(TURNS):
        if number == TURNS // 2:
            await one.edit(EditKind.CLEAR_TRANSCRIPT)
            await other.edit(EditKind.CLEAR_TRANSCRIPT)
        before = len(lab.prompts())
        await lab.run(one, f"question {number}", id=f"one{number}")
        if number % 2:
            other = lab.engine(clerk, "a2")
        await lab.run(other, f"question {number}", id=f"other{number}")
        first, second, third, fourth = lab.prompts()[before:]
        assert (first, second) == (third, fourth)
    for mine, theirs in zip(
        lab.store.model_calls(f"one{TURNS - 1}"), lab.store.model_calls(f"other{TURNS - 1}"), strict=True
    ):
        assert mine.manifest == theirs.manifest


async def test_what_a_new_owner_reads_does_not_grow_with_the_history(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_writer, "OLDER_RECORDS", 40)
    clerk = definition(lab, 250)
    engine = lab.engine(clerk)
    await engine.edit(EditKind.ADD_KNOWLEDGE, knowledge="It rains.")
    await talk(lab, engine, TURNS, "ex")
    assert sum(record.kind in VIEW_KINDS for record in lab.journal()) == 5 * TURNS + 1
    store = CountingStore(lab.store)
    fresh = await lab.restarted(clerk, store=store)
    assert store.read == RECENT_RECORDS + 1
    await lab.run(fresh, "the next question", id="next")
    assert store.read == RECENT_RECORDS + 1 + 40, "one page, of a history that has four times as many"
    assert "It rains." in str(lab.prompts()[-1])


async def test_older_records_are_read_when_a_model_takes_more(lab: Any) -> None:
    small, large = definition(lab, 400), definition(lab, None)
    await talk(lab, lab.engine(small), TURNS, "ex")
    fresh = lab.engine(large)
    await lab.run(fresh, "the next question", id="next")
    asked = [message["content"] for message in lab.prompts()[-2] if message["role"] == "user"]
    assert asked == [*(f"question {number}" for number in range(TURNS)), "the next question"]
    assert fresh.state.conversation.floor == 0


async def test_a_call_that_is_made_again_has_the_input_that_its_manifest_names(lab: Any) -> None:
    """The owner is lost while the model is asked, and its successor takes less: the input is not chosen anew."""
    await talk(lab, lab.engine(definition(lab, None)), TURNS, "ex")
    first = lab.engine(lab.define(hang(), instructions="Be brief.", context_window=None))
    before = len(lab.prompts())
    await first.start("again", "the next question")
    await lab.until_prompted(before + 1)
    second = lab.engine(lab.define(lambda _: final("at last"), instructions="Be brief.", context_window=400))
    await second.activate()
    await lab.end(second, "again")
    hung, repeated = lab.prompts()[before:]
    assert hung == repeated
    assert len(hung) > 2 * TURNS
