"""Finding and waking agents: from an id to a live actor, whatever state the cluster is in.

Ray keeps a name for a moment after its actor has died, and can hand out one that is just dying; a call to a restarting
actor may or may not have run. So a wake goes on until an actor under the name has answered as the live owner.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from tenacity import retry_if_exception, stop_after_delay, wait_exponential, wait_random
from tenacity.asyncio import AsyncRetrying

from phronomy_ray.actors.ray_calls import (
    NoAnswer,
    agent_name,
    ask,
    call,
    find_actor,
    is_gone,
    is_unreachable,
    kill,
    service_options,
)
from phronomy_ray.actors.wiring import AgentWiring, NewAgentRequest
from phronomy_ray.errors import (
    AgentUnloadedError,
    ConfigurationError,
    NotFoundError,
    PhronomyError,
    WaitTimeoutError,
)
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: How long a wake goes on, in seconds: a lost node is noticed by Ray within 7 to 18 s.
WAKE_TIMEOUT_S = 90.0
#: Limit of one call that starts or reads, in seconds.
CALL_TIMEOUT_S = 60.0
#: Limit of one call that only asks a live actor for its memory, in seconds.
STATUS_TIMEOUT_S = 5.0


class AgentDirectory(WorkerInputRestricted):
    """The agents of one namespace. Needs a process that is connected to Ray: a driver, or an agent that has children."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def find(self, agent_id: str) -> ActorHandle[Any] | None:
        """The actor under the agent's name, alive or dying; never starts one."""
        return find_actor(agent_name(agent_id), self._namespace)

    async def live_status(self, agent_id: str) -> dict[str, Any] | None:
        """`status` of the live actor, or ``None`` when there is none that serves."""
        handle = self.find(agent_id)
        if handle is None:
            return None
        try:
            status: dict[str, Any] = await call(handle, "status", timeout_s=STATUS_TIMEOUT_S)
        except (RayError, TimeoutError, PhronomyError):
            return None
        return status if status["epoch"] is not None else None

    async def wake(self, agent_id: str, wiring: AgentWiring) -> ActorHandle[Any]:
        """A live actor that owns the stored agent; starts one where there is none.

        Raises:
            NotFoundError, ConfigurationError: the agent cannot be served; no actor is left behind.
            WaitTimeoutError: no actor answered within `WAKE_TIMEOUT_S`.
        """
        return await self._until_served(agent_id, wiring, None)

    async def create(self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest) -> ActorHandle[Any]:
        """A live actor for a new agent. Raises `AgentAlreadyExistsError` and as `wake`."""
        return await self._until_served(agent_id, wiring, request)

    async def _until_served(
        self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest | None
    ) -> ActorHandle[Any]:
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: _is_transient(error)),
            stop=stop_after_delay(WAKE_TIMEOUT_S),
            wait=wait_exponential(multiplier=0.05, max=1.0) + wait_random(0, 0.05),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._serve_once(agent_id, wiring, request)
        except (RayError, TimeoutError) as error:
            raise WaitTimeoutError(
                f"agent {agent_id!r}: no actor answered within {WAKE_TIMEOUT_S:g} s ({type(error).__name__}); "
                "is the cluster healthy? (`phronomy doctor`)",
                details={"agent_id": agent_id},
            ) from error
        raise AssertionError("unreachable")

    async def _serve_once(
        self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest | None
    ) -> ActorHandle[Any]:
        # naming an actor asks the cluster's control service, which is a blocking call
        handle = await asyncio.to_thread(self._get_or_start, agent_id, wiring)
        try:
            if request is not None:
                await call(handle, "create", request, timeout_s=CALL_TIMEOUT_S)
            else:
                await call(handle, "activate", timeout_s=CALL_TIMEOUT_S)
        except AgentUnloadedError:
            kill(handle)  # it has sealed itself and is about to go; a new one can start once the name is free
            raise
        except (NotFoundError, ConfigurationError):
            await self._remove_useless(handle)
            raise
        return handle

    def _get_or_start(self, agent_id: str, wiring: AgentWiring) -> ActorHandle[Any]:
        from phronomy_ray.actors.agent_actor import (
            AgentActor,
        )  # an agent's actor finds its children through here

        remote: Any = ray.remote(AgentActor)
        handle: ActorHandle[Any] = remote.options(
            **service_options(agent_name(agent_id), self._namespace),
            resources=dict(wiring.resources) or None,
        ).remote(agent_id, wiring)
        return handle

    async def _remove_useless(self, handle: ActorHandle[Any]) -> None:
        """Kill an actor that serves nothing; one that does serve (another class asked), or is too busy to say, stays."""
        try:
            status = await ask(handle, "status", timeout_s=STATUS_TIMEOUT_S)
        except PhronomyError:
            status = {"epoch": None}  # it has no engine: it serves nothing
        if not isinstance(status, NoAnswer) and status["epoch"] is None:
            kill(handle)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, asyncio.CancelledError):
        return False
    return isinstance(error, AgentUnloadedError) or is_gone(error) or is_unreachable(error)
