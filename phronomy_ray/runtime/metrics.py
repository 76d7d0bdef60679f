"""What the pools and the live agents of a namespace say of themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import RayError
from ray.util import list_named_actors

from phronomy_ray.actors.ray_calls import call, find_actor

#: How long one actor may take to answer, in seconds.
ANSWER_TIMEOUT_S = 5.0
_PREFIXES = ("pool:", "agent:", "host:")


async def collect_metrics(namespace: str) -> dict[str, Any]:
    """``{"pools": {name: ...}, "hosts": {name: ...}, "agents": {agent_id: ...}}`` of agents with actors of their own; an actor that does not answer in time is ``None``."""
    actors = await asyncio.to_thread(list_named_actors, all_namespaces=True)
    names = [entry["name"] for entry in actors if entry["namespace"] == namespace]
    asked = [name for name in names if name.startswith(_PREFIXES)]
    answers = await asyncio.gather(*(_ask(name, namespace) for name in asked))
    found: dict[str, Any] = {"pools": {}, "hosts": {}, "agents": {}}
    for name, answer in zip(asked, answers, strict=True):
        kind, _, identity = name.partition(":")
        found[f"{kind}s"][name if kind == "host" else identity] = answer
    return found


async def _ask(name: str, namespace: str) -> dict[str, Any] | None:
    actor = await asyncio.to_thread(find_actor, name, namespace)
    if actor is None:
        return None
    try:
        answer: dict[str, Any] = await call(actor, "metrics", timeout_s=ANSWER_TIMEOUT_S)
    except (RayError, TimeoutError):
        return None
    return answer
