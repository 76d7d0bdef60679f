"""What a tool's declaration does to its calls: wrong arguments, coerced ones, changed definitions, stray results."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from phronomy_ray.canonical_json import loads
from phronomy_ray.definition.tool import ToolCompletion, ToolSpec, tool
from phronomy_ray.errors import DefinitionChangedError, ToolError
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.inputs import ToolOutcomes
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.tool_calls import ToolContext, ToolOutcome


def rows(lab: Any, id: str = "ex1") -> list[Any]:
    return sorted(lab.store.tool_calls(id), key=lambda row: (row.created_at, row.position))


class Payment(BaseModel):
    cents: int
    note: str = ""


SCHEMA = {
    "type": "object",
    "properties": {"cents": {"type": "integer"}, "note": {"type": "string", "default": ""}},
    "required": ["cents"],
}


def paying(form: str, got: list[Any], **options: Any) -> Any:
    declared = {"hints": None, "model": Payment, "schema": SCHEMA}[form]

    @tool(name="pay", parameters=declared, **options)
    async def pay(cents: int, note: str = "") -> str:
        got.append((cents, note))
        return f"paid {cents}"

    return pay


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


forms = pytest.mark.parametrize("form", ["hints", "model", "schema"])


# --- arguments that do not fit ---------------------------------------------------------------------------------


@forms
async def test_wrong_arguments_are_told_to_the_model_which_corrects_them(lab: Any, form: str) -> None:
    got: list[Any] = []
    script = [calls(call("pay", {"cents": "five"})), calls(call("pay", {"cents": 5})), final("x")]
    result = await lab.run(lab.engine(lab.define(script, paying(form, got))))
    assert result.output == "x"
    assert got == [(5, "")]
    refused, paid = rows(lab)
    assert (refused.status, refused.arguments) == (ToolCallStatus.FAILED, None)
    assert refused.model_text.startswith("Error (invalid_arguments): $.cents: ")
    assert paid.status is ToolCallStatus.SUCCEEDED


@forms
async def test_wrong_arguments_may_end_the_execution_once_their_siblings_have_run(
    lab: Any, paired: Any, form: str
) -> None:
    got: list[Any] = []
    script = [
        [
            calls(call("look", {"x": 1}), call("pay", {"cents": "five"}), call("look", {"x": 2})),
            final("never"),
        ],
        [final("y")],
    ]
    engine = lab.engine(
        lab.define(script, look, paying(form, got, on_schema_error="raise", on_error="suppress"))
    )
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    assert isinstance(result.error.to_exception(), ToolError)
    assert "pay" in result.error.message
    assert "$.cents" in result.error.message
    assert result.error.causes[0].code == "invalid_arguments"
    assert got == []
    assert [row.status for row in rows(lab)] == [
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
        ToolCallStatus.SUCCEEDED,
    ]
    results = [r for r in lab.store.journal_of_execution("ex1") if r.kind.value == "tool_result"]
    assert [record.content for record in results] == ["seen 1", None, "seen 2"]
    assert (await lab.run(engine, "again", id="ex2")).output == "y"
    paired(lab.prompts()[-1])


async def test_a_fatal_refusal_is_fatal_after_a_crash_too(lab: Any) -> None:
    got: list[Any] = []
    script = [[calls(call("look", {"x": 1}), call("pay", {"cents": "five"})), final("never")]]
    definition = lab.define(script, look, paying("hints", got, on_schema_error="raise"))
    write_plan(lab.faults, "a1", point="before_commit:failed", action="fail")
    with pytest.raises(FaultInjectedError):
        await lab.run(lab.engine(definition))
    second = lab.engine(definition)
    await second.activate()
    result = await lab.end(second)
    assert result.status is ExecutionStatus.FAILED
    assert "pay" in result.error.message


async def test_a_fatal_refusal_hides_what_must_be_hidden(lab: Any) -> None:
    script = [calls(call("pay", {"cents": "hunter2"}))]
    made = paying("hints", [], on_schema_error="raise", redact_params=["cents"])
    result = await lab.run(lab.engine(lab.define(script, made)))
    assert result.status is ExecutionStatus.FAILED
    assert "hunter2" not in json.dumps(result.error.to_wire())
    for event in lab.store.events("ex1"):
        assert "hunter2" not in json.dumps(event.payload)


@forms
async def test_what_was_coerced_is_what_is_approved_journaled_and_run(lab: Any, form: str) -> None:
    got: list[Any] = []
    made = paying(form, got, on_schema_error="coerce", requires_approval=True)
    script = [calls(call("pay", {"cents": " 5 ", "note": 7})), final("x")]
    engine = lab.engine(lab.define(script, made))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert waiting.approvals[0].arguments == {"cents": 5, "note": "7"}
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "x"
    assert got == [(5, "7")]
    assert rows(lab)[0].arguments == {"cents": 5, "note": "7"}


@forms
async def test_what_cannot_be_coerced_is_told_to_the_model(lab: Any, form: str) -> None:
    got: list[Any] = []
    script = [calls(call("pay", {"cents": "five"})), final("x")]
    made = paying(form, got, on_schema_error="coerce")
    assert (await lab.run(lab.engine(lab.define(script, made)))).output == "x"
    assert got == []
    assert rows(lab)[0].model_text.startswith("Error (invalid_arguments): $.cents: ")


@forms
async def test_T04_nested_text_is_decoded_before_approval_in_every_form(lab: Any, form: str) -> None:
    class Plan(BaseModel):
        steps: list[dict[str, int]]
        note: str

    schema = {
        "type": "object",
        "properties": {
            "steps": {
                "type": "array",
                "items": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            "note": {"type": "string"},
        },
        "required": ["steps", "note"],
    }
    got: list[Any] = []

    @tool(
        name="plan", requires_approval=True, parameters={"hints": None, "model": Plan, "schema": schema}[form]
    )
    async def plan(steps: list[dict[str, int]], note: str) -> str:
        got.append((steps, note))
        return "planned"

    given = {"steps": ['{"s": 1}'], "note": "[1]"}
    engine = lab.engine(lab.define([calls(call("plan", given)), final("x")], plan))
    await engine.start("ex1", "go")
    waiting = await lab.suspension(engine)
    assert waiting.approvals[0].arguments == {"steps": [{"s": 1}], "note": "[1]"}
    await lab.decide_all(engine)
    await lab.end(engine)
    assert got == [([{"s": 1}], "[1]")]


# --- what the model was shown ----------------------------------------------------------------------------------


async def test_the_hash_with_a_call_is_of_what_the_model_was_shown(lab: Any) -> None:
    made = look.with_options(provider_options={"function": {"strict": True}, "cache_control": {"type": "x"}})
    await lab.run(lab.engine(lab.define([calls(call("look", {"x": 1})), final("x")], made)))
    (row,) = rows(lab)
    assert row.schema_hash == made.spec.shown_hash
    first = lab.store.model_calls("ex1")[0]
    (shown,) = loads(lab.store.read_content(first.manifest["tools"]))
    assert shown == made.spec.definition()
    assert shown["function"]["strict"] is True


CHANGES: dict[str, Any] = {
    "another type": lambda: tool(name="look", replay="safe")(_look_text),
    "another description": lambda: look.with_options(description="Look closely."),
    "other provider options": lambda: look.with_options(provider_options={"function": {"strict": True}}),
}


async def _look_text(x: str = "") -> str:
    return f"seen {x}"


@pytest.mark.parametrize("change", CHANGES)
async def test_a_schema_that_changed_after_a_restart_stops_the_stored_call(
    lab: Any, paired: Any, change: str
) -> None:
    script = lambda r: final("fine") if r.last_user == "hi" else calls(call("look", {}))  # noqa: E731
    write_plan(lab.faults, "a1", point="before_dispatch", action="fail")
    with pytest.raises(FaultInjectedError):
        await lab.run(lab.engine(lab.define(script, look)), "go")
    second = lab.engine(lab.define(script, CHANGES[change]()))
    await second.activate()
    result = await lab.end(second)
    assert result.status is ExecutionStatus.FAILED
    (row,) = rows(lab)
    assert (row.status, row.error["code"]) == (ToolCallStatus.FAILED, "definition_changed")
    assert (await lab.run(second, "hi", id="ex2")).output == "fine"
    paired(lab.prompts()[-1])


async def test_settings_that_the_model_is_not_shown_may_change_after_a_restart(lab: Any) -> None:
    script = [calls(call("look", {"x": 1})), final("fine")]
    write_plan(lab.faults, "a1", point="before_dispatch", action="fail")
    with pytest.raises(FaultInjectedError):
        await lab.run(lab.engine(lab.define(script, look)), "go")
    second = lab.engine(lab.define(script, look.with_options(timeout_s=3, max_result_chars=100)))
    await second.activate()
    assert (await lab.end(second)).output == "fine"


@pytest.mark.parametrize(
    "change",
    [
        {"provider_options": {"cache_control": {"type": "x"}}},
        {"description": "Pay for good."},
        {"parameters": {**SCHEMA, "properties": {**SCHEMA["properties"], "cents": {"type": "number"}}}},
    ],
)
async def test_a_tool_that_changed_while_its_approval_waited_does_not_run(lab: Any, change: Any) -> None:
    got: list[Any] = []
    made = paying("schema", got, requires_approval=True, on_error="suppress")
    script = [calls(call("pay", {"cents": 5})), final("x")]
    await lab.engine(lab.define(script, made)).start("ex1", "go")
    await lab.suspension(lab.engines[0])
    second = lab.engine(lab.define(script, made.with_options(**change)))
    await second.activate()
    with pytest.raises(DefinitionChangedError, match="pay"):
        await lab.decide_all(second)
    assert got == []


def test_a_spec_is_compared_by_what_it_says() -> None:
    spec: ToolSpec = look.spec
    assert replace(spec, name="other").shown_hash != spec.shown_hash
    assert replace(spec, name=spec.name).shown_hash == spec.shown_hash


# --- results ---------------------------------------------------------------------------------------------------


async def test_a_result_that_fits_no_call_is_consumed_without_effect(lab: Any) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def slow() -> str:
        entered.set()
        await release.wait()
        return "mine"

    engine = lab.engine(lab.define([calls(call("slow", {})), final("x")], slow))
    await engine.start("ex1", "go")
    await asyncio.wait_for(entered.wait(), 20)
    (row,) = rows(lab)
    before = lab.journal()
    revision = engine.state.root.agent_revision
    strays = [
        ToolOutcome("tc_of_nobody", 1, ToolCallStatus.SUCCEEDED, "stray", "stray"),
        ToolOutcome(row.tool_call_id + "x", 1, ToolCallStatus.SUCCEEDED, "stray", "stray"),
        ToolOutcome(row.provider_call_id, 1, ToolCallStatus.SUCCEEDED, "stray", "stray"),
        ToolOutcome(row.tool_call_id, 2, ToolCallStatus.SUCCEEDED, "stray", "stray"),
        ToolOutcome(row.tool_call_id, 0, ToolCallStatus.FAILED, "stray"),
    ]
    await engine._apply(ToolOutcomes(tuple(strays)))
    assert lab.journal() == before
    assert engine.state.root.agent_revision == revision
    release.set()
    result = await lab.end(engine)
    assert result.output == "x"
    (row,) = rows(lab)
    assert (row.status, row.result) == (ToolCallStatus.SUCCEEDED, "mine")


async def test_a_custom_call_goes_through_filters_and_the_ledger_once(lab: Any) -> None:
    from phronomy_ray.definition.tool import Tool

    filtered: list[Any] = []
    work_ends = asyncio.Event()

    def shout(value: Any, context: Any) -> Any:
        filtered.append(value)
        return value.upper()

    class Early(Tool):
        """Early."""

        parameters = {"type": "object"}
        replay = "safe"
        max_result_chars = 10
        result_filters = (shout,)

        def call_async(self, arguments: Any, context: Any) -> ToolCompletion:
            async def result() -> str:
                return "early and long"

            return ToolCompletion(result(), work_ends.wait())

    definition = lab.define([calls(call("early", {})), final("x")], Early, quiescence_timeout_s=20.0)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    await lab.until_prompted(2)
    assert filtered == ["early and long"]
    (row,) = rows(lab)
    assert row.result == "EARLY AND LONG"
    assert row.model_text.count("left out") == 1
    assert (await engine.view("ex1")).status is ExecutionStatus.ACTIVE, "the end waits for the work"
    work_ends.set()
    assert (await lab.end(engine)).output == "x"


# --- progress --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cooperative", "blocking_io"])
async def test_observers_are_told_how_far_a_call_is(lab: Any, mode: Any) -> None:
    @tool(execution_mode=mode, redact_params=["key"])
    def copy(key: str, context: ToolContext) -> str:
        context.report_progress({"done": 1, "with": f"the {key}"})
        return "copied"

    @tool(execution_mode=mode, redact_result=True)
    def secretly(context: ToolContext) -> str:
        context.report_progress("half of it")
        return "all of it"

    batch = calls(call("copy", {"key": "hunter2secret"}), call("secretly", {}))
    engine = lab.engine(lab.define([batch, final("x")], copy, secretly))
    await engine.start("ex1", "go")
    events = [event for event in await lab.read_events(engine) if event.type == "tool_progress"]
    assert {event.payload["tool_name"]: event.payload["progress"] for event in events} == {
        "copy": {"done": 1, "with": "the [REDACTED]"},
        "secretly": "[REDACTED]",
    }
    assert not any(event.durable for event in events)
    assert "tool_progress" not in {event.type for event in lab.store.events("ex1")}
