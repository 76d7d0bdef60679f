"""Traces: one row per call whatever became of it, no secret in it, and no turn that is harmed by one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from phronomy_ray.cli.timeline import tool_call_facts
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import NotFoundError
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.redaction import REDACTED
from phronomy_ray.runtime.traces import MAX_FIELD_CHARS, read_traces, trace_of

SECRET = "correct-horse-battery"


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


@tool(replay="safe", timeout_s=0.05, on_error="suppress")
async def stuck() -> str:
    await asyncio.Event().wait()
    return "never"


def traced(lab: Any, **which: Any) -> list[Any]:
    found = read_traces(lab.store, **which)
    json.dumps([trace.to_wire() for trace in found])
    return found


async def test_a_trace_shows_the_arguments_that_ran_and_not_those_that_a_human_replaced(lab: Any) -> None:
    @tool(requires_approval=True, redact_params=["account"])
    async def pay(account: str, cents: int) -> str:
        return f"paid {cents}"

    script = [calls(call("pay", {"account": SECRET, "cents": 900})), final("x")]
    engine = lab.engine(lab.define(script, pay))
    await engine.start("ex1", "go")
    (request,) = (await lab.suspension(engine)).approvals
    await engine.decide(
        Decide("ex1", request.approval_request_id, True, edited_arguments={"account": SECRET, "cents": 7})
    )
    await lab.end(engine)
    (trace,) = traced(lab, execution_id="ex1")
    assert trace.arguments == {"account": REDACTED, "cents": 7}
    (row,) = lab.store.tool_calls("ex1")
    facts = tool_call_facts(row, lab.store.events("ex1"))
    assert facts["arguments"] == {"account": REDACTED, "cents": 7}


async def test_every_call_has_one_row_whatever_became_of_it(lab: Any) -> None:
    @tool(on_error="suppress")
    async def breaks() -> str:
        raise ValueError("out of paper")

    @tool(replay="safe")
    async def reports() -> dict[str, str]:
        return {"error": "no such order"}

    batch = calls(
        call("look", {"x": 1}),
        call("breaks", {}),
        call("stuck", {}),
        call("nope", {}),
        call("look", {"x": "many"}),
        call("reports", {}),
    )
    await lab.run(lab.engine(lab.define([batch, final("x")], look, breaks, stuck, reports)))
    found = traced(lab, execution_id="ex1")
    assert found[1].error == "ValueError: out of paper"
    assert [(trace.tool_name, trace.status.value, trace.ok, trace.attempts) for trace in found] == [
        ("look", "succeeded", True, 1),
        ("breaks", "failed", False, 1),
        ("stuck", "timed_out", False, 1),
        ("nope", "failed", False, 0),
        ("look", "failed", False, 0),
        ("reports", "succeeded", False, 1),
    ]
    assert [trace.result for trace in found] == ["seen 1", None, None, None, None, {"error": "no such order"}]
    assert found[0].arguments == {"x": 1}
    assert "out of paper" in found[1].error
    ran = found[0]
    assert ran.created_at <= ran.started_at <= ran.ended_at
    assert ran.waited_ms >= 0
    assert ran.ran_ms >= 0
    assert (found[3].waited_ms, found[3].ran_ms) == (None, None), "its body never ran"


async def test_TA39_a_timeout_is_traced_as_not_ok(lab: Any) -> None:
    await lab.run(lab.engine(lab.define([calls(call("stuck", {})), final("x")], stuck)))
    (trace,) = traced(lab, execution_id="ex1")
    assert (trace.ok, trace.status) == (False, ToolCallStatus.TIMED_OUT)
    assert "0.05 s" in trace.error
    assert trace.ran_ms >= 40


async def test_TA50_calls_that_run_at_once_have_each_their_own_trace(lab: Any) -> None:
    everybody = asyncio.Barrier(8)

    @tool(replay="safe")
    async def meet(n: int) -> int:
        await everybody.wait()
        await asyncio.sleep((8 - n) * 0.001)  # the last one asked for ends first
        return n * n

    batch = calls(*(call("meet", {"n": n}) for n in range(8)))
    await lab.run(lab.engine(lab.define([batch, final("x")], meet)))
    found = traced(lab, execution_id="ex1")
    assert [(trace.arguments, trace.result) for trace in found] == [({"n": n}, n * n) for n in range(8)]
    assert len({trace.tool_call_id for trace in found}) == 8


async def test_TA54_every_execution_is_traced_and_nothing_has_to_be_set_up(lab: Any) -> None:
    engine = lab.engine(lab.define([calls(call("look", {})), final("x")], look))
    await lab.run(engine)
    await lab.run(engine, id="ex2")
    other = lab.engine(lab.define([calls(call("look", {"x": 5})), final("x")], look), "a2")
    await lab.run(other, id="ex3")
    assert [trace.execution_id for trace in traced(lab)] == ["ex1", "ex2", "ex3"], "oldest first"
    assert [trace.execution_id for trace in traced(lab, agent_id="a1")] == ["ex1", "ex2"]
    assert [trace.execution_id for trace in traced(lab, limit=1)] == ["ex3"]
    assert [trace.execution_id for trace in traced(lab, agent_id="a1", limit=1)] == ["ex2"]
    assert traced(lab, execution_id="ex3", agent_id="a1") == []
    for wrong in ({"execution_id": "ex9"}, {"agent_id": "a9"}):
        with pytest.raises(NotFoundError):
            read_traces(lab.store, **wrong)


async def test_a_running_and_a_waiting_call_have_their_row(lab: Any) -> None:
    @tool(requires_approval=True)
    async def write() -> str:
        return "wrote"

    engine = lab.engine(lab.define([calls(call("look", {}), call("write", {})), final("x")], look, write))
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    found = traced(lab, execution_id="ex1")
    assert [(trace.status.value, trace.ok, trace.result) for trace in found] == [
        ("intent", False, None),
        ("awaiting_approval", False, None),
    ]
    await lab.decide_all(engine)
    await lab.end(engine)
    assert [trace.ok for trace in traced(lab, execution_id="ex1")] == [True, True]


# --- secrets ---------------------------------------------------------------------------------------------------


async def test_secrets_are_masked_by_name_by_shape_and_by_the_tool_s_own_rules(lab: Any) -> None:
    @tool(replay="safe", redact_params=["pin"])
    async def login(pin: str, options: dict[str, str]) -> dict[str, Any]:
        return {
            "said": f"your pin is {pin}",
            "session_token": SECRET,
            "nested": [{"Api-Key": SECRET, "tokens": 12}],
            "log": "Authorization: Bearer abcdef123456 sent",
        }

    arguments = {"pin": "pin-98765", "options": {"db_password": SECRET, "Cookie": SECRET, "user": "bob"}}
    await lab.run(lab.engine(lab.define([calls(call("login", arguments)), final("x")], login)))
    (trace,) = traced(lab, execution_id="ex1")
    assert trace.arguments == {
        "pin": REDACTED,
        "options": {"db_password": REDACTED, "Cookie": REDACTED, "user": "bob"},
    }
    assert trace.result == {
        "said": f"your pin is {REDACTED}",
        "session_token": REDACTED,
        "nested": [{"Api-Key": REDACTED, "tokens": 12}],
        "log": f"Authorization: {REDACTED} sent",
    }
    (row,) = lab.store.tool_calls("ex1")
    assert row.result["session_token"] == SECRET, "the ledger keeps what the call gave"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_hidden_result_stays_hidden(lab: Any, fails: bool) -> None:
    @tool(replay="safe", redact_result=True, on_error="suppress")
    async def diagnose() -> str:
        if fails:
            raise ValueError("the patient has a cold")
        return "a cold"

    await lab.run(lab.engine(lab.define([calls(call("diagnose", {})), final("x")], diagnose)))
    (trace,) = traced(lab, execution_id="ex1")
    assert "cold" not in str(trace)
    assert trace.ok is not fails


async def test_what_is_long_is_cut_after_it_was_masked(lab: Any) -> None:
    @tool(replay="safe")
    async def big() -> str:
        return "x" * (MAX_FIELD_CHARS - 8) + " password=" + SECRET + "y" * 5_000

    @tool(replay="safe")
    async def wide() -> list[dict[str, str]]:
        return [{"n": "z" * 100, "password": SECRET} for _ in range(100)]

    await lab.run(lab.engine(lab.define([calls(call("big", {}), call("wide", {})), final("x")], big, wide)))
    for trace in traced(lab, execution_id="ex1"):
        assert SECRET[:4] not in str(trace)
        assert trace.result.endswith(f"[cut at {MAX_FIELD_CHARS} characters]")
        assert len(trace.result) < MAX_FIELD_CHARS + 50


# --- no trace hurts --------------------------------------------------------------------------------------------


async def test_TA55_a_call_that_cannot_be_traced_hides_its_values_and_harms_nobody(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = await lab.run(lab.engine(lab.define([calls(call("look", {"x": 1})), final("x")], look)))
    assert result.output == "x", "a turn writes no trace, so none can fail it"
    (row,) = lab.store.tool_calls("ex1")
    broken = trace_of(replace(row, error=3), {"x": 1}, hide_result=False)  # type: ignore[arg-type]
    assert (broken.arguments, broken.result) == (REDACTED, REDACTED)
    assert "AttributeError" in broken.problem
    assert (broken.status, broken.tool_name) == (ToolCallStatus.SUCCEEDED, "look")
    monkeypatch.setattr("phronomy_ray.runtime.traces.redact_text", lambda *_: 1 / 0)
    (hidden,) = traced(lab, execution_id="ex1")
    assert hidden.problem == "cannot be shown: ZeroDivisionError"


async def test_an_execution_whose_ledger_cannot_be_read_hides_no_other(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from phronomy_ray.errors import ContentIntegrityError

    engine = lab.engine(lab.define([calls(call("look", {})), final("x")], look))
    for turn in ("ex1", "ex2", "ex3"):
        await lab.run(engine, id=turn)
    plain = lab.store.tool_calls

    def reading(execution_id: str) -> Any:
        if execution_id == "ex2":
            raise ContentIntegrityError("the content does not match its hash")
        return plain(execution_id)

    monkeypatch.setattr(lab.store, "tool_calls", reading)
    assert [trace.execution_id for trace in traced(lab, agent_id="a1")] == ["ex1", "ex3"]
    assert "no traces of execution ex2" in caplog.text
    with pytest.raises(ContentIntegrityError):
        traced(lab, execution_id="ex2")
