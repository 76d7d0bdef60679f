"""Hosted runs, reserved executions and tokens, by drivers that have nothing but a store in common. No Ray is started."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session
from ray_testbed import checks, effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import in_background

from phronomy_ray import InProcess, Runtime
from phronomy_ray.cancel_tokens import CancellationToken, Deadline
from phronomy_ray.detachment import ApprovalWait, DetachRefusal
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnreachableError,
    CancellationError,
    DeadlineExceededError,
    HostClosedError,
    InvalidInputError,
    NotFoundError,
    RuntimeShutdownError,
    StateConflictError,
    WaitTimeoutError,
)
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.reservations import ReservedExecution
from phronomy_ray.results import RunResult
from phronomy_ray.store.sql_store import open_store

Workers = Callable[[], Runtime]
Names = Callable[[str], str]


@pytest.fixture
def worker(sqlite_template: Path, tmp_path: Path) -> Iterator[Workers]:
    """Makes drivers; each call is another process, as far as the agents are concerned."""
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    url = f"sqlite:///{tmp_path}/agents.db"
    made: list[Runtime] = []

    def open_one() -> Runtime:
        made.append(Runtime(placement=InProcess(), store=url))
        return made[-1]

    yield open_one
    for runtime in made:
        runtime.close()
    store = open_store(url)
    for root in store.list_agents():
        checks.check_agent(store, root.agent_id)
    store.close()


@pytest.fixture
def new_id() -> Names:
    return ray_testbed.session.fresh_name


def question(runtime: Runtime, execution_id: str) -> str:
    """The open request of a suspended execution."""
    waiting = runtime.execution(execution_id).wait("suspended", timeout=PATIENCE_S)
    assert waiting.suspended, waiting
    return waiting.approvals[0].approval_request_id


TWO = turn([("send", {"text": "one"})], [("send", {"text": "two"})], answer="both sent")


# --- hosted runs --------------------------------------------------------------------------------------------------


def test_three_workers_play_one_execution_with_two_questions(worker: Workers, new_id: Names) -> None:
    name, first, second, third = new_id("hosted"), worker(), worker(), worker()
    first.create(Puppet, name)
    reservation = first.reserve(name)
    run = first.start_hosted(reservation, TWO)
    request = question(first, reservation.execution_id)
    wait = run.detach(approval_request_id=request)
    assert run.result(timeout=PATIENCE_S) == wait
    assert run.detach(request) == wait
    assert first.get(name) is None, "the agent has left the first worker"
    # whoever has lost the answer finds it in the store, and wakes nothing for it
    assert third.approval_wait(name, reservation.execution_id) == wait
    assert third.get(name) is None

    agent = second.load(Puppet, name)
    assert agent.pending_approvals()[0].approval_request_id == wait.approval_request_id
    run2 = agent.approve_hosted(wait.execution_id, wait.approval_request_id)
    agent.approve(wait.execution_id, wait.approval_request_id)  # delivered twice
    request2 = question(second, wait.execution_id)
    assert request2 != request
    wait2 = run2.detach(request2)
    assert wait2.execution_revision > wait.execution_revision

    agent = third.agent(name)
    run3 = agent.approve_hosted(wait2.execution_id, wait2.approval_request_id)
    result = run3.result(timeout=PATIENCE_S)
    assert isinstance(result, RunResult)
    assert result.output == "both sent"
    assert [item["text"] for item in effects.recorded(name, "send")] == ["one", "two"]
    assert run.result() == wait, "a handle never takes up what it has let go of"
    assert third.approval_wait(name, wait.execution_id) is None
    with pytest.raises(StateConflictError):
        run3.detach(request2)


def test_the_example_is_played_by_three_processes() -> None:
    root = Path(__file__).resolve().parents[3]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, root / "examples" / "hosting.py"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ran.stdout.split("\n")
    assert [line for line in lines if line.startswith("worker")] == ["worker 1", "worker 2", "worker 3"]
    assert lines[-2] == "  both invoices are paid"
    assert ran.stderr == ""


def test_a_run_without_a_question_ends_with_its_result(worker: Workers, new_id: Names) -> None:
    runtime, told = worker(), threading.Event()
    name = new_id("hosted")
    runtime.create(Puppet, name)
    heard: list[Any] = []

    def listen(value: Any, error: BaseException | None) -> None:
        heard.append((value, error))
        told.set()

    run = runtime.start_hosted(runtime.reserve(name), "hello")
    run.on_complete(lambda value, error: 1 / 0)  # harms nobody
    run.on_complete(listen)
    result = run.result(timeout=PATIENCE_S)
    assert isinstance(result, RunResult)
    assert result.output == "you said: hello"
    assert told.wait(PATIENCE_S)
    assert heard == [(result, None)]


def test_what_passes_does_not_end_a_hosted_run(
    worker: Workers, new_id: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing: list[Exception] = [
        WaitTimeoutError("no answer"),
        HostClosedError("drained"),
        AgentUnreachableError("away"),
    ]
    wait_once = AgentClient.wait_once

    async def troubled(self: AgentClient, *args: Any) -> RunResult | None:
        if passing:
            raise passing.pop()
        return await wait_once(self, *args)

    monkeypatch.setattr(AgentClient, "wait_once", troubled)
    monkeypatch.setattr("phronomy_ray.runtime.hosted.STORE_POLL_S", 0.01)
    agent = worker().create(Puppet, new_id("hosted"))
    hosted = agent.start_hosted(agent.reserve(), turn())
    result = hosted.result(PATIENCE_S)
    assert isinstance(result, RunResult)
    assert (result.output, passing) == ("done", [])


def test_a_run_that_fails_raises_its_error(worker: Workers, new_id: Names) -> None:
    runtime, name = worker(), new_id("hosted")
    runtime.create(Puppet, name)
    run = runtime.start_hosted(runtime.reserve(name), turn([("hold", {"gate": new_id("gate")})]))
    effects.until_recorded(name, "hold")
    with pytest.raises(WaitTimeoutError):
        run.result(timeout=0.01)
    run.cancel("enough")
    with pytest.raises(CancellationError):
        run.result(timeout=PATIENCE_S)
    heard: list[Any] = []
    run.on_complete(lambda value, error: heard.append((value, type(error))))
    assert heard == [(None, CancellationError)]


async def test_the_async_forms(worker: Workers, new_id: Names) -> None:
    runtime, name = worker(), new_id("hosted")
    agent = await runtime.create_async(Puppet, name)
    run = await agent.start_hosted_async(await agent.reserve_async(), TWO)
    waiting = await agent.execution(run.execution_id).wait_async("suspended", timeout=PATIENCE_S)
    request = waiting.approvals[0].approval_request_id
    result = asyncio.create_task(run.result_async(timeout=PATIENCE_S))
    wait = await run.detach_async(request)
    assert await result == wait
    assert await agent.approval_wait_async(run.execution_id) == wait
    assert (await runtime.observe_async(run.execution_id)).is_suspended


def test_what_start_hosted_refuses(worker: Workers, new_id: Names) -> None:
    runtime, name, other = worker(), new_id("hosted"), new_id("other")
    agent = runtime.create(Puppet, name)
    runtime.create(Puppet, other)
    spent = runtime.reserve(name)
    agent.start_reserved(spent, "hello").result(timeout=PATIENCE_S)
    with pytest.raises(StateConflictError, match="spent"):
        runtime.start_hosted(spent, "hello")
    with pytest.raises(StateConflictError, match="spent"):
        runtime.reserve(name, execution_id=spent.execution_id)
    with pytest.raises(InvalidInputError, match="correlation"):
        runtime.start_hosted(runtime.reserve(name, correlation={"team": "t"}), "hello")
    with pytest.raises(InvalidInputError, match="one of agent"):
        agent.start_hosted(ReservedExecution(other, "ex-other"), "hello")
    token = CancellationToken()
    token.cancel()
    fresh = runtime.reserve(name)
    with pytest.raises(CancellationError):
        runtime.start_hosted(fresh, "hello", cancellation=token)
    assert runtime.observe(fresh.execution_id).is_absent


def test_of_two_hosts_with_one_reservation_one_begins(worker: Workers, new_id: Names) -> None:
    runtime, name = worker(), new_id("hosted")
    runtime.create(Puppet, name)
    reservation = runtime.reserve(name)
    begun = [in_background(lambda: runtime.start_hosted(reservation, TWO)) for _ in range(4)]
    ended = [item.exception(PATIENCE_S) for item in begun]
    assert ended.count(None) == 1, ended
    assert all(isinstance(error, StateConflictError | None) for error in ended), ended


def test_what_a_detach_refuses(worker: Workers, new_id: Names) -> None:
    runtime, name = worker(), new_id("hosted")
    runtime.create(Puppet, name)
    token = CancellationToken()
    run = runtime.start_hosted(runtime.reserve(name), TWO, cancellation=token)
    request = question(runtime, run.execution_id)

    def refusal(request: str = request) -> str:
        with pytest.raises(AgentBusyError) as caught:
            run.detach(request)
        return str(caught.value.details["reason"])

    assert refusal("ap_wrong") == DetachRefusal.STALE_APPROVAL
    runtime.agent(name).retain("report")
    assert refusal() == DetachRefusal.RETAINED
    runtime.agent(name).release("report")
    with runtime.scope() as scope:
        scope.agent(name)
        assert refusal() == DetachRefusal.LIVE_SCOPE
    assert not run._outcome.done(), "the host stays responsible"
    foreign = runtime.create(Puppet, new_id("foreign"))
    with pytest.raises(StateConflictError):
        foreign.hosted(run.execution_id).detach(request)
    with pytest.raises(StateConflictError):
        runtime.approval_wait(foreign.agent_id, run.execution_id)
    token.cancel("enough")
    assert refusal() == DetachRefusal.CANCELLATION_PENDING
    with pytest.raises(CancellationError, match="enough"):
        run.result(timeout=PATIENCE_S)


def test_after_a_detach_the_hosts_token_ends_nothing_any_more(worker: Workers, new_id: Names) -> None:
    runtime, name, token = worker(), new_id("hosted"), CancellationToken()
    runtime.create(Puppet, name)
    run = runtime.start_hosted(runtime.reserve(name), TWO, cancellation=token)
    run.detach(question(runtime, run.execution_id))
    token.cancel()
    seen = runtime.observe(run.execution_id)
    assert (seen.is_suspended, seen.cancellation_requested) == (True, False)


def test_a_host_that_was_restarted_takes_its_run_up_again(worker: Workers, new_id: Names) -> None:
    first, second, name = worker(), worker(), new_id("hosted")
    first.create(Puppet, name)
    run = first.start_hosted(first.reserve(name), TWO)
    request = question(first, run.execution_id)
    first.close()
    with pytest.raises(RuntimeShutdownError):
        run.result(timeout=PATIENCE_S)
    again = second.load(Puppet, name).hosted(run.execution_id)
    assert isinstance(again.detach(request), ApprovalWait)


# --- reserved executions ------------------------------------------------------------------------------------------


def test_a_reserved_execution_runs_once(worker: Workers, new_id: Names) -> None:
    runtime, name = worker(), new_id("reserved")
    agent = runtime.create(Puppet, name)
    reservation = agent.reserve(correlation={"slot": 3})
    assert runtime.observe(reservation.execution_id).is_absent
    message = turn([("note", {"text": "n"})], answer="once")
    first = agent.start_reserved(reservation, message)
    again = agent.start_reserved(ReservedExecution.from_wire(reservation.to_wire()), message)
    assert first.result(timeout=PATIENCE_S).output == again.result(timeout=PATIENCE_S).output == "once"
    assert len(effects.recorded(name, "note")) == 1
    observed = runtime.observe(reservation.execution_id)
    assert observed.reservation == reservation
    assert observed.value().output == "once"
    with pytest.raises(StateConflictError):
        agent.start_reserved(reservation, "something else")
    with pytest.raises(StateConflictError):
        agent.start_reserved(ReservedExecution(name, reservation.execution_id), message)
    with pytest.raises(NotFoundError):
        runtime.observe("nobody").value()


# --- cancellation -------------------------------------------------------------------------------------------------


def test_any_driver_can_cancel_what_nobody_owns(worker: Workers, new_id: Names) -> None:
    first, second, name = worker(), worker(), new_id("cancelled")
    agent = first.create(Puppet, name)
    execution = agent.start(TWO)
    question(first, execution.execution_id)
    agent.unload()
    result = second.agent(name).cancel(execution.execution_id, "enough")
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    again = second.agent(name).cancel(execution.execution_id, "too late")
    assert again.terminal_reason == "enough"
    assert effects.recorded(name, "send") == []


def test_a_wish_holds_though_the_owner_cannot_be_told(worker: Workers, new_id: Names) -> None:
    first, second, name = worker(), worker(), new_id("cancelled")

    class Unnamed(Puppet):  # of a function, so that nobody finds it by its id
        definition_id = "unnamed-puppet"

    agent = first.create(Unnamed, name)
    execution = agent.start(TWO)
    question(first, execution.execution_id)
    agent.unload()
    with pytest.raises(Exception, match="class of a driver's own script"):
        second.agent(name).cancel(execution.execution_id, "enough")
    assert second.observe(execution.execution_id).cancellation_requested
    second.load(Unnamed, name)
    ended = second.observe(execution.execution_id)
    assert (ended.is_terminal, ended.cancellation_reason) == (True, "enough")


def test_a_token_ends_what_was_started_with_it(worker: Workers, new_id: Names) -> None:
    runtime, name = worker(), new_id("token")
    agent = runtime.create(Puppet, name)
    parent = CancellationToken()
    gate = new_id("gate")
    running = in_background(
        lambda: agent.invoke(turn([("linger", {"gate": gate})]), cancellation=parent.linked())
    )
    effects.until_recorded(name, "linger")
    parent.cancel("not wanted any more")
    error = running.exception(PATIENCE_S)
    assert isinstance(error, CancellationError)
    assert not isinstance(error, TimeoutError)
    assert error.details["reason"] == "not wanted any more"
    assert agent.invoke("hello").output == "you said: hello"


def test_a_token_forgets_what_has_ended(worker: Workers, new_id: Names) -> None:
    runtime, token = worker(), CancellationToken()
    agent = runtime.create(Puppet, new_id("token"))
    agent.invoke("hello", cancellation=token)
    agent.start("hello", cancellation=token).result(timeout=PATIENCE_S)
    agent.start_hosted(agent.reserve(), "hello", cancellation=token).result(timeout=PATIENCE_S)
    assert not token._callbacks


def test_a_deadline_ends_it_too_and_is_told_apart(worker: Workers, new_id: Names) -> None:
    runtime, name = worker(), new_id("token")
    agent = runtime.create(Puppet, name)
    token = CancellationToken(timeout_s=0.3)
    with pytest.raises(DeadlineExceededError) as caught:
        agent.invoke(turn([("linger", {"gate": new_id("gate")})]), cancellation=token)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(DeadlineExceededError):
        agent.start("hello", cancellation=token)
    assert [row.terminal_reason for row in runtime.executions(agent_id=name)] == ["deadline_exceeded"]


def test_the_end_of_a_wait_ends_nothing_else(worker: Workers, new_id: Names) -> None:
    runtime, name, token = worker(), new_id("token"), CancellationToken()
    agent = runtime.create(Puppet, name)
    execution = agent.start(TWO)
    question(runtime, execution.execution_id)
    with pytest.raises(WaitTimeoutError):
        execution.result(timeout=Deadline.after(0.01))
    with pytest.raises(WaitTimeoutError):
        execution.result(cancellation=CancellationToken(timeout_s=0.01))
    waiting = in_background(lambda: execution.result(cancellation=token))
    token.cancel()
    error = waiting.exception(PATIENCE_S)
    assert isinstance(error, CancellationError)
    assert error.code == "wait_cancelled"
    assert execution.view().suspended
