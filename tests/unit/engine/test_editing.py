"""Edits of an idle agent, its closure and its deletion."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.errors import (
    AgentBusyError,
    AgentClosedError,
    AgentRetainedError,
    AgentUnloadedError,
    CommitOutcomeUnknownError,
    InvalidInputError,
    NotFoundError,
    OwnershipLostError,
)
from phronomy_ray.journal import Lifecycle, RecordKind
from phronomy_ray.kernel.inputs import EditKind
from phronomy_ray.models.scripted import final, hang
from phronomy_ray.retention import Retention
from phronomy_ray.runtime.transcript import read_transcript
from phronomy_ray.testing.faulty_store import FaultyStore


def echo(request: Any) -> Any:
    return final(f"heard {request.messages[-1]['content']}")


def shown(prompt: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in prompt]


async def test_knowledge_is_shown_from_the_next_call_on(lab: Any) -> None:
    engine = lab.engine(lab.define(echo, instructions="Be brief."))
    await lab.run(engine, "one")
    before = lab.store.load_root("a1")
    told = await engine.edit(
        EditKind.ADD_KNOWLEDGE, knowledge={"content": "It rains.", "metadata": {"by": "me"}}
    )
    await engine.edit(EditKind.ADD_KNOWLEDGE, knowledge="It is late.")
    root = lab.store.load_root("a1")
    assert told["agent_revision"] == before.agent_revision + 1
    assert (root.agent_revision, root.context_revision) == (
        before.agent_revision + 2,
        before.context_revision + 2,
    )
    await lab.run(engine, "two", id="ex2")
    first, second = lab.prompts()
    assert not any("rains" in text for text in shown(first))
    assert shown(second)[1] == "Knowledge:\nIt rains.\n\nIt is late."
    assert "me" not in str(shown(second)[1])
    (record, _) = [item for item in lab.journal() if item.kind is RecordKind.KNOWLEDGE]
    assert record.content == {"content": "It rains.", "metadata": {"by": "me"}}
    fresh = await lab.restarted(engine.definition)
    await lab.run(fresh, "three", id="ex3")
    assert "It is late." in shown(lab.prompts()[-1])[1]


@pytest.mark.parametrize(
    ("kind", "messages", "knowledge"),
    [
        (EditKind.CLEAR_TRANSCRIPT, False, True),
        (EditKind.CLEAR_KNOWLEDGE, True, False),
        (EditKind.RESET_CONTEXT, False, False),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_what_is_cleared_is_shown_no_more_and_kept(
    lab: Any, kind: EditKind, messages: bool, knowledge: bool, restarted: bool
) -> None:
    engine = lab.engine(lab.define(echo))
    await engine.edit(EditKind.ADD_KNOWLEDGE, knowledge="It rains.")
    await lab.run(engine, "one")
    before = lab.journal()
    assert [message.content for message in read_transcript(lab.store, "a1")] == ["one", "heard one"]
    await engine.edit(kind)
    assert bool(read_transcript(lab.store, "a1")) is messages
    assert lab.journal()[: len(before)] == before
    assert lab.store.load_root("a1").transcript_generation == (not messages)
    if restarted:
        engine = await lab.restarted(engine.definition)
    await lab.run(engine, "two", id="ex2")
    texts = shown(lab.prompts()[-1])
    assert ("one" in texts) is messages
    assert any("rains" in text for text in texts) is knowledge
    said = [message.content for message in read_transcript(lab.store, "a1")]
    assert said == (["one", "heard one"] if messages else []) + ["two", "heard two"]


async def test_the_transcript_of_a_long_conversation_is_read_in_pages(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.runtime.transcript.PAGE", 3)
    engine = lab.engine(lab.define(echo))
    await lab.run(engine, "zero", id="ex0")
    await engine.edit(EditKind.CLEAR_TRANSCRIPT)
    for number in range(1, 4):
        await lab.run(engine, str(number), id=f"ex{number}")
    said = [message.content for message in read_transcript(lab.store, "a1")]
    assert said == ["1", "heard 1", "2", "heard 2", "3", "heard 3"]
    with pytest.raises(NotFoundError):
        read_transcript(lab.store, "nobody")


@pytest.mark.parametrize("kind", EditKind)
async def test_an_agent_that_works_is_not_edited(lab: Any, kind: EditKind) -> None:
    engine = lab.engine(lab.define([hang()]))
    await engine.start("ex1", "go")
    await lab.until_prompted()
    facts = lab.facts()
    with pytest.raises(AgentBusyError, match="ex1"):
        await engine.edit(kind, knowledge="x" if kind is EditKind.ADD_KNOWLEDGE else None)
    with pytest.raises(AgentBusyError, match="ex1"):
        await engine.purge()
    assert lab.facts() == facts
    await engine.cancel("ex1", "enough")
    await lab.end(engine)


async def test_an_edit_that_is_repeated_is_made_once(lab: Any) -> None:
    engine = lab.engine(lab.define(echo))

    def again(owner: Any) -> Any:
        return owner.edit(EditKind.ADD_KNOWLEDGE, knowledge="It rains.", edit_id="ed_1")

    answers = await asyncio.gather(*(again(engine) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    fresh = await lab.restarted(engine.definition)
    await again(fresh)
    assert [record.kind for record in lab.journal()] == [RecordKind.KNOWLEDGE]
    await fresh.edit(EditKind.ADD_KNOWLEDGE, knowledge="It rains.", edit_id="ed_2")
    assert len(lab.journal()) == 2


async def test_an_edit_that_failed_can_be_repeated(lab: Any) -> None:
    engine = lab.engine(lab.define([hang()]))
    await engine.start("ex1", "go")
    await lab.until_prompted()
    with pytest.raises(AgentBusyError):
        await engine.edit(EditKind.CLEAR_TRANSCRIPT, edit_id="ed_1")
    await engine.cancel("ex1", "enough")
    await lab.end(engine)
    await engine.edit(EditKind.CLEAR_TRANSCRIPT, edit_id="ed_1")
    assert lab.store.load_root("a1").transcript_generation == 1


@pytest.mark.parametrize("given", [None, "", "  ", 7, {"content": 7}, {"content": "x", "more": 1}])
async def test_malformed_knowledge_is_refused(lab: Any, given: Any) -> None:
    engine = lab.engine(lab.define(echo))
    with pytest.raises(InvalidInputError, match="knowledge"):
        await engine.edit(EditKind.ADD_KNOWLEDGE, knowledge=given)
    with pytest.raises(InvalidInputError, match="takes no knowledge"):
        await engine.edit(EditKind.CLOSE, knowledge="x")
    assert (await lab.run(engine, "one")).output == "heard one"


async def test_a_closed_agent_takes_nothing_more(lab: Any) -> None:
    engine = lab.engine(lab.define(echo))
    await lab.run(engine, "one")
    await engine.edit(EditKind.CLOSE)
    root = lab.store.load_root("a1")
    for owner in (engine, await lab.restarted(engine.definition)):
        with pytest.raises(AgentClosedError):
            await owner.start("ex2", "two")
        with pytest.raises(AgentClosedError):
            await owner.edit(EditKind.CLEAR_TRANSCRIPT)
        await owner.edit(EditKind.CLOSE)
        # a driver that has lost the answer to a start repeats it
        assert (await owner.start("ex1", "one")).output == "heard one"
        assert (await owner.view("ex1")).output == "heard one"
    after = lab.store.load_root("a1")
    assert (after.lifecycle, after.agent_revision) == (Lifecycle.CLOSED, root.agent_revision)
    assert lab.journal()[-1].kind is RecordKind.AGENT_CLOSED


# --- deletion --------------------------------------------------------------------------------------------------


async def test_a_purged_agent_is_gone_and_its_id_is_free(lab: Any) -> None:
    engine = lab.engine(lab.define(echo))
    other = lab.engine(engine.definition, "a2")
    await lab.run(engine, "one")
    await lab.run(other, "two", id="ex2")
    assert await engine.purge() is True
    with pytest.raises(AgentUnloadedError):
        await engine.start("ex3", "three")
    with pytest.raises(NotFoundError):
        lab.store.load_root("a1")
    assert lab.store.find_execution("ex1") is None
    assert lab.store.read_journal("a1") == []
    assert lab.store.events("ex1") == []
    assert lab.store.load_execution("ex2").output == "heard two"
    again = lab.engine(engine.definition)
    assert (await lab.run(again, "one")).output == "heard one", "the same execution id is free, too"
    assert len(lab.prompts()[-1]) == 1, "it remembers nothing"


async def test_a_replaced_owner_deletes_nothing(lab: Any) -> None:
    engine = lab.engine(lab.define(echo))
    await engine.activate()
    successor = await lab.restarted(engine.definition)
    with pytest.raises(OwnershipLostError):
        await engine.purge()
    assert not engine.is_active, "it has stopped"
    assert (await lab.run(successor, "one")).output == "heard one"


async def test_a_repeated_deletion_leaves_another_agent_of_the_id_alone(lab: Any) -> None:
    first = lab.engine(lab.define(echo))
    await first.activate()
    meant = first.state.root.created_at
    assert await first.purge(meant) is True
    again = lab.engine(first.definition)
    await lab.run(again, "one")
    assert again.state.root.created_at != meant
    assert await again.purge(meant) is False
    assert (await lab.run(again, "two", id="ex2")).output == "heard two"
    assert await again.purge(again.state.root.created_at) is True


async def test_of_two_deletions_at_once_one_deletes(lab: Any) -> None:
    engine = lab.engine(lab.define(echo))
    await engine.activate()
    first, second = await asyncio.gather(engine.purge(), engine.purge(), return_exceptions=True)
    assert first is True
    assert isinstance(second, AgentUnloadedError)


async def test_a_deletion_whose_outcome_is_unknown_stops_its_owner(lab: Any) -> None:
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define(echo), store=store)
    await engine.activate()
    store.fail_after("purge_agent")
    with pytest.raises(CommitOutcomeUnknownError):
        await engine.purge()
    with pytest.raises(NotFoundError):
        await engine.purge()


async def test_a_deletion_that_did_not_happen_changes_nothing(lab: Any) -> None:
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define(echo), store=store)
    await engine.activate()
    store.always_fail("purge_agent")
    with pytest.raises(Exception, match="purge_agent"):
        await engine.purge()
    store.heal()
    assert (await lab.run(engine, "one")).output == "heard one"
    assert await engine.purge() is True


async def test_what_somebody_holds_is_not_deleted_but_can_be_unloaded(lab: Any) -> None:
    engine = lab.engine(lab.define(echo))
    await lab.run(engine, "one")
    lab.store.retain(Retention("report", "a1", "ex1", lab.store.load_root("a1").created_at))
    with pytest.raises(AgentRetainedError, match="held by report"):
        await engine.purge()
    assert (await lab.run(engine, "two", id="ex2")).output == "heard two", "it goes on as before"
    await engine.seal()
    fresh = lab.engine(engine.definition)
    lab.store.release("report", agent_id="a1", execution_id="ex1")
    assert await fresh.purge() is True
