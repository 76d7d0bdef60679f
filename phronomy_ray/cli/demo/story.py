"""The demo's story, step by step, on a stage that is set up: who does what, when it is killed, what comes back.

Every wait is for something that is seen (a row, a line of the effect log, a dead process), has a limit, and says what
it was waiting for when the limit is reached.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phronomy_ray.cli.demo import checker
from phronomy_ray.cli.demo.agent import QUICK_PACKAGES, Surveyor
from phronomy_ray.cli.demo.checker import Effect, Evidence, Place
from phronomy_ray.cli.demo.stage import AGENT_NODE, WORKER_RESOURCES, Stage, take_signals
from phronomy_ray.errors import PhronomyError
from phronomy_ray.journal import EventRow, ExecutionRow, ToolCallRow
from phronomy_ray.results import RunResult
from phronomy_ray.testing import processes

if TYPE_CHECKING:
    from phronomy_ray.runtime.execution_handle import ExecutionHandle
    from phronomy_ray.runtime.runtime import Runtime
    from phronomy_ray.testing.local_cluster import KilledNode, LocalNode

#: Limits of the waits, in seconds; generous, since a slow machine is no fault.
MODEL_TIMEOUT_S = 90.0
BATCH_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 90.0
APPROVAL_TIMEOUT_S = 90.0
WORKER_TIMEOUT_S = 60.0
POLL_S = 0.05
DECIDER = "the demo's second process"


class DemoError(PhronomyError):
    """The demo cannot go on."""

    default_code = "demo_failed"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the story, for people."""

    #: Seconds since the demo began.
    at_s: float
    text: str
    pid: int | None = None
    node: str = ""


@dataclass
class Outcome:
    """What the story leaves to be judged and shown."""

    evidence: Evidence
    execution_id: str
    agent_id: str
    steps: list[Step] = field(default_factory=list)
    #: Named durations in seconds.
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    journal_length: int = 0


class Narrator:
    """Tells steps as they happen. The base tells nobody."""

    def step(self, step: Step) -> None:
        """Something has happened."""

    def now(self, text: str) -> None:
        """Something is happening."""


class Story:
    """One run of the demo."""

    def __init__(self, stage: Stage, *, folder: Path, output: Path, narrator: Narrator, begun: float) -> None:
        self._stage = stage
        self._folder = folder
        self._output = output
        self._narrator = narrator
        self._begun = begun
        self._steps: list[Step] = []
        self._names = {node.node_id[:12]: node.name for node in stage.cluster.nodes}
        self._agent_id = f"surveyor-{uuid.uuid4().hex[:6]}"

    def run(self, counted_before: dict[str, checker.Counts]) -> Outcome:
        """Tell the story to its end.

        Raises:
            DemoError: something did not happen in time; the message says what was waited for.
        """
        from phronomy_ray.definition.placement import Dedicated
        from phronomy_ray.runtime.runtime import Runtime

        with Runtime(
            self._stage.cluster.address,
            store=self._stage.store_url,
            placement=Dedicated(resources={AGENT_NODE: 1}),
            ray_options={"logging_level": logging.ERROR, "log_to_driver": False},
        ) as runtime:
            take_signals()
            handle, before = self._start(runtime)
            self._until_batch_is_half_done(handle, before)
            killed = self._kill(before)
            after, recovered_s, continued_s = self._until_it_goes_on(handle, killed)
            request_id, gone = self._until_it_waits(handle, after)
            approver = self._approve_elsewhere(handle, request_id)
            result = self._until_it_ends(handle)
            return self._gather(
                runtime,
                result,
                counted_before=counted_before,
                before=before,
                after=after,
                killed=killed,
                gone=gone,
                approver=approver,
                seconds={"kill_to_recovered": recovered_s, "kill_to_continued": continued_s},
            )

    # --- the acts ----------------------------------------------------------------------------------------------

    def _start(self, runtime: Runtime) -> tuple[ExecutionHandle, Place]:
        self._narrator.now("the agent's process starts")
        agent = runtime.create(Surveyor, self._agent_id)
        place = self._owner(runtime)
        self._step(f"agent {self._agent_id} lives in its own process", place)
        self._narrator.now("a process for its tools starts beside it")
        _wait(lambda: _warm_workers(runtime) > 0, "the pool has a worker process", WORKER_TIMEOUT_S)
        second = self._stage.cluster.add_node("worker-2", WORKER_RESOURCES)
        self._names[second.node_id[:12]] = second.name
        self._step("a second worker node joins", Place(0, second.name))
        handle = agent.start(
            f"Survey the folder {self._folder.name!r}.",
            durable_context={
                "folder": str(self._folder),
                "output": str(self._output),
                "effects": str(self._stage.effects),
                "gate": str(self._stage.gate),
            },
            stream=True,
        )
        self._store = runtime.store
        return handle, place

    def _until_batch_is_half_done(self, handle: ExecutionHandle, before: Place) -> None:
        self._narrator.now("the model gateway starts and loads litellm; the model looks at the folder")
        self._until(handle, lambda: bool(self._batch(handle)), "the model asks for a batch", MODEL_TIMEOUT_S)
        size = len(self._batch(handle))
        self._step(f"the model asks for {size} calls in one batch", before)

        def half_done() -> bool:
            done = sum(row.status.value == "succeeded" for row in self._batch(handle))
            running = len(self._running())
            self._narrator.now(f"batch of {size}: {done} done, {running} running")
            return done >= min(QUICK_PACKAGES, size - 2) and done + running >= size

        self._until(handle, half_done, "some calls are done and the others run", BATCH_TIMEOUT_S)

    def _kill(self, before: Place) -> KilledNode:
        node = self._node(before.node)
        done = sum(effect.event == "end" for effect in self._effects() if effect.package > 0)
        running = len(self._running())
        killed = self._stage.cluster.kill_node(node.node_id)
        self._step(
            f"{done} calls done, {running} running: SIGKILL to the whole {node.name} ({len(killed.pids)} processes)",
            before,
        )
        return killed

    def _until_it_goes_on(self, handle: ExecutionHandle, killed: KilledNode) -> tuple[Place, float, float]:
        self._narrator.now("nobody holds the agent; Ray has to notice that the node is lost")
        self._until(
            handle,
            lambda: self._recovery(handle) is not None,
            "another process takes the agent over",
            RECOVERY_TIMEOUT_S,
        )
        recovery = self._recovery(handle)
        assert recovery is not None
        place = self._place(recovery.payload)
        recovered_s = recovery.created_at.timestamp() - killed.killed_at
        self._step(f"recovered by another process, {recovered_s:.1f} s after the kill", place)
        again = min(checker.MIN_OVERLAP, sum(not row.status.is_settled for row in self._batch(handle)))

        def goes_on() -> bool:
            begun = {effect.call for effect in self._running() if effect.attempt > 1}
            self._narrator.now(f"{len(begun)} of the lost calls run again")
            return len(begun) >= again

        self._until(handle, goes_on, "the lost calls run again", RECOVERY_TIMEOUT_S)
        first = min(effect.at for effect in self._effects() if effect.attempt > 1)
        continued_s = first - killed.killed_at
        self._step(f"the lost calls run again, the first one {continued_s:.1f} s after the kill", place)
        gate = self._stage.gate
        new = gate.with_suffix(".new")
        new.write_text("2")
        new.replace(gate)  # attempts from the second on may pass; the first ones are lost
        return place, recovered_s, continued_s

    def _until_it_waits(self, handle: ExecutionHandle, after: Place) -> tuple[str, bool]:
        self._narrator.now("the batch is finished; the model writes the report")
        result = handle.wait("suspended", timeout=MODEL_TIMEOUT_S)
        if result.approval is None:
            raise DemoError(f"it ended without asking for approval: {_why(result)}")
        self._step(f"it asks for approval before {result.approval.tool_name}", after)
        handle.agent.unload()
        gone = not processes.wait_dead({after.pid}, timeout_s=20)
        self._step("unloaded: while it waits for a human it has no process", after)
        return result.approval.approval_request_id, gone

    def _approve_elsewhere(self, handle: ExecutionHandle, request_id: str) -> int:
        command = [sys.executable, "-m", "phronomy_ray.cli"]
        command += ["--address", self._stage.cluster.address, "--store", self._stage.store_url]
        command += ["approve", handle.execution_id, request_id, "--by", DECIDER]
        self._narrator.now("a second process approves: phronomy approve EXECUTION REQUEST")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                _, complaints = process.communicate(timeout=APPROVAL_TIMEOUT_S)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise DemoError(
                f"`phronomy approve` ended with {process.returncode}: {complaints.strip()[-500:]}"
            )
        self._step(
            "approved by a second process (`phronomy approve`), which woke the agent", Place(process.pid, "")
        )
        return process.pid

    def _until_it_ends(self, handle: ExecutionHandle) -> RunResult:
        self._narrator.now("the report is written; the model says its last word")
        result = handle.wait("terminal", timeout=MODEL_TIMEOUT_S)
        self._step(
            f"{result.status.value}: {result.output or _why(result)}",
            self._place(self._store.load_root(self._agent_id).owner),
        )
        return result

    def _gather(
        self,
        runtime: Runtime,
        result: RunResult,
        *,
        counted_before: dict[str, checker.Counts],
        before: Place,
        after: Place,
        killed: KilledNode,
        gone: bool,
        approver: int,
        seconds: dict[str, float],
    ) -> Outcome:
        self._narrator.now("everything is checked from outside")
        store = runtime.store
        calls = store.tool_calls(result.execution_id)
        approvals = store.approvals(execution_id=result.execution_id)
        report = self._output / "REPORT.md"
        journal = store.read_journal(self._agent_id, limit=100_000)
        evidence = Evidence(
            counted_before=counted_before,
            counted_after=checker.count_folder(self._folder, output=self._output),
            report=report.read_text(encoding="utf-8") if report.exists() else "",
            effects=tuple(self._effects()),
            execution=store.load_execution(result.execution_id),
            tool_calls=tuple(calls),
            journal=tuple(journal),
            killed_at=killed.killed_at,
            killed_node=killed.node_id,
            killed_pids=killed.pids,
            dead_pids=tuple(pid for pid in killed.pids if not processes.is_alive(pid)),
            before=before,
            after=after,
            approved_in=self._owner(runtime),
            gone_while_waiting=gone,
            approver_pid=approver,
            driver_pid=os.getpid(),
            decided_by=approvals[0].decided_by if approvals else None,
            wanted_decider=DECIDER,
        )
        batch = [row for row in calls if row.tool_name == "count_package"]
        again = sum(row.attempt > 1 for row in batch)
        return Outcome(
            evidence,
            result.execution_id,
            self._agent_id,
            self._steps,
            seconds,
            {"in_batch": len(batch), "kept": len(batch) - again, "run_again": again, "all": len(calls)},
            len(journal),
        )

    # --- what is seen ------------------------------------------------------------------------------------------

    def _until(
        self, handle: ExecutionHandle, condition: Callable[[], bool], what: str, timeout_s: float
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            row = self._execution(handle)
            if row is not None and row.status.is_terminal:
                error = row.error or {}
                why = f"{error.get('message')} [{error.get('code')}]" if error else repr(row.output)
                raise DemoError(f"waited until {what}, but the execution is {row.status.value}: {why}")
            if time.monotonic() > deadline:
                state = f"{row.status.value} ({row.phase.value})" if row is not None else "unknown"
                raise DemoError(f"waited {timeout_s:g} s until {what}; the execution is {state}")
            time.sleep(POLL_S)

    def _execution(self, handle: ExecutionHandle) -> ExecutionRow | None:
        return self._store.find_execution(handle.execution_id)

    def _recovery(self, handle: ExecutionHandle) -> EventRow | None:
        events = self._store.events(handle.execution_id, limit=10_000)
        return next((event for event in events if event.type == "recovered"), None)

    def _batch(self, handle: ExecutionHandle) -> list[ToolCallRow]:
        return [
            row for row in self._store.tool_calls(handle.execution_id) if row.tool_name == "count_package"
        ]

    def _effects(self) -> list[Effect]:
        return checker.read_effects(self._stage.effects)

    def _running(self) -> list[Effect]:
        """Calls that have begun, have not ended, and whose process is alive."""
        return [
            effect
            for effect in checker.running_at(self._effects(), time.time())
            if effect.package > 0 and processes.is_alive(effect.pid)
        ]

    def _owner(self, runtime: Runtime) -> Place:
        return self._place(runtime.store.load_root(self._agent_id).owner)

    def _place(self, owner: dict[str, Any]) -> Place:
        return Place(int(owner["pid"]), str(owner["node"]))

    def _node(self, short_id: str) -> LocalNode:
        try:
            return self._stage.cluster.node(short_id)
        except LookupError as error:
            raise DemoError(
                f"the agent says that it lives on node {short_id!r}, which is none of ours"
            ) from error

    def _step(self, text: str, place: Place) -> None:
        name = self._names.get(place.node, place.node)
        step = Step(time.monotonic() - self._begun, text, place.pid or None, name)
        self._steps.append(step)
        self._narrator.step(step)


def _wait(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise DemoError(f"waited {timeout_s:g} s until {what}")
        time.sleep(POLL_S)


def _warm_workers(runtime: Runtime) -> int:
    pool = runtime.metrics()["pools"].get("default")
    return pool["workers_ready"] if pool else 0


def _why(result: RunResult) -> str:
    if result.error is not None:
        return f"{result.status.value}, {result.error.message} [{result.error.code}]"
    return f"{result.status.value}, {result.output!r}"


__all__ = ["DemoError", "Narrator", "Outcome", "Step", "Story"]
