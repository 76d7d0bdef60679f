"""What a real agent refers to survives collections, and what it relies on without giving it again is given anew in time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.clock import utc_now
from phronomy_ray.commits import KEPT_CONTENT_IS_KNOWN
from phronomy_ray.definition.tool import tool
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.testing.clock import ManualClock
from phronomy_ray.testing.faulty_store import FaultyStore


@tool(requires_approval=True)
async def ship(what: str) -> str:
    """Ship it."""
    return f"shipped {what}" * 500


async def test_a_suspended_execution_goes_on_after_collections(lab: Any) -> None:
    definition = lab.define(
        [calls(call("ship", {"what": "w" * 5_000})), final("done")], ship, instructions="Be brief. " * 10
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "i" * 5_000)
    await lab.suspension(engine)
    for days in range(1, 4):
        found = lab.store.collect_contents(
            now=utc_now() + timedelta(days=days), older_than=timedelta(hours=2)
        )
        assert (found.condemned, found.deleted) == (0, 0), found
    fresh = await lab.restarted(definition)
    await lab.decide_all(fresh)
    assert (await lab.end(fresh)).output == "done"
    assert lab.prompts()[-1][0]["content"].startswith("Be brief.")
    last = lab.store.model_calls("ex1")[-1].manifest
    for days in range(4, 6):
        lab.store.collect_contents(now=utc_now() + timedelta(days=days), older_than=timedelta(hours=2))
    assert lab.store.read_content(last["instructions"]) == "Be brief. " * 10
    assert lab.store.read_content(last["tools"])


async def test_what_an_owner_knows_to_be_stored_is_given_again_after_a_while(lab: Any) -> None:
    clock, store = ManualClock(), FaultyStore(lab.store)
    engine = lab.engine(
        lab.define(lambda request: final("ok"), instructions="Be brief."), store=store, clock=clock
    )
    given = []
    for number, wait in enumerate((timedelta(0), KEPT_CONTENT_IS_KNOWN / 2, KEPT_CONTENT_IS_KNOWN)):
        clock.advance(wait.total_seconds())
        before = len(store.executed)
        await lab.run(engine, "hello", id=f"ex{number}")
        hashes = {hash_ for commit in store.executed[before:] for hash_, _ in commit.contents}
        given.append(content_hash("Be brief.") in hashes)
    assert given == [True, False, True]
