"""`SupervisorActor`: the named Ray actor that looks after the agents of its namespace. A shell around `Supervisor`.

One of it runs under the name ``supervisor``, started by whoever comes first. Nothing depends on there being only one, or one at
all: it holds no state that the store does not have, Ray starts it again for ever, and ownership epochs decide who acts for an
agent. Each store that the namespace's drivers use has a supervisor of its own in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import ray
from ray.actor import ActorHandle

from phronomy_ray.actors.ray_calls import call, find_actor, live_actor, node_id, service_options
from phronomy_ray.actors.ray_population import RayPopulation
from phronomy_ray.actors.ray_process import agent_stores
from phronomy_ray.actors.signals import die_at_sigterm
from phronomy_ray.clock import SystemClock
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import NotFoundError, PhronomyError
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.supervision.supervisor import Supervisor, deliverer_for

_LOG = logging.getLogger("phronomy_ray.actors")
#: Name of the actor.
SUPERVISOR = "supervisor"
#: How long a supervisor that is just dying is waited for, and how long its answer, in seconds.
PATIENCE_S = 30.0
PING_TIMEOUT_S = 30.0
#: Limit of a report, in seconds.
REPORT_TIMEOUT_S = 30.0


class SupervisorActor:
    """Supervisors of all stores of one namespace."""

    def __init__(self, like: AgentWiring, limits: SupervisionLimits | None = None) -> None:
        die_at_sigterm()
        self._limits = limits or SupervisionLimits()
        self._stores = agent_stores()
        self._supervisors: dict[str, Supervisor] = {}
        self._last = ""
        self._enlist(like)

    async def ping(self) -> bool:
        """Whether this process answers."""
        return True

    async def enlist(self, like: AgentWiring) -> None:
        """Look after the agents of this runtime's store too; its settings hold from now on for agents that are woken."""
        self._enlist(like)

    async def activate(self, agent_id: str, store: str | None = None) -> dict[str, Any]:
        """Wake a stored agent, for whoever holds raw handles only. Returns where it lives: ``{"actor", "node", ...}``.

        Args:
            agent_id: the agent.
            store: the store's URL without credentials; the last one that was named, by default.

        Raises:
            NotFoundError: it is not stored, or no driver has used that store here.
            ConfigurationError, AgentParkedError: it cannot be served.
        """
        identity = store or self._last
        supervisor = self._of(identity)
        await supervisor.activate(agent_id)
        root = await asyncio.to_thread(self._store(identity).load_root, agent_id)
        return {"agent_id": agent_id, "epoch": root.epoch, **root.owner}

    async def sweep(self) -> None:
        """Look now, and not at the next round."""
        await asyncio.gather(*(supervisor.sweep() for supervisor in self._supervisors.values()))

    async def report(self) -> list[dict[str, Any]]:
        """What it sees and does, for each store."""
        return [await self._report(identity, one) for identity, one in sorted(self._supervisors.items())]

    async def _report(self, identity: str, supervisor: Supervisor) -> dict[str, Any]:
        try:
            return await supervisor.report()
        except PhronomyError as error:
            return {"store": identity, "error": f"{error.message} [{error.code}]"}

    def _of(self, identity: str) -> Supervisor:
        try:
            return self._supervisors[identity]
        except KeyError:
            raise NotFoundError(
                f"no driver of this namespace has used the store {identity!r}", details={"store": identity}
            ) from None

    def _store(self, identity: str) -> Store:
        return self._supervisors[identity].store

    def _enlist(self, like: AgentWiring) -> None:
        shared = self._stores.get(like.store)
        identity = shared.store.identity
        self._last = identity
        population = RayPopulation(like, shared.store)
        known = self._supervisors.get(identity)
        if known is not None:
            known.use(population)
            return
        info = {
            "namespace": like.namespace,
            "node": node_id(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        client = StoreClient(shared)
        made = Supervisor(
            client,
            population,
            clock=SystemClock(),
            limits=self._limits,
            info=info,
            deliverer=deliverer_for(client, self._limits, info),
        )
        self._supervisors[identity] = made
        made.start()
        _LOG.info("looking after the agents of %s", identity)


def _create(like: AgentWiring, limits: SupervisionLimits | None) -> ActorHandle[Any]:
    remote: Any = ray.remote(SupervisorActor)
    handle: ActorHandle[Any] = remote.options(**service_options(SUPERVISOR, like.namespace)).remote(
        like, limits
    )
    return handle


async def ensure_supervisor(like: AgentWiring, limits: SupervisionLimits | None = None) -> ActorHandle[Any]:
    """The namespace's supervisor, started if there is none, which looks after the agents of this runtime's store from now on.

    Args:
        like: how agents of this runtime are started, but for their class.
        limits: of a supervisor that has to be started.

    Raises:
        RayError, TimeoutError: none could be had.
    """
    handle = await live_actor(
        lambda: _create(like, limits), patience_s=PATIENCE_S, ping_timeout_s=PING_TIMEOUT_S
    )
    await call(handle, "enlist", like, timeout_s=PING_TIMEOUT_S)
    return handle


async def supervisor_report(namespace: str) -> list[dict[str, Any]] | None:
    """What the namespace's supervisor sees; ``None`` when there is none. Raises `RayError`, `TimeoutError`."""
    handle = await asyncio.to_thread(find_actor, SUPERVISOR, namespace)
    if handle is None:
        return None
    report: list[dict[str, Any]] = await call(handle, "report", timeout_s=REPORT_TIMEOUT_S)
    return report


__all__ = ["SUPERVISOR", "SupervisorActor", "ensure_supervisor", "supervisor_report"]
