"""Who leaves when too many agents are live on one node: the one that was used least recently. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveOne:
    """One live agent with a process to itself."""

    agent_id: str
    node: str
    #: Since when nobody has needed it, in seconds.
    idle_s: float
    #: Whether nothing runs in it and it could be woken again as it is.
    may_leave: bool


def too_many(live: Iterable[LiveOne], max_per_node: int) -> list[LiveOne]:
    """Those who have to leave so that no node has more than `max_per_node`, as far as they may; longest unused first."""
    by_node: dict[str, list[LiveOne]] = defaultdict(list)
    for one in live:
        by_node[one.node].append(one)
    leaving: list[LiveOne] = []
    for ones in by_node.values():
        excess = len(ones) - max_per_node
        if excess > 0:
            may = [one for one in ones if one.may_leave]
            leaving += sorted(may, key=lambda one: (-one.idle_s, one.agent_id))[:excess]
    return leaving


__all__ = ["LiveOne", "too_many"]
