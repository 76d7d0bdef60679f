"""Edge cases of the tool envelope and its ledger, named after their numbers in ``tests/tool_assembly_cases.toml``.

They follow the specs of Insika's ToolEnvelope and checkpoint store. Where that system skips a call by its id, here the
ledger's stored result takes the body's place; where it forgets a timeout, here it is an outcome like any other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.engine.kept_results import KEPT_RESULTS
from phronomy_ray.errors import OwnershipLostError, StateConflictError
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.inputs import ToolOutcomes
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.tool_calls import ToolContext

GUARD_S = 20.0


def told(lab: Any, turn: int = -1) -> list[str]:
    """What the model was told by tools, in the last prompt."""
    return [message["content"] for message in lab.prompts()[turn] if message["role"] == "tool"]


async def until_stored(lab: Any, *statuses: str, id: str = "ex1") -> None:
    """Wait until the ledger says so of the first calls."""
    async with asyncio.timeout(GUARD_S):
        while [row.status.value for row in lab.store.tool_calls(id)][: len(statuses)] != list(statuses):
            await asyncio.sleep(0.002)


class Shop:
    """Tools that count what they do; one of them can be held."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.ids: list[str] = []
        self.hold = asyncio.Event()
        self.held = asyncio.Event()

        @tool()
        async def order(item: str, context: ToolContext) -> str:
            self.ran[item] += 1
            self.ids.append(context.tool_call_id)
            return f"order {len(self.ids)} for {item}"

        @tool(replay="safe")
        async def look(item: str) -> str:
            self.ran[item] += 1
            return f"{item} seen {self.ran[item]} times"

        @tool(replay="safe")
        async def wait(item: str) -> str:
            self.ran[item] += 1
            self.held.set()
            await self.hold.wait()
            return f"waited for {item}"

        self.tools = (order, look, wait)

    async def crash(self, lab: Any, definition: Any, *stored: str) -> Any:
        """Run until the held body runs and `stored` is in the ledger; then another engine takes the agent."""
        first = lab.engine(definition)
        await first.start("ex1", "go")
        await asyncio.wait_for(self.held.wait(), GUARD_S)
        await until_stored(lab, *stored)
        second = lab.engine(definition)
        await second.activate()
        self.hold.set()
        with pytest.raises(OwnershipLostError):
            await first.wait("ex1", until="terminal", timeout_s=GUARD_S)
        return second


# --- time ------------------------------------------------------------------------------------------------------


async def test_TA32_the_agent_s_limit_takes_the_place_of_its_tools_limits(lab: Any) -> None:
    @tool(name="slow", timeout_s=30, on_error="suppress")
    async def slow(context: ToolContext) -> str:
        assert context.timeout_s == 0.05
        await asyncio.Event().wait()
        return "never"

    definition = lab.define([calls(call("slow", {})), final("x")], slow, tool_timeout_s=0.05)
    assert (await lab.run(lab.engine(definition))).output == "x"
    assert lab.store.tool_calls("ex1")[0].status is ToolCallStatus.TIMED_OUT
    assert slow.spec.timeout_s == 30, "the tool itself is as it was"


@pytest.mark.parametrize("blocking", [False, True])
async def test_TA36_TA37_a_timeout_is_told_with_its_limit_and_the_body_was_entered_once(
    lab: Any, blocking: bool
) -> None:
    entered: list[int] = []

    @tool(name="slow", replay="safe", retries=2, timeout_s=0.05, on_error="suppress")
    async def turns() -> None:
        entered.append(1)
        await asyncio.Event().wait()

    @tool(name="slow", replay="safe", retries=2, timeout_s=0.05, on_error="suppress")
    def blocks() -> None:
        entered.append(1)
        lab.release.wait(GUARD_S)

    definition = lab.define(
        [calls(call("slow", {})), final("x")], blocks if blocking else turns, quiescence_timeout_s=0.05
    )
    assert (await lab.run(lab.engine(definition))).output == "x"
    (text,) = told(lab)
    assert text.startswith("Error (tool_timeout)")
    assert "0.05 s" in text
    assert entered == [1]


async def test_TA38_a_timeout_is_an_outcome_in_the_ledger_and_is_not_run_again(lab: Any) -> None:
    entered: list[int] = []
    shop = Shop()

    @tool(timeout_s=0.05, on_error="suppress")
    async def slow() -> None:
        entered.append(1)
        await asyncio.Event().wait()

    definition = lab.define(
        [calls(call("slow", {}), call("wait", {"item": "x"})), final("x")], slow, *shop.tools
    )
    second = await shop.crash(lab, definition, "timed_out", "dispatched")
    assert (await lab.end(second)).output == "x"
    assert entered == [1], "its effect may have happened: a resumed turn does not make it happen again"
    assert told(lab)[0].startswith("Error (tool_timeout)")


# --- the ledger in place of a second run -----------------------------------------------------------------------


async def test_TA40_TA43_a_call_that_is_done_gives_its_stored_result_and_does_not_run_again(lab: Any) -> None:
    shop = Shop()
    batch = calls(call("order", {"item": "pen"}, id="call_1"), call("wait", {"item": "x"}, id="call_2"))
    second = await shop.crash(lab, lab.define([batch, final("x")], *shop.tools), "succeeded", "dispatched")
    assert (await lab.end(second)).output == "x"
    assert shop.ran == {"pen": 1, "x": 2}, "the held one is replayable, and its outcome was not known"
    assert told(lab) == ["order 1 for pen", "waited for x"], (
        "the result itself, not a mark that it was skipped"
    )
    rows = lab.store.tool_calls("ex1")
    assert [row.provider_call_id for row in rows] == ["call_1", "call_2"]
    assert [row.attempt for row in rows] == [1, 2]


async def test_TA41_TA42_a_call_is_known_by_its_id_and_never_by_its_name_or_arguments(lab: Any) -> None:
    shop = Shop()
    batch = calls(
        call("order", {"item": "pen"}),
        call("wait", {"item": "x"}),
        call("order", {"item": "pen"}),
    )
    script = [batch, calls(call("order", {"item": "pen"})), final("x")]
    second = await shop.crash(lab, lab.define(script, *shop.tools), "succeeded", "dispatched", "succeeded")
    assert (await lab.end(second)).output == "x"
    assert shop.ran["pen"] == 3, "two of one batch and one of the next: alike, and each its own"
    assert len(set(shop.ids)) == 3
    assert told(lab)[-1] == "order 3 for pen"


async def test_TA44_also_a_tool_without_side_effects_has_its_row_and_its_stored_result(lab: Any) -> None:
    shop = Shop()
    batch = calls(call("look", {"item": "pen"}), call("wait", {"item": "x"}))
    second = await shop.crash(lab, lab.define([batch, final("x")], *shop.tools), "succeeded", "dispatched")
    assert (await lab.end(second)).output == "x"
    assert shop.ran["pen"] == 1, "it could be run again, but its result is known"
    assert told(lab)[0] == "pen seen 1 times"


async def test_TA45_calls_without_a_provider_s_id_have_ids_of_their_own(lab: Any) -> None:
    shop = Shop()
    batch = calls(*(call("order", {"item": "pen"}, id="") for _ in range(3)))
    assert (await lab.run(lab.engine(lab.define([batch, final("x")], *shop.tools)))).output == "x"
    rows = lab.store.tool_calls("ex1")
    assert len({row.tool_call_id for row in rows}) == len({row.provider_call_id for row in rows}) == 3
    assert shop.ran["pen"] == 3


async def test_TA48_TA49_interleaved_calls_are_recorded_and_skipped_each_for_itself(lab: Any) -> None:
    shop = Shop()
    batch = calls(*(call("order" if n % 2 else "wait", {"item": str(n)}, id=f"call_{n}") for n in range(10)))
    stored = ["succeeded" if n % 2 else "dispatched" for n in range(10)]
    second = await shop.crash(lab, lab.define([batch, final("x")], *shop.tools), *stored)
    assert (await lab.end(second)).output == "x"
    assert shop.ran == {str(n): 1 if n % 2 else 2 for n in range(10)}
    rows = lab.store.tool_calls("ex1")
    assert [row.provider_call_id for row in rows] == [f"call_{n}" for n in range(10)]
    assert [row.arguments["item"] for row in rows] == [str(n) for n in range(10)]
    for n, text in enumerate(told(lab)):
        assert text.endswith(f"for {n}")


async def test_TA79_an_error_that_a_tool_returns_is_a_result_and_its_effect_is_not_repeated(lab: Any) -> None:
    shop = Shop()
    paid: list[int] = []

    @tool()
    async def pay(cents: int) -> dict[str, str]:
        paid.append(cents)
        return {"error": "the card was refused"}

    batch = calls(call("pay", {"cents": 5}), call("wait", {"item": "x"}))
    definition = lab.define([batch, final("x")], pay, *shop.tools)
    second = await shop.crash(lab, definition, "succeeded", "dispatched")
    assert (await lab.end(second)).output == "x"
    assert paid == [5]
    assert told(lab)[0] == '{"error":"the card was refused"}'


async def test_TA83_a_resumed_turn_goes_on_with_its_batch_and_asks_the_model_for_no_new_calls(
    lab: Any,
) -> None:
    """The provider would give new ids; the ids that count are those that were committed."""
    shop = Shop()
    minted: list[int] = []

    def script(request: Any) -> Any:
        minted.append(1)
        if request.sequence == 2:
            return final("x")
        return calls(
            call("order", {"item": "pen"}, id=f"new_{len(minted)}"),
            call("wait", {"item": "x"}, id=f"newer_{len(minted)}"),
        )

    second = await shop.crash(lab, lab.define(script, *shop.tools), "succeeded", "dispatched")
    assert (await lab.end(second)).output == "x"
    assert len(minted) == 2, "one answer for each model call: the first was not asked for again"
    assert shop.ran["pen"] == 1
    assert [row.provider_call_id for row in lab.store.tool_calls("ex1")] == ["new_1", "newer_1"]


# --- approval --------------------------------------------------------------------------------------------------


def gated(lab: Any) -> tuple[Any, list[str]]:
    ran: list[str] = []

    @tool(requires_approval=True)
    async def write(text: str) -> str:
        ran.append(text)
        return f"wrote {text}"

    @tool()
    async def note(text: str) -> str:
        ran.append(text)
        return f"noted {text}"

    batch = calls(call("write", {"text": "a"}), call("note", {"text": "b"}))
    return lab.define([batch, final("x")], write, note), ran


async def test_TA51_an_approved_call_runs(lab: Any) -> None:
    definition, ran = gated(lab)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    assert ran == []
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "x"
    assert sorted(ran) == ["a", "b"]
    assert told(lab) == ["wrote a", "noted b"]


async def test_TA52_a_rejected_call_does_not_run_and_is_answered_as_such(lab: Any) -> None:
    definition, ran = gated(lab)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    await lab.decide_all(engine, approved=False)
    await lab.end(engine)
    assert "a" not in ran
    row = lab.store.tool_calls("ex1")[0]
    assert (row.status, row.attempt) == (ToolCallStatus.REJECTED, 0)
    assert (row.model_text or "").startswith("Rejected")


async def test_TA53_a_call_that_needs_nobody_asks_nobody(lab: Any) -> None:
    definition, _ = gated(lab)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert [request.tool_name for request in waiting.approvals] == ["write"]
    assert [row.requires_approval for row in lab.store.tool_calls("ex1")] == [True, False]


# --- the ledger itself -----------------------------------------------------------------------------------------


async def test_TA62_the_latest_batch_is_the_one_with_the_highest_number_not_the_last_by_text(
    lab: Any,
) -> None:
    shop = Shop()
    script = [
        *(calls(call("order", {"item": str(n)})) for n in range(10)),
        calls(call("wait", {"item": "x"})),
        final("x"),
    ]
    definition = lab.define(script, *shop.tools, max_iterations=20)
    second = await shop.crash(lab, definition, *["succeeded"] * 10, "dispatched")
    assert (await lab.end(second)).output == "x"
    assert all(shop.ran[str(n)] == 1 for n in range(10))
    rows = lab.store.tool_calls("ex1")
    assert [row.arguments["item"] for row in rows] == [*(str(n) for n in range(10)), "x"]


async def test_TA63_an_outcome_that_comes_twice_is_recorded_once(lab: Any) -> None:
    shop = Shop()
    batch = calls(call("order", {"item": "pen"}), call("wait", {"item": "x"}))
    engine = lab.engine(lab.define([batch, final("x")], *shop.tools))
    fed: list[Any] = []
    feed = engine._feed

    async def twice(event: Any) -> bool:
        if isinstance(event, ToolOutcomes):
            fed.append(event)
            await feed(event)
        return bool(await feed(event))

    engine._work._hooks = replace(engine._work._hooks, feed=twice)
    await engine.start("ex1", "go")
    await until_stored(lab, "succeeded")
    shop.hold.set()
    assert (await lab.end(engine)).output == "x"
    assert len(fed) == 2
    assert [len(row.attempts) for row in lab.store.tool_calls("ex1")] == [1, 1]
    assert lab.kinds().count("tool_result") == 2


async def test_TA64_TA65_what_was_recorded_during_the_batch_stands_in_the_journal_once(lab: Any) -> None:
    shop = Shop()
    batch = calls(call("order", {"item": "pen"}), call("wait", {"item": "x"}))
    second = await shop.crash(lab, lab.define([batch, final("x")], *shop.tools), "succeeded", "dispatched")
    await lab.end(second)
    records = [record for record in lab.journal() if record.kind.value == "tool_result"]
    assert [record.content for record in records] == ["order 1 for pen", "waited for x"]
    assert [record.causation_id for record in records] == [
        row.tool_call_id for row in lab.store.tool_calls("ex1")
    ]
    assert second.state.execution is None


async def test_TA67_what_an_owner_holds_of_ended_turns_is_bounded_and_the_store_forgets_none(
    lab: Any,
) -> None:
    shop = Shop()
    count = KEPT_RESULTS + 3
    engine = lab.engine(lab.define([calls(call("look", {"item": "pen"})), final("x")], *shop.tools))
    for n in range(count):
        await lab.run(engine, id=f"ex{n}")
    assert list(engine._results) == [f"ex{n}" for n in range(3, count)], "the newest ones"
    oldest = await engine.view("ex0")
    assert (oldest.status, oldest.output) == (ExecutionStatus.COMPLETED, "x")
    assert [len(lab.store.tool_calls(f"ex{n}")) for n in range(count)] == [1] * count


async def test_TA71_turns_of_several_agents_with_the_same_call_ids_know_nothing_of_each_other(
    lab: Any,
) -> None:
    shop = Shop()
    definition = lab.define([calls(call("order", {"item": "pen"}, id="call_1")), final("x")], *shop.tools)
    engines = [lab.engine(definition, f"a{n}") for n in range(3)]
    await asyncio.gather(*(lab.run(engine, id=f"ex-{engine.agent_id}") for engine in engines))
    await lab.run(engines[0], id="ex-again")
    assert shop.ran["pen"] == 4
    rows = [lab.store.tool_calls(turn)[0] for turn in ("ex-a0", "ex-a1", "ex-a2", "ex-again")]
    assert {row.provider_call_id for row in rows} == {"call_1"}
    assert len({row.tool_call_id for row in rows}) == 4
    with pytest.raises(StateConflictError):
        await engines[1].start("ex-a0", "hello")


async def test_TA73_a_store_that_was_closed_and_opened_again_has_all_that_a_resume_needs(lab: Any) -> None:
    shop = Shop()
    batch = calls(call("order", {"item": "pen"}), call("wait", {"item": "x"}))
    definition = lab.define([batch, final("x")], *shop.tools)
    first = lab.engine(definition)
    await first.start("ex1", "go")
    await asyncio.wait_for(shop.held.wait(), GUARD_S)
    await until_stored(lab, "succeeded", "dispatched")
    lab.store.close()
    reopened = open_store(lab.url)
    second = lab.engine(definition, store=reopened)
    await second.activate()
    shop.hold.set()
    assert (await lab.end(second)).output == "x"
    assert shop.ran == {"pen": 1, "x": 2}
    with pytest.raises(OwnershipLostError):
        await first.wait("ex1", until="terminal", timeout_s=GUARD_S)
    reopened.close()


async def test_TA74_two_owners_that_resume_at_once_make_each_effect_once(lab: Any) -> None:
    shop = Shop()
    ran: list[str] = []

    @tool(requires_approval=True)
    async def write(text: str) -> str:
        ran.append(text)
        return f"wrote {text}"

    script = [calls(call("order", {"item": "pen"}), call("write", {"text": "a"})), final("x")]
    definition = lab.define(script, write, *shop.tools)
    first = lab.engine(definition)
    await first.start("ex1", "go")
    await lab.suspension(first)
    owners = [lab.engine(definition) for _ in range(2)]
    answers = await asyncio.gather(*(lab.decide_all(owner) for owner in owners), return_exceptions=True)
    winner = next(owner for owner in reversed(owners) if owner.is_active)
    assert (await lab.end(winner)).output == "x", answers
    assert (ran, shop.ran["pen"]) == (["a"], 1)
