"""Finding and waking agents on a cluster: from an id to a live actor or host, whatever state the cluster is in.

Ray keeps a name for a moment after its actor has died, and can hand out one that is just dying; a call to a restarting
actor may or may not have run. So a wake goes on until an actor has answered as the live owner. Where an agent lives already
it is found, whatever this runtime's placement; a placement only says where the next activation goes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from tenacity import retry_if_exception, stop_after_delay, wait_exponential, wait_random
from tenacity.asyncio import AsyncRetrying

from phronomy_ray.actors.ray_calls import (
    answer_of,
    ask,
    call,
    find_actor,
    is_gone,
    is_unreachable,
    kill,
    pickle_by_value,
    service_options,
    unwrap,
)
from phronomy_ray.definition.placement import Dedicated, Packed, Placement
from phronomy_ray.errors import (
    AgentParkedError,
    AgentUnloadedError,
    ConfigurationError,
    HostClosedError,
    NotFoundError,
    OwnershipLostError,
    PhronomyError,
    WaitTimeoutError,
)
from phronomy_ray.hosting.agent_port import (
    CALL_TIMEOUT_S,
    STATUS_TIMEOUT_S,
    WAKE_TIMEOUT_S,
    LiveAgent,
    NoAnswer,
    status_of,
)
from phronomy_ray.hosting.assignment import (
    HOST_PREFIX,
    agent_actor_name,
    candidates,
    host_names,
)
from phronomy_ray.hosting.rendezvous import ranked
from phronomy_ray.hosting.wiring import AgentWiring, NewAgentRequest
from phronomy_ray.store.port import Store
from phronomy_ray.whereabouts import Whereabouts
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: A host that does not answer for so long is accompanied by a ping, and given up for another one when that is not answered, in
#: seconds.
HOST_PING_INTERVAL_S = 5.0
HOST_PING_TIMEOUT_S = 5.0
#: For how long the actor where an agent lived is waited for when it is restarting and the others are of another placement, in
#: seconds: longer than Ray takes to notice the loss of a node.
HOME_PATIENCE_S = 30.0


class RayDirectory(WorkerInputRestricted):
    """`AgentDirectory` of one namespace. Needs a process that is connected to Ray."""

    def __init__(self, namespace: str, placement: Placement, store: Store) -> None:
        """
        Args:
            namespace: of the actors.
            placement: where agents live of which nobody says otherwise.
            store: where it is remembered where agents live.
        """
        self._namespace = namespace
        self._placement = placement
        self._store = store

    async def find(self, agent_id: str) -> LiveAgent | None:
        """As `AgentDirectory.find`: its own actor, or a host that says that it lives there. Another runtime, or the agent's class,
        may have hosts that this one has not: of these the one where the agent lived last is asked.
        """
        alone = await asyncio.to_thread(find_actor, agent_actor_name(agent_id), self._namespace)
        if alone is not None:
            return DedicatedAgent(alone)
        found = await self._find_hosted(agent_id)
        if found is not None:
            return found
        last = (await asyncio.to_thread(self._store.whereabouts, agent_id)).last
        is_other = last.startswith(HOST_PREFIX) and last not in host_names(self._known_hosts())
        return await self._host_with(agent_id, last) if is_other else None

    async def wake(self, agent_id: str, wiring: AgentWiring) -> LiveAgent:
        """As `AgentDirectory.wake`."""
        return await self._until_served(agent_id, wiring, None)

    async def create(self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest) -> LiveAgent:
        """As `AgentDirectory.create`."""
        return await self._until_served(agent_id, wiring, request)

    # --- finding -----------------------------------------------------------------------------------------------

    async def _find_hosted(self, agent_id: str) -> LiveAgent | None:
        first, *others = ranked(agent_id, host_names(self._known_hosts()))
        found = await self._host_with(agent_id, first)
        if found is None and others:
            answers = await asyncio.gather(*(self._host_with(agent_id, name) for name in others))
            found = next((answer for answer in answers if answer is not None), None)
        return found

    def _known_hosts(self) -> Packed:
        """The hosts that there may be; a runtime without hosts of its own looks at the first one, for agents whose class wants it."""
        return self._placement if isinstance(self._placement, Packed) else Packed()

    async def _host_with(self, agent_id: str, name: str) -> LiveAgent | None:
        handle = await asyncio.to_thread(find_actor, name, self._namespace)
        if handle is None:
            return None
        answer = await ask(handle, "has", agent_id, timeout_s=STATUS_TIMEOUT_S)
        return HostedAgent(handle, agent_id) if answer is True else None

    async def _where_it_lives(self, agent_id: str, where: Whereabouts, names: Sequence[str]) -> str | None:
        """The actor that serves the agent although it is none of those that should, if it is alive."""
        if not where.last or where.last in names:
            return None
        if where.last == agent_actor_name(agent_id):
            handle = await asyncio.to_thread(find_actor, where.last, self._namespace)
            alive = handle is not None and await status_of(DedicatedAgent(handle)) is not None
        else:
            alive = (
                where.last.startswith(HOST_PREFIX) and await self._host_with(agent_id, where.last) is not None
            )
        return where.last if alive else None

    # --- waking ------------------------------------------------------------------------------------------------

    async def _until_served(
        self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest | None
    ) -> LiveAgent:
        where = await asyncio.to_thread(self._store.whereabouts, agent_id)
        names = candidates(
            agent_id, where, wiring.own_placement, self._placement, knows_own=wiring.knows_own_placement
        )
        wanted = candidates(agent_id, where, wiring.own_placement, self._placement)
        trying = _Candidates(
            names,
            there=await self._where_it_lives(agent_id, where, names),
            patience_s=0.0 if names[0] in wanted else HOME_PATIENCE_S,
        )
        retrying = AsyncRetrying(
            retry=retry_if_exception(trying.goes_on_after),
            stop=stop_after_delay(WAKE_TIMEOUT_S),
            wait=wait_exponential(multiplier=0.05, max=1.0) + wait_random(0, 0.05),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._serve(trying, agent_id, wiring, request)
        except (RayError, TimeoutError) as error:
            if isinstance(error, PhronomyError):
                raise
            raise WaitTimeoutError(
                f"agent {agent_id!r}: no actor answered within {WAKE_TIMEOUT_S:g} s ({type(error).__name__}); "
                "is the cluster healthy? (`phronomy doctor`)",
                details={"agent_id": agent_id},
            ) from error
        raise AssertionError("unreachable")

    async def _serve(
        self, trying: _Candidates, agent_id: str, wiring: AgentWiring, request: NewAgentRequest | None
    ) -> LiveAgent:
        """By the candidate whose turn it is."""
        name = trying.name
        handle: ActorHandle[Any] | None = None
        if not trying.may_start:
            handle = await asyncio.to_thread(find_actor, name, self._namespace)
            if handle is None:
                raise _LeftError(name)
        # naming an actor asks the cluster's control service, which is a blocking call
        if not name.startswith(HOST_PREFIX):
            if handle is None:
                handle = await asyncio.to_thread(self._get_or_start_actor, name, agent_id, wiring)
            return await self._serve_alone(handle, request)
        host = handle or await asyncio.to_thread(self._get_or_start_host, name, wiring)
        try:
            return await self._serve_in_host(host, agent_id, wiring, request)
        except HostClosedError:
            # one that only leaves its node is back soon, elsewhere
            if await asyncio.to_thread(self._store.is_host_closed, name):
                trying.closed_for_good(name)
            raise

    async def _serve_in_host(
        self, handle: Any, agent_id: str, wiring: AgentWiring, request: NewAgentRequest | None
    ) -> LiveAgent:
        packed = pickle_by_value(wiring)
        reference = (
            handle.activate.remote(agent_id, packed)
            if request is None
            else handle.create.remote(agent_id, packed, request)
        )
        try:
            await answer_of(
                handle,
                reference,
                ping_interval_s=HOST_PING_INTERVAL_S,
                ping_timeout_s=HOST_PING_TIMEOUT_S,
            )
        except RayTaskError as error:
            raise unwrap(error) from None
        return HostedAgent(handle, agent_id)

    async def _serve_alone(self, handle: ActorHandle[Any], request: NewAgentRequest | None) -> LiveAgent:
        try:
            if request is not None:
                await call(handle, "create", request, timeout_s=CALL_TIMEOUT_S)
            else:
                await call(handle, "activate", timeout_s=CALL_TIMEOUT_S)
        except AgentUnloadedError:
            kill(handle)  # it has sealed itself and is about to go; a new one can start once the name is free
            raise
        except (NotFoundError, ConfigurationError, AgentParkedError):
            await self._remove_useless(handle)
            raise
        return DedicatedAgent(handle)

    def _get_or_start_actor(self, name: str, agent_id: str, wiring: AgentWiring) -> ActorHandle[Any]:
        from phronomy_ray.actors.agent_actor import AgentActor  # an agent finds its children through here

        wanted = wiring.wanted_placement
        remote: Any = ray.remote(AgentActor)
        handle: ActorHandle[Any] = remote.options(
            **service_options(name, self._namespace),
            resources=dict(wanted.resources) or None if isinstance(wanted, Dedicated) else None,
        ).remote(agent_id, wiring)
        return handle

    def _get_or_start_host(self, name: str, wiring: AgentWiring) -> Any:
        found = find_actor(name, self._namespace)
        if found is not None:
            return found
        from phronomy_ray.actors.host_actor import MAX_CONCURRENCY, HostActor

        wanted = wiring.wanted_placement
        placement = wanted if isinstance(wanted, Packed) else Packed()
        remote: Any = ray.remote(HostActor)
        return remote.options(
            **service_options(name, self._namespace, max_concurrency=MAX_CONCURRENCY),
            scheduling_strategy="SPREAD",
            resources=dict(placement.resources) or None,
        ).remote(name, placement, wiring.store, self._namespace)

    async def _remove_useless(self, handle: ActorHandle[Any]) -> None:
        """Kill an actor that serves nothing; one that does serve (another class asked), or is too busy to say, stays."""
        try:
            status = await ask(handle, "status", timeout_s=STATUS_TIMEOUT_S)
        except PhronomyError:
            status = {"epoch": None}  # it has no engine: it serves nothing
        if not isinstance(status, NoAnswer) and status["epoch"] is None:
            kill(handle)


class DedicatedAgent(WorkerInputRestricted):
    """`LiveAgent` with an actor to itself."""

    def __init__(self, handle: ActorHandle[Any]) -> None:
        self._handle = handle

    async def ask(self, method: str, *args: Any, timeout_s: float) -> Any | NoAnswer:
        """As `LiveAgent.ask`."""
        return await ask(self._handle, method, *args, timeout_s=timeout_s)

    def release(self) -> None:
        """As `LiveAgent.release`: end the actor."""
        kill(self._handle)

    @property
    def raw(self) -> ActorHandle[Any]:
        """As `LiveAgent.raw`: the actor's handle."""
        return self._handle


class HostedAgent(WorkerInputRestricted):
    """`LiveAgent` in a host."""

    def __init__(self, handle: Any, agent_id: str) -> None:
        self._handle = handle
        self._agent_id = agent_id

    async def ask(self, method: str, *args: Any, timeout_s: float) -> Any | NoAnswer:
        """As `LiveAgent.ask`."""
        return await ask(self._handle, "call", self._agent_id, method, args, timeout_s=timeout_s)

    def release(self) -> None:
        """As `LiveAgent.release`; the host lives on."""

    @property
    def raw(self) -> HostedHandle:
        """As `LiveAgent.raw`."""
        return HostedHandle(self._handle, self._agent_id)


class HostedHandle:
    """Looks like the Ray handle of an agent's own actor: ``handle.method.remote(...)`` gives an object ref."""

    def __init__(self, handle: Any, agent_id: str) -> None:
        self._handle = handle
        self._agent_id = agent_id

    def __getattr__(self, method: str) -> HostedMethod:
        if method.startswith("_"):
            raise AttributeError(method)
        return HostedMethod(self._handle, self._agent_id, method)


class HostedMethod:
    """One method of an agent in a host."""

    def __init__(self, handle: Any, agent_id: str, method: str) -> None:
        self._handle = handle
        self._agent_id = agent_id
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; an object ref."""
        return self._handle.call.remote(self._agent_id, self._method, args, kwargs)


class _LeftError(Exception):
    """The actor where the agent lived, and which nobody may start again, is not there any more."""


class _Candidates:
    """Which actor a wake tries next."""

    def __init__(self, names: Sequence[str], *, there: str | None = None, patience_s: float = 0.0) -> None:
        """
        Args:
            names: those that may be started, best first.
            there: another one, where the agent lives at the moment: it is tried first, as long as it is there.
            patience_s: for how long from now a first one that is gone or silent is tried again before the others.
        """
        self._patient_until = time.monotonic() + patience_s
        self._names = [*([there] if there else []), *names]
        self._there = there
        self._first = self.name
        self._closed: set[str] = set()

    @property
    def name(self) -> str:
        return self._names[0]

    @property
    def may_start(self) -> bool:
        """Whether the present one may be started; else it is only to be found."""
        return self.name != self._there

    def closed_for_good(self, name: str) -> None:
        """The store says that the host takes no more agents."""
        self._closed.add(name)

    def goes_on_after(self, error: BaseException) -> bool:
        """Whether another try may help; a host that is closed, gone or silent is tried again after the others."""
        if isinstance(error, asyncio.CancelledError):
            return False
        if isinstance(error, _LeftError):
            self._names.remove(self.name)
            return True
        if isinstance(error, HostClosedError):
            self._next()
            return not self._closed.issuperset(self._names)
        if isinstance(error, AgentUnloadedError | OwnershipLostError):
            return True
        if is_gone(error) or is_unreachable(error):
            if self.name != self._first or time.monotonic() >= self._patient_until:
                self._next()
            return True
        return False

    def _next(self) -> None:
        self._names.append(self._names.pop(0))
