"""The way from an agent to a pool: its calls survive the agent, and the agent survives the pool.

A batch is handed to the pool once and never again: when the way is lost, the pool is asked what it knows of the calls, and
what it does not know is unknown. Use it on one event loop, in a process connected to Ray.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from phronomy_ray.actors.ray_calls import answer_of, first_line, live_actor
from phronomy_ray.tool_calls import CallKey, ToolOutcome, ToolProgress
from phronomy_ray.tools.outcomes import not_performed, unknown
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_news import NewsList
from phronomy_ray.tools.pool_wire import (
    ItemKind,
    News,
    PoolBatch,
    PoolItem,
    StartedCalls,
    WorkerSetup,
    outcome_of,
    progress_of,
)
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.pools")
#: How long a lost pool is looked for before its calls are unknown, in seconds.
PATIENCE_S = 90.0
_RETRY_S = 0.1
#: A question that is not answered for so long is accompanied by a ping, and how long the ping may take, in seconds.
PING_INTERVAL_S = 10.0
PING_TIMEOUT_S = 30.0
#: How long the pool may keep an outcome that is stored, in seconds.
ACKNOWLEDGE_AFTER_S = 0.2


class PoolRun(WorkerInputRestricted):
    """Calls that one agent has in a pool: what it knows of them."""

    def __init__(
        self,
        agent_id: str,
        execution_id: str,
        epoch: int,
        keys: Iterable[CallKey],
        *,
        on_started: Callable[[StartedCalls], None],
        on_outcome: Callable[[ToolOutcome], None],
        on_late: Callable[[CallKey, ToolOutcome | None], None],
        on_progress: Callable[[ToolProgress], None] = lambda progress: None,
    ) -> None:
        self.agent_id = agent_id
        self.execution_id = execution_id
        self.epoch = epoch
        #: Calls without outcome.
        self.live = set(keys)
        #: Calls with an outcome whose bodies still run.
        self.given_up: set[CallKey] = set()
        self._abandoned: set[CallKey] = set()
        #: Whether the pool may have been told of them.
        self.is_sent = False
        self.is_cancelled = False
        self.changed = asyncio.Event()
        self._on_started = on_started
        self._on_outcome = on_outcome
        self._on_late = on_late
        self._on_progress = on_progress

    @property
    def open(self) -> set[CallKey]:
        """Calls of which there is more to come."""
        return self.live | self.given_up

    def take(self, news: Iterable[News]) -> None:
        """News from the pool."""
        for item in news:
            if isinstance(item, StartedCalls):
                self._on_started(item)
            elif not isinstance(item, PoolItem):
                continue
            elif item.kind is ItemKind.PROGRESS:
                self._on_progress(progress_of(item))
            elif item.key in self.live:
                if item.kind in (ItemKind.GIVEN_UP, ItemKind.GOES_ON):
                    self.given_up.add(item.key)
                self._end(outcome_of(item))
            elif item.key in self.given_up and item.kind in (ItemKind.LATE, ItemKind.ENDED):
                self._late(item)
        self.changed.set()

    def lose(self, keys: Iterable[CallKey], reason: str) -> None:
        """Nobody knows of these any more."""
        for key in set(keys):
            if key in self.live:
                self._end(unknown(key, reason))
            elif key in self.given_up:
                self._late(PoolItem(ItemKind.ENDED, key))
        self.changed.set()

    def call_off(self) -> None:
        """They were never sent."""
        for key in list(self.live):
            self._end(not_performed(key))
        self.changed.set()

    @property
    def stragglers(self) -> set[CallKey]:
        """Given-up bodies that the execution waits for."""
        return self.given_up - self._abandoned

    def abandon(self) -> frozenset[CallKey]:
        """The execution waits for no given-up body any more; returns those that run. Their end is still reported."""
        left = frozenset(self.stragglers)
        self._abandoned |= left
        return left

    def _end(self, outcome: ToolOutcome) -> None:
        self.live.discard(outcome.key)
        self._on_outcome(outcome)

    def _late(self, item: PoolItem) -> None:
        self.given_up.discard(item.key)
        self._on_late(item.key, outcome_of(item) if item.payload else None)


class PoolClient(WorkerInputRestricted):
    """One pool, as an agent sees it."""

    def __init__(self, pool: str, config: PoolConfig, namespace: str) -> None:
        self._pool = pool
        self._config = config
        self._namespace = namespace
        self._actor: Any = None
        self._lock = asyncio.Lock()
        #: Outcomes that the pool may forget and has not been told of.
        self._stored: list[CallKey] = []
        self._telling: asyncio.TimerHandle | None = None

    async def prepare(self, setup: WorkerSetup) -> None:
        """Have the pool and a worker ready; a failure shows when they are used."""
        try:
            actor = await self._find()
            await actor.prepare.remote(setup)
        except (RayError, TimeoutError) as error:
            _LOG.info("pool %s was not prepared: %s", self._pool, first_line(error))

    async def run(self, batch: PoolBatch, run: PoolRun) -> None:
        """Hand in a batch and tell `run` of it until nothing of it runs any more."""
        try:
            actor = await self._find()
        except TimeoutError as error:
            run.lose(run.open, str(error))
            return
        if run.is_cancelled:
            run.call_off()
            return
        run.is_sent = True
        listener = uuid.uuid4().hex
        try:
            await self._listen(actor, listener, actor.run.remote(batch, listener), run)
        except (RayError, TimeoutError) as error:
            _LOG.warning("pool %s was lost: %s", self._pool, first_line(error))
            self._forget(actor)
        await self.follow(run)

    async def follow(self, run: PoolRun, found: asyncio.Future[frozenset[CallKey]] | None = None) -> None:
        """Tell `run` of calls that were handed in earlier, also by an earlier owner, until nothing of them runs.

        `found` is told which of them the pool knows, and `run` waits for no others; without `found` they are lost.
        """
        lost_at: float | None = None
        run.is_sent = True
        while run.open:
            actor: Any = None
            try:
                actor = await self._find()
                listener = uuid.uuid4().hex
                known: frozenset[CallKey] = await _answer(
                    actor, actor.attach.remote(run.agent_id, run.epoch, sorted(run.open), listener)
                )
                lost_at = None
                if found is not None and not found.done():
                    run.live &= known
                    found.set_result(known)
                run.lose(run.open - known, "the pool that ran the call was lost")
                if await self._listen(actor, listener, self._news(actor, listener), run):
                    run.lose(run.open, "another owner of the agent has taken the call")
            except (RayError, TimeoutError) as error:
                self._forget(actor)
                lost_at = time.monotonic() if lost_at is None else lost_at
                if time.monotonic() >= lost_at + PATIENCE_S:
                    if found is not None and not found.done():
                        run.live.clear()
                        found.set_result(frozenset())
                    run.lose(run.open, f"the pool cannot be reached: {first_line(error)}")
                await asyncio.sleep(_RETRY_S)

    async def stop(self, execution_id: str, grace_s: float) -> None:
        """Ask for the end of an execution's calls; what becomes of them comes to their runs."""
        try:
            actor = await self._find()
            await actor.stop.remote(execution_id, grace_s)
        except (RayError, TimeoutError) as error:
            _LOG.info("pool %s could not be asked to stop: %s", self._pool, first_line(error))

    def acknowledge(self, keys: Sequence[CallKey]) -> None:
        """These outcomes are stored. The pool hears of it with the next question for news, at the latest after
        `ACKNOWLEDGE_AFTER_S`; it need not be told at any price.
        """
        self._stored += keys
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(ACKNOWLEDGE_AFTER_S, self.flush)

    def flush(self) -> None:
        """Tell the pool now what is stored."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        keys, self._stored = self._stored, []
        if keys and self._actor is not None:
            self._actor.acknowledge.remote(keys)

    async def _listen(self, actor: Any, listener: str, told: Any, run: PoolRun) -> bool:
        """Tell `run` of the news in `told` and of all after it. False when the pool does not know the listener (any more).

        Raises:
            RayError: the pool was lost.
            TimeoutError: it is there and does not answer.
        """
        while True:
            group: NewsList | None = await _answer(actor, told)
            if group is None:
                return False
            run.take(group.news)
            if group.is_over:
                return True
            told = self._news(actor, listener)

    def _news(self, actor: Any, listener: str) -> Any:
        """Ask for news, and take along what there is to acknowledge."""
        keys, self._stored = self._stored, []
        return actor.news.remote(listener, keys)

    # --- the actor ---------------------------------------------------------------------------------------------

    async def _find(self) -> Any:
        """The pool's actor, made when there is none.

        Raises:
            TimeoutError: it does not come up.
        """
        if self._actor is None:
            async with self._lock:
                if self._actor is None:
                    try:
                        self._actor = await live_actor(
                            self._create, patience_s=PATIENCE_S, ping_timeout_s=PATIENCE_S
                        )
                    except (RayError, ValueError, TimeoutError) as error:
                        raise TimeoutError(
                            f"pool {self._pool!r} cannot be reached: {first_line(error)}"
                        ) from error
        return self._actor

    def _create(self) -> Any:
        # what a pool is made of is a sixth of what an agent's process would import: only those that start one need it
        from phronomy_ray.actors.pool_actor import PoolActor, pool_options

        options = pool_options(self._pool, self._namespace)
        return ray.remote(PoolActor).options(**options).remote(self._pool, self._config, self._namespace)

    def _forget(self, actor: Any) -> None:
        if self._actor is actor:
            self._actor = None


async def _answer(actor: Any, reference: Any) -> Any:
    return await answer_of(actor, reference, ping_interval_s=PING_INTERVAL_S, ping_timeout_s=PING_TIMEOUT_S)
