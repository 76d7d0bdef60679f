"""`Agent.as_tool()` as a declaration, and the errors that a child's end becomes."""

from __future__ import annotations

from typing import Any

import pytest

from phronomy_ray import Agent, ToolContext
from phronomy_ray.definition.agent_tool import DEFAULT_INPUT_DESCRIPTION, text_of
from phronomy_ray.errors import (
    CancellationError,
    CleanupError,
    ConfigurationError,
    ErrorRecord,
    ExecutionRehydrationRequiredError,
    PhronomyError,
    ToolError,
)
from phronomy_ray.hosting.child_agents import (
    child_ids,
    next_lineage,
)
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.messages import Usage
from phronomy_ray.models.script import final
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.results import RunResult


def agent(name: str, script: Any, *tools: Any, **attributes: Any) -> type[Agent]:
    body = {"model": ScriptedModel(script), "tools": list(tools), "definition_id": name, **attributes}
    # as if of a driver's own script: it travels by value
    made = {"__module__": "__main__", "__doc__": f"Does {name} work."}
    return type(name.capitalize(), (Agent,), {**made, **body})


def test_depth_is_limited() -> None:
    lineage = ["a"]
    for name in "bcde":
        lineage = next_lineage(lineage, name, 4)
    with pytest.raises(ToolError, match="4 levels") as caught:
        next_lineage(lineage, "f", 4)
    assert caught.value.code == "agent_depth"
    assert next_lineage(["a"], "b", 1) == ["a", "b"]


def _result(status: ExecutionStatus, error: PhronomyError | None = None) -> RunResult:
    record = ErrorRecord.from_exception(error) if error is not None else None
    return RunResult("p.1", "ex_1", status, None, Usage(), 1, error=record)


@pytest.mark.parametrize(
    "error",
    [
        ToolError("t", code="special"),
        CancellationError("c"),
        ExecutionRehydrationRequiredError("r"),
        CleanupError("x", details={"child_agent_id": "deeper"}),
    ],
)
def test_errors_of_the_family_pass_unchanged(error: PhronomyError) -> None:
    with pytest.raises(type(error)) as caught:
        text_of(_result(ExecutionStatus.FAILED, error))
    assert (caught.value.code, caught.value.message) == (error.code, error.message)
    assert caught.value.details == error.details


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ExecutionStatus.FAILED, "child_failed"),
        (ExecutionStatus.REJECTED, "child_rejected"),
        (ExecutionStatus.BLOCKED, "child_blocked"),
        (ExecutionStatus.HANDED_OFF, "child_failed"),
    ],
)
def test_every_other_end_is_a_tool_error(status: ExecutionStatus, code: str) -> None:
    with pytest.raises(ToolError) as caught:
        text_of(_result(status))
    assert caught.value.code == code


def test_a_cancelled_child_is_a_cancellation() -> None:
    with pytest.raises(CancellationError):
        text_of(_result(ExecutionStatus.CANCELLED))


def test_the_declaration() -> None:
    class ReportWriterAgent(Agent):
        """Writes reports."""

        model = "openai/m"

    made = ReportWriterAgent.as_tool(input_description="what to write\nabout")
    spec = made.spec
    assert (spec.name, spec.description, spec.execution_mode, spec.replay) == (
        "report_writer",
        "Writes reports.",
        "cooperative",
        "idempotent",
    )
    assert spec.parameters.schema["properties"] == {
        "input": {"type": "string", "description": "what to write about"}
    }
    assert (spec.timeout_s, spec.requires_approval) == (3600.0, False)
    assert (spec.tool_origin, spec.approval_metadata) == (
        "agent",
        {"agent": ReportWriterAgent.definition().definition_id},
    )
    named = ReportWriterAgent.as_tool("ask", "Asks.", timeout_s=5).with_options(requires_approval=True)
    assert (named.spec.name, named.spec.description, named.spec.timeout_s) == ("ask", "Asks.", 5)
    assert named.spec.requires_approval is True
    assert named.spec.parameters.schema == made.spec.parameters.schema | {
        "properties": {"input": {"type": "string", "description": DEFAULT_INPUT_DESCRIPTION}}
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "not a name"},
        {"name": 3},
        {"description": ""},
        {"input_description": " "},
        {"keep": 1},
        {"max_depth": 0},
        {"max_depth": True},
        {"timeout_s": 0},
    ],
    ids=str,
)
def test_a_wrong_argument_is_a_configuration_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        agent("writer", [final("x")]).as_tool(**arguments)


def test_a_class_that_cannot_run_is_no_tool() -> None:
    class Nothing(Agent):
        """No model."""

    with pytest.raises(ConfigurationError, match="model"):
        Nothing.as_tool()


def test_a_description_is_needed() -> None:
    class Silent(Agent):
        model = "openai/m"

    with pytest.raises(ConfigurationError, match="description"):
        Silent.as_tool()


async def test_outside_of_an_agent_it_says_what_is_missing() -> None:
    made: Any = agent("writer", [final("x")]).as_tool()
    context = ToolContext("a", "ex", "tc", "tc", 1)
    with pytest.raises(ConfigurationError, match="agent's own process"):
        await made.execute(input="x", context=context)


def test_ids_are_the_calls_own() -> None:
    one = child_ids("p", "ex1", "tc_1")
    assert one == child_ids("p", "ex1", "tc_1")
    others = {child_ids("p", "ex1", "tc_2"), child_ids("p", "ex2", "tc_1"), child_ids("q", "ex1", "tc_1")}
    assert len(others | {one}) == 4
    assert len(child_ids("p" * 200, "ex1", "tc_1")[0]) < 200
