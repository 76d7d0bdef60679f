"""What the adversary does, and when: a pure function of a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

#: Shortest and mean pause between two faults, in seconds.
MIN_PAUSE_S = 1.5
MEAN_PAUSE_S = 4.0


class FaultKind(enum.StrEnum):
    """What is taken away."""

    #: SIGKILL to a process that owns agents.
    KILL_OWNER = "kill_owner"
    KILL_WORKER = "kill_worker"
    KILL_POOL = "kill_pool"
    KILL_SUPERVISOR = "kill_supervisor"
    KILL_GATEWAY = "kill_gateway"
    #: SIGKILL to a driver, which is started again.
    KILL_DRIVER = "kill_driver"
    #: SIGKILL to a whole node; another one joins.
    KILL_NODE = "kill_node"
    #: SIGSTOP to an owner for some seconds, then SIGCONT.
    STOP_OWNER = "stop_owner"
    #: The same to others.
    STOP_WORKER = "stop_worker"
    STOP_POOL = "stop_pool"
    STOP_SUPERVISOR = "stop_supervisor"
    STOP_GATEWAY = "stop_gateway"
    STOP_DRIVER = "stop_driver"
    #: The next tool body in a worker takes more memory than its worker may use.
    EXHAUST_MEMORY = "exhaust_memory"
    #: All connections to the database are cut.
    CUT_STORE = "cut_store"
    #: The next connection that commits is cut before the server hears of it, or before the client hears of its end.
    CUT_BEFORE_COMMIT = "cut_before_commit"
    CUT_AFTER_COMMIT = "cut_after_commit"


#: Faults that need a connection that can be cut.
STORE_FAULTS = (FaultKind.CUT_STORE, FaultKind.CUT_BEFORE_COMMIT, FaultKind.CUT_AFTER_COMMIT)
#: Faults that end by themselves: what was stopped goes on.
STOPS = frozenset(kind for kind in FaultKind if kind.startswith("stop_"))
#: Faults that need a cluster: without one only drivers and the store are left to harm.
CLUSTER_FAULTS = tuple(
    kind for kind in FaultKind if kind not in (*STORE_FAULTS, FaultKind.KILL_DRIVER, FaultKind.STOP_DRIVER)
)
#: How often each kind comes, relative to the others.
_WEIGHTS = {
    FaultKind.KILL_OWNER: 4,
    FaultKind.KILL_WORKER: 4,
    FaultKind.KILL_POOL: 2,
    FaultKind.KILL_SUPERVISOR: 1,
    FaultKind.KILL_DRIVER: 1,
    FaultKind.KILL_NODE: 1,
    FaultKind.KILL_GATEWAY: 1,
    FaultKind.STOP_OWNER: 2,
    FaultKind.STOP_WORKER: 1,
    FaultKind.STOP_POOL: 1,
    FaultKind.STOP_SUPERVISOR: 1,
    FaultKind.STOP_GATEWAY: 1,
    FaultKind.STOP_DRIVER: 1,
    FaultKind.EXHAUST_MEMORY: 2,
    FaultKind.CUT_STORE: 2,
    FaultKind.CUT_BEFORE_COMMIT: 2,
    FaultKind.CUT_AFTER_COMMIT: 2,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is done."""

    #: After the start, in seconds.
    at_s: float
    kind: FaultKind
    #: Which of those that there are, between 0 and 1.
    pick: float
    #: How long what is stopped stays so, in seconds.
    for_s: float = 0.0

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "at_s": round(self.at_s, 2),
            "kind": self.kind.value,
            "pick": round(self.pick, 4),
            "for_s": self.for_s,
        }


def plan_faults(
    seed: int, seconds: float, *, without: Collection[FaultKind] = (), mean_pause_s: float = MEAN_PAUSE_S
) -> list[Fault]:
    """The faults of one run, in order; the same for the same arguments.

    Kinds are dealt from a shuffled pack, so that each comes before another one comes too often.
    """
    choice = random.Random(seed)
    pack = [kind for kind in FaultKind if kind not in without for _ in range(_WEIGHTS[kind])]
    left: list[FaultKind] = []
    least_s = min(MIN_PAUSE_S, mean_pause_s / 2)
    faults: list[Fault] = []
    at_s = least_s
    while at_s < seconds:
        if not left:
            left = choice.sample(pack, len(pack))
        kind = left.pop()
        pick = choice.random()
        for_s = round(choice.uniform(1.0, 4.0), 2)
        faults.append(Fault(at_s, kind, pick, for_s if kind in STOPS else 0.0))
        at_s += least_s + choice.expovariate(1 / (mean_pause_s - least_s))
    return faults


def chosen(pick: float, things: Sequence[Any]) -> Any | None:
    """The thing that `pick` means, ``None`` when there is none."""
    return things[min(int(pick * len(things)), len(things) - 1)] if things else None
