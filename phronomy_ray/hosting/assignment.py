"""Which process an agent belongs to, by name. Pure: what the store remembers and what is configured come in."""

from __future__ import annotations

from phronomy_ray.definition.placement import Dedicated, Packed, Placement
from phronomy_ray.hosting.rendezvous import ranked
from phronomy_ray.whereabouts import Whereabouts

HOST_PREFIX = "host:"
#: A pin that gives an agent a process of its own.
DEDICATED_PIN = "dedicated"


def agent_actor_name(agent_id: str) -> str:
    """Name of the actor that an agent has to itself."""
    return f"agent:{agent_id}"


def host_name(number: int) -> str:
    """Name of a host."""
    return f"{HOST_PREFIX}{number}"


def host_names(placement: Packed) -> list[str]:
    """Names of all hosts."""
    return [host_name(number) for number in range(placement.hosts)]


def candidates(
    agent_id: str, where: Whereabouts, own: Placement | None, default: Placement, *, knows_own: bool = True
) -> list[str]:
    """Actors that may serve the agent, best first; further ones are for when that one does not take it or is lost.

    A pin counts most, then what the agent's class says, then what the runtime says; among hosts the one where the agent lived
    last, so that a change of their number moves nobody. Without `knows_own` nobody knows what the class says: the actor where
    the agent lived last, which its class has chosen, comes before what the runtime says.
    """
    names = _wanted(agent_id, where, own, default)
    if not where.pin and not knows_own and is_home(agent_id, where.last):
        return [where.last, *(name for name in names if name != where.last)]
    return names


def is_home(agent_id: str, name: str) -> bool:
    """Whether the agent can live in an actor of that name on a cluster: its own, or a host."""
    return name == agent_actor_name(agent_id) or name.startswith(HOST_PREFIX)


def _wanted(agent_id: str, where: Whereabouts, own: Placement | None, default: Placement) -> list[str]:
    alone = [agent_actor_name(agent_id)]
    if where.pin == DEDICATED_PIN:
        return alone
    if where.pin.startswith(HOST_PREFIX):
        return [where.pin]
    packed = own or default
    if isinstance(packed, Packed):
        order = ranked(agent_id, host_names(packed))
        if where.last in order:
            order.remove(where.last)
            order.insert(0, where.last)
        return order
    assert isinstance(packed, Dedicated)
    return alone
