"""The busy rule: requests that are refused, that wait, and that interrupt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.engine.event_hub import BUFFERED_EXECUTIONS
from phronomy_ray.errors import (
    AgentBusyError,
    AgentClosedError,
    BackpressureError,
    ConfigurationError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.events import Event, EventType
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.kernel.inputs import EditKind
from phronomy_ray.models.scripted import call, calls, final, hang

QUEUE, INTERRUPT = BusyRule.QUEUE, BusyRule.INTERRUPT


def scripted(request: Any) -> Any:
    """Hangs on the message ``hang``, asks a human on ``ask``, answers everything else."""
    said = request.messages[-1]
    if said["content"] == "hang":
        return hang()
    if said["content"] == "ask":
        return calls(call("delete", {"n": 1}))
    return final(f"heard {said['content']}")


async def busy(lab: Any, **attributes: Any) -> Any:
    """An engine whose execution ``ex1`` hangs in its model call."""
    engine = lab.engine(lab.define(scripted, **attributes))
    await engine.start("ex1", "hang")
    await lab.until_prompted()
    return engine


async def test_requests_wait_in_order_and_begin_by_themselves(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    for number in (2, 3, 4):
        result = await engine.start(f"ex{number}", f"m{number}", durable_context={"n": number})
        assert result.status is ExecutionStatus.QUEUED
    assert engine.status()["queued"] == 3
    assert [item.execution_id for item in lab.store.queued_requests("a1")] == ["ex2", "ex3", "ex4"]
    assert lab.store.find_execution("ex2") is None, "it is no execution yet"
    await engine.cancel("ex1", "enough")
    for number in (2, 3, 4):
        assert (await lab.end(engine, f"ex{number}")).output == f"heard m{number}"
        assert lab.store.load_execution(f"ex{number}").durable_context == {"n": number}
    started = [row.created_at for row in map(lab.store.load_execution, ("ex2", "ex3", "ex4"))]
    assert started == sorted(started)
    assert lab.store.queued_requests("a1") == []
    assert [message["content"] for message in lab.prompts()[-1]][-3:] == ["m3", "heard m3", "m4"]


async def test_without_a_rule_a_busy_agent_refuses(lab: Any) -> None:
    engine = await busy(lab)
    with pytest.raises(AgentBusyError, match="ex1"):
        await engine.start("ex2", "m2")
    assert (await engine.start("ex3", "m3", on_busy=QUEUE)).status is ExecutionStatus.QUEUED
    with pytest.raises(AgentBusyError):
        await engine.start("ex4", "m4", on_busy=BusyRule.REJECT)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine, "ex3")).output == "heard m3"


async def test_an_interrupting_request_ends_what_runs_and_is_next(lab: Any) -> None:
    engine = await busy(lab)
    await engine.start("ex2", "m2", on_busy=QUEUE)
    await engine.start("ex3", "m3", on_busy=INTERRUPT)
    first = await lab.end(engine, "ex1")
    assert (first.status, first.terminal_reason) == (ExecutionStatus.CANCELLED, "interrupted")
    for number in (3, 2):
        assert (await lab.end(engine, f"ex{number}")).output == f"heard m{number}"
    order = [lab.store.load_execution(which).created_at for which in ("ex3", "ex2")]
    assert order == sorted(order)


async def test_a_second_interruption_ends_the_first(lab: Any) -> None:
    engine = await busy(lab)
    await engine.start("ex2", "hang", on_busy=INTERRUPT)
    await lab.end(engine, "ex1")
    await lab.until_prompted(2)
    await engine.start("ex3", "m3", on_busy=INTERRUPT)
    assert (await lab.end(engine, "ex2")).terminal_reason == "interrupted"
    assert (await lab.end(engine, "ex3")).output == "heard m3"


async def test_a_suspended_execution_is_interrupted_at_once_and_waited_for_otherwise(lab: Any) -> None:
    deletions = lab.deletions()
    engine = lab.engine(lab.define(scripted, deletions.delete, on_busy="queue"))
    await engine.start("ex1", "ask")
    await lab.suspension(engine)
    await engine.start("ex2", "m2")
    assert (await engine.view("ex1")).suspended
    assert (await engine.view("ex2")).status is ExecutionStatus.QUEUED
    await engine.start("ex3", "m3", on_busy=INTERRUPT)
    assert (await lab.end(engine, "ex1")).terminal_reason == "interrupted"
    assert (await lab.end(engine, "ex3")).output == "heard m3"
    assert (await lab.end(engine, "ex2")).output == "heard m2"
    assert deletions.done == []


async def test_the_queue_is_bounded(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue", max_queued_requests=2)
    await engine.start("ex2", "m2")
    await engine.start("ex3", "m3")
    for rule in (QUEUE, INTERRUPT):
        with pytest.raises(BackpressureError, match="at most 2"):
            await engine.start("ex4", "m4", on_busy=rule)
    assert engine.runs("ex1"), "a request that is refused interrupts nothing"
    await engine.cancel("ex1", "enough")
    await lab.end(engine, "ex3")
    assert (await lab.run(engine, "m4", id="ex4")).output == "heard m4"


async def test_the_same_request_again_waits_once(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2")
    assert (await engine.start("ex2", "m2")).status is ExecutionStatus.QUEUED
    with pytest.raises(StateConflictError, match="another input"):
        await engine.start("ex2", "other")
    assert (await engine.start("ex1", "hang")).status is ExecutionStatus.ACTIVE, "it does not wait for itself"
    assert len(lab.store.queued_requests("a1")) == 1
    await engine.cancel("ex1", "enough")
    await lab.end(engine, "ex2")
    await engine.start("ex3", "hang")
    assert (await engine.start("ex2", "m2")).output == "heard m2", "nor does one that has ended begin anew"
    await engine.cancel("ex3", "enough")
    await lab.end(engine, "ex3")


async def test_a_request_that_is_withdrawn_ends_as_a_cancelled_execution(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2")
    await engine.start("ex3", "m3")
    waiter = asyncio.create_task(engine.wait("ex2", until="terminal", timeout_s=20))
    reader = asyncio.create_task(lab.read_events(engine, "ex2"))
    await asyncio.sleep(0)
    result = await engine.cancel("ex2", "not needed")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "not needed")
    assert result.error is not None
    assert "before it began" in result.error.message
    assert await waiter == result
    assert [event.type.value for event in await reader] == ["cancelled"]
    assert (await engine.cancel("ex2", "again")).terminal_reason == "not needed"
    assert engine.runs("ex1"), "the execution that ran goes on"
    assert [record.kind.value for record in lab.store.journal_of_execution("ex2")] == [
        "input_received",
        "execution_cancelled",
    ]
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine, "ex3")).output == "heard m3"
    assert "m2" not in str(lab.prompts())


async def test_what_a_withdrawn_request_leaves_does_not_touch_the_running_conversation(lab: Any) -> None:
    engine = lab.engine(
        lab.define([calls(call("slow", {"x": 1})), final("done")], slow(lab), on_busy="queue")
    )
    await engine.start("ex1", "first")
    await asyncio.to_thread(lab.inside.wait, 20)
    await engine.start("ex2", "second")
    await engine.cancel("ex2", "not needed")
    lab.release.set()
    assert (await lab.end(engine, "ex1")).output == "done"
    assert [message["role"] for message in lab.prompts()[-1]] == ["user", "assistant", "tool"]
    fresh = await lab.restarted(engine.definition)
    assert [len(item.messages) for item in fresh.state.conversation.exchanges] == [4]


def slow(lab: Any) -> Any:
    import threading

    from phronomy_ray.definition.tool import tool

    lab.inside = threading.Event()

    @tool(name="slow")
    def body(x: int) -> str:
        lab.inside.set()
        lab.release.wait(60)
        return f"slow {x}"

    return body


async def test_events_of_a_request_wait_for_its_beginning(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2")
    nothing, _ = await engine.events("ex2", after=0, cursor=None, timeout_s=0.05)
    assert nothing == []
    reader = asyncio.create_task(lab.read_events(engine, "ex2"))
    await asyncio.sleep(0)
    await engine.cancel("ex1", "enough")
    types = [event.type.value for event in await reader]
    assert (types[0], types[-1]) == ("started", "completed")


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_new_owner_goes_on_with_the_queue(lab: Any, interrupted: bool) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2", stream=True)
    await engine.start("ex3", {"message": "m3"})
    if interrupted:  # the intent is stored with the request, and its end has not come
        await engine.start("ex4", "m4", on_busy=INTERRUPT)
    fresh = await lab.restarted(engine.definition)
    if not interrupted:
        await fresh.cancel("ex1", "enough")
    assert (await lab.end(fresh, "ex1")).status is ExecutionStatus.CANCELLED
    for which, said in (("ex4", "m4"),) * interrupted + (("ex2", "m2"), ("ex3", "m3")):
        assert (await lab.end(fresh, which)).output == f"heard {said}"


async def test_a_queue_that_was_left_behind_is_begun_by_the_next_owner(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2")
    reached = lab.pause("before_commit:admit")
    await engine.cancel("ex1", "enough")
    release = await reached()  # the first has ended, the second has not begun
    assert lab.store.queued_requests("a1")[0].execution_id == "ex2"
    with pytest.raises(NotFoundError):
        lab.store.load_execution("ex2")
    fresh = lab.engine(engine.definition)
    task = asyncio.create_task(fresh.activate())
    await task
    release()
    assert (await lab.end(fresh, "ex2")).output == "heard m2"
    assert len([row for row in lab.store.list_executions() if row.execution_id == "ex2"]) == 1


async def test_a_request_does_not_begin_without_the_filters_that_it_came_with(lab: Any) -> None:
    def exclaim(value: Any, context: Any) -> Any:
        return value if value == "hang" else f"{value}!"

    definition = lab.define(scripted, on_busy="queue")
    options = InstanceOptions(input_filters=[exclaim])
    plain = lab.engine(definition)
    await plain.start("ex1", "hang")
    await lab.until_prompted()
    engine = await lab.restarted(definition, options=options)
    await engine.start("ex2", "m2")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="instance options"):
            await lab.engine(definition).activate()
    engine = await lab.restarted(definition, options=options)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine, "ex2")).output == "heard m2!"


async def test_an_agent_with_a_queue_is_neither_edited_nor_deleted(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "hang")
    await engine.cancel("ex1", "enough")
    await lab.end(engine, "ex1")
    for change in (engine.edit(EditKind.CLOSE), engine.purge()):
        with pytest.raises(AgentBusyError):
            await change
    await lab.until_prompted(2)
    await engine.cancel("ex2", "enough")
    await lab.end(engine, "ex2")
    await engine.edit(EditKind.CLOSE)
    with pytest.raises(AgentClosedError):
        await engine.start("ex3", "m3")


async def test_a_request_whose_id_was_taken_meanwhile_is_dropped(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2")
    await engine.start("ex3", "m3")
    other = lab.engine(engine.definition, "a2")
    assert (await lab.run(other, "theirs", id="ex2")).output == "heard theirs"
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine, "ex3")).output == "heard m3"
    assert lab.store.load_execution("ex2").agent_id == "a2"
    assert lab.store.queued_requests("a1") == []


@pytest.mark.parametrize("rule", [QUEUE, INTERRUPT])
async def test_a_request_whose_id_waits_at_another_agent_is_refused_and_harms_nothing(
    lab: Any, rule: BusyRule
) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2")
    other = lab.engine(engine.definition, "a2")
    await other.start("ex3", "hang")
    await lab.until_prompted(2)
    with pytest.raises(StateConflictError, match="agent 'a1'"):
        await other.start("ex2", "m2", on_busy=rule)
    assert other.is_active
    assert other.runs("ex3"), "what was refused interrupts nothing"
    assert (await other.start("ex4", "m4")).status is ExecutionStatus.QUEUED
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine, "ex2")).output == "heard m2"
    await other.cancel("ex3", "enough")
    assert (await lab.end(other, "ex4")).output == "heard m4"


async def test_a_request_that_waits_is_told_again_whatever_the_rule(lab: Any) -> None:
    engine = await busy(lab)
    for rule in (QUEUE, None, BusyRule.REJECT, INTERRUPT):
        assert (await engine.start("ex2", "m2", on_busy=rule)).status is ExecutionStatus.QUEUED
    with pytest.raises(StateConflictError, match="another input"):
        await engine.start("ex2", "other")
    assert engine.runs("ex1")
    assert len(lab.store.queued_requests("a1")) == 1
    await engine.cancel("ex1", "enough")
    await lab.end(engine, "ex2")


async def test_a_request_whose_id_was_taken_is_dropped_when_it_is_cancelled(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    await engine.start("ex2", "m2")
    await lab.run(lab.engine(engine.definition, "a2"), "theirs", id="ex2")
    with pytest.raises(NotFoundError, match="agent 'a2'"):
        await engine.cancel("ex2", "not needed")
    assert lab.store.queued_requests("a1") == []
    assert engine.runs("ex1")
    await engine.cancel("ex1", "enough")
    await lab.end(engine, "ex1")


async def test_requests_that_are_withdrawn_cost_the_running_execution_no_events(lab: Any) -> None:
    engine = await busy(lab, on_busy="queue")
    read, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=20)
    for number in range(BUFFERED_EXECUTIONS + 2):
        await engine.start(f"q{number}", "m")
        await engine.cancel(f"q{number}", "not needed")
    engine.hub.publish(Event("ex1", 1, EventType.TOKEN, {"text": "hello"}, False))
    more, cursor = await engine.events("ex1", after=read[-1].seq, cursor=cursor, timeout_s=20)
    assert [event.type for event in more] == [EventType.TOKEN]
    await engine.cancel("ex1", "enough")
    more, _ = await engine.events("ex1", after=read[-1].seq, cursor=cursor, timeout_s=20)
    assert more[-1].type is EventType.CANCELLED
    assert (await lab.read_events(engine, "q0"))[-1].type is EventType.CANCELLED, "the store has it"


@pytest.mark.parametrize(
    "wrong", [{"on_busy": "later"}, {"on_busy": 7}, {"max_queued_requests": 0}, {"max_queued_requests": None}]
)
def test_a_rule_that_cannot_be_is_refused_when_the_class_is_made(lab: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        lab.define([final("x")], **wrong)
