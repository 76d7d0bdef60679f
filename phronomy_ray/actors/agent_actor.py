"""`AgentActor`: the named Ray actor that one agent has to itself. A shell around `AgentService`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import ray

from phronomy_ray.actors.collector import settle_collector
from phronomy_ray.actors.ray_calls import end_this_actor
from phronomy_ray.actors.ray_metrics import AgentGauges
from phronomy_ray.actors.ray_process import RayProcess, agent_stores
from phronomy_ray.actors.signals import die_at_sigterm, die_with_parent
from phronomy_ray.errors import AgentParkedError, ConfigurationError, NotFoundError, PhronomyError
from phronomy_ray.hosting.agent_life import MAX_WAITERS
from phronomy_ray.hosting.agent_service import AgentService
from phronomy_ray.hosting.assignment import agent_actor_name
from phronomy_ray.hosting.loop_watchdog import LoopWatchdog, Offence, log_offence
from phronomy_ray.hosting.wiring import AgentWiring, NewAgentRequest

_LOG = logging.getLogger("phronomy_ray.actors")
#: How long an actor that cannot serve stays to say why, in seconds.
LINGER_S = 20.0
#: How long after `unload` the process ends by itself, in seconds.
UNLOAD_LINGER_S = 1.0


class AgentActor(AgentService):
    """Owner of one agent, in a process of its own."""

    def __init__(self, agent_id: str, wiring: AgentWiring) -> None:
        die_at_sigterm()
        if ray.is_initialized():
            die_with_parent()
        self._gauges = AgentGauges(agent_id)
        self._watchdog = LoopWatchdog(
            on_offence=self._blocked,
            on_look=lambda late_s: self._gauges.looked(late_s, self.waiters),
            on_end=self._die,
            is_busy=lambda: self.bodies_on_loop > 0,
        )
        process = RayProcess(
            agent_actor_name(agent_id),
            wiring.namespace,
            max_waiters=MAX_WAITERS,
            stores=agent_stores(),
            on_left=lambda agent: self._exit_soon(UNLOAD_LINGER_S),
            on_lost=lambda agent: self._exit(),
            on_loop_work=lambda agent_id: self._watchdog.wake(),
        )
        super().__init__(agent_id, wiring, process)
        self._watchdog.start()
        loop = asyncio.get_running_loop()
        self._boot = loop.create_task(self._start())
        self._sweep = loop.create_task(self._unload_when_unused())
        self._retiring: asyncio.Task[bool] | None = None

    async def _start(self) -> None:
        """Recover without waiting for a caller, so that a restarted actor goes on by itself."""
        try:
            await self.start_up()
        except Exception as error:  # noqa: BLE001 - whoever calls next starts it again, and is told what is wrong
            known = isinstance(error, PhronomyError)
            level = logging.INFO if known else logging.ERROR
            _LOG.log(
                level, "agent %s not started: %s", self.agent_id, error, exc_info=None if known else error
            )
            if isinstance(error, NotFoundError | ConfigurationError | AgentParkedError):
                asyncio.get_running_loop().call_later(LINGER_S, self._exit_unless_active)
        settle_collector()

    async def _unload_when_unused(self) -> None:
        """Let the process go when nothing needs it; whoever calls next wakes the agent."""
        every_s = self.wiring.unload.look_every_s
        await self._boot
        while every_s is not None and not self.is_lost:
            await asyncio.sleep(every_s)
            try:
                has_left = self.looks_unused() and await self.leave()
            except Exception:  # noqa: BLE001 - it is looked at again
                _LOG.exception("agent %s could not leave", self.agent_id)
                continue
            if has_left:
                _LOG.info("agent %s is unloaded: nobody has used it for a while", self.agent_id)
                self._exit_soon(UNLOAD_LINGER_S)

    async def activate(self) -> dict[str, Any]:
        """See `AgentService`."""
        await self._boot
        return await super().activate()

    async def create(self, request: NewAgentRequest) -> dict[str, Any]:
        """See `AgentService`."""
        await self._boot
        return await super().create(request)

    async def begin_draining(self) -> None:
        """Begin nothing any more; see `AgentService.retire`."""
        self.begin_retiring()

    async def drain(self, timeout_s: float) -> bool:
        """Leave as soon as nothing runs, and end this process; whether that was within `timeout_s` seconds. What still works then
        leaves when it has done. Again is harmless.
        """
        if self._retiring is None or self._retiring.done():
            self._retiring = asyncio.get_running_loop().create_task(self.retire())
        await asyncio.wait([self._retiring], timeout=max(0.0, timeout_s))
        return self._retiring.done() and self._retiring.result()

    async def serving(self) -> dict[str, int]:
        """Whom this process serves, with the epoch: the supervisor's question whether it lives."""
        return {self.agent_id: self.epoch} if self.epoch is not None else {}

    async def presence(self) -> dict[str, Any]:
        """Where it lives, for how long nobody has needed it, and whether it may leave."""
        return {
            "node": self._process.owner["node"],
            "idle_s": asyncio.get_running_loop().time() - self.used_at,
            "may_leave": self.may_leave,
        }

    async def metrics(self) -> dict[str, Any]:
        """How late the agent's event loop was, and how much waits on it."""
        return {
            "pid": os.getpid(),
            "loop_lag": self._watchdog.to_wire(),
            "waiting_calls": self.waiters,
            "tasks": len(asyncio.all_tasks()),
            "tools_on_loop": self.bodies_on_loop,
        }

    def _blocked(self, offence: Offence) -> None:
        log_offence(offence)
        self._gauges.blocked(offence.tool_name)

    def _die(self) -> None:
        """The event loop has ended, so nothing here can work: Ray starts the actor anew, which recovers."""
        _LOG.critical("agent %s: its event loop has ended (sys.exit in a callback?)", self.agent_id)
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit_soon(self, after_s: float) -> None:
        asyncio.get_running_loop().call_later(after_s, self._exit)

    def _exit(self) -> None:
        end_this_actor()

    def _exit_unless_active(self) -> None:
        if not self.is_active:
            self._exit()
