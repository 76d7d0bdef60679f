"""The agent's process is killed at every durable step of a turn, and the turn ends as if nothing had happened.

The turn has two batches with tools of every replay rule, on the agent's loop and in Ray tasks, and a human's approval.
Each run kills its own agent once (or twice) at named points and is then only waited for, as any driver would; where a
call that must not be repeated is unknown, the log of effects outside of all processes says what became of it, as a
human would look it up. All runs of an engine go on side by side, a few agents at a time, each doing one run after the
other: the process that recovers from one crash is the victim of the next.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray_testbed import checks, effects
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S, recorded
from ray_testbed.fixtures import Bench, fresh_id
from ray_testbed.session import Session

from phronomy_ray import AgentHandle, ExecutionHandle, RunResult, Runtime
from phronomy_ray.faults import FAULTS_ENV, write_plan
from phronomy_ray.ids import new_execution_id
from phronomy_ray.testing import processes

#: Agents of one engine; each crash costs the start of a process, and this fills two cores.
AGENTS = 4

#: Points between the start of the turn and its question to a human: name, and its how-manieth time.
BEFORE_APPROVAL = [
    ("before_commit:admit", 1),
    ("after_commit:admit", 1),
    ("before_model", 1),
    ("after_model", 1),
    ("before_commit:batch", 1),
    ("after_commit:batch", 1),
    ("before_dispatch", 1),
    ("after_dispatch", 1),
    ("before_commit:results", 1),
    ("after_commit:results", 1),
    ("before_commit:results", 2),
    ("after_commit:results", 2),
    ("after_model", 2),
    ("before_commit:suspend", 1),
    ("after_commit:suspend", 1),
]
#: Points between the human's answer and the end, counted from the answer.
AFTER_APPROVAL = [
    ("before_commit:decision", 1),
    ("after_commit:decision", 1),
    ("before_dispatch", 1),
    ("after_dispatch", 1),
    ("before_commit:results", 1),
    ("after_commit:results", 1),
    ("before_model", 1),
    ("after_model", 1),
    ("before_commit:terminal", 1),
    ("after_commit:terminal", 1),
]


@dataclass(frozen=True)
class Crash:
    """Where one run is killed; a second point is for the process that recovers from the first."""

    stage: str
    points: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.stage}-" + "-then-".join(f"{point}-{time}" for point, time in self.points)


UNDISTURBED = Crash("undisturbed", ())
CRASHES = [
    *(Crash("ask", (point,)) for point in BEFORE_APPROVAL),
    *(Crash("act", (point,)) for point in AFTER_APPROVAL),
    Crash("ask", (("after_commit:admit", 1), ("after_commit:recover", 1))),
    Crash("act", (("after_commit:decision", 1), ("before_claim", 1))),
]


@dataclass
class Run:
    """What one run left behind."""

    agent_id: str
    execution_id: str
    result: RunResult
    journal: list[dict[str, Any]]
    events: list[str]
    recoveries: int
    #: Whether a planned crash did not happen.
    spared: bool
    asked_a_human_about: list[str] = field(default_factory=list)


class Runs:
    """All runs of one engine."""

    def __init__(self, bench: Bench, runtime: Runtime) -> None:
        self._bench = bench
        self._runtime = runtime
        self._threads = ThreadPoolExecutor(AGENTS)
        self._followers = ThreadPoolExecutor(len(CRASHES))
        self._started: dict[Crash, Future[Run]] = {}
        self._mine = threading.local()

    def start(self, crashes: list[Crash]) -> None:
        for crash in crashes:
            self._started[crash] = self._threads.submit(self._run, crash)

    def of(self, crash: Crash) -> Run:
        return self._started[crash].result(5 * PATIENCE_S)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._followers.shutdown(cancel_futures=True)

    def _run(self, crash: Crash) -> Run:
        agent: AgentHandle | None = getattr(self._mine, "agent", None)
        self._mine.agent = None  # a failed run keeps its agent to itself
        if agent is None:
            agent = self._runtime.create(Puppet, fresh_id("crash"))
        run = self._run_with(agent, crash)
        self._mine.agent = agent
        return run

    def _run_with(self, agent: AgentHandle, crash: Crash) -> Run:
        message = turn(
            [
                ("note", {"text": "one"}),
                ("pay", {"amount": 1}),
                ("after_siblings", {"store": self._bench.store, "siblings": 2}),
            ],
            [("send", {"text": "report"}), ("wire", {"amount": 2}), ("note", {"text": "two"})],
        )
        asked: list[str] = []
        if crash.stage == "ask":
            self._plan(agent.agent_id, crash)
        handle = agent.start(message, execution_id=new_execution_id())
        held = self._until_approval(handle, asked)
        if crash.stage == "act":
            self._plan(agent.agent_id, crash)
        handle.approve(held.approvals[0].approval_request_id, decided_by="ann")
        result = handle.wait("suspended", PATIENCE_S)
        while result.suspended:
            self._look_up_and_resolve(handle, result, asked)
            result = handle.wait("suspended", PATIENCE_S)
        store = self._runtime.store
        return Run(
            agent.agent_id,
            handle.execution_id,
            result,
            checks.plain_journal(store, handle.execution_id),
            sorted(map(repr, checks.plain_events(store, handle.execution_id))),
            sum(event.type == "recovered" for event in store.events(handle.execution_id)),
            self._planned_and_not_reached(agent.agent_id),
            asked,
        )

    def _planned_and_not_reached(self, agent_id: str) -> bool:
        plan = self._bench.session.faults / f"{agent_id}.json"
        left = plan.exists()
        plan.unlink(missing_ok=True)
        return left

    def _plan(self, agent_id: str, crash: Crash) -> None:
        """Write the first plan; a second one replaces it as soon as the first has acted."""
        folder = self._bench.session.faults
        first, *later = crash.points
        reached = [write_plan(folder, agent_id, point=first[0], action="kill", occurrence=first[1])]

        def follow() -> None:
            for point, time in later:
                effects.until(reached[0].exists, f"the first crash of {agent_id}")
                write_plan(folder, agent_id, point=point, action="kill", occurrence=time)

        if later:
            self._followers.submit(follow)

    def _until_approval(self, handle: ExecutionHandle, asked: list[str]) -> RunResult:
        while True:
            result = handle.wait("suspended", PATIENCE_S)
            assert result.suspended, f"{result.status.value}: {result.error}"
            if result.approvals:
                return result
            self._look_up_and_resolve(handle, result, asked)

    def _look_up_and_resolve(self, handle: ExecutionHandle, result: RunResult, asked: list[str]) -> None:
        """What a careful human does: wait until nothing can run any more, look, and say what was seen."""
        for call in result.unresolved:
            asked.append(call.tool_name)
            effect = {"pay": "paid 1", "send": "sent report", "wire": "wired 2"}[call.tool_name]
            wait_for_orphans(handle, call.tool_name)
            done = bool(recorded(handle.agent.agent_id, call.tool_name, run=handle.execution_id))
            outcome, value = ("succeeded", effect) if done else ("not_performed", None)
            handle.agent.resolve(
                handle.execution_id, call.tool_call_id, outcome, result=value, decided_by="ann"
            )


def wait_for_orphans(handle: ExecutionHandle, effect: str) -> None:
    """Wait until the effect is there, or until every task that ran when we looked has ended."""
    running = {pid for pid in cluster_pids() if runs_a_tool(pid)}
    effects.until(
        lambda: (
            recorded(handle.agent.agent_id, effect, run=handle.execution_id)
            or not any(runs_a_tool(pid) for pid in running)
        ),
        f"tool tasks {running} to end",
    )


def cluster_pids() -> set[int]:
    return processes.descendants(os.getpid())


def runs_a_tool(pid: int) -> bool:
    return processes.command_line(pid).startswith("ray::_run_chunk")


def runs_on(engine: str, request: pytest.FixtureRequest, shared: Session) -> Iterator[Runs]:
    """The undisturbed run and those of the selected tests, all started."""
    shared.connect()
    wanted = {
        item.callspec.params["crash"]
        for item in request.session.items
        if getattr(item, "callspec", None) is not None
        and request.fixturename in getattr(item, "fixturenames", ())
        and "crash" in item.callspec.params
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULTS_ENV, str(shared.faults))
        bench = Bench(shared, engine)
        made = Runs(bench, bench.runtime())
        made.start([UNDISTURBED, *(crash for crash in CRASHES if crash in wanted)])
        yield made
        made.close()
        bench.close()


@pytest.fixture(scope="module")
def runs_on_sqlite(request: pytest.FixtureRequest, shared: Session) -> Iterator[Runs]:
    yield from runs_on("sqlite", request, shared)


@pytest.fixture(scope="module")
def runs_on_postgres(request: pytest.FixtureRequest, shared: Session) -> Iterator[Runs]:
    yield from runs_on("postgres", request, shared)


def every_second(first: int) -> list[Any]:
    """All crashes; every second one, from this one on, in the everyday size.

    So that every run has each of them once, on one of two engines. Without a cluster the tests of the engine's recovery
    have all of them in every run.
    """
    return [
        pytest.param(crash, id=str(crash), marks=() if number % 2 == first else pytest.mark.full)
        for number, crash in enumerate(CRASHES)
    ]


@pytest.mark.parametrize("crash", every_second(0))
def test_a_crash_leaves_the_journal_of_an_undisturbed_run_on_sqlite(
    runs_on_sqlite: Runs, crash: Crash
) -> None:
    check(runs_on_sqlite, crash)


@pytest.mark.parametrize("crash", every_second(1))
def test_a_crash_leaves_the_journal_of_an_undisturbed_run_on_postgres(
    runs_on_postgres: Runs, crash: Crash
) -> None:
    check(runs_on_postgres, crash)


def check(runs: Runs, crash: Crash) -> None:
    run, calm = runs.of(crash), runs.of(UNDISTURBED)
    assert calm.recoveries == 0
    assert not run.spared, "a planned crash did not happen"
    assert run.result.status == calm.result.status == "completed"
    assert run.journal == calm.journal
    assert run.events == calm.events
    assert run.result.usage == calm.result.usage
    for tool in ("pay", "send", "wire"):
        assert len(recorded(run.agent_id, tool, run=run.execution_id)) == 1, f"{tool} must run once"
    for text in ("one", "two"):
        assert recorded(run.agent_id, "note", text=text, run=run.execution_id)
    assert run.recoveries <= len(crash.points)
