"""Emptying a namespace or one node of a cluster: dedicated agents and hosts leave, and what they were does not come back there."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from phronomy_ray.actors.ray_calls import call, find_actor, is_gone, kill
from phronomy_ray.errors import NotFoundError, PhronomyError
from phronomy_ray.hosting.agent_port import STATUS_TIMEOUT_S
from phronomy_ray.hosting.assignment import HOST_PREFIX, agent_actor_name
from phronomy_ray.runtime.hosts import NodeReport

_AGENT_PREFIX = agent_actor_name("")
#: Where agents live.
_HOMES = (_AGENT_PREFIX, HOST_PREFIX)
#: Actors that serve agents and have nothing to do without them.
_SERVICES = ("supervisor", "pool:", "models:", "mcp:")
#: How much longer than its own time an actor may take to answer, in seconds.
ANSWER_MARGIN_S = 10.0
#: How long Ray's own command may take at most, in seconds.
RAY_COMMAND_S = 60.0


class ClusterAgents:
    """All agents of a namespace, as a participant of a shutdown."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    async def begin_draining(self) -> None:
        """As `Participant.begin_draining`. The supervisor goes first: it would wake what is being unloaded."""
        for _, actor in await self._actors("supervisor"):
            kill(actor)
        await asyncio.gather(*(_begin_draining(actor) for _, actor in await self._actors(*_HOMES)))

    async def wait_until_idle(self, remaining_s: Callable[[], float]) -> Sequence[str]:
        """As `Participant.wait_until_idle`."""
        found = await self._actors(*_HOMES)
        left = await asyncio.gather(*(drain_actor(name, actor, remaining_s()) for name, actor in found))
        return [f"agent {agent_id}" for agents in left for agent_id in agents]

    async def end_services(self) -> None:
        """End what serves agents, after all of them have left."""
        for _, actor in await self._actors(HOST_PREFIX, *_SERVICES):
            kill(actor)

    async def _actors(self, *prefixes: str) -> list[tuple[str, Any]]:
        return await asyncio.to_thread(named_actors, self._namespace, prefixes)


async def _begin_draining(actor: Any) -> None:
    try:
        await call(actor, "begin_draining", timeout_s=STATUS_TIMEOUT_S)
    except (RayError, TimeoutError):
        return  # it is gone, or its drain will tell


def named_actors(namespace: str, prefixes: Iterable[str]) -> list[tuple[str, Any]]:
    """Live actors of the namespace whose names begin so."""
    wanted = tuple(prefixes)
    entries = list_named_actors(all_namespaces=True)
    names = [entry["name"] for entry in entries if entry["namespace"] == namespace]
    found = ((name, find_actor(name, namespace)) for name in names if name.startswith(wanted))
    return [(name, actor) for name, actor in found if actor is not None]


async def drain_actor(name: str, actor: Any, timeout_s: float, *, ends_host: bool = False) -> Sequence[str]:
    """Have an agent's actor or a host drained; the agents that still work. With `ends_host` a host ends when the last has left."""
    alone = name.removeprefix(_AGENT_PREFIX) if name.startswith(_AGENT_PREFIX) else ""
    try:
        method = "drain_and_end" if ends_host and not alone else "drain"
        answer = await call(actor, method, timeout_s, timeout_s=timeout_s + ANSWER_MARGIN_S)
    except (RayError, TimeoutError) as error:
        # one that cannot be reached may still work
        return [] if is_gone(error) else [_who(name)]
    if alone:
        return [] if answer else [alone]
    left: list[str] = answer["left"]
    return left


async def drain_node(namespace: str, node: str, timeout_s: float) -> NodeReport:
    """Have all agents leave a node; see `Runtime.drain_node_async`. What Ray and the search take counts as well."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    node_id = await asyncio.to_thread(_node_of, node)
    refusal = await asyncio.to_thread(_tell_ray, node_id, max(0.0, deadline - loop.time()))
    homes = await asyncio.to_thread(named_actors, namespace, _HOMES)
    where = await asyncio.gather(*(_place_of(actor) for _, actor in homes))
    here = [home for home, place in zip(homes, where, strict=True) if place and node_id.startswith(place)]
    remaining_s = max(0.0, deadline - loop.time())
    left = await asyncio.gather(
        *(drain_actor(name, actor, remaining_s, ends_host=True) for name, actor in here)
    )
    moved = []
    for (name, actor), still in zip(here, left, strict=True):
        if not still:
            moved.append(name)
            if name.startswith(HOST_PREFIX):
                kill(actor)  # an empty host: the next wake starts it elsewhere
    silent = [_who(name) for (name, _), place in zip(homes, where, strict=True) if place is None]
    still_here = [agent for agents in left for agent in agents]
    return NodeReport(node_id, tuple(moved), (*still_here, *silent), refusal)


async def _place_of(actor: Any) -> str | None:
    """The node that an actor lives on; empty when it is gone or serves nobody, ``None`` when it cannot be asked."""
    try:
        status = await call(actor, "status", timeout_s=STATUS_TIMEOUT_S)
    except (RayError, TimeoutError) as error:
        return "" if is_gone(error) else None
    except PhronomyError:
        return ""
    return str(status.get("node", ""))


def _who(name: str) -> str:
    """What is left when the actor of that name cannot be reached."""
    return name.removeprefix(_AGENT_PREFIX) if name.startswith(_AGENT_PREFIX) else f"some of {name}"


def _node_of(node: str) -> str:
    """The whole id of a node, from the beginning of it or its name. Raises `NotFoundError`."""
    nodes = [item for item in ray.nodes() if item["Alive"]]  # type: ignore[no-untyped-call]
    found = [
        item["NodeID"]
        for item in nodes
        if node and (item["NodeID"].startswith(node) or item.get("NodeName") == node)
    ]
    if len(found) != 1:
        known = ", ".join(item["NodeID"][:12] for item in nodes)
        raise NotFoundError(
            f"{'no' if not found else 'more than one'} live node begins with {node!r}; there are: {known}"
        )
    return str(found[0])


def _tell_ray(node_id: str, timeout_s: float) -> str:
    """Have Ray schedule nothing more on the node; why it does not agree within `timeout_s` seconds, or empty.

    Ray's command for it is the only form that it has.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node"]
    command += ["--address", ray.get_runtime_context().gcs_address, "--node-id", node_id]
    command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "phronomy drain"]
    command += ["--deadline-remaining-seconds", str(max(1, math.ceil(timeout_s)))]
    limit_s = min(RAY_COMMAND_S, timeout_s)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"Ray's command did not end within {limit_s:.1f} s"
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-500:] or "no reason given"
