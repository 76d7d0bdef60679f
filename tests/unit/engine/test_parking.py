"""An agent whose starts go in circles is taken out of service, with its reason, until somebody says otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.clock import SystemClock
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import AgentParkedError, CancellationError, ConfigurationError, StoreUnavailableError
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, Lifecycle, ToolCallStatus
from phronomy_ray.models.scripted import call, calls, final, hang


def starts(lab: Any, agent_id: str = "a1") -> int:
    return int(lab.store.load_root(agent_id).starts_without_progress)


async def successor(lab: Any, definition: Any) -> Any:
    """A new owner, as after the death of the present one, whose bodies and calls died with it."""
    lab.engines[-1]._halt(FaultInjectedError("its process is gone"))
    return await lab.restarted(definition)


async def crashed_in_the_model_call(lab: Any, times: int, **attributes: Any) -> Any:
    """A definition whose execution is stored in its model call, and has been found there `times` times."""
    definition = lab.define(
        lambda request: hang() if request.last_user != "hi" else final("fine"), **attributes
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "hello")
    await lab.until_prompted()
    for number in range(1, times + 1):
        await successor(lab, definition)
        assert starts(lab) == number, "what a new owner begins again is no progress"
    return definition


async def test_the_sixth_owner_in_a_row_parks_the_agent(lab: Any) -> None:
    definition = await crashed_in_the_model_call(lab, 5)
    with pytest.raises(AgentParkedError, match=r"5 starts .* ex1 stayed in phase calling_model") as refused:
        await successor(lab, definition)
    assert refused.value.details["agent_id"] == "a1"
    root = lab.store.load_root("a1")
    assert root.lifecycle is Lifecycle.PARKED
    assert (root.parked.code, root.parked.execution_id, root.parked.starts) == ("no_progress", "ex1", 5)
    epoch = root.epoch
    for _ in range(2):
        with pytest.raises(AgentParkedError, match="phronomy unpark a1"):
            await lab.engine(definition).start("ex2", "more")
    assert lab.store.load_root("a1").epoch == epoch, "nobody claims what is out of service"
    assert len(lab.prompts()) == 6, "it did not run once more"


async def test_others_go_on_and_unpark_gives_it_a_new_chance(lab: Any) -> None:
    definition = await crashed_in_the_model_call(lab, 2, max_starts_without_progress=2)
    parked = lab.engine(definition)
    with pytest.raises(AgentParkedError):
        await parked.activate()
    other = lab.engine(definition, "a2")
    assert (await lab.run(other, "hi", id="ex-other")).output == "fine"
    assert lab.store.unpark_agent("a1", now=SystemClock().now())
    await parked.activate()  # the same process may serve it again
    assert parked.status()["execution_id"] == "ex1"
    assert starts(lab) == 1


async def test_unpark_can_end_what_crashes(lab: Any) -> None:
    definition = await crashed_in_the_model_call(lab, 1, max_starts_without_progress=1)
    with pytest.raises(AgentParkedError):
        await successor(lab, definition)
    assert lab.store.unpark_agent("a1", now=SystemClock().now(), cancel_reason="it crashes")
    engine = await successor(lab, definition)
    result = await lab.end(engine)
    assert result.status is ExecutionStatus.CANCELLED
    with pytest.raises(CancellationError, match="it crashes"):
        result.raise_for_status()
    await lab.still_usable(engine)


async def test_progress_starts_the_count_anew(lab: Any) -> None:
    deletions = lab.deletions()
    definition = lab.define(
        [calls(call("read", {"n": 1})), hang()], deletions.free, max_starts_without_progress=1
    )
    engine = lab.engine(definition)
    await engine.start("ex1", "hello")
    await lab.until_prompted(2)
    assert starts(lab) == 0
    await successor(lab, definition)
    assert starts(lab) == 1


async def test_an_idle_agent_may_be_woken_for_ever(lab: Any) -> None:
    definition = lab.define([final("fine")], max_starts_without_progress=1)
    for _ in range(4):
        engine = await lab.restarted(definition)
        await engine.seal()
    engine = await lab.restarted(definition)
    assert (await lab.run(engine)).output == "fine"
    assert starts(lab) == 0


async def test_one_that_waits_for_a_human_may_be_woken_for_ever(lab: Any) -> None:
    deletions = lab.deletions()
    definition = lab.define(
        [calls(call("delete", {"n": 1})), final("done")], deletions.delete, max_starts_without_progress=1
    )
    await lab.engine(definition).start("ex1", "hello")
    await lab.suspension(lab.engines[-1])
    for _ in range(4):
        engine = await successor(lab, definition)
    await lab.decide_all(engine)
    assert (await lab.end(engine)).output == "done"


async def test_requests_that_cannot_begin_park_the_agent_too(lab: Any) -> None:
    definition = lab.define([hang()], max_starts_without_progress=1)
    engine = lab.engine(definition)
    await engine.start("ex1", "hello")
    await engine.start("ex2", "next", on_busy=BusyRule.QUEUE)
    write_plan(lab.faults, "a1", point="before_commit:admit", action="fail")
    await engine.cancel("ex1", "make room")
    async with asyncio.timeout(20):
        while engine.is_active:
            await asyncio.sleep(0.002)
    write_plan(lab.faults, "a1", point="before_commit:admit", action="fail")
    second = await successor(lab, definition)
    async with asyncio.timeout(20):
        while second.is_active:
            await asyncio.sleep(0.002)
    with pytest.raises(AgentParkedError, match="ex2 did not begin"):
        await successor(lab, definition)
    assert lab.store.load_root("a1").parked.execution_id == ""


async def test_a_call_that_kills_its_owner_fails_before_the_agent_is_parked(lab: Any) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def poison() -> str:
        begun.set()
        await never.wait()
        return "never"

    definition = lab.define([calls(call("poison", {})), final("not reached")], poison)
    engine = lab.engine(definition)
    await engine.start("ex1", "hello")
    await asyncio.wait_for(begun.wait(), 20)
    for _ in range(5):
        engine = await successor(lab, definition)
    result = await lab.end(engine)
    assert (result.status, result.terminal_reason) == (ExecutionStatus.FAILED, "tool_error")
    [row] = lab.store.tool_calls("ex1")
    assert (row.status, row.attempt) == (ToolCallStatus.FAILED, 5)
    assert starts(lab) == 0


async def test_a_lost_store_is_no_crash_loop(lab: Any) -> None:
    await crashed_in_the_model_call(lab, 1, max_starts_without_progress=1)
    engine = lab.engines[-1]
    engine._halt(StoreUnavailableError("away"))
    await engine.activate()
    assert engine.is_active
    engine._halt(FaultInjectedError("a fault of this process"))
    with pytest.raises(AgentParkedError):
        await engine.activate()


async def test_an_owner_that_lacks_instance_options_is_no_crash(lab: Any) -> None:
    def loud(text: str, context: Any) -> str:
        return text.upper()

    definition = lab.define([hang()], max_starts_without_progress=1)
    engine = lab.engine(definition, options=InstanceOptions(input_filters=(loud,)))
    await engine.start("ex1", "hello")
    await lab.until_prompted()
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="instance options"):
            await lab.restarted(definition)
        assert starts(lab) == 0
    await lab.restarted(definition, options=InstanceOptions(input_filters=(loud,)))
    assert starts(lab) == 1


@pytest.mark.parametrize("wrong", [0, -1, None, 1.5, True, "3"])
def test_the_limit_is_a_positive_whole_number(lab: Any, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_starts_without_progress"):
        lab.define([final("x")], max_starts_without_progress=wrong)


async def test_another_version_is_refused_with_a_code_of_its_own_before_anything_is_claimed(lab: Any) -> None:
    lab.engine(lab.define([final("x")]))
    with pytest.raises(ConfigurationError) as refused:
        await lab.restarted(lab.define([final("x")], definition_version="2"))
    assert refused.value.code == "definition_version"
    assert lab.store.load_root("a1").epoch == 0
