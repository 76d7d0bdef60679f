"""The tool executor of an agent's actor: cooperative bodies on its loop, all others in the pools that their tools name.

Pools own what runs in them, so a new owner of the agent attaches to calls that the former one dispatched.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from phronomy_ray.actors.pool_client import PoolClient, PoolRun
from phronomy_ray.actors.pool_clients import PoolClients
from phronomy_ray.actors.ray_calls import pickle_by_value
from phronomy_ray.clock import timestamp
from phronomy_ray.definition.agent import BoundTool
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.definition.tool_options import ExecutionMode, RayOptions, Replay
from phronomy_ray.definition.tool_spec import ToolSpec
from phronomy_ray.tool_calls import (
    Attachment,
    CallKey,
    ToolInvocation,
    ToolLate,
    ToolOutcome,
    ToolStarted,
)
from phronomy_ray.tool_environment import ToolEnvironment
from phronomy_ray.tools.cooperative import CooperativeRuns
from phronomy_ray.tools.executor import Sink
from phronomy_ray.tools.outcomes import missing_tool
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_placement import Lane
from phronomy_ray.tools.pool_wire import PoolBatch, PoolCall, StartedCalls
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: Longest wait between two attempts of a body, in seconds (see `tools.envelope`).
RETRY_WAIT_S = 5.0
#: How much longer than the grace time the end of stopped calls is waited for, in seconds.
STOP_MARGIN_S = 10.0
#: Outcomes of which it is remembered whom to tell that they are stored; the pool forgets the others by itself, later.
MAX_UNACKNOWLEDGED = 10_000


class RayToolExecutor(WorkerInputRestricted):
    """See `tools.executor.ToolExecutor`."""

    def __init__(
        self,
        source: DefinitionSource,
        clients: PoolClients,
        pools: Mapping[str, PoolConfig] | None = None,
        environment: ToolEnvironment | None = None,
        *,
        on_loop_work: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            source: where workers get the tools from.
            clients: the ways to the pools, shared by the executors of a process.
            pools: how pools are bounded.
            environment: what cooperative bodies find around them.
            on_loop_work: told when bodies begin on the loop.
        """
        self._pools = clients
        self._configs = dict(pools or {})
        self._cooperative = CooperativeRuns(clients.node, environment)
        self._on_loop_work = on_loop_work
        self._used: set[PoolClient] = set()
        self._runs: dict[PoolRun, PoolClient] = {}
        #: Which pool has to be told that an outcome is stored.
        self._unacknowledged: dict[CallKey, PoolClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._source, self._source_key = clients.source(source)

    @property
    def on_loop(self) -> int:
        """See `tools.executor.ToolExecutor`."""
        return self._cooperative.running

    def prepare(self, tools: Iterable[BoundTool]) -> None:
        """Have the pools of these tools started before their first call."""
        for pool in {_pool_of(bound) for bound in tools if _is_pooled(bound)}:
            self._spawn(self._client(pool).prepare(self._pools.setup))

    def dispatch(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> None:
        """See `tools.executor.ToolExecutor`."""
        by_pool: dict[str, list[ToolInvocation]] = {}
        for invocation in invocations:
            bound = tools.get(invocation.tool_name)
            if bound is None:
                sink(missing_tool(invocation.key, invocation.tool_name))
            elif not _is_pooled(bound):
                self._cooperative.start(invocation, bound, sink)
                self._on_loop_work()
            else:
                by_pool.setdefault(_pool_of(bound), []).append(invocation)
        for pool, items in by_pool.items():
            client, run = self._begin(pool, items, sink)
            options = {name: _task_options(tools[name].spec) for name in {item.tool_name for item in items}}
            batch = PoolBatch(
                items[0].agent_id,
                items[0].execution_id,
                items[0].epoch,
                self._pools.setup,
                self._source,
                self._source_key,
                tuple(
                    _pool_call(item, tools[item.tool_name].spec, options[item.tool_name]) for item in items
                ),
            )
            self._spawn(self._follow(run, client.run(batch, run)))

    async def attach(
        self, invocations: Sequence[ToolInvocation], tools: Mapping[str, BoundTool], sink: Sink
    ) -> Attachment:
        """See `tools.executor.ToolExecutor`; cooperative bodies have died with the former owner."""
        by_pool: dict[str, list[ToolInvocation]] = {}
        for invocation in invocations:
            bound = tools.get(invocation.tool_name)
            if bound is not None and _is_pooled(bound):
                by_pool.setdefault(_pool_of(bound), []).append(invocation)
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[frozenset[CallKey]]] = []
        for pool, items in by_pool.items():
            client, run = self._begin(pool, items, sink)
            found: asyncio.Future[frozenset[CallKey]] = loop.create_future()
            answers.append(found)
            self._spawn(self._follow(run, client.follow(run, found)))
        known = await asyncio.gather(*answers)
        return Attachment(attached=frozenset().union(*known))

    def acknowledge(self, keys: Sequence[CallKey]) -> None:
        """See `tools.executor.ToolExecutor`."""
        by_client: dict[PoolClient, list[CallKey]] = {}
        for key in keys:
            client = self._unacknowledged.pop(key, None)
            if client is not None:
                by_client.setdefault(client, []).append(key)
        for client, mine in by_client.items():
            client.acknowledge(mine)

    def stragglers(self, execution_id: str) -> bool:
        """See `tools.executor.ToolExecutor`."""
        pooled = any(run.stragglers for run in self._runs if run.execution_id == execution_id)
        return pooled or self._cooperative.stragglers.any_of(execution_id)

    async def quiesce(self, execution_id: str, timeout_s: float) -> frozenset[CallKey]:
        """See `tools.executor.ToolExecutor`."""
        runs = [run for run in self._runs if run.execution_id == execution_id and run.stragglers]
        cooperative, _ = await asyncio.gather(
            self._cooperative.stragglers.wait(execution_id, timeout_s),
            _until_all(runs, lambda run: not run.stragglers, timeout_s),
        )
        return cooperative | {key for run in runs for key in run.abandon()}

    async def stop(self, grace_s: float) -> None:
        """See `tools.executor.ToolExecutor`; a worker in which nothing else lives is killed after the grace time."""
        await asyncio.gather(self._cooperative.stop(grace_s), self._stop_pools(grace_s))

    def close(self) -> None:
        """See `tools.executor.ToolExecutor`."""
        for client in self._used:
            client.flush()
        for task in self._tasks:
            task.cancel()

    # --- inside ------------------------------------------------------------------------------------------------

    async def _stop_pools(self, grace_s: float) -> None:
        runs = [run for run in self._runs if run.live]
        asked: set[tuple[PoolClient, str]] = set()
        for run in runs:
            run.is_cancelled = True
            client = self._runs[run]
            if run.is_sent and (client, run.execution_id) not in asked:
                asked.add((client, run.execution_id))
                self._spawn(client.stop(run.execution_id, grace_s))
        await _until_all(runs, lambda run: not run.live, grace_s + STOP_MARGIN_S)
        for run in runs:
            run.lose(set(run.live), "the pool did not stop the call in time")

    def _begin(self, pool: str, items: Sequence[ToolInvocation], sink: Sink) -> tuple[PoolClient, PoolRun]:
        client = self._client(pool)
        first = items[0]

        def on_outcome(outcome: ToolOutcome) -> None:
            self._unacknowledged[outcome.key] = client
            if len(self._unacknowledged) > MAX_UNACKNOWLEDGED:
                del self._unacknowledged[next(iter(self._unacknowledged))]
            sink(outcome)

        run = PoolRun(
            first.agent_id,
            first.execution_id,
            first.epoch,
            [item.key for item in items],
            on_started=partial(_report_started, sink),
            on_outcome=on_outcome,
            on_late=partial(_report_late, sink, first.execution_id),
            on_progress=sink,
        )
        self._runs[run] = client
        return client, run

    async def _follow(self, run: PoolRun, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            run.lose(run.open, "the way to the pool was lost by an internal fault")
            raise
        finally:
            self._runs.pop(run, None)

    def _client(self, pool: str) -> PoolClient:
        client = self._pools.client(pool, self._configs)
        self._used.add(client)
        return client

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "tool executor: internal fault", "exception": error, "task": task}
            )


def _is_pooled(bound: BoundTool) -> bool:
    return bound.spec.execution_mode is not ExecutionMode.COOPERATIVE


def _pool_of(bound: BoundTool) -> str:
    return bound.spec.pool


def _pool_call(
    invocation: ToolInvocation, spec: ToolSpec, task_options: Mapping[str, Any] | None
) -> PoolCall:
    lane = Lane.NEVER if spec.replay is Replay.NEVER else Lane.REPLAYABLE
    return PoolCall(
        invocation.key,
        invocation.tool_name,
        Lane.SUSPECT if invocation.alone else lane,
        spec.timeout_s * (spec.retries + 1) + RETRY_WAIT_S * spec.retries,
        # settings may hold functions of the driver's own script
        pickle.dumps(invocation, pickle.HIGHEST_PROTOCOL)
        if invocation.settings is None
        else pickle_by_value(invocation),
        task_options,
    )


def _task_options(spec: ToolSpec) -> Mapping[str, Any] | None:
    """Ray options of a task of its own: for CPU work, and for whatever asks Ray for resources."""
    wanted = spec.ray_options or RayOptions()
    is_cpu_bound = spec.execution_mode is ExecutionMode.CPU_BOUND
    if wanted == RayOptions() and not is_cpu_bound:
        return None
    options: dict[str, Any] = {
        "num_cpus": float(is_cpu_bound) if wanted.num_cpus is None else wanted.num_cpus
    }
    if wanted.num_gpus is not None:
        options["num_gpus"] = wanted.num_gpus
    if wanted.memory_bytes is not None:
        options["memory"] = wanted.memory_bytes
    if wanted.resources:
        options["resources"] = dict(wanted.resources)
    if wanted.label_selector:
        options["label_selector"] = dict(wanted.label_selector)
    return options


def _report_started(sink: Sink, started: StartedCalls) -> None:
    for key in started.keys:
        sink(ToolStarted(*key, started.node, started.pid, started.at))


def _report_late(sink: Sink, execution_id: str, key: CallKey, outcome: ToolOutcome | None) -> None:
    status = outcome.status.value if outcome is not None else "killed"
    ended_at = outcome.ended_at if outcome is not None else ""
    sink(ToolLate(*key, execution_id, status, ended_at or timestamp()))


async def _until_all(runs: Sequence[PoolRun], condition: Callable[[PoolRun], bool], timeout_s: float) -> None:
    async def one(run: PoolRun) -> None:
        while not condition(run):
            run.changed.clear()
            await run.changed.wait()

    tasks = [asyncio.ensure_future(one(run)) for run in runs if not condition(run)]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
