"""`PoolActor`: one offload pool as a named Ray actor, a shell around `PoolCore`.

It owns everything that runs for the pool, so calls go on when the actor of their agent dies. When it dies itself, Ray
starts it anew, it ends what its former life has left running, and knows of no call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

from phronomy_ray.actors.pool_core import PoolCore
from phronomy_ray.actors.pool_fleet import RayFleet
from phronomy_ray.actors.ray_calls import MAX_CONCURRENCY, pool_actor_name, service_options
from phronomy_ray.actors.ray_metrics import PoolGauges
from phronomy_ray.actors.signals import die_at_sigterm
from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.tools.pool_news import Listeners, NewsList
from phronomy_ray.tools.pool_wire import News, PoolBatch, WorkerSetup

_LOG = logging.getLogger("phronomy_ray.pools")
#: How often time is looked at, in seconds, while calls are here and while none are.
TICK_S = 0.1
IDLE_TICK_S = 1.0
#: How often Ray's metrics are told, in seconds.
REPORT_EVERY_S = 2.0


def pool_options(pool: str, namespace: str) -> dict[str, Any]:
    """Options of the actor; each batch of each agent holds one of its calls."""
    return service_options(pool_actor_name(pool), namespace, max_concurrency=10 * MAX_CONCURRENCY)


class PoolActor:
    """Admission to one pool, and owner of what runs in it."""

    def __init__(self, name: str, config: PoolConfig, namespace: str) -> None:
        die_at_sigterm()
        self._name = name
        self._incarnation = uuid.uuid4().hex[:6]
        self._fleet = RayFleet(name, config, namespace)
        self._core = PoolCore(
            name, config, self._fleet, clock=time.monotonic, incarnation=f"{self._incarnation}-"
        )
        self._fleet.connect(self._core)
        self._listeners = Listeners(time.monotonic)
        self._up = asyncio.get_running_loop().create_task(self._come_up())
        self._ticking = asyncio.get_running_loop().create_task(self._tick_for_ever())

    async def run(self, batch: PoolBatch, listener: str) -> NewsList | None:
        """Run a batch; returns its first news, and `news` the rest.

        A call that the pool knows is not run again.

        Args:
            batch: the calls.
            listener: a name, unique to this call, under which `news` is asked for more.
        """
        await self._up
        self._core.submit(batch, self._listeners.add(listener))
        return await self._listeners.next(listener)

    async def attach(
        self, agent_id: str, epoch: int, keys: Sequence[CallKey], listener: str
    ) -> frozenset[CallKey]:
        """The calls among `keys` that the pool knows; `news` tells of them under the name of `listener`."""
        await self._up
        return self._core.attach(agent_id, epoch, keys, self._listeners.add(listener))

    async def news(self, listener: str, acknowledged: Sequence[CallKey]) -> NewsList | None:
        """What is new for a listener, as soon as there is something; ``None`` when it is not known (any more): it may
        attach again. Calls that are acknowledged: see `acknowledge`.
        """
        self._core.acknowledge(acknowledged)
        return await self._listeners.next(listener)

    async def acknowledge(self, keys: Sequence[CallKey]) -> None:
        """These outcomes are stored elsewhere: forget them."""
        self._core.acknowledge(keys)

    async def cancel(self, execution_id: str) -> None:
        """See `PoolCore.cancel`."""
        self._core.cancel(execution_id)

    async def stop(self, execution_id: str, grace_s: float) -> None:
        """See `PoolCore.stop`."""
        await self._core.stop(execution_id, grace_s)

    async def running(self, execution_id: str) -> list[CallKey]:
        """See `PoolCore.running`."""
        return self._core.running(execution_id)

    async def wait_quiet(self, execution_id: str, timeout_s: float) -> list[CallKey]:
        """See `PoolCore.wait_quiet`."""
        return await self._core.wait_quiet(execution_id, timeout_s)

    async def prepare(self, setup: WorkerSetup) -> None:
        """Have a worker ready for agents of this setup."""
        await self._up
        self._core.prepare(setup)

    async def task_news(self, news: Sequence[News]) -> None:
        """A task's body begins, or tells of its progress (said by the task)."""
        self._core.on_news(news)

    async def task_ends(self, key: CallKey, reason: str, code: str) -> None:
        """A task is about to end itself, and why (said by the task)."""
        self._fleet.task_ends(key, reason, code)

    async def metrics(self) -> dict[str, Any]:
        """Plain JSON; see the guide to pools."""
        return {
            **self._core.metrics(),
            "listeners": len(self._listeners),
            "pid": os.getpid(),
            "incarnation": self._incarnation,
        }

    async def ping(self) -> None:
        """Sign of life."""

    async def _come_up(self) -> None:
        """Clean up; all calls wait for it."""
        while True:
            try:
                return await self._fleet.clean_up()
            except Exception:  # noqa: BLE001 - logged; without a clean start nothing here may run
                _LOG.exception("pool %s cannot end what its former life has left; it tries again", self._name)
                await asyncio.sleep(IDLE_TICK_S)

    async def _tick_for_ever(self) -> None:
        """Time goes on whatever one look at it meets with."""
        await self._up
        while True:
            try:
                await self._tick()
            except Exception:  # noqa: BLE001 - logged; timeouts must not end with it
                _LOG.exception("pool %s: internal fault", self._name)
                await asyncio.sleep(IDLE_TICK_S)

    async def _tick(self) -> None:
        looked = reported = time.monotonic()
        gauges = PoolGauges(self._name)
        while True:
            await asyncio.sleep(IDLE_TICK_S if self._core.is_idle else TICK_S)
            self._core.tick()
            self._listeners.forget_silent()
            if time.monotonic() - looked >= self._fleet.nodes_every_s:
                await self._fleet.refresh_nodes()
                looked = time.monotonic()
            if time.monotonic() - reported >= REPORT_EVERY_S:
                gauges.update(self._core.metrics(), self._core.metrics_of)
                reported = time.monotonic()
