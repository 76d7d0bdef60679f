"""Batches that a human is asked about: what is asked, what runs, and what survives a restart, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    DefinitionChangedError,
    InvalidInputError,
    StateConflictError,
)
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, RecordKind, ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.results import RunResult

Paired = Callable[[Any], None]


S = ToolCallStatus


def ids(result: RunResult) -> list[str]:
    return [request.approval_request_id for request in result.approvals]


# --- batches ------------------------------------------------------------------------------------------------


async def test_A01_each_call_has_its_own_request_and_every_answer_reaches_its_call(lab: Any) -> None:
    work = lab.deletions()
    script = [calls(*(call("delete", {"n": n}) for n in (1, 2, 3))), final("x")]
    definition = lab.define(script, work.delete)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    asked = ids(await lab.suspension(engine))
    assert len(set(asked)) == 3
    for index, approved in ((1, True), (0, False), (2, True)):
        engine = await lab.restarted(definition)
        await engine.decide(Decide("ex1", asked[index], approved, "bob"))
    assert (await lab.end(engine)).output == "x"
    assert work.done == [2, 3]
    first, *others = lab.tool_texts()
    assert first.startswith("Rejected: a human refused this call")
    assert others == ["deleted 2", "deleted 3"]
    assert [row.status for row in lab.store.tool_calls("ex1")] == [S.REJECTED, S.SUCCEEDED, S.SUCCEEDED]


async def test_A02_all_requests_of_a_batch_are_listed_at_once_from_the_store(lab: Any) -> None:
    work = lab.deletions()
    script = [
        calls(
            call("delete", {"n": 1}),
            call("read", {"n": 9}),
            call("delete", {"n": 2}),
            call("delete", {"n": 3}),
        ),
        final("x"),
    ]
    definition = lab.define(script, work.delete, work.free)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    asked = ids(await lab.suspension(engine))
    listed = lab.store.approvals(pending_only=True)
    assert [row.arguments for row in listed] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [row.approval_request_id for row in listed] == asked
    assert {row.batch_id for row in listed} == {"ex1:m1"}
    again = await lab.restarted(definition)
    assert ids(await again.view("ex1")) == asked
    required = [e.payload for e in await engine.stored_events("ex1", 0) if e.type == "approval_required"]
    assert [payload["approval_request_id"] for payload in required] == asked
    assert lab.kinds().count("approval_required") == 3


async def test_A04_free_calls_never_ask_and_nothing_is_invented_while_calls_wait(lab: Any) -> None:
    work = lab.deletions()
    script = [
        calls(call("read", {"n": 1}), call("delete", {"n": 2})),
        calls(call("delete", {"n": 3}), call("delete", {"n": 4})),
        final("x"),
    ]
    engine = lab.engine(lab.define(script, work.delete, work.free))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert [request.tool_name for request in waiting.approvals] == ["delete"]
    assert (work.read, work.done) == ([], []), "the batch is settled before any body runs"
    await engine.decide(Decide("ex1", ids(waiting)[0], True))
    waiting = await lab.suspension(engine)
    assert (work.read, work.done) == ([1], [2])
    still = await engine.decide(Decide("ex1", ids(waiting)[0], True))
    assert still.suspended, "every gated call is decided first"
    assert work.done == [2]
    assert [row.status for row in lab.store.tool_calls("ex1")][2:] == [S.INTENT, S.AWAITING_APPROVAL]
    assert len(lab.prompts()) == 2
    assert still.messages[-1].role.value == "assistant", "no result before there is one"
    await engine.decide(Decide("ex1", ids(waiting)[1], True))
    assert (await lab.end(engine)).output == "x"
    assert sorted(work.done) == [2, 3, 4]


async def test_A05_answers_are_taken_one_by_one_across_restarts_and_repeating_one_gives_the_stored_decision(
    lab: Any,
) -> None:
    work = lab.deletions()
    script = [
        calls(call("delete", {"n": 1}), call("delete", {"n": 2})),
        calls(call("delete", {"n": 3})),
        final("x"),
    ]
    definition = lab.define(script, work.delete)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    first, second = ids(await lab.suspension(engine))
    answered = await engine.decide(Decide("ex1", first, True, "ann", "fine"))
    assert answered.suspended
    engine = await lab.restarted(definition)
    again = await engine.decide(Decide("ex1", first, True, "bob", "mine"))
    assert again.suspended
    assert again.decision is not None
    assert (again.decision.decided_by, again.decision.reason) == ("ann", "fine"), "the first answer counts"
    assert ids(again) == [second]
    await engine.decide(Decide("ex1", second, True, "ann"))
    third = ids(await lab.suspension(engine))
    assert len(third) == 1
    assert lab.store.approvals(pending_only=True)[0].arguments == {"n": 3}
    await engine.decide(Decide("ex1", third[0], True, "ann"))
    ended = await lab.end(engine)
    assert work.done == [1, 2, 3]
    for owner in (engine, await lab.restarted(definition)):
        late = await owner.decide(Decide("ex1", first, True, "eve"))
        assert (late.status, late.output) == (ended.status, "x")
        assert late.decision is not None
        assert late.decision.decided_by == "ann"
    assert work.done == [1, 2, 3], "a repeated answer runs nothing again"


async def test_twenty_answers_at_once_are_one_decision(lab: Any) -> None:
    work = lab.deletions()
    script = [calls(call("delete", {"n": 1}), call("delete", {"n": 2})), final("x")]
    engine = lab.engine(lab.define(script, work.delete))
    await engine.start("ex1", "go")
    request, other = ids(await lab.suspension(engine))
    answers = await asyncio.gather(
        *(engine.decide(Decide("ex1", request, n % 2 == 0, f"user {n}")) for n in range(20)),
        return_exceptions=True,
    )
    row = next(r for r in lab.store.approvals() if r.approval_request_id == request)
    taken = [answer for answer in answers if isinstance(answer, RunResult)]
    refused = [answer for answer in answers if isinstance(answer, StateConflictError)]
    assert (len(taken), len(refused)) == (10, 10)
    for answer in taken:
        assert answer.decision is not None
        assert (answer.decision.decided_by, answer.decision.decided_at) == (row.decided_by, row.decided_at)
    for error in refused:
        assert row.decided_by in error.message
        assert error.details["decided_by"] == row.decided_by
        assert error.details["decided_at"] == row.decided_at.isoformat()
        assert error.details["status"] == row.status.value
    assert lab.kinds().count("approval_decided") == 1
    await engine.decide(Decide("ex1", other, True))
    await lab.end(engine)


async def test_a_rejected_call_of_a_mixed_batch_is_answered_and_the_turn_goes_on(
    lab: Any, paired: Paired
) -> None:
    work = lab.deletions()
    script = [calls(call("delete", {"n": 1}), call("read", {"n": 2}), call("delete", {"n": 3})), final("x")]
    engine = lab.engine(lab.define(script, work.delete, work.free))
    await engine.start("ex1", "go")
    first, second = ids(await lab.suspension(engine))
    await engine.decide(Decide("ex1", first, False, "bob", "too big"))
    await engine.decide(Decide("ex1", second, True, "bob"))
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.COMPLETED
    assert (work.done, work.read) == ([3], [2])
    texts = lab.tool_texts()
    assert texts[0].endswith("it was not performed. Reason: too big")
    assert texts[1:] == ["read 2", "deleted 3"], "in the order of the requests"
    paired(lab.prompts()[-1])


# --- what runs is what was approved -------------------------------------------------------------------------


async def test_A07_the_stored_call_runs_and_the_model_is_not_asked_again(lab: Any) -> None:
    ran: list[str] = []

    @tool(requires_approval=True)
    async def record(text: str) -> str:
        ran.append(text)
        return text

    def script(request: Any) -> Any:
        asked = len(lab.prompts())
        if request.messages[-1]["role"] == "tool":
            return final("x")
        return calls(call("record", {"text": "reviewed" if asked <= 1 else "changed"}))

    definition = lab.define(script, record)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert waiting.approvals[0].arguments == {"text": "reviewed"}
    engine = await lab.restarted(definition)
    assert len(lab.prompts()) == 1, "nobody asks the model on resume"
    await engine.decide(Decide("ex1", ids(waiting)[0], True))
    await lab.end(engine)
    assert ran == ["reviewed"]


async def test_A07_an_approval_is_for_one_call_and_a_new_one_asks_again(lab: Any) -> None:
    work = lab.deletions()
    script = [calls(call("delete", {"n": 1})), calls(call("delete", {"n": 2})), final("x")]
    engine = lab.engine(lab.define(script, work.delete))
    await engine.start("ex1", "go")
    await engine.decide(Decide("ex1", ids(await lab.suspension(engine))[0], True))
    waiting = await lab.suspension(engine)
    assert waiting.approvals[0].arguments == {"n": 2}
    assert work.done == [1]


async def test_A07_arguments_that_are_not_the_approved_ones_do_not_run(lab: Any) -> None:
    """Somebody changes the ledger between the decisions: the fingerprint of the approval is what counts."""
    work = lab.deletions()
    definition = lab.define(
        [calls(call("delete", {"n": 1}), call("delete", {"n": 2})), final("x")], work.delete
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    first, second = ids(await lab.suspension(engine))
    await engine.decide(Decide("ex1", first, True, "ann"))
    lab.sql("UPDATE tool_calls SET arguments = '{\"n\":666}' WHERE position = 0")
    engine = await lab.restarted(definition)
    with pytest.raises(DefinitionChangedError, match="not those that were approved"):
        await engine.decide(Decide("ex1", second, True, "ann"))
    await engine.decide(Decide("ex1", second, False, "ann"))
    result = await lab.end(engine)
    assert work.done == []
    assert result.error is not None
    assert "definition_changed" in str(result.error.causes)


async def test_edited_arguments_run_in_the_place_of_the_models(lab: Any) -> None:
    work = lab.deletions()
    definition = lab.define([calls(call("delete", {"n": 1})), final("x")], work.delete)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    before = lab.store.load_root("a1").agent_revision
    for wrong in ({"n": "many"}, {}, {"n": 1, "m": 2}):
        with pytest.raises(InvalidInputError, match="edited arguments do not fit tool 'delete'"):
            await engine.decide(Decide("ex1", request, True, edited_arguments=wrong))
    with pytest.raises(InvalidInputError):
        await engine.decide(Decide("ex1", request, False, edited_arguments={"n": 2}))
    assert lab.store.load_root("a1").agent_revision == before, "nothing was changed by what was refused"
    answered = await engine.decide(Decide("ex1", request, True, "ann", "safer", {"n": 7}))
    assert answered.decision is not None
    assert answered.decision.edited_arguments == {"n": 7}
    await lab.end(engine)
    assert work.done == [7]
    assert lab.store.tool_calls("ex1")[0].arguments == {"n": 7}
    (row,) = lab.store.approvals()
    assert (row.arguments, row.edited_arguments, row.decided_by) == ({"n": 1}, {"n": 7}, "ann")
    decided = [r.content for r in lab.journal() if r.kind is RecordKind.APPROVAL_DECIDED]
    assert decided[0]["edited_arguments"] == {"n": 7}
    (text,) = lab.tool_texts()
    assert text.startswith('(A human changed the arguments of this call to {"n":7}.)')
    same = await engine.decide(Decide("ex1", request, True, "bob", None, {"n": 7}))
    assert same.decision is not None
    assert same.decision.decided_by == "ann"
    with pytest.raises(StateConflictError, match="already approved by ann"):
        await engine.decide(Decide("ex1", request, True, "bob", None, {"n": 8}))


async def test_an_edit_of_what_a_display_shows_keeps_the_values_behind_the_masks(lab: Any) -> None:
    paid: list[tuple[str, int]] = []

    @tool(requires_approval=True, redact_params=["account"])
    async def pay(account: str, cents: int) -> str:
        paid.append((account, cents))
        return "paid"

    script = [calls(call("pay", {"account": "X-12", "cents": 900})), final("x")]
    engine = lab.engine(lab.define(script, pay))
    await engine.start("ex1", "go")
    result = await lab.suspension(engine)
    (request,) = ids(result)
    shown = result.approvals[0].arguments
    assert shown == {"account": "[REDACTED]", "cents": 900}
    answered = await engine.decide(Decide("ex1", request, True, "ann", None, shown | {"cents": 7}))
    assert answered.decision is not None
    assert answered.decision.edited_arguments == {"account": "[REDACTED]", "cents": 7}
    await lab.end(engine)
    assert paid == [("X-12", 7)]
    same = await engine.decide(Decide("ex1", request, True, "bob", None, shown | {"cents": 7}))
    assert same.decision is not None
    assert same.decision.decided_by == "ann"


async def test_a_mask_that_stands_for_nothing_is_refused_in_an_edit(lab: Any) -> None:
    @tool(requires_approval=True, redact_params=["account"])
    async def pay(account: str | None = None, cents: int = 1) -> str:
        return f"{account} {cents}"

    engine = lab.engine(lab.define([calls(call("pay", {"cents": 9})), final("x")], pay))
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    with pytest.raises(
        InvalidInputError, match=r"hold '\[REDACTED\]' at \$\.account, where it stands for no value"
    ):
        await engine.decide(Decide("ex1", request, True, edited_arguments={"account": "[REDACTED]"}))


async def test_A10_a_stored_decision_holds_whatever_comes_with_the_restart(lab: Any) -> None:
    given: list[Any] = []

    @tool(requires_approval=True)
    async def pay(n: int) -> str:
        given.append(n)
        return "paid"

    script = [calls(call("pay", {"n": 1}), call("pay", {"n": 2})), final("x")]
    definition = lab.define(script, pay)
    engine = lab.engine(definition)
    await engine.start("ex1", "go", durable_context={"user": "ann"})
    first, second = ids(await lab.suspension(engine))
    await engine.decide(Decide("ex1", first, True, "ann"))
    engine = await lab.restarted(definition, owner={"node": "elsewhere"})
    with pytest.raises(StateConflictError):
        await engine.start("ex1", "go", durable_context={"user": "other"})
    again = await engine.start("ex1", "go", durable_context={"user": "ann"})
    assert ids(again) == [second], "only the open question is asked"
    await engine.decide(Decide("ex1", second, True, "ann"))
    assert (await lab.end(engine)).output == "x"
    assert sorted(given) == [1, 2]


@pytest.mark.parametrize("change", ["schema", "version", "gone"])
async def test_A11_a_changed_tool_is_noticed_before_anything_changes(lab: Any, change: str) -> None:
    paid: list[Any] = []

    @tool(requires_approval=True, name="pay")
    async def first_version(amount: int) -> str:
        paid.append(amount)
        return "paid"

    @tool(requires_approval=True, name="pay")
    async def other_schema(amount: int, currency: str) -> str:
        paid.append((amount, currency))
        return "paid"

    @tool(requires_approval=True, name="pay", version="2")
    async def other_version(amount: int) -> str:
        paid.append(-amount)
        return "paid"

    script = [calls(call("pay", {"amount": 5})), final("x")]
    old = lab.define(script, first_version)
    new = lab.define(script, *{"schema": [other_schema], "version": [other_version], "gone": []}[change])
    engine = lab.engine(old)
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    engine = await lab.restarted(new)
    before = lab.store.load_root("a1").agent_revision
    with pytest.raises(DefinitionChangedError) as caught:
        await engine.decide(Decide("ex1", request, True, "ann"))
    assert caught.value.code == "definition_changed"
    assert lab.store.load_root("a1").agent_revision == before
    assert (await engine.view("ex1")).suspended
    assert lab.store.approvals(pending_only=True) != []
    engine = await lab.restarted(old)  # a rollback
    await engine.decide(Decide("ex1", request, True, "ann"))
    assert (await lab.end(engine)).output == "x"
    assert paid == [5]


async def test_A11_an_operator_can_reject_a_call_whose_tool_has_changed(lab: Any) -> None:
    work = lab.deletions()
    script = [calls(call("delete", {"n": 1})), final("x")]
    engine = lab.engine(lab.define(script, work.delete))
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    engine = await lab.restarted(lab.define(script))
    result = await engine.decide(Decide("ex1", request, False, "ann", "the tool is gone"))
    assert result.rejected
    assert work.done == []


async def test_A11_a_tool_that_changes_between_the_decision_and_its_dispatch_does_not_run(lab: Any) -> None:
    ran: list[str] = []

    @tool(requires_approval=True, replay="safe", name="pay")
    async def old(amount: int) -> str:
        ran.append("old")
        return "paid"

    @tool(requires_approval=True, replay="safe", name="pay", version="2")
    async def new(amount: int) -> str:
        ran.append("new")
        return "paid"

    script = [calls(call("pay", {"amount": 5})), final("x")]
    engine = lab.engine(lab.define(script, old))
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    write_plan(lab.faults, "a1", point="after_commit:decision", action="fail")
    with pytest.raises(FaultInjectedError):
        await engine.decide(Decide("ex1", request, True, "ann"))
    second = await lab.restarted(lab.define(script, new))
    result = await lab.end(second)
    assert ran == [], "neither what was approved, which is gone, nor what was not"
    assert result.status is ExecutionStatus.FAILED
    assert result.error is not None
    assert result.error.causes[0].code == "definition_changed"


async def test_A11_an_ungated_sibling_that_has_changed_stops_the_approval_too(lab: Any) -> None:
    work = lab.deletions()

    @tool(replay="safe", name="read")
    async def other(n: int, encoding: str = "utf-8") -> str:
        work.read.append(-n)
        return ""

    script = [calls(call("delete", {"n": 1}), call("read", {"n": 2})), final("x")]
    engine = lab.engine(lab.define(script, work.delete, work.free))
    await engine.start("ex1", "go")
    (request,) = ids(await lab.suspension(engine))
    engine = await lab.restarted(lab.define(script, work.delete, other))
    with pytest.raises(DefinitionChangedError, match="'read' has another schema"):
        await engine.decide(Decide("ex1", request, True, "ann"))
    assert (await engine.view("ex1")).suspended
    assert (await engine.decide(Decide("ex1", request, False, "ann"))).rejected
    assert (work.done, work.read) == ([], [])
