"""How a driver gets its agents looked after: it starts the supervisor behind its work and waits for nothing."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from datetime import UTC, datetime
from time import monotonic

from phronomy_ray.errors import safe_message
from phronomy_ray.hosting.wiring import AgentWiring, DefinitionSource
from phronomy_ray.open_work import WorkKind
from phronomy_ray.runtime.bridge import Bridge
from phronomy_ray.runtime.config import RuntimeConfig
from phronomy_ray.runtime.homes import Home
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.runtime")
#: How long it is taken for granted that a supervisor that was there still is, in seconds.
RENEW_S = 300.0
#: What will be due is a reason to look after agents, too.
_WHENEVER = datetime.max.replace(tzinfo=UTC)


class Supervision(WorkerInputRestricted):
    """Starts the supervisor once: when the store holds interrupted work, else with the first agent that is created or woken."""

    def __init__(self, config: RuntimeConfig, store: Store, home: Home, bridge: Bridge) -> None:
        self._config = config
        self._store = store
        self._home = home
        self._bridge = bridge
        self._started: Future[None] | None = None
        self._started_at_s = 0.0

    @property
    def like(self) -> AgentWiring:
        """How agents of this runtime are started, but for their class."""
        return self._config.wiring(DefinitionSource(""))

    def look(self) -> None:
        """Start it if there is anything to go on with; returns at once."""
        if self._config.supervisor is not None:
            self._bridge.submit(self._look())

    def begin(self) -> None:
        """Start it unless that was done a short while ago; returns at once.

        Somebody's shutdown may have ended it since.
        """
        if self._config.supervisor is None:
            return
        now_s = monotonic()
        is_old = now_s - self._started_at_s > RENEW_S
        if self._started is None or _has_failed(self._started) or (self._started.done() and is_old):
            self._started = self._bridge.submit(self._start())
            self._started_at_s = now_s

    async def ensure(self) -> None:
        """Start it, and wait until it answers. Raises what the cluster raises."""
        await self._home.supervise(self.like, self._config.supervisor or SupervisionLimits())

    async def _start(self) -> None:
        try:
            await self.ensure()
        except Exception as error:  # whoever needs an agent wakes it anyway
            _LOG.warning("no supervisor could be had: %s: %s", type(error).__name__, safe_message(error))
            raise

    async def _look(self) -> None:
        try:
            if await asyncio.to_thread(self._has_open_work):
                self.begin()
        except Exception as error:  # noqa: BLE001 - the driver's own first call of the store tells its user
            _LOG.debug("nobody looked for interrupted work: %s", safe_message(error))

    def _has_open_work(self) -> bool:
        return bool(self._store.subscription_leases()) or any(
            self._store.open_work(kind, now=_WHENEVER, limit=1) for kind in WorkKind
        )


def _has_failed(future: Future[None]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


__all__ = ["Supervision"]
