"""What a driver sees: agents made, found and woken, executions watched, across drivers and deaths of processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
from ray_testbed import drives, effects
from ray_testbed.agents import Puppet, PuppetTwo, Stranger, asked, turn
from ray_testbed.effects import PATIENCE_S, recorded, until_recorded
from ray_testbed.fixtures import Bench, in_background, kill_actor
from ray_testbed.imported import check_import
from ray_testbed.session import Session

from phronomy_ray import AgentHandle, Event, Runtime
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    AgentBusyError,
    AuthenticationError,
    CancellationError,
    ConfigurationError,
    EventLoopReentrancyError,
    ExecutionRehydrationRequiredError,
    InvalidInputError,
    NotFoundError,
    RemoteError,
    RuntimeShutdownError,
    StateConflictError,
    ToolError,
    WaitTimeoutError,
)
from phronomy_ray.hosting.assignment import agent_actor_name
from phronomy_ray.ids import new_execution_id
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.testing import processes

Names = Callable[[str], str]
#: A store on PostgreSQL in every run, on SQLite too at full size.
BOTH = pytest.mark.parametrize("engine", [pytest.param("sqlite", marks=pytest.mark.full), "postgres"])


class NoStore:
    """Stands for a store that must not be read: everything but its name raises."""

    def __init__(self, identity: str) -> None:
        self.identity = identity

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the store was touched: {name}")

    def close(self) -> None:
        pass


def without_store(bench: Bench) -> Runtime:
    """A runtime that fails when it touches its store."""
    made = bench.runtime()
    made.store.close()
    made.store = NoStore(made.store.identity)  # type: ignore[assignment]
    return made


def has_actor(agent_id: str) -> bool:
    try:
        ray.get_actor(agent_actor_name(agent_id), namespace="phronomy")
    except ValueError:
        return False
    return True


def kill_process(agent: AgentHandle) -> int:
    """SIGKILL to the agent's process; returns its pid."""
    pid = int(agent.status()["pid"])
    os.kill(pid, signal.SIGKILL)
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    return pid


def unload(agent: AgentHandle) -> None:
    """Unload and wait until the process is gone."""
    pid = agent.status()["pid"]
    assert agent.unload() is True
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S), (
        f"process {pid} of an unloaded agent still runs"
    )


# --- create -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgres"])
def test_what_create_imports_is_one_transaction_and_the_model_sees_it(
    runtime: Runtime, new_id: Names
) -> None:
    check_import(runtime, new_id("imported"))


# --- load, get --------------------------------------------------------------------------------------------------


def test_load_wakes_a_stored_agent_and_refuses_every_other_claim(
    bench: Bench, runtime: Runtime, new_id: Names
) -> None:
    with pytest.raises(NotFoundError):
        runtime.load(Puppet, new_id("nobody"))
    agent = runtime.create(Puppet, new_id("alice"))
    with pytest.raises(AgentAlreadyExistsError) as live:
        runtime.create(Puppet, agent.agent_id)
    assert live.value.details == {"agent_id": agent.agent_id}

    def refused_for_its_class() -> None:
        for other in (PuppetTwo, Stranger):
            with pytest.raises(ConfigurationError, match=r"is (stored|live) as 'puppet' version '1'"):
                runtime.load(other, agent.agent_id)
            with pytest.raises(ConfigurationError):
                runtime.load_or_create(other, agent.agent_id)

    refused_for_its_class()
    elsewhere = bench.runtime(store=bench.session.new_store("sqlite"))
    with pytest.raises(ConfigurationError, match="is live on the store"):
        elsewhere.load(Puppet, agent.agent_id)
    before = agent.status()
    unload(agent)
    refused_for_its_class()
    with pytest.raises(AgentAlreadyExistsError):
        runtime.create(Stranger, agent.agent_id)
    assert not has_actor(agent.agent_id), "a refused load or creation left a process behind"
    again = runtime.load(Puppet, agent.agent_id).status()
    assert again["epoch"] == before["epoch"] + 1
    assert again["pid"] != before["pid"]
    assert again["journal_position"] == before["journal_position"]


def test_a_live_agent_is_found_without_its_store(bench: Bench, runtime: Runtime, new_id: Names) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    blind = without_store(bench)
    loaded = blind.load(Puppet, agent.agent_id)
    found = blind.get(agent.agent_id)
    assert found is not None
    assert loaded.status() == found.status() == agent.status()
    assert blind.load_or_create(Puppet, agent.agent_id).status() == agent.status()
    assert found.invoke("hello", timeout=PATIENCE_S).output == "you said: hello"
    assert blind.get(new_id("nobody")) is None
    unload(agent)
    assert blind.get(agent.agent_id) is None, "get wakes nobody"
    assert not has_actor(agent.agent_id)


@BOTH
def test_drivers_that_load_together_hydrate_once(
    bench: Bench, runtime: Runtime, shared: Session, new_id: Names
) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    before = agent.status()
    others = [shared.driver(0), shared.driver(1)]
    for driver in others:
        driver.run(drives.runtime_ready, bench.store)
    unload(agent)
    with ThreadPoolExecutor(4) as threads:
        futures: list[Any] = [
            driver.begin(drives.load, bench.store, Puppet, agent.agent_id)
            for driver in others
            for _ in range(3)
        ]
        futures += [threads.submit(lambda: runtime.load(Puppet, agent.agent_id).status()) for _ in range(4)]
        seen = [future.result(PATIENCE_S) for future in futures]
    assert len(seen) == 10
    assert {status["epoch"] for status in seen} == {before["epoch"] + 1}
    assert len({status["pid"] for status in seen}) == 1


def load_together_after_kills(
    bench: Bench, runtime: Runtime, shared: Session, agent_id: str, rounds: int
) -> None:
    """Kill the actor and have everybody load at once, while its name still leads to the dead one."""
    agent = runtime.create(Puppet, agent_id)
    others = [shared.driver(0), shared.driver(1)]
    epochs = [agent.status()["epoch"]]
    for _ in range(rounds):
        kill_actor(agent_id)
        with ThreadPoolExecutor(4) as threads:
            futures: list[Any] = [
                driver.begin(drives.load, bench.store, Puppet, agent_id)
                for driver in others
                for _ in range(4)
            ]
            futures += [threads.submit(lambda: runtime.load(Puppet, agent_id).status()) for _ in range(4)]
            seen = [future.result(PATIENCE_S) for future in futures]
        assert len({(status["pid"], status["epoch"]) for status in seen}) == 1
        epochs.append(seen[0]["epoch"])
    assert epochs == sorted(set(epochs))


def test_R01_drivers_that_load_a_dying_agent_find_one_living_one(
    bench: Bench, runtime: Runtime, shared: Session, new_id: Names
) -> None:
    load_together_after_kills(bench, runtime, shared, new_id("alice"), rounds=2)


@pytest.mark.full
def test_R01_drivers_that_load_a_dying_agent_find_one_living_one_in_forty_rounds(
    bench: Bench, runtime: Runtime, shared: Session, new_id: Names
) -> None:
    load_together_after_kills(bench, runtime, shared, new_id("alice"), rounds=40)


def test_drivers_that_load_or_create_together_make_one_agent(
    bench: Bench, shared: Session, new_id: Names
) -> None:
    agent_id = new_id("alice")
    calls = [
        shared.driver(number).begin(drives.load_or_create, bench.store, Puppet, agent_id)
        for number in (0, 1)
        for _ in range(3)
    ]
    seen = [call.result(PATIENCE_S) for call in calls]
    assert len({(status["pid"], status["epoch"]) for status in seen}) == 1
    again = new_id("bob")
    creations = [shared.driver(number).begin(drives.create, bench.store, Puppet, again) for number in (0, 1)]
    errors = [creation.exception(PATIENCE_S) for creation in creations]
    assert sorted(type(error) for error in errors if error is not None) == [AgentAlreadyExistsError]


# --- admission --------------------------------------------------------------------------------------------------


def test_one_execution_id_is_one_execution_from_every_driver(
    bench: Bench, runtime: Runtime, puppet: AgentHandle, shared_bench: Bench, shared: Session, new_id: Names
) -> None:
    execution_id = new_execution_id()
    amount = len(recorded(puppet.agent_id, "wire")) + 1
    message = turn([("wire", {"amount": amount})], answer="paid once")
    runs = [
        shared.driver(number).begin(drives.run, shared_bench.store, puppet.agent_id, message, execution_id)
        for number in (0, 1)
    ]
    mine = puppet.start(message, execution_id=execution_id).result(PATIENCE_S)
    assert [run.result(PATIENCE_S).output for run in runs] == [mine.output, mine.output] == ["paid once"] * 2
    assert len(recorded(puppet.agent_id, "wire", amount=amount)) == 1
    assert puppet.start(message, execution_id=execution_id).result(PATIENCE_S).output == "paid once"
    for other in ({"input": "another message"}, {"input": message, "durable_context": {"a": 1}}):
        with pytest.raises(StateConflictError):
            puppet.start(execution_id=execution_id, **other)  # type: ignore[arg-type]
    someone = shared_bench.runtime().create(Puppet, new_id("someone"))
    with pytest.raises(StateConflictError):
        someone.start(message, execution_id=execution_id)
    assert someone.invoke("free?", timeout=PATIENCE_S).output == "you said: free?"


def test_a_busy_agent_says_so_at_once(puppet: AgentHandle, new_id: Names) -> None:
    gate = new_id("gate")
    handle = puppet.start(turn(model_gates={1: gate}))
    with pytest.raises(AgentBusyError) as caught:
        puppet.start("me too")
    assert caught.value.details["execution_id"] == handle.execution_id
    with pytest.raises(AgentBusyError):
        puppet.unload()
    assert handle.status() is ExecutionStatus.ACTIVE
    effects.open_gate(gate)
    assert handle.result(PATIENCE_S).output == "done"
    assert puppet.invoke("now", timeout=PATIENCE_S).output == "you said: now"


@pytest.mark.parametrize("wrong", [{"input": 7}, {"input": ""}, {"input": "x", "durable_context": [1]}])
def test_wrong_input_admits_nothing(puppet: AgentHandle, wrong: dict[str, Any]) -> None:
    before = puppet.status()
    with pytest.raises(InvalidInputError):
        puppet.start(**wrong)
    assert puppet.status() == before


# --- waiting ----------------------------------------------------------------------------------------------------


async def test_a_blocking_call_on_an_event_loop_names_the_async_form(
    runtime: Runtime, puppet: AgentHandle
) -> None:
    handle = await puppet.start_async("hello")
    blocking: list[tuple[Callable[[], Any], str]] = [
        (lambda: runtime.create(Puppet, "x"), "create_async"),
        (lambda: runtime.load(Puppet, "x"), "load_async"),
        (lambda: puppet.invoke("x"), "invoke_async"),
        (lambda: puppet.start("x"), "start_async"),
        (lambda: handle.result(), "result_async"),
        (lambda: handle.wait(), "wait_async"),
        (lambda: handle.cancel(), "cancel_async"),
        (lambda: next(iter(handle.events())), "async for"),
    ]
    for call, form in blocking:
        with pytest.raises(EventLoopReentrancyError, match=form):
            call()
    assert (await handle).output == "you said: hello"
    assert (await puppet.invoke_async("again")).output == "you said: again"
    assert [event.type.value async for event in handle.events()] == ["started", "completed"]


def test_waits_end_with_the_execution_or_with_their_time(puppet: AgentHandle, new_id: Names) -> None:
    gate = new_id("gate")
    handle = puppet.start(turn([("send", {"text": "a"})], model_gates={2: gate}))
    assert handle.wait("suspended", PATIENCE_S).suspended
    with pytest.raises(WaitTimeoutError):
        handle.result(timeout=0.2)
    with pytest.raises(InvalidInputError):
        handle.wait("sometime")
    waiter = in_background(lambda: handle.result(PATIENCE_S))
    [request] = handle.view().approvals
    handle.approve(request.approval_request_id, decided_by="ann", reason="fine")
    with pytest.raises(WaitTimeoutError) as caught:
        handle.wait(timeout=0.2)
    assert caught.value.details == {"execution_id": handle.execution_id}
    assert not waiter.done()
    effects.open_gate(gate)
    assert waiter.result(PATIENCE_S).output == "done"
    assert handle.wait("suspended", PATIENCE_S) == handle.wait(timeout=PATIENCE_S)
    assert puppet.execution(handle.execution_id).result(PATIENCE_S) == waiter.result()
    with pytest.raises(NotFoundError):
        puppet.execution(new_execution_id()).wait(timeout=PATIENCE_S)


def test_a_runtime_that_is_closed_ends_the_waits_of_its_other_threads(
    shared_bench: Bench, puppet: AgentHandle, new_id: Names
) -> None:
    closing = shared_bench.runtime()
    gate = new_id("gate")
    handle = puppet.start(turn([("hold", {"gate": gate})]))
    mine = closing.execution(handle.execution_id)
    waits = [in_background(lambda: mine.result(PATIENCE_S)), in_background(lambda: list(mine.events()))]
    until_recorded(puppet.agent_id, "hold", gate=gate)
    closing.close()
    for wait in waits:
        assert isinstance(wait.exception(PATIENCE_S), RuntimeShutdownError)
    with pytest.raises(RuntimeShutdownError):
        mine.result()
    effects.open_gate(gate)
    assert handle.result(PATIENCE_S).output == "done", "closing a driver's side ends nothing of the agent's"


def test_events_come_while_they_happen_and_again_afterwards(puppet: AgentHandle, new_id: Names) -> None:
    gate = new_id("gate")
    handle = puppet.start(turn([("hold", {"gate": gate})], answer="a few words"), stream=True)
    live: list[Event] = []
    for event in handle.events():
        live.append(event)
        if event.type == "tool_started":
            effects.open_gate(gate)
    durable = [event for event in live if event.durable]
    assert [event.type.value for event in durable] == ["started", "tool_call", "tool_result", "completed"]
    assert [event.seq for event in durable] == [1, 2, 3, 4]
    assert "".join(event.payload["text"] for event in live if event.type == "token") == "a few words"
    assert [event for event in handle.events(after=2) if event.durable] == durable[2:]
    assert list(handle.events(after=4)) == []


async def test_many_readers_see_the_same_events(puppet: AgentHandle, new_id: Names) -> None:
    gate = new_id("gate")
    handle = await puppet.start_async(turn([("hold", {"gate": gate}), ("note", {"text": "x"})]))

    async def read(after: int) -> list[Event]:
        return [event async for event in handle.events(after=after) if event.durable]

    readers = [asyncio.create_task(read(after)) for after in (0, 0, 1, 3)]
    await asyncio.to_thread(until_recorded, puppet.agent_id, "hold", gate=gate)
    effects.open_gate(gate)
    whole, again, from_one, from_three = await asyncio.gather(*readers)
    assert whole == again
    assert [event.seq for event in whole] == [1, 2, 3, 4, 5, 6]
    assert from_one == whole[1:]
    assert from_three == whole[3:]


# --- readers and owners that die --------------------------------------------------------------------------------


def test_Y05_reader_process_dies_and_another_one_goes_on_from_its_last_event(
    puppet: AgentHandle, shared_bench: Bench, shared: Session, new_id: Names
) -> None:
    gates = [new_id("gate"), new_id("gate")]
    log = new_id("reader")
    batches = [[("hold", {"gate": gate}), ("note", {"text": gate})] for gate in gates]
    handle = puppet.start(turn(*batches, answer="unaffected"))
    reader = shared.driver(1)
    reading = reader.begin(drives.read_events, shared_bench.store, handle.execution_id, 0, log)
    until_recorded(log, "read", type="tool_result")
    reader.kill()
    assert isinstance(reading.exception(PATIENCE_S), ConnectionError)
    last = recorded(log, "read")[-1]["seq"]
    effects.open_gate(gates[0])
    until_recorded(puppet.agent_id, "hold", gate=gates[1])  # the run went on without a reader
    again = shared.driver(1).begin(
        drives.read_events, shared_bench.store, handle.execution_id, last, f"{log}-2"
    )
    until_recorded(f"{log}-2", "read", type="tool_call")
    effects.open_gate(gates[1])
    assert handle.result(PATIENCE_S).output == "unaffected"
    missed = [event for event in again.result(PATIENCE_S) if event.durable]
    stored = shared_bench.runtime().store.events(handle.execution_id)
    assert [event.seq for event in missed] == [row.seq for row in stored if row.seq > last]
    assert missed[-1].type == "completed"
    whole = shared.driver(0).run(drives.read_events, shared_bench.store, handle.execution_id)
    assert [event.seq for event in whole if event.durable] == [row.seq for row in stored]


@pytest.mark.full
def test_Y05_reader_comes_back_for_every_single_event(puppet: AgentHandle) -> None:
    batches = [[("note", {"text": f"{batch}.{number}"}) for number in range(20)] for batch in range(8)]
    handle = puppet.start(turn(*batches), stream=True)
    seen: list[Event] = []
    while not seen or not seen[-1].is_terminal:
        for event in handle.events(after=seen[-1].seq if seen else 0):
            if event.durable:
                seen.append(event)
                break
    assert [event.seq for event in seen] == list(range(1, 2 * 160 + 3))


def test_a_reader_and_a_waiter_outlive_the_owner(runtime: Runtime, new_id: Names) -> None:
    gate = new_id("gate")
    agent = runtime.create(Puppet, new_id("alice"))
    handle = agent.start(
        turn([("note", {"text": "before"}), ("linger", {"gate": gate})], answer="carried on")
    )
    waiting = in_background(lambda: handle.result(PATIENCE_S))
    reading = in_background(lambda: [event for event in handle.events() if event.durable])
    until_recorded(agent.agent_id, "linger")
    old = kill_process(agent)
    until_recorded(agent.agent_id, "linger", 2)  # it ran on the loop that was lost
    effects.open_gate(gate)
    assert waiting.result(PATIENCE_S).output == "carried on"
    events = reading.result(PATIENCE_S)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    [recovery] = [event for event in events if event.type == "recovered"]
    assert recovery.payload["pid"] == agent.status()["pid"] != old
    assert len(recorded(agent.agent_id, "note", text="before")) >= 1


@pytest.mark.parametrize("how", ["unload", "kill"])
def test_a_human_in_another_driver_answers_after_the_process_is_gone(
    bench: Bench, runtime: Runtime, shared: Session, new_id: Names, how: str
) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    batch = [("send", {"text": "report"}), ("reveal", {"key": "user"}), ("note", {"text": "free"})]
    handle = agent.start(turn(batch), durable_context={"user": "u-17", "nested": {"deep": [1, None]}})
    assert len(handle.wait("suspended", PATIENCE_S).approvals) == 2
    assert runtime.live_for_execution(handle.execution_id).status() == agent.status()
    if how == "unload":
        unload(agent)
        with pytest.raises(ExecutionRehydrationRequiredError) as caught:
            runtime.live_for_execution(handle.execution_id)
        assert caught.value.details["agent_id"] == agent.agent_id
        assert not has_actor(agent.agent_id), "asking who holds an execution wakes nobody"
    else:
        kill_process(agent)
    assert recorded(agent.agent_id) == [], "nothing of a batch runs before all of it is allowed"
    pending = runtime.pending_approvals()
    assert [item.tool_name for item in pending] == ["send", "reveal"]
    assert pending[0].arguments == {"text": "report"}
    shared.driver(0).run(drives.approve, bench.store, handle.execution_id)
    result = handle.result(PATIENCE_S)
    assert [message.content for message in result.messages if message.role == "tool"] == [
        "sent report", "u-17", "noted free",
    ]  # fmt: skip
    assert len(recorded(agent.agent_id, "send")) == 1
    # the same answer again, from here and with the execution ended, changes nothing
    assert runtime.approve(handle.execution_id, pending[0].approval_request_id).output == "done"
    with pytest.raises(StateConflictError):
        runtime.approve(handle.execution_id, pending[0].approval_request_id, approved=False)


def test_a_rejection_ends_the_turn_and_the_next_prompt_has_no_open_call(
    puppet: AgentHandle, shared_bench: Bench, shared: Session
) -> None:
    sent = len(recorded(puppet.agent_id, "send"))
    handle = puppet.start(turn([("send", {"text": "no"}), ("note", {"text": "with it"})]))
    handle.wait("suspended", PATIENCE_S)
    shared.driver(0).run(drives.approve, shared_bench.store, handle.execution_id, approved=False)
    result = handle.result(PATIENCE_S)
    assert result.rejected
    assert result.status is ExecutionStatus.REJECTED
    assert puppet.invoke("next", timeout=PATIENCE_S).output == "you said: next"
    prompt = asked(puppet.agent_id)[-1]["messages"]
    open_calls = {call["id"] for message in prompt for call in message.get("tool_calls") or ()}
    answered = {message["tool_call_id"] for message in prompt if message["role"] == "tool"}
    assert open_calls == answered
    kept = [record["kind"] for record in puppet.transcript() if record["execution_id"] == handle.execution_id]
    assert "approval_decided" in kept
    assert "execution_rejected" in kept
    assert len(recorded(puppet.agent_id, "send")) == sent


def test_an_old_handle_wakes_its_agent_again(runtime: Runtime, new_id: Names) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    handle = agent.start("hello")
    assert handle.result(PATIENCE_S).output == "you said: hello"
    first = agent.status()
    unload(agent)
    assert agent.unload() is False, "there is nothing to unload"
    assert handle.result(PATIENCE_S).output == "you said: hello"
    assert not has_actor(agent.agent_id), "the result of an ended execution needs no process"
    assert agent.invoke("again", timeout=PATIENCE_S).output == "you said: again"
    second = agent.status()
    assert second["epoch"] == first["epoch"] + 1
    [*_, entry] = asked(agent.agent_id)
    assert [message["content"] for message in entry["messages"] if message["role"] == "user"] == [
        "hello",
        "again",
    ]
    kill_actor(agent.agent_id)
    assert agent.invoke("and again", timeout=PATIENCE_S).output == "you said: and again"
    assert agent.status()["epoch"] == second["epoch"] + 1


# --- failures and cancellation ----------------------------------------------------------------------------------


def test_a_stored_failure_keeps_class_code_and_causes_in_every_driver(
    puppet: AgentHandle, shared_bench: Bench, shared: Session
) -> None:
    refused = puppet.start(turn(refuse=1))
    with pytest.raises(AuthenticationError) as mine:
        refused.result(PATIENCE_S)
    theirs = shared.driver(0).run(drives.error_of, shared_bench.store, refused.execution_id)
    assert type(theirs) is AuthenticationError
    assert (theirs.code, theirs.message, theirs.details) == (
        mine.value.code,
        mine.value.message,
        mine.value.details,
    )
    broken = puppet.start(turn([("break_off", {"how": "exception"})]))
    error = shared.driver(0).run(drives.error_of_with_causes, shared_bench.store, broken.execution_id)
    assert [type(item) for item in error] == [ToolError, RemoteError, RemoteError]
    assert error[0].code == "tool_error"
    assert [item.details["type"] for item in error[1:]] == ["ValueError", "KeyError"]
    assert "the disk is full" in error[2].message
    assert puppet.invoke("go on", timeout=PATIENCE_S).output == "you said: go on"


def test_cancel_ends_a_model_call_a_suspension_and_nothing_that_has_ended(
    puppet: AgentHandle, new_id: Names
) -> None:
    hanging = puppet.start(turn(model_gates={1: new_id("never")}))
    hanging.cancel(reason="changed my mind")
    with pytest.raises(CancellationError, match="changed my mind"):
        hanging.result(PATIENCE_S)
    assert hanging.status() is ExecutionStatus.CANCELLED
    waiting = puppet.start(turn([("send", {"text": "x"})]))
    waiting.wait("suspended", PATIENCE_S)
    assert waiting.cancel().status is ExecutionStatus.CANCELLED
    assert waiting.view().approvals == ()
    ended = puppet.start("done already")
    before = ended.result(PATIENCE_S)
    after = ended.cancel()
    assert (after.status, after.output, after.messages) == (before.status, before.output, before.messages)
    assert [event.type.value for event in hanging.events()] == ["started", "cancelled"]
