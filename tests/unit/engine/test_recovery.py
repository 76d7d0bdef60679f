"""After a crash: every fault point, ownership, and stores that fail for a while."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    ConfigurationError,
    NotFoundError,
    OwnershipLostError,
    PhronomyError,
)
from phronomy_ray.events import EventType
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, Lifecycle, ToolCallStatus
from phronomy_ray.kernel.inputs import Resolve
from phronomy_ray.models.scripted import call, calls, final, hang
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.tool_calls import Resolution, ToolContext

Paired = Callable[[Any], None]


#: The undisturbed run reaches each of these (a test below checks that), the second batch after an approval.
POINTS = [
    "before_claim",
    *(
        f"{side}_commit:{step}"
        for step in ("admit", "batch", "results", "suspend", "decision", "terminal")
        for side in ("before", "after")
    ),
    "before_model",
    "after_model",
    "before_dispatch",
    "after_dispatch",
]


def two_batches(lab: Any, ran: Counter[str], keys: list[str]) -> Any:
    @tool(replay="safe")
    async def read(x: int, context: ToolContext) -> str:
        ran[f"read {x}"] += 1
        keys.append(context.idempotency_key)
        return f"read {x}"

    @tool(replay="idempotent")
    def put(x: int) -> str:
        ran[f"put {x}"] += 1
        return f"put {x}"

    @tool(requires_approval=True)
    async def write(x: int) -> str:
        ran[f"write {x}"] += 1
        return f"wrote {x}"

    return lab.define(
        [
            calls(call("read", {"x": 1}), call("put", {"x": 2}), call("nope", {})),
            calls(call("write", {"x": 3}), call("read", {"x": 4})),
            final("x"),
        ],
        read,
        put,
        write,
    )


async def drive(lab: Any, engine: Any) -> None:
    """Start (or observe) the execution, approve what it asks for, wait for its end."""
    await engine.start("ex1", "go")
    result = await engine.wait("ex1", until="suspended", timeout_s=20)
    assert result is not None, engine.status()
    if result.suspended:
        await lab.decide_all(engine)
    await lab.end(engine)


def comparable(lab: Any) -> list[Any]:
    """The journal, with the identity of a `never` call's attempt left out."""
    return [fact[1:] for fact in lab.facts()]


# --- every fault point --------------------------------------------------------------------------------------


async def test_the_undisturbed_run_reaches_every_fault_point(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    engine = lab.engine(two_batches(lab, Counter(), []))

    async def reach(point: str) -> None:
        seen.add(point)

    monkeypatch.setattr(engine._faults, "reach", reach)
    await drive(lab, engine)
    assert seen == set(POINTS)


@pytest.mark.parametrize("occurrence", [1, 2])
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_any_point_leaves_the_journal_of_an_undisturbed_run(
    lab: Any, tmp_path: Any, point: str, occurrence: int
) -> None:
    (tmp_path / "plain").mkdir()
    undisturbed = type(lab)(tmp_path / "plain")
    await drive(undisturbed, undisturbed.engine(two_batches(undisturbed, Counter(), [])))
    expected = comparable(undisturbed)
    undisturbed.close()

    ran: Counter[str] = Counter()
    keys: list[str] = []
    definition = two_batches(lab, ran, keys)
    reached = write_plan(lab.faults, "a1", point=point, action="fail", occurrence=occurrence)
    first = lab.engine(definition)
    try:
        await drive(lab, first)
        crashed = False
    except FaultInjectedError:
        crashed = True
    assert crashed is reached.exists()
    # the process is lost with everything in memory; another one takes over
    second = lab.engine(definition)
    await second.activate()
    for waiting in second.state.execution.batch if second.state.execution else ():
        if waiting.row.status is ToolCallStatus.UNKNOWN:
            assert waiting.row.replay == "never"
            word = Resolve("ex1", waiting.row.tool_call_id, Resolution.SUCCEEDED, "wrote 3")
            await second.resolve(word)
    await drive(lab, second)
    assert comparable(lab) == expected
    assert ran["write 3"] <= 1, "a never tool ran twice"
    assert len(set(keys)) == 2, "a repeated call keeps its idempotency key"
    result = await second.view("ex1")
    assert (result.status, result.output, result.usage.input_tokens) == (ExecutionStatus.COMPLETED, "x", 30)
    seqs = [event.seq for event in lab.store.events("ex1")]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_a_fault_after_a_commit_stops_the_engine_instead_of_leaving_work_undone(lab: Any) -> None:
    """The caller of `start` gets the error; a waiter must not wait for a model call that nobody makes."""
    engine = lab.engine(lab.define([final("x")]))
    write_plan(lab.faults, "a1", point="after_commit:admit", action="fail")
    with pytest.raises(FaultInjectedError):
        await engine.start("ex1", "go")
    assert engine.status()["lifecycle"] == "recovery_required"
    assert (await lab.end(engine)).output == "x"


async def test_a_loop_that_closes_cancels_no_execution(lab: Any) -> None:
    """Closing an event loop cancels every task; that is no word of anybody about the execution."""
    definition = lab.define([hang()])
    lab.create(definition)

    def process() -> None:
        async def work() -> None:
            engine = lab.engine(definition)
            await engine.start("ex1", "go")
            await lab.until_prompted()

        asyncio.run(work())

    await asyncio.to_thread(process)
    row = lab.store.load_execution("ex1")
    assert (row.status, row.cancel_requested_at) == (ExecutionStatus.ACTIVE, None)


async def test_a_model_call_that_was_dropped_by_a_stop_is_no_cancellation(lab: Any) -> None:
    """The engine stops while a call is running and is woken in the same moment."""
    store = FaultyStore(lab.store)
    definition = lab.define(
        lambda request: final("x") if len(lab.prompts()) > 1 else hang(),
    )
    engine = lab.engine(definition, store=store)
    await engine.start("ex1", "go")
    await lab.until_prompted()
    store.fail_before("queue", error=PhronomyError("out of order"))
    with pytest.raises(PhronomyError, match="out of order"):
        await engine.start("ex2", "not heard", on_busy=BusyRule.QUEUE)
    await engine.activate()
    result = await lab.end(engine)
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "x")


async def events_so_far(engine: Any, id: str = "ex1") -> list[Any]:
    return (await engine.events(id, after=0, cursor=None, timeout_s=20))[0]


# --- stores that fail for a while ---------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [1, 2], ids=["the commit", "the next start too"])
async def test_what_a_never_tool_did_is_not_forgotten_when_its_commit_fails(lab: Any, failures: int) -> None:
    """The process still knows the outcome when the store is back: nobody has to be asked, nothing runs twice."""
    ran: list[int] = []

    @tool()
    async def once() -> str:
        ran.append(1)
        return "done once"

    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define([calls(call("once", {})), final("x")], once), store=store)
    store.always_fail("results")
    await engine.start("ex1", "go")
    for _ in range(failures):
        with pytest.raises(PhronomyError):
            await lab.end(engine)
    store.heal()
    assert (await lab.end_or_question(engine)).output == "x"
    assert ran == [1]
    assert lab.store.tool_calls("ex1")[0].result == "done once"


async def test_what_a_body_did_while_its_engine_starts_again_is_not_forgotten(lab: Any) -> None:
    """The outcome arrives while the next activation holds the writer: it counts before anything is called lost."""
    ran: list[str] = []

    @tool
    def quick() -> str:
        ran.append("quick")
        return "quick"

    @tool
    def slow(context: ToolContext) -> str:
        while not context.is_cancelled():  # the next activation asks it to stop
            lab.release.wait(0.002)
        ran.append("slow")
        return "slow"

    store = FaultyStore(lab.store)
    engine = lab.engine(
        lab.define([calls(call("quick", {}), call("slow", {})), final("x")], quick, slow), store=store
    )
    store.always_fail("results")
    await engine.start("ex1", "go")
    with pytest.raises(PhronomyError):
        await lab.end(engine)
    store.heal()
    assert (await lab.end_or_question(engine)).output == "x"
    assert ran == ["quick", "slow"]


async def test_bodies_of_a_stopped_engine_are_over_before_anything_runs_again(lab: Any) -> None:
    running: Counter[str] = Counter()
    most: list[int] = []
    begun = asyncio.Event()

    @tool(replay="safe")
    async def slow() -> str:
        running["slow"] += 1
        most.append(running["slow"])
        try:
            if len(most) == 1:
                begun.set()
                await asyncio.Event().wait()
            return "slow"
        finally:
            running["slow"] -= 1

    @tool(replay="safe")
    async def quick() -> str:
        await begun.wait()
        return "quick"

    store = FaultyStore(lab.store)
    engine = lab.engine(
        lab.define([calls(call("slow", {}), call("quick", {})), final("x")], slow, quick), store=store
    )
    store.fail_before("results", error=PhronomyError("out of order"))
    await engine.start("ex1", "go")
    with pytest.raises(PhronomyError, match="out of order"):
        await lab.end(engine)
    assert (await lab.end(engine)).output == "x"
    assert most == [1, 1], "the second run began while the first was going on"


async def test_a_tool_that_the_definition_has_no_more_is_a_typed_end(lab: Any, paired: Paired) -> None:
    begun = asyncio.Event()

    @tool(replay="safe")
    async def old_tool() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    script = lambda r: final("fine") if r.last_user == "hi" else calls(call("old_tool", {}))  # noqa: E731
    write_plan(lab.faults, "a1", point="after_dispatch", action="fail")
    engine = lab.engine(lab.define(script, old_tool))
    with pytest.raises(FaultInjectedError):
        await lab.run(engine, "go")
    second = lab.engine(lab.define(script))
    await second.activate()
    result = await lab.end(second)
    assert result.status is ExecutionStatus.FAILED
    assert result.error is not None
    assert "old_tool" in result.error.message
    assert (await lab.run(second, "hi", id="ex2")).output == "fine"
    paired(lab.prompts()[-1])


# --- ownership ----------------------------------------------------------------------------------------------


async def test_of_two_engines_the_older_one_cannot_commit_and_stops(lab: Any) -> None:
    told: list[str] = []
    gate = asyncio.Event()

    @tool(replay="safe")
    async def gated() -> str:
        await gate.wait()
        return "g"

    definition = lab.define([calls(call("gated", {})), final("x")], gated)
    older = lab.engine(definition, on_ownership_lost=lambda: told.append("older"))
    await older.start("ex1", "go")
    async with asyncio.timeout(20):
        while not any(e.type is EventType.TOOL_STARTED for e in await events_so_far(older)):
            await asyncio.sleep(0.002)
    waiting = asyncio.ensure_future(older.wait("ex1", until="terminal", timeout_s=20))
    await asyncio.sleep(0)
    newer = lab.engine(definition)
    await newer.activate()
    gate.set()
    with pytest.raises(OwnershipLostError):
        await waiting
    assert told == ["older"]
    assert (await lab.end(newer)).output == "x"
    # the older one does not take the agent back, whatever it is asked
    epoch = lab.store.load_root("a1").epoch
    for operation in (
        older.start("ex2", "go"),
        older.view("ex1"),
        older.cancel("ex1", "x"),
        older.wait("ex1", until="terminal", timeout_s=1),
    ):
        with pytest.raises(OwnershipLostError):
            await operation
    assert lab.store.load_root("a1").epoch == epoch
    assert (await lab.run(newer, "go", id="ex2")).output == "x"
    positions = [record.position for record in lab.journal()]
    assert positions == list(range(1, len(positions) + 1))


async def test_an_idle_engine_that_lost_its_agent_learns_it_at_its_next_commit(lab: Any) -> None:
    definition = lab.define([final("x")])
    older, newer = lab.engine(definition), lab.engine(definition)
    await older.activate()
    await newer.activate()
    with pytest.raises(OwnershipLostError):
        await older.start("ex1", "go")
    assert lab.store.find_execution("ex1") is None
    assert (await lab.run(newer, id="ex1")).output == "x"


async def test_ten_callers_activate_once(lab: Any) -> None:
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define([final("x")]), store=store)
    await asyncio.gather(*(engine.activate() for _ in range(10)))
    assert store.calls.count("claim") == 1
    await engine.activate()
    assert store.calls.count("claim") == 1


async def test_an_agent_of_another_definition_is_refused_before_it_is_claimed(lab: Any) -> None:
    definition = lab.define([final("x")])
    await lab.engine(definition).activate()
    epoch = lab.store.load_root("a1").epoch
    for other in (
        lab.define([final("x")], definition_version="2"),
        lab.define([final("x")], definition_id="other"),
    ):
        with pytest.raises(ConfigurationError, match="stored as"):
            await lab.engine(other).activate()
    missing = lab.engine(definition, "b")
    missing.agent_id = "missing"
    with pytest.raises(NotFoundError):
        await missing.activate()
    assert lab.store.load_root("a1").epoch == epoch
    assert lab.store.load_root("a1").lifecycle is Lifecycle.IDLE


async def test_an_input_that_is_being_prepared_is_prepared_again_after_a_crash(lab: Any) -> None:
    count: list[int] = []

    def instructions(given: Any) -> str:
        count.append(1)
        return "Be brief."

    definition = lab.define([final("x")], instructions=staticmethod(instructions))
    engine = lab.engine(definition)
    write_plan(lab.faults, "a1", point="before_commit:prepared", action="fail")
    await engine.start("ex1", "go")
    with pytest.raises(FaultInjectedError):
        await lab.end(engine)
    second = lab.engine(definition)
    await second.activate()
    assert (await lab.end(second)).output == "x"
    assert len(count) == 2
    assert lab.kinds().count("external_message") == 1
