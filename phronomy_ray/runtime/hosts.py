"""Moving agents between processes, and emptying hosts: what a runtime offers to those who run a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from phronomy_ray.clock import utc_now
from phronomy_ray.errors import AgentBusyError, InvalidInputError, NotFoundError, PhronomyError
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.hosting.agent_port import status_of
from phronomy_ray.hosting.assignment import DEDICATED_PIN, HOST_PREFIX, agent_actor_name
from phronomy_ray.store.port import Store


@dataclass(frozen=True, slots=True)
class HostReport:
    """What became of the agents of a host that was drained."""

    host: str
    #: Agents that have left it.
    unloaded: int = 0
    #: Agents that still worked when the time was over: they leave when their work is done.
    left: tuple[str, ...] = field(default=())

    @classmethod
    def from_wire(cls, host: str, wire: dict[str, Any]) -> HostReport:
        """As a host tells it."""
        return cls(host, wire["unloaded"], tuple(wire["left"]))


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What became of the agents of a node."""

    node: str
    #: Dedicated agents and hosts that have left the node.
    moved: tuple[str, ...] = ()
    #: Agents that still worked when the time was over: they leave when they have done. Also those, of any node, whose process did
    #: not say where it is.
    left: tuple[str, ...] = ()
    #: Why Ray may still schedule something on the node; empty when it does not.
    ray_refusal: str = ""


def check_place(place: object) -> str | None:
    """A pin as given by a caller. Raises `InvalidInputError`."""
    if place is None:
        return None
    if isinstance(place, str):
        number = place.removeprefix(HOST_PREFIX)
        is_host = place != number and number.isdecimal() and str(int(number)) == number
        if is_host or place == DEDICATED_PIN:
            return place
    raise InvalidInputError(f"an agent can be moved to 'dedicated', 'host:<n>' or None, not {place!r}")


async def move(store: Store, client: AgentClient, place: str | None) -> None:
    """Pin the agent and free it where it is.

    Raises:
        NotFoundError: it is not stored.
        AgentBusyError: it works; it stays where it is, and nothing was changed.
        InvalidInputError: there is no such place.
    """
    pin = check_place(place)
    agent_id = client.agent_id
    await asyncio.to_thread(store.load_root, agent_id)
    before = await asyncio.to_thread(store.whereabouts, agent_id)
    # first the pin: whoever wakes the agent once it has left must find it
    await asyncio.to_thread(store.pin_agent, agent_id, pin, now=utc_now())
    try:
        if not await client.unload() and before.last != place_of(pin, agent_id):
            await _check_has_left(client, before.last)
    except PhronomyError:
        await asyncio.to_thread(store.pin_agent, agent_id, before.pin or None, now=utc_now())
        raise


async def _check_has_left(client: AgentClient, last: str) -> None:
    """An agent that nobody found does not live where it lived. Raises `AgentBusyError` when it does."""
    live = await client.find()
    status = await status_of(live) if live is not None else None
    if status is not None and status["actor"] == last:
        raise AgentBusyError(
            f"agent {client.agent_id!r} still lives in {last}; try again",
            details={"agent_id": client.agent_id},
        )


def place_of(pin: str | None, agent_id: str) -> str | None:
    """The actor that a pin names."""
    return agent_actor_name(agent_id) if pin == DEDICATED_PIN else pin


def check_host(host: str) -> str:
    """The name of a host as given by a caller. Raises `NotFoundError`."""
    if check_place(host) in (None, DEDICATED_PIN):
        raise NotFoundError(f"{host!r} is no host: they are called 'host:<n>'")
    return host
