"""`PoolConfig`: the bounds of one named offload pool."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields

from phronomy_ray.errors import ConfigurationError


class WhenFull(enum.StrEnum):
    """What becomes of a batch that does not fit into a pool."""

    #: None of its calls runs, and each fails with `BackpressureError`.
    REJECT = "reject"
    #: It waits for room up to ``queue_timeout_s``, and is rejected then.
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Bounds of one pool; all of them hold over the whole cluster.

    The first agent that uses a pool starts it with the values of its runtime; they stay until the pool is restarted.

    Raises:
        ConfigurationError: a value cannot be used.
    """

    #: Tool bodies that run at once, bodies included that were given up and have not ended.
    max_running: int = 256
    #: Calls that wait for a share of the pool.
    max_queued: int = 10_000
    when_full: WhenFull = WhenFull.REJECT
    #: How long a batch waits for room under ``wait``, in seconds.
    queue_timeout_s: float = 30.0
    #: Calls of one agent and kind (thread, task, task that needs more than a CPU) that run at once; no bound of its own by
    #: default. Agents take turns in any case.
    max_running_per_agent: int | None = None
    #: What other agents have a claim to (an equal part for each that used the pool in the last two seconds) and leave unused is
    #: lent after so long, in seconds; 0 lends at once. An agent that has the pool to itself waits for nothing.
    borrow_after_s: float = 0.5
    #: Worker processes for blocking tools; by default two per CPU of the cluster, at least two. Each costs some 50 MB.
    max_workers: int | None = None
    #: Most memory that one worker or task may use, in bytes; without it they end only when their node runs out of memory.
    worker_memory_bytes: int | None = None
    #: A worker that has had nothing to do for so long is ended, in seconds; one per node stays warm.
    idle_worker_s: float = 60.0
    #: How long a worker lives on in which only given-up bodies run, and how long one may be late with a timeout, in seconds.
    stuck_grace_s: float = 2.0
    #: Outcomes that are kept for agents that have not taken them yet: how many, of how many bytes, how long.
    kept_outcomes: int = 10_000
    kept_bytes: int = 64 * 1024 * 1024
    kept_s: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "when_full", _when_full(self.when_full))
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            optional = name in ("max_running_per_agent", "max_workers", "worker_memory_bytes")
            if not (optional and value is None) and not (
                isinstance(value, int) and not isinstance(value, bool) and value >= least
            ):
                raise ConfigurationError(
                    f"pool option {name} must be a whole number from {least}, not {value!r}"
                )
        for name in ("queue_timeout_s", "borrow_after_s", "idle_worker_s", "stuck_grace_s", "kept_s"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not math.isfinite(value)
                or value < 0
            ):
                raise ConfigurationError(f"pool option {name} must be a number of seconds, not {value!r}")

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


_WHOLE = {
    "max_running": 1,
    "max_queued": 0,
    "max_running_per_agent": 1,
    "max_workers": 1,
    "worker_memory_bytes": 1,
    "kept_outcomes": 0,
    "kept_bytes": 0,
}


def _when_full(value: object) -> WhenFull:
    try:
        return WhenFull(str(value))
    except ValueError:
        raise ConfigurationError(f"pool option when_full must be 'reject' or 'wait', not {value!r}") from None


def check_pool_config(value: object) -> PoolConfig:
    """`value` if it is a pool's configuration.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(value, PoolConfig):
        return value
    raise ConfigurationError(f"a pool is configured by a PoolConfig, not by {value!r}")
