"""What a driver has left interrupted goes on in the next one, and nobody calls anything for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from phronomy_ray import Agent, InProcess, RetentionPolicy, Runtime, SupervisionLimits
from phronomy_ray.cancel_tokens import CancellationToken
from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.clock import SystemClock, utc_now
from phronomy_ray.errors import AgentParkedError, StoreUnavailableError
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus
from phronomy_ray.retention import CollectedRows
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.collecting import CollectionJob

MODULE = """
from pathlib import Path
from phronomy_ray import Agent, tool
from phronomy_ray.models.scripted import ScriptedModel, call, calls, final, hang

FLAG = Path({flag!r})

class Patient(Agent):
    model = ScriptedModel(lambda request: final("fine") if FLAG.exists() else hang())
    max_starts_without_progress = 1

@tool(requires_approval=True, approval_expires_s=1.0)
async def ask() -> str:
    return "yes"

@tool(requires_approval=True)
async def ask_for_long() -> str:
    return "yes"

class Waiting(Agent):
    model = ScriptedModel([calls(call("ask_for_long", {{}})), final("nobody answered")])
    tools = (ask_for_long,)

class Asking(Agent):
    model = ScriptedModel([calls(call("ask", {{}})), final("nobody answered")])
    tools = (ask,)
"""


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Agent]:
    """An importable class whose model answers once the file ``flag`` exists."""
    (tmp_path / "patients.py").write_text(MODULE.format(flag=str(tmp_path / "flag")))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("patients", None)
    import patients  # type: ignore[import-not-found]

    found: type[Agent] = patients.Patient
    return found


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_so():
            await asyncio.sleep(0.02)


def runtime(tmp_path: Path, **options: Any) -> Runtime:
    return Runtime(store=f"sqlite:///{tmp_path}/agents.db", placement=InProcess(), **options)


async def test_interrupted_executions_and_queues_go_on_with_the_next_driver(
    tmp_path: Path, patient: type[Agent]
) -> None:
    first = runtime(tmp_path, supervisor=True)
    for agent_id in ("a", "b"):
        agent = await first.create_async(patient, agent_id)
        await agent.start_async("hello", execution_id=f"ex-{agent_id}")
    await agent.start_async("next", execution_id="ex-next", on_busy="queue")

    async def is_looked_after() -> bool:
        return bool(await first.supervisor_report_async())

    await until(is_looked_after)
    await asyncio.to_thread(first.close)
    (tmp_path / "flag").touch()
    with runtime(tmp_path, supervisor=True) as second:

        async def all_have_ended() -> bool:
            rows = await second.executions_async()
            return len(rows) == 3 and all(row.status is ExecutionStatus.COMPLETED for row in rows)

        await until(all_have_ended)
        report = await second.supervisor_report_async()
        assert report is not None
        assert report[0]["counts"]["wakes"] == 2
        assert report[0]["failing"] == []


async def test_without_a_supervisor_nothing_goes_on_by_itself(tmp_path: Path, patient: type[Agent]) -> None:
    with runtime(tmp_path, supervisor=False) as driver:
        await (await driver.create_async(patient, "a")).start_async("hello")
        assert await driver.supervisor_report_async() is None


async def test_a_parked_agent_says_so_to_everybody_until_it_is_put_back(
    tmp_path: Path, patient: type[Agent]
) -> None:
    with runtime(tmp_path) as driver:
        await (await driver.create_async(patient, "a")).start_async("hello", execution_id="ex1")
    with runtime(tmp_path) as driver:
        await driver.agent("a").resume_async("ex1")
    with runtime(tmp_path) as driver:
        agent = driver.agent("a")
        for call in (
            agent.resume_async("ex1"),
            agent.start_async("more"),
            agent.add_knowledge_async("x"),
            agent.execution("ex1").result_async(),
            driver.load_async(patient, "a"),
        ):
            with pytest.raises(AgentParkedError, match="phronomy unpark a"):
                await call
        status = await agent.status_async()
        assert (status["lifecycle"], status["parked"]["code"]) == ("parked", "no_progress")
        assert (await agent.transcript_async())[0]["kind"] == "input_received"
        assert [item.agent_id for item in await driver.parked_agents_async()] == ["a"]
        (tmp_path / "flag").touch()
        assert await agent.unpark_async() is True
        assert await agent.unpark_async() is False
        assert (await agent.execution("ex1").result_async()).output == "fine"
        assert (await agent.status_async())["lifecycle"] == "idle"


async def test_who_waits_for_a_human_needs_no_process_to_notice_that_time_is_over(
    tmp_path: Path, patient: type[Agent]
) -> None:
    import patients

    limits = SupervisionLimits(look_every_s=0.1)
    placement = InProcess(suspended_unload_after_s=0.1)
    url = f"sqlite:///{tmp_path}/agents.db"
    with Runtime(store=url, placement=placement, supervisor=limits) as driver:
        agent = await driver.create_async(patients.Asking, "a")
        result = await agent.invoke_async("hello")
        assert result.suspended

        async def has_left() -> bool:
            return await driver.get_async("a") is None

        await until(has_left)
        row = driver.store.load_execution(result.execution_id)
        assert row.status is ExecutionStatus.SUSPENDED

        async def is_over() -> bool:
            return driver.store.load_execution(result.execution_id).status.is_terminal

        await until(is_over)
        [request] = driver.store.approvals(execution_id=result.execution_id)
        assert request.status is ApprovalStatus.EXPIRED
        report = await driver.supervisor_report_async()
        assert report is not None
        assert report[0]["counts"]["wakes"] >= 1, "a wake that meets the agent on its way out is made again"


async def test_a_deadline_holds_without_a_process_and_without_the_driver_that_gave_it(
    tmp_path: Path, patient: type[Agent]
) -> None:
    asking: type[Agent] = sys.modules["patients"].Waiting
    with runtime(tmp_path) as first:
        agent = await first.create_async(asking, "a")
        execution = await agent.start_async("hello", cancellation=CancellationToken(timeout_s=1.0))
        assert (await execution.wait_async("suspended", timeout=20)).suspended
        await agent.unload_async()
    limits = SupervisionLimits(look_every_s=0.1, foreign_after_s=0.5)
    with runtime(tmp_path, supervisor=limits) as second:
        assert second.store.load_execution(execution.execution_id).status is ExecutionStatus.SUSPENDED

        async def is_over() -> bool:
            return second.store.load_execution(execution.execution_id).status.is_terminal

        await until(is_over)
        row = second.store.load_execution(execution.execution_id)
        assert (row.status, row.terminal_reason) == (ExecutionStatus.CANCELLED, "deadline_exceeded")
        assert row.deadline_at is not None
        assert row.ended_at is not None
        assert row.ended_at >= row.deadline_at


async def test_a_wish_that_nobody_was_told_of_is_taken_up(tmp_path: Path, patient: type[Agent]) -> None:
    """Whoever wished it died in between: the owner is at work, or there is none and a human is waited for."""
    limits = SupervisionLimits(look_every_s=0.1)
    asking: type[Agent] = sys.modules["patients"].Asking
    with runtime(tmp_path, supervisor=limits) as driver:
        working = await (await driver.create_async(patient, "working")).start_async("hello")
        waiting = await (await driver.create_async(asking, "waiting")).start_async("hello")
        assert (await waiting.wait_async("suspended", timeout=20)).suspended
        await driver.agent("waiting").unload_async()
        for execution in (working, waiting):
            wish = CancellationIntent(execution.execution_id, execution.agent.agent_id, "enough", utc_now())
            await asyncio.to_thread(driver.store.request_cancellation, wish)
        for execution in (working, waiting):
            result = await execution.wait_async(timeout=20)
            assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")


async def test_what_is_old_is_deleted_now_and_then(tmp_path: Path, patient: type[Agent]) -> None:
    (tmp_path / "flag").touch()
    policy = RetentionPolicy(executions=timedelta(0))
    limits = SupervisionLimits(look_every_s=0.1, retention=policy, collect_every_s=0.2)
    with runtime(tmp_path, supervisor=limits) as driver:
        agent = await driver.create_async(patient, "a")
        ended = await agent.invoke_async("hello")

        async def is_gone() -> bool:
            return driver.store.find_execution(ended.execution_id) is None

        await until(is_gone)

        async def has_told() -> bool:
            report = await driver.supervisor_report_async()
            assert report is not None
            told = report[0]["collection"]
            return told["deleted"] is not None and not told["error"]

        await until(has_told)
        assert (await agent.transcript_async())[0]["kind"] == "input_received", "the journal stays"


async def test_a_collection_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    class Away:
        calls = 0

        def collect_rows(self, *args: Any, **kwargs: Any) -> CollectedRows:
            self.calls += 1
            if self.calls == 1:
                raise StoreUnavailableError("away")
            return CollectedRows(0, 0)

    store = Away()
    policy = RetentionPolicy(executions=timedelta(days=1), contents=None)
    job = CollectionJob(cast("Store", store), policy, SystemClock(), every_s=1.0)
    assert job.to_wire() == {"begun_at": None, "deleted": None, "error": ""}
    await job.collect()
    assert "away" in job.to_wire()["error"]
    await job.collect()
    told = job.to_wire()
    assert (told["error"], told["deleted"]["is_whole"]) == ("", True)
