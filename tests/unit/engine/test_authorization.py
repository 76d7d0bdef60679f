"""Before a call runs: facts, the tool's default, standing rules, the agent's policy; and everything fails closed."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from phronomy_ray.approvals import ApprovalEvaluationRequest, ApprovalVerdict, RuleEffect, StandingRule
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import tool
from phronomy_ray.engine.authorization import CodePool
from phronomy_ray.errors import BackpressureError, ConfigurationError, StateConflictError
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus, Phase, RecordKind, ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final

S = ToolCallStatus
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def rule(name: str, effect: RuleEffect = RuleEffect.ALLOW, **changes: Any) -> StandingRule:
    values: dict[str, Any] = {"created_by": "ann", "created_at": NOW, "rule_id": f"ru_{effect.value}_{name}"}
    return StandingRule(effect=effect, tool_name=name, **(values | changes))


class Bodies:
    """Tools that say whether they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(replay="safe")
        async def free(x: int = 0) -> str:
            self.ran.append(f"free {x}")
            return "f"

        @tool(requires_approval=True)
        async def gated(x: int = 0) -> str:
            self.ran.append(f"gated {x}")
            return "g"

        self.free, self.gated = free, gated

    def suppressing(self) -> Any:
        return self.gated.with_options(on_error="suppress"), self.free.with_options(on_error="suppress")


def statuses(lab: Any) -> list[ToolCallStatus]:
    return [row.status for row in lab.store.tool_calls("ex1")]


# --- the order -------------------------------------------------------------------------------------------------


async def test_facts_then_the_tools_own_function_then_the_policy(lab: Any) -> None:
    seen: list[Any] = []

    def facts(arguments: dict[str, Any], context: Any) -> dict[str, Any]:
        seen.append(("facts", dict(arguments), context))
        arguments["x"] = 99
        return {"balance": 7}

    async def default(request: ApprovalEvaluationRequest) -> bool:
        seen.append(("default", request))
        return True

    def policy(request: ApprovalEvaluationRequest) -> str:
        seen.append(("policy", request))
        return "allow"

    @tool(requires_approval=default, approval_facts=facts, approval_metadata={"risk": 1}, tool_origin="mcp")
    async def pay(x: int) -> str:
        return f"paid {x}"

    definition = lab.define(
        [calls(call("pay", {"x": 5})), final("done")], pay, tool_approval_policy=staticmethod(policy)
    )
    engine = lab.engine(definition)
    result = await lab.run(engine, "go", durable_context={"user": "ann"})
    assert result.output == "done"
    assert [name for name, *_ in seen] == ["facts", "default", "policy"]
    assert seen[0][1:] == ({"x": 5}, {"user": "ann"})
    asked, last = seen[1][1], seen[2][1]
    assert asked.default_decision is ApprovalVerdict.ALLOW
    assert last.default_decision is ApprovalVerdict.REQUIRE_APPROVAL
    for request in (asked, last):
        assert request.arguments == {"x": 5}, "each callee has a copy of its own"
        assert request.facts == {"balance": 7}
        assert request.invocation_context == {"user": "ann"}
        assert (request.tool_name, request.origin, request.metadata) == ("pay", "mcp", {"risk": 1})
        assert request.tool_schema["properties"]["x"]["type"] == "integer"
        assert (request.agent_id, request.execution_id) == ("a1", "ex1")
        assert (request.definition_id, request.definition_version) == ("clerk", "1")
    (row,) = lab.store.tool_calls("ex1")
    assert row.tool_call_id == last.tool_call_id
    assert row.arguments == {"x": 5}
    assert (row.authorization or {})["verdict"] == "allow"
    assert (row.authorization or {})["source"] == "policy"
    assert (row.authorization or {})["facts"] == {"balance": 7}


@pytest.mark.parametrize("answer", ["allow", "require_approval", "reject", ApprovalVerdict.REJECT])
async def test_the_policy_has_the_last_word_on_every_call(lab: Any, answer: Any) -> None:
    bodies = Bodies()

    async def policy(request: ApprovalEvaluationRequest) -> Any:
        return answer if request.tool_name == "free" else "allow"

    script = [calls(call("free", {"x": 1}), call("gated", {"x": 2})), final("done")]
    engine = lab.engine(
        lab.define(script, bodies.free, bodies.gated, tool_approval_policy=staticmethod(policy))
    )
    await engine.start("ex1", "go")
    result = await lab.end_or_question(engine)
    if answer == "require_approval":
        (request,) = result.approvals
        assert (request.tool_name, request.asked_by) == ("free", "policy")
        await engine.decide(Decide("ex1", request.approval_request_id, True))
        result = await lab.end(engine)
    assert result.output == "done"
    if answer == "reject":
        assert bodies.ran == ["gated 2"], "the gated call was allowed by the policy: a mixed batch goes on"
        assert statuses(lab) == [S.REJECTED, S.SUCCEEDED]
        assert "the agent's policy refuses this call" in lab.prompts()[-1][-2]["content"]
    else:
        assert sorted(bodies.ran) == ["free 1", "gated 2"]


async def test_a_batch_that_the_policy_rejects_ends_the_execution(lab: Any) -> None:
    bodies = Bodies()
    definition = lab.define(
        [calls(call("free"), call("free", {"x": 2}))],
        bodies.free,
        tool_approval_policy=staticmethod(lambda request: "reject" if request.arguments else "allow"),
    )
    result = await lab.run(lab.engine(definition), "go")
    assert result.rejected
    assert bodies.ran == []
    assert statuses(lab) == [S.NOT_PERFORMED, S.REJECTED]


async def test_a_batch_without_user_code_takes_no_extra_commit(lab: Any) -> None:
    bodies = Bodies()
    engine = lab.engine(lab.define([calls(call("free"), call("free")), final("x")], bodies.free))
    await lab.run(engine)
    assert lab.store.load_root("a1").agent_revision == 4, "admit, batch, results, end"
    assert lab.store.tool_calls("ex1")[0].authorization is None


def test_a_policy_must_take_the_request() -> None:
    for wrong in ("allow", 5, lambda: "allow"):
        with pytest.raises(ConfigurationError, match="tool_approval_policy"):
            type("Wrong", (Agent,), {"model": "none/none", "tool_approval_policy": wrong})
    for wrong in (0, -1, "5", None):
        with pytest.raises(ConfigurationError, match="authorization_timeout_s"):
            type("Wrong", (Agent,), {"model": "none/none", "authorization_timeout_s": wrong})


# --- fail closed -----------------------------------------------------------------------------------------------


def raises(request: Any) -> Any:
    raise ValueError("the policy is broken")


def leaves(request: Any) -> Any:
    raise SystemExit(3)


async def cancels_itself(request: Any) -> Any:
    raise asyncio.CancelledError


async def never_ends(request: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("policy", "cause"),
    [
        (raises, "the policy is broken"),
        (leaves, "SystemExit"),
        (cancels_itself, "CancelledError"),
        (never_ends, "within 0.05 s"),
        (lambda request: "maybe", "must give one of"),
        (lambda request: None, "must give one of"),
        (lambda request: True, "must give one of"),
    ],
)
async def test_a_policy_that_does_not_answer_lets_nothing_run(lab: Any, policy: Any, cause: str) -> None:
    bodies = Bodies()
    gated, free = bodies.suppressing()
    definition = lab.define(
        [calls(call("free"), call("gated")), final("told")],
        free,
        gated,
        tool_approval_policy=staticmethod(policy),
        authorization_timeout_s=0.05 if policy is never_ends else 5.0,
    )
    result = await lab.run(lab.engine(definition), "go")
    assert result.output == "told", "the tools' failures are told to the model"
    assert bodies.ran == []
    rows = lab.store.tool_calls("ex1")
    assert [(row.status, row.attempt) for row in rows] == [(S.FAILED, 0)] * 2
    assert {(row.error or {})["code"] for row in rows} == {"authorization_failed"}
    assert cause in (rows[0].error or {})["message"]
    told = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
    assert all(text.startswith("Error (authorization_failed)") for text in told)
    assert all("broken" not in text for text in told), "the model is not shown the policy's insides"


async def test_a_failed_authorization_ends_the_execution_of_a_tool_that_raises_after_its_siblings(
    lab: Any,
) -> None:
    bodies = Bodies()

    @tool(requires_approval=raises)
    async def unsure(x: int) -> str:
        bodies.ran.append("unsure")
        return ""

    engine = lab.engine(
        lab.define([calls(call("unsure", {"x": 1}), call("free")), final("x")], unsure, bodies.free)
    )
    result = await lab.run(engine, "go")
    assert result.status is ExecutionStatus.FAILED
    assert result.error is not None
    assert result.error.causes[0].code == "authorization_failed"
    assert bodies.ran == ["free 0"]


@pytest.mark.parametrize(
    ("facts", "default"),
    [
        (lambda arguments, context: [1], True),
        (lambda arguments, context: "text", True),
        (lambda arguments, context: {"when": object()}, True),
        (lambda arguments, context: {1: 2}, True),
        (None, lambda request: "yes"),
        (None, lambda request: None),
    ],
)
async def test_wrong_facts_and_wrong_defaults_are_configuration_errors(
    lab: Any, facts: Any, default: Any
) -> None:
    @tool(requires_approval=default, approval_facts=facts, on_error="suppress")
    async def pay(x: int) -> str:
        raise AssertionError("it ran")

    engine = lab.engine(lab.define([calls(call("pay", {"x": 1})), final("told")], pay))
    assert (await lab.run(engine, "go")).output == "told"
    (row,) = lab.store.tool_calls("ex1")
    error = row.error or {}
    assert error["code"] == "authorization_failed"
    assert error["causes"][0]["type"] == "ConfigurationError"


async def test_facts_may_be_none_and_plain_code_that_blocks_stalls_nobody(lab: Any) -> None:
    begun = threading.Event()

    def slow(request: ApprovalEvaluationRequest) -> bool:
        begun.set()
        lab.release.wait(20)
        return False

    @tool(requires_approval=slow, approval_facts=lambda arguments, context: None)
    async def pay(x: int) -> str:
        return "paid"

    engine = lab.engine(
        lab.define([calls(call("pay", {"x": 1})), final("x")], pay, authorization_timeout_s=20.0)
    )
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    assert engine.status()["phase"] == "authorizing"
    lab.release.set()
    assert (await lab.end(engine)).output == "x"
    assert "facts" not in (lab.store.tool_calls("ex1")[0].authorization or {})


async def test_code_that_never_ends_uses_up_its_threads_and_the_rest_is_refused_at_once(lab: Any) -> None:
    pool = CodePool(threads=2, waiting=2)
    stuck = [pool.submit(lab.release.wait) for _ in range(2)]
    while pool.waiting:  # the threads take the first two
        await asyncio.sleep(0.001)
    queued = [pool.submit(lambda: 1) for _ in range(2)]
    with pytest.raises(BackpressureError):
        pool.submit(lambda: 1)
    lab.release.set()
    results = [await asyncio.wrap_future(future) for future in (*stuck, *queued)]
    assert results == [True, True, 1, 1]
    pool.close()
    with pytest.raises(BackpressureError):
        pool.submit(lambda: 1)


async def test_a_batch_larger_than_the_queue_is_authorised_whole(lab: Any) -> None:
    bodies = Bodies()
    definition = lab.define(
        [calls(*(call("free", {"x": n}) for n in range(250))), final("x")],
        bodies.free,
        tool_approval_policy=staticmethod(lambda request: "allow"),
        authorization_timeout_s=20.0,
    )
    assert (await lab.run(lab.engine(definition), "go")).output == "x"
    assert len(bodies.ran) == 250


async def test_a_crash_while_user_code_is_asked_asks_again(lab: Any) -> None:
    bodies = Bodies()
    asked: list[str] = []

    def policy(request: ApprovalEvaluationRequest) -> str:
        asked.append(request.tool_call_id)
        return "allow"

    definition = lab.define(
        [calls(call("free"), call("gated")), final("x")],
        bodies.free,
        bodies.gated,
        tool_approval_policy=staticmethod(policy),
    )
    write_plan(lab.faults, "a1", point="after_authorization", action="fail")
    engine = lab.engine(definition)
    with pytest.raises(FaultInjectedError):
        await lab.run(engine, "go")
    assert lab.store.load_execution("ex1").phase is Phase.AUTHORIZING
    assert bodies.ran == []
    second = lab.engine(definition)
    await second.activate()
    assert (await lab.end(second)).output == "x"
    assert len(asked) == 4
    assert set(asked[:2]) == set(asked[2:])
    assert sorted(bodies.ran) == ["free 0", "gated 0"]


async def test_cancelling_while_user_code_is_asked_ends_at_once(lab: Any) -> None:
    bodies = Bodies()
    begun = threading.Event()

    def policy(request: ApprovalEvaluationRequest) -> str:
        begun.set()
        lab.release.wait(20)
        return "allow"

    definition = lab.define(
        [calls(call("free")), final("x")], bodies.free, tool_approval_policy=staticmethod(policy)
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    assert await asyncio.to_thread(begun.wait, 20)
    result = await engine.cancel("ex1", "enough")
    assert result.status is ExecutionStatus.CANCELLED
    lab.release.set()
    assert bodies.ran == []
    assert statuses(lab) == [S.NOT_PERFORMED]


# --- standing rules --------------------------------------------------------------------------------------------


async def test_a_rule_that_allows_saves_the_question_and_is_journaled(lab: Any) -> None:
    bodies = Bodies()
    lab.store.add_rule(rule("gated", agent_id="a1", reason="trusted"))
    engine = lab.engine(lab.define([calls(call("gated", {"x": 1})), final("x")], bodies.gated))
    assert (await lab.run(engine, "go")).output == "x"
    assert bodies.ran == ["gated 1"]
    assert lab.store.approvals() == []
    (record,) = [r for r in lab.journal() if r.kind is RecordKind.AUTHORIZATION_DECIDED]
    assert record.content["verdict"] == "allow"
    assert record.content["rule"]["rule_id"] == "ru_allow_gated"
    assert record.content["rule"]["created_by"] == "ann"
    (event,) = [e for e in await engine.stored_events("ex1", 0) if e.type == "authorization_decided"]
    assert event.payload == record.content
    assert (lab.store.tool_calls("ex1")[0].authorization or {})["source"] == "rule"


async def test_a_rule_that_refuses_holds_for_tools_that_ask_nobody_and_outdoes_permission_and_policy(
    lab: Any,
) -> None:
    bodies = Bodies()
    lab.store.add_rule(rule("free"))
    lab.store.add_rule(rule("free", RuleEffect.REFUSE, definition_id="clerk", reason="not on Sundays"))
    lab.store.add_rule(rule("gated"))
    definition = lab.define(
        [calls(call("free"), call("gated", {"x": 2})), final("x")],
        bodies.free,
        bodies.gated,
        tool_approval_policy=staticmethod(lambda request: "allow"),
    )
    assert (await lab.run(lab.engine(definition), "go")).output == "x"
    assert bodies.ran == ["gated 2"]
    told = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
    assert (
        told[0] == "Rejected: a standing rule refuses this tool; it was not performed. Reason: not on Sundays"
    )


async def test_rules_have_scopes_ends_and_revocations_and_count_at_once(lab: Any) -> None:
    bodies = Bodies()
    later = datetime.now(UTC) + timedelta(hours=1)
    for number, elsewhere in enumerate(
        (
            {"agent_id": "a2"},
            {"definition_id": "other"},
            {"expires_at": NOW + timedelta(days=1)},
        )
    ):
        lab.store.add_rule(rule("gated", rule_id=f"ru_{number}", **elsewhere))
    lab.store.add_rule(rule("gated", rule_id="ru_revoked", expires_at=later))
    lab.store.revoke_rule("ru_revoked", revoked_by="ann", now=NOW)
    engine = lab.engine(
        lab.define(lambda r: final("x") if r.tool_results else calls(call("gated")), bodies.gated)
    )
    await engine.start("ex1", "go")
    assert (await lab.suspension(engine)).approvals, "none of the rules holds here"
    await engine.cancel("ex1", "next")
    lab.store.add_rule(rule("gated", rule_id="ru_mine", agent_id="a1", expires_at=later))
    assert (await lab.run(engine, "go", id="ex2")).output == "x"
    lab.store.revoke_rule("ru_mine", revoked_by="ann", now=NOW)
    await engine.start("ex3", "go")
    assert (await lab.suspension(engine, "ex3")).approvals


async def test_A08_a_decision_about_one_call_outranks_every_standing_rule(lab: Any) -> None:
    bodies = Bodies()
    script = lambda r: final("x") if r.tool_results else calls(call("gated", {"x": r.turn}))  # noqa: E731
    engine = lab.engine(lab.define(script, bodies.gated))
    await engine.start("ex1", "go")
    (request,) = (await lab.suspension(engine)).approvals
    lab.store.add_rule(rule("gated"))
    rejected = await engine.decide(Decide("ex1", request.approval_request_id, False, "bob"))
    assert rejected.rejected, "always allow, then: not this one"
    assert bodies.ran == []
    lab.store.revoke_rule("ru_allow_gated", revoked_by="ann", now=NOW)
    await engine.start("ex2", "go")
    (request,) = (await lab.suspension(engine, "ex2")).approvals
    lab.store.add_rule(rule("gated", RuleEffect.REFUSE))
    await engine.decide(Decide("ex2", request.approval_request_id, True, "bob"))
    assert (await lab.end(engine, "ex2")).output == "x", "always refuse, then: this one may"
    assert bodies.ran == ["gated 2"]
    result = await lab.run(engine, "go", id="ex3")
    assert result.rejected, "the next call is under the rule again"
    rules = {item.rule_id: item.revoked_by for item in lab.store.list_rules()}
    assert rules == {"ru_allow_gated": "ann", "ru_refuse_gated": None}


async def test_a_policy_sees_which_rule_made_the_default(lab: Any) -> None:
    bodies = Bodies()
    seen: list[ApprovalEvaluationRequest] = []

    def policy(request: ApprovalEvaluationRequest) -> str:
        seen.append(request)
        return "require_approval"

    lab.store.add_rule(rule("gated"))
    definition = lab.define(
        [calls(call("gated")), final("x")], bodies.gated, tool_approval_policy=staticmethod(policy)
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    (request,) = (await lab.suspension(engine)).approvals
    assert (seen[0].default_decision, seen[0].rule_id) == (ApprovalVerdict.ALLOW, "ru_allow_gated")
    assert request.asked_by == "policy"
    await engine.decide(Decide("ex1", request.approval_request_id, False))
    assert lab.store.approvals()[0].status is ApprovalStatus.REJECTED
    with pytest.raises(StateConflictError):
        await engine.decide(Decide("ex1", request.approval_request_id, True))
