"""What the adversary does, and when: a pure function of a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
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
    #: SIGKILL to a driver, which is started again.
    KILL_DRIVER = "kill_driver"
    #: SIGKILL to a whole node; another one joins.
    KILL_NODE = "kill_node"
    #: SIGSTOP to an owner for some seconds, then SIGCONT.
    STOP_OWNER = "stop_owner"
    #: All connections to the database are cut.
    CUT_STORE = "cut_store"
    #: The next connection that commits is cut before the server hears of it, or before the client hears of its end.
    CUT_BEFORE_COMMIT = "cut_before_commit"
    CUT_AFTER_COMMIT = "cut_after_commit"


#: Faults that need a connection that can be cut.
STORE_FAULTS = (FaultKind.CUT_STORE, FaultKind.CUT_BEFORE_COMMIT, FaultKind.CUT_AFTER_COMMIT)
#: How often each kind comes, relative to the others.
_WEIGHTS = {
    FaultKind.KILL_OWNER: 4,
    FaultKind.KILL_WORKER: 4,
    FaultKind.KILL_POOL: 2,
    FaultKind.KILL_SUPERVISOR: 1,
    FaultKind.KILL_DRIVER: 1,
    FaultKind.KILL_NODE: 1,
    FaultKind.STOP_OWNER: 2,
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


def plan_faults(seed: int, seconds: float, *, without: Sequence[FaultKind] = ()) -> list[Fault]:
    """The faults of one run, in order; the same for the same arguments."""
    choice = random.Random(seed)
    kinds = [kind for kind in FaultKind if kind not in without]
    weights = [_WEIGHTS[kind] for kind in kinds]
    faults: list[Fault] = []
    at_s = MIN_PAUSE_S
    while at_s < seconds:
        kind = choice.choices(kinds, weights)[0]
        pick = choice.random()
        for_s = round(choice.uniform(1.0, 4.0), 2)
        faults.append(Fault(at_s, kind, pick, for_s if kind is FaultKind.STOP_OWNER else 0.0))
        at_s += MIN_PAUSE_S + choice.expovariate(1 / (MEAN_PAUSE_S - MIN_PAUSE_S))
    return faults


def chosen(pick: float, things: Sequence[Any]) -> Any | None:
    """The thing that `pick` means, ``None`` when there is none."""
    return things[min(int(pick * len(things)), len(things) - 1)] if things else None
