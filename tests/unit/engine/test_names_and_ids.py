"""What a model makes up: names of tools that do not exist, and ids that it has used before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.models.scripted import call, calls, final

Paired = Callable[[Any], None]


@tool(replay="safe")
async def search(q: int) -> str:
    return f"found {q}"


async def test_T05_an_unknown_name_is_answered_and_its_siblings_run(lab: Any, paired: Paired) -> None:
    batch = calls(call("serch", {"q": 1}), call("search", {"q": 2}), call("fly", {}))
    script = [batch, final("done")]
    result = await lab.run(lab.engine(lab.define(script, search)))
    assert (result.status, result.output) == (ExecutionStatus.COMPLETED, "done")
    assert [row.status for row in lab.store.tool_calls("ex1")] == [
        ToolCallStatus.FAILED,
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
    ]
    told = [message["content"] for message in lab.prompts()[-1] if message["role"] == "tool"]
    error = "Error (unknown_tool): there is no tool"
    assert told == [
        f"{error} 'serch'; did you mean 'search'? Available: search",
        "found 2",
        f"{error} 'fly'. Available: search",
    ]
    paired(lab.prompts()[-1])


@pytest.mark.parametrize("vary", [False, True])
async def test_T05_made_up_names_for_ever_are_bounded(lab: Any, vary: bool) -> None:
    """Whether the guess is another one each time or not: nothing ran, so only the iterations are counted."""

    def answer(request: Any) -> Any:
        return calls(call("serch", {"q": len(lab.prompts()) if vary else 1}))

    result = await lab.run(lab.engine(lab.define(answer, search, max_iterations=10)))
    assert result.error is not None
    assert (result.status, result.error.code) == (ExecutionStatus.FAILED, "max_iterations")
    assert len(lab.prompts()) == 10
    assert all(row.status is ToolCallStatus.FAILED for row in lab.store.tool_calls("ex1"))


@pytest.mark.parametrize("crash", ["", "after_commit:batch", "after_commit:results"])
async def test_T07_a_reused_provider_id_never_takes_an_old_result(
    lab: Any, paired: Paired, crash: str
) -> None:
    """Two turns of one conversation, each with ``call_1``; the owner is lost between the two, or inside the second."""
    drawn: list[int] = []

    @tool(replay="safe")
    async def rand() -> int:
        drawn.append(len(drawn) + 1)
        return drawn[-1]

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        return final(last["content"]) if last["role"] == "tool" else calls(call("rand", id="call_1"))

    definition = lab.define(answer, rand)
    first = await lab.run(lab.engine(definition), "one", id="ex1")
    assert first.output == "1"
    engine = lab.engine(definition)  # another process takes the agent
    if crash:
        write_plan(lab.faults, "a1", point=crash, action="fail")

        async def run() -> None:
            await engine.start("ex2", "two")
            await lab.end(engine, "ex2")

        with pytest.raises(FaultInjectedError):
            await run()
        engine = lab.engine(definition)
        await engine.activate()
        second = await lab.end(engine, "ex2")
    else:
        second = await lab.run(engine, "two", id="ex2")
    assert second.output == str(drawn[-1])
    assert second.output != "1"
    rows = [*lab.store.tool_calls("ex1"), *lab.store.tool_calls("ex2")]
    assert [row.provider_call_id for row in rows] == ["call_1", "call_1"]
    assert len({row.tool_call_id for row in rows}) == 2
    results = [message["content"] for message in lab.prompts()[-1] if message["role"] == "tool"]
    assert results == ["1", str(drawn[-1])]
    paired(lab.prompts()[-1])


async def test_T07_one_id_twice_in_one_answer_is_two_calls(lab: Any, paired: Paired) -> None:
    script = [calls(call("search", {"q": 1}, id="call_1"), call("search", {"q": 2}, id="call_1")), final("x")]
    await lab.run(lab.engine(lab.define(script, search)))
    assert [row.result for row in lab.store.tool_calls("ex1")] == ["found 1", "found 2"]
    paired(lab.prompts()[-1])
