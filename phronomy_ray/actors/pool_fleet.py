"""The processes of a pool on Ray: worker actors in placement groups, and tasks. Tells the pool's core what happens.

Each worker sits in a named detached placement group of its own, which holds a little *logical memory* and no CPU. The names
are numbered, so there are never more worker processes than numbers, over the whole cluster and whoever asks; a pool that
was restarted removes the groups of its former life first, and Ray ends what runs in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import pickle
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._raylet import PlacementGroupID
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from phronomy_ray.actors.pool_core import PoolCore
from phronomy_ray.actors.ray_calls import find_actor, first_line, pool_actor_name, runtime_env_text
from phronomy_ray.actors.tool_worker import WORKER_CONCURRENCY, TaskHeader, ToolWorker, run_task
from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_wire import OUT_OF_MEMORY, PoolBatch, PoolCall, WorkerEnds, WorkerSetup

_LOG = logging.getLogger("phronomy_ray.pools")
#: Logical memory of one worker's placement group.
SHARE_BYTES = 1024 * 1024
#: How often the cluster's nodes are read, in seconds, and how often while workers start.
NODES_EVERY_S = 5.0
STARTING_NODES_EVERY_S = 1.0
#: How long a worker may take to come up, in seconds.
START_TIMEOUT_S = 60.0
#: How long a start that failed is waited after, in seconds.
START_RETRY_S = 0.5
#: How long workers of a former life are waited for, in seconds.
CLEAN_UP_TIMEOUT_S = 15.0
#: Tasks that may be handed to Ray per CPU: one runs, the others save the way back and forth in between.
TASKS_PER_CPU = 3
#: Headers and functions that are kept ready; there are as many as agents and sets of Ray options.
MAX_HEADERS = 1_000
MAX_FUNCTIONS = 1_000
#: Least time between two messages of calls to one worker for each call that it has, and at most, in seconds.
SEND_PER_CALL_S = 0.001
MAX_SEND_S = 0.02
MIN_TASKS = 4


@dataclass(slots=True)
class _Outbox:
    """A worker, and the calls that are about to be sent to it."""

    worker: Any
    calls: list[tuple[PoolBatch, PoolCall]] = field(default_factory=list)
    sent_at: float = float("-inf")
    is_waiting: bool = False


class RayFleet:
    """See `tools.pool_processes.Fleet`."""

    def __init__(self, pool: str, config: PoolConfig, namespace: str) -> None:
        self._namespace = namespace
        self._prefix = f"phronomy:{namespace}:{pool}:"
        self._worker_prefix = f"pool-worker:{pool}:"
        self._config = config
        self._core: PoolCore | None = None
        self._nodes: list[str] = []
        self._cpus = 1.0
        self._outboxes: dict[str, _Outbox] = {}
        self._slots: dict[str, int] = {}
        #: Node and time limit of each worker that has not come up yet.
        self._starts: dict[str, tuple[str, asyncio.Timeout]] = {}
        self._tasks: dict[CallKey, Any] = {}
        #: Why a task is about to end itself.
        self._last_words: dict[CallKey, tuple[str, str]] = {}
        #: The task's function with its options, and what the tasks of an agent have in common: both are costly to make.
        self._functions: dict[str, Any] = {}
        self._headers: dict[tuple[str, WorkerSetup], bytes] = {}
        self._actor_name = pool_actor_name(pool)
        self._ended: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._own_env = runtime_env_text()

    def connect(self, core: PoolCore) -> None:
        """Whom to tell."""
        self._core = core

    @property
    def core(self) -> PoolCore:
        """Whom this fleet works for."""
        assert self._core is not None
        return self._core

    # --- the cluster -------------------------------------------------------------------------------------------

    async def clean_up(self) -> None:
        """End what a former life of this pool has left; returns when its workers are gone, as far as Ray knows."""
        await self.look_at_nodes()
        await asyncio.to_thread(self._remove_groups)
        deadline = time.monotonic() + CLEAN_UP_TIMEOUT_S
        while left := await asyncio.to_thread(self._kill_workers):
            if time.monotonic() > deadline:
                _LOG.warning("pool: %d workers of a former life do not end", left)
                return
            await asyncio.sleep(0.02)

    def _kill_workers(self) -> int:
        """Kill workers that this life has not started; how many there were."""
        names = [
            entry["name"]
            for entry in list_named_actors(all_namespaces=True)
            if entry["namespace"] == self._namespace and entry["name"].startswith(self._worker_prefix)
        ]
        for name in names:
            worker = find_actor(name, self._namespace)
            if worker is not None:
                ray.kill(worker, no_restart=True)
        return len(names)

    def _remove_groups(self) -> None:
        for group_id, entry in placement_group_table().items():
            if entry["name"].startswith(self._prefix) and entry["state"] != "REMOVED":
                _LOG.warning("pool: removing %s of a former life", entry["name"])
                remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(group_id))))

    @property
    def nodes_every_s(self) -> float:
        """How long what is known of the nodes may be relied on, in seconds."""
        return STARTING_NODES_EVERY_S if self._starts else NODES_EVERY_S

    async def refresh_nodes(self) -> None:
        """`look_at_nodes`, unless the control service is away; it is asked again later."""
        with contextlib.suppress(RayError, OSError, RuntimeError):
            await self.look_at_nodes()

    async def look_at_nodes(self) -> None:
        """Learn which nodes there are; a worker that is to start on one that is lost is given up, Ray would wait for ever."""
        nodes: list[dict[str, Any]] = await asyncio.to_thread(ray.nodes)
        alive = [node for node in nodes if node["Alive"]]
        with_cpus = [node for node in alive if node["Resources"].get("CPU", 0) > 0]
        self._nodes = [node["NodeID"] for node in with_cpus or alive]
        self._cpus = sum(node["Resources"].get("CPU", 0) for node in alive)
        known = {node["NodeID"] for node in alive}
        for node, limit in self._starts.values():
            if node and node not in known:
                limit.reschedule(asyncio.get_running_loop().time())

    @property
    def nodes(self) -> Sequence[str]:
        """See `tools.pool_processes.Fleet`."""
        return self._nodes

    @property
    def max_workers(self) -> int:
        """See `tools.pool_processes.Fleet`."""
        return self._config.max_workers or max(2, round(2 * self._cpus))

    @property
    def max_tasks(self) -> int:
        """See `tools.pool_processes.Fleet`."""
        return max(MIN_TASKS, round(TASKS_PER_CPU * self._cpus))

    # --- workers -----------------------------------------------------------------------------------------------

    def start(self, worker_id: str, setup: WorkerSetup, node: str) -> None:
        """See `tools.pool_processes.Fleet`."""
        taken = set(self._slots.values())
        self._slots[worker_id] = next(number for number in range(len(taken) + 1) if number not in taken)
        self._spawn(self._live(worker_id, setup, node))

    def send(self, worker_id: str, calls: Sequence[tuple[PoolBatch, PoolCall]]) -> None:
        """See `tools.pool_processes.Fleet`. Each worker is sent to at a distance: a message costs much more than a call in it."""
        outbox = self._outboxes[worker_id]
        outbox.calls += calls
        if outbox.is_waiting:
            return
        loop = asyncio.get_running_loop()
        distance_s = min(MAX_SEND_S, SEND_PER_CALL_S * self.core.calls_in(worker_id))
        wait_s = outbox.sent_at + distance_s - loop.time()
        if wait_s <= 0:
            self._send_out(worker_id)
        else:
            outbox.is_waiting = True
            loop.call_later(wait_s, self._send_out, worker_id)

    def _send_out(self, worker_id: str) -> None:
        outbox = self._outboxes.get(worker_id)
        if outbox is None or not outbox.calls:
            return  # it has died, and its calls are known to be lost; or they were sent ahead of a cancel
        calls, outbox.calls = outbox.calls, []
        outbox.is_waiting, outbox.sent_at = False, asyncio.get_running_loop().time()
        sources = {batch.source_key: batch.source for batch, _ in calls}
        outbox.worker.run.remote(
            sources, [(call.key, batch.source_key, call.payload) for batch, call in calls]
        )

    def cancel(self, worker_id: str, keys: Sequence[CallKey]) -> None:
        """See `tools.pool_processes.Fleet`."""
        outbox = self._outboxes.get(worker_id)
        if outbox is not None:
            self._send_out(worker_id)  # bodies that have not arrived cannot be told to stop
            outbox.worker.cancel.remote(keys)

    def probe(self, worker_id: str) -> None:
        """See `tools.pool_processes.Fleet`."""
        self._spawn(self._probe(worker_id))

    def end(self, worker_id: str) -> None:
        """See `tools.pool_processes.Fleet`."""
        self._ended.add(worker_id)
        outbox = self._outboxes.get(worker_id)
        if outbox is not None:
            ray.kill(outbox.worker, no_restart=True)

    async def _probe(self, worker_id: str) -> None:
        outbox = self._outboxes.get(worker_id)
        if outbox is None:
            return
        try:
            await outbox.worker.ping.remote()
        except RayError:
            return  # its news end, which tells of its death
        self.core.on_alive(worker_id)

    async def _live(self, worker_id: str, setup: WorkerSetup, node: str) -> None:
        """The life of one worker, from its start to its death."""
        reason, code, group = "the worker process was ended", "worker_died", None
        ends: tuple[str, str] | None = None
        was_ready = False
        try:
            group, worker = await asyncio.to_thread(self._create, worker_id, setup, node)
            self._outboxes[worker_id] = _Outbox(worker)
            news = worker.news.options(num_returns="streaming").remote()
            async with asyncio.timeout(START_TIMEOUT_S) as limit:
                self._starts[worker_id] = node, limit
                await (await anext(news))
            was_ready = True
            self._starts.pop(worker_id, None)
            if worker_id in self._ended:
                ray.kill(worker, no_restart=True)
            else:
                self.core.on_ready(worker_id)
            async for reference in news:
                items = await reference
                last = next((item for item in items if isinstance(item, WorkerEnds)), None)
                if last is not None:
                    ends = (
                        f"the process that ran the tool was ended for its memory: {last.reason}",
                        last.code,
                    )
                self.core.on_news(item for item in items if item is not last)
        except (RayError, ValueError, TimeoutError, StopAsyncIteration) as error:
            reason, code = ends or cause_of_death(error)
        except Exception as error:  # noqa: BLE001 - logged; the calls of this worker must not wait for ever
            _LOG.exception("pool: internal fault while worker %s lived", worker_id)
            reason = f"the pool failed: {first_line(error)}"
        self._starts.pop(worker_id, None)
        outbox = self._outboxes.pop(worker_id, None)
        self._ended.discard(worker_id)
        if outbox is not None:
            ray.kill(outbox.worker, no_restart=True)
        if not was_ready:
            await asyncio.sleep(START_RETRY_S)
        await self.refresh_nodes()  # its node may be gone, and its calls are placed anew
        try:
            self.core.on_gone(worker_id, reason, code=code)
        finally:
            if group is not None:
                await asyncio.to_thread(remove_placement_group, group)
            self._slots.pop(worker_id, None)

    def _create(self, worker_id: str, setup: WorkerSetup, node: str) -> tuple[PlacementGroup, Any]:
        selector = [{"ray.io/node-id": node}] if node else None
        group = placement_group(
            [{"memory": SHARE_BYTES}],
            name=f"{self._prefix}{self._slots[worker_id]}",
            lifetime="detached",
            bundle_label_selector=selector,
        )
        options: dict[str, Any] = {
            "name": f"{self._worker_prefix}{worker_id}",
            "namespace": self._namespace,
            "num_cpus": 0,
            "memory": SHARE_BYTES,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": WORKER_CONCURRENCY,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        }
        options |= self._environment(setup)
        return group, ray.remote(ToolWorker).options(**options).remote(
            setup, self._config.worker_memory_bytes
        )

    def _environment(self, setup: WorkerSetup) -> dict[str, Any]:
        """The runtime environment of the agent, where it is not this actor's own, which children inherit."""
        if setup.runtime_env in ("", "{}", self._own_env):
            return {}
        return {"runtime_env": json.loads(setup.runtime_env)}

    # --- tasks -------------------------------------------------------------------------------------------------

    def run_task(self, batch: PoolBatch, call: PoolCall) -> None:
        """See `tools.pool_processes.Fleet`."""
        options = {**(call.task_options or {}), **self._environment(batch.setup)}
        shape = json.dumps(options, sort_keys=True, default=str)
        function = self._functions.get(shape)
        if function is None:
            if len(self._functions) >= MAX_FUNCTIONS:
                self._functions.clear()
            function = self._functions[shape] = run_task.options(**options)
        reference = function.remote(self._header(batch), call.payload)
        self._tasks[call.key] = reference
        self._spawn(self._follow(call.key, reference))

    def _header(self, batch: PoolBatch) -> bytes:
        key = (batch.source_key, batch.setup)
        header = self._headers.get(key)
        if header is None:
            if len(self._headers) >= MAX_HEADERS:
                self._headers.clear()
            common = TaskHeader(
                batch.setup,
                batch.source_key,
                batch.source,
                self._config.worker_memory_bytes,
                (self._actor_name, self._namespace),
            )
            header = self._headers[key] = pickle.dumps(common, pickle.HIGHEST_PROTOCOL)
        return header

    def task_ends(self, key: CallKey, reason: str, code: str) -> None:
        """A task says that it is about to end itself."""
        self._last_words[key] = (f"the process that ran the tool was ended for its memory: {reason}", code)

    def end_task(self, key: CallKey) -> None:
        """See `tools.pool_processes.Fleet`."""
        reference = self._tasks.get(key)
        if reference is not None:
            ray.cancel(reference, force=True)

    async def _follow(self, key: CallKey, reference: Any) -> None:
        reason, code = "the process ended without an outcome for this call", "worker_died"
        try:
            self.core.on_news([await reference])
        except RayError as error:
            reason, code = cause_of_death(error)
        reason, code = self._last_words.pop(key, (reason, code))
        self._tasks.pop(key, None)
        self.core.on_task_over(key, reason, code=code)

    # --- inside ------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("pool: internal fault", exc_info=task.exception())


def cause_of_death(error: BaseException) -> tuple[str, str]:
    """What a lost process means to its calls: text and code."""
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in text:
        return "the process that ran the tool was killed because its node ran out of memory", OUT_OF_MEMORY
    first = text.splitlines()[0] if text else ""
    return f"the worker process was lost ({type(error).__name__}: {first[:200]})", "worker_died"
