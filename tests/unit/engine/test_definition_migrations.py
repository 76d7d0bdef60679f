"""A stored agent whose class has another version: refused with what to do, or carried over once and for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.definition.migrations import DefinitionMigration
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    DefinitionChangedError,
    DefinitionVersionError,
    StoreUnavailableError,
)
from phronomy_ray.journal import ExecutionStatus, RecordKind
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.tool_calls import ToolContext


@tool(requires_approval=True)
async def ship(context: ToolContext) -> str:
    """Ship it."""
    return f"to {context.durable_context}"


def script(request: Any) -> Any:
    if request.last_user == "ship" and request.sequence == 1:
        return calls(call("ship", {}))
    return final(f"heard {request.messages[-1]['content']}")


def no_argument() -> dict[str, Any]:
    return {}


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    return {"place": values["city"]} if "city" in values else values


BOTH = DefinitionMigration(metadata=lambda kept: {**kept, "carried": True}, durable_context=renamed)


async def test_an_unknown_version_is_refused_with_what_to_do_and_others_go_on(lab: Any) -> None:
    old = lab.define(script)
    await lab.run(lab.engine(old), "one")
    new = lab.define(script, definition_version="3", definition_migrations=["2"])
    with pytest.raises(DefinitionVersionError) as caught:
        await lab.engine(new).activate()
    assert "definition_migrations of Clerk" in caught.value.message
    assert caught.value.details == {
        "agent_id": "a1",
        "stored_id": "clerk",
        "stored_version": "1",
        "present_id": "clerk",
        "present_version": "3",
        "accepted": [["clerk", "2"]],
    }
    assert (await lab.run(lab.engine(new, "a2"), "two", id="ex2")).output == "heard two"
    root = lab.store.load_root("a1")
    assert (root.definition_version, root.epoch) == ("1", 1), "nothing was claimed or changed"
    assert (await lab.run(await lab.restarted(old), "three", id="ex3")).output == "heard three"


@pytest.mark.parametrize("declared", [["1"], {"1": None}, [("clerk", "1")]])
async def test_an_accepted_version_is_carried_over_once(lab: Any, declared: Any) -> None:
    old = lab.define(script)
    await lab.run(lab.engine(old), "one")
    before = lab.store.load_root("a1")
    new = lab.define(script, definition_version="2", definition_migrations=declared)
    for _ in range(2):
        await lab.restarted(new)
    root = lab.store.load_root("a1")
    assert (root.definition_version, root.metadata) == ("2", before.metadata)
    assert root.agent_revision == before.agent_revision + 1
    (record,) = [item for item in lab.journal() if item.kind is RecordKind.DEFINITION_MIGRATED]
    assert record.content == {"from": ["clerk", "1"], "to": ["clerk", "2"]}
    engine = await lab.restarted(new)
    assert (await lab.run(engine, "two", id="ex2")).output == "heard two"
    assert [message["content"] for message in lab.prompts()[-1]] == ["one", "heard one", "two"]
    with pytest.raises(DefinitionVersionError):
        await lab.engine(old).activate()


async def test_an_approval_given_under_an_accepted_version_holds_while_the_tool_is_the_same(lab: Any) -> None:
    engine = lab.engine(lab.define(script, ship))
    await engine.start("ex1", "ship")
    (request,) = (await lab.suspension(engine)).approvals
    lab.create(lab.define(script, ship), "a2")
    refused = lab.define(script, ship, definition_version="3", definition_migrations=["2"])
    second = lab.define(script, ship, definition_version="2", definition_migrations=["1"])
    await lab.restarted(second)
    only_second = await lab.restarted(refused)
    with pytest.raises(DefinitionChangedError, match="another version than '1'"):
        await only_second.decide(Decide("ex1", request.approval_request_id, True, "bob"))
    both = lab.define(script, ship, definition_version="3", definition_migrations=["1", "2"])
    await lab.decide_all(await lab.restarted(both))
    assert (await lab.end(lab.engines[-1])).output == "heard to None"


async def test_another_id_is_accepted_by_its_pair(lab: Any) -> None:
    await lab.run(lab.engine(lab.define(script, definition_id="office:Clerk")), "one")
    new = lab.define(script, definition_migrations={("office:Clerk", "1"): BOTH})
    assert (await lab.run(await lab.restarted(new), "two", id="ex2")).output == "heard two"
    root = lab.store.load_root("a1")
    assert (root.definition_id, root.metadata) == ("clerk", {"carried": True})


async def test_stored_contexts_are_mapped_where_work_is_open_and_where_it_waits(lab: Any) -> None:
    engine = lab.engine(lab.define(script, ship))
    await engine.start("ex1", "ship", durable_context={"city": "Oslo"})
    await lab.suspension(engine)
    await engine.start("ex2", "later", durable_context={"city": "Rome", "pad": "x" * 9000}, on_busy="queue")
    await engine.start("ex3", "at last", on_busy="queue")
    new = lab.define(script, ship, definition_version="2", definition_migrations={"1": BOTH})
    fresh = await lab.restarted(new)
    assert lab.store.load_execution("ex1").durable_context == {"place": "Oslo"}
    assert [request.durable_context for request in lab.store.queued_requests("a1")] == [
        {"place": "Rome"},
        None,
    ]
    again = await lab.restarted(new)
    assert fresh is not again
    await lab.decide_all(again)
    assert (await lab.end(again)).output == "heard to {'place': 'Oslo'}"
    assert (await lab.end(again, "ex2")).output == "heard later"
    assert lab.store.load_execution("ex2").durable_context == {"place": "Rome"}
    await lab.end(again, "ex3")
    assert (await again.start("ex1", "ship", durable_context={"city": "Oslo"})).status is (
        ExecutionStatus.COMPLETED
    ), "the same start again is the same execution"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda kept: kept["nothing"], "failed: KeyError"),
        (lambda kept: [kept], "gave a list"),
        (lambda kept: {"x": object()}, "did not give plain JSON"),
        (lambda kept: {}[StopIteration()], "failed: KeyError"),
    ],
)
async def test_a_migration_that_fails_changes_nothing(lab: Any, function: Any, said: str) -> None:
    await lab.run(lab.engine(lab.define(script)), "one")
    wrong = {"1": DefinitionMigration(metadata=function)}
    new = lab.define(script, definition_version="2", definition_migrations=wrong)
    with pytest.raises(ConfigurationError, match=said) as caught:
        await lab.engine(new).activate()
    assert caught.value.code == "definition_migration"
    assert lab.store.load_root("a1").definition_version == "1"
    good = lab.define(script, definition_version="2", definition_migrations={"1": BOTH})
    assert (await lab.run(await lab.restarted(good), "two", id="ex2")).output == "heard two"


async def test_a_crash_in_the_middle_is_harmless(lab: Any) -> None:
    await lab.run(lab.engine(lab.define(script)), "one")
    new = lab.define(script, definition_version="2", definition_migrations={"1": BOTH})
    store = FaultyStore(lab.store)
    store.always_fail("definition")
    with pytest.raises(StoreUnavailableError):
        await lab.engine(new, store=store).activate()
    store.heal()
    store.fail_after("definition")
    store.fail_before("settle", error=CommitOutcomeUnknownError("lost"))
    with pytest.raises(CommitOutcomeUnknownError):
        await lab.engine(new, store=store).activate()
    assert (await lab.run(await lab.restarted(new), "two", id="ex2")).output == "heard two"
    assert lab.store.load_root("a1").metadata == {"carried": True}
    assert [item.kind for item in lab.journal()].count(RecordKind.DEFINITION_MIGRATED) == 1


async def test_two_owners_at_once_carry_it_over_once(lab: Any) -> None:
    await lab.run(lab.engine(lab.define(script)), "one")
    new = lab.define(script, definition_version="2", definition_migrations={"1": BOTH})
    engines = [lab.engine(new, store=lab.open()) for _ in range(3)]
    await asyncio.gather(*(engine.activate() for engine in engines), return_exceptions=True)
    assert lab.store.load_root("a1").definition_version == "2"
    assert [item.kind for item in lab.journal()].count(RecordKind.DEFINITION_MIGRATED) == 1


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("1", "a list of versions"),
        (7, "a list of versions"),
        ([1], "neither a version nor a pair"),
        ([("clerk",)], "neither a version nor a pair"),
        ([""], "neither a version nor a pair"),
        (["2"], "the present version"),
        ([("clerk", "2")], "the present version"),
        (["1", ("clerk", "1")], "twice"),
        ({"1": lambda kept: kept}, "neither a DefinitionMigration nor None"),
        ({"1": DefinitionMigration(metadata=7)}, "metadata must be a function"),  # type: ignore[arg-type]
        ({"1": DefinitionMigration(durable_context=no_argument)}, "durable_context must be a function"),  # type: ignore[arg-type, misc]
    ],
)
def test_a_wrong_declaration_is_an_error_of_the_class(lab: Any, declared: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        lab.define(script, definition_version="2", definition_migrations=declared)
