"""Where agents live: a policy that changes neither API nor guarantees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from phronomy_ray.errors import ConfigurationError

#: How long an unused agent keeps its process, in seconds, and how long while a human is waited for.
IDLE_UNLOAD_AFTER_S = 900.0
SUSPENDED_UNLOAD_AFTER_S = 60.0
#: Agents that one host keeps live.
MAX_LIVE_AGENTS = 10_000


@dataclass(frozen=True, slots=True)
class Dedicated:
    """One named Ray actor per agent (the default).

    Raises:
        ConfigurationError: a value cannot be used.
    """

    #: Custom Ray resources that each agent actor asks for, to bind agents to nodes; actors reserve no CPU.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: An agent that nobody has called for so long, and for which nothing runs or waits, is unloaded; ``None`` for never.
    idle_unload_after_s: float | None = IDLE_UNLOAD_AFTER_S
    #: The same while its execution waits for a human.
    suspended_unload_after_s: float | None = SUSPENDED_UNLOAD_AFTER_S
    #: Agents that one node keeps live (each is a process); beyond it the supervisor unloads those that were used least recently.
    #: ``None`` for no limit.
    max_live_agents: int | None = None

    def __post_init__(self) -> None:
        _check_limits(self.idle_unload_after_s, self.suspended_unload_after_s)
        if self.max_live_agents is not None:
            _check_count("max_live_agents", self.max_live_agents)


@dataclass(frozen=True, slots=True)
class Packed:
    """Many agents in each of a fixed number of named Ray actors (``host:0`` to ``host:<n-1>``).

    An agent costs kilobytes and some milliseconds to wake instead of a process, and shares its host's event loop and fate with
    others: for agents whose cooperative tools and hooks behave. The host is chosen by rendezvous hashing of the agent's id.

    Raises:
        ConfigurationError: a value cannot be used.
    """

    #: Number of hosts.
    hosts: int = 1
    #: Custom Ray resources that each host asks for.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: As with `Dedicated`; the agent leaves its host.
    idle_unload_after_s: float | None = IDLE_UNLOAD_AFTER_S
    suspended_unload_after_s: float | None = SUSPENDED_UNLOAD_AFTER_S
    #: Agents that one host keeps live; beyond it the one that was used least recently leaves.
    max_live_agents: int = MAX_LIVE_AGENTS

    def __post_init__(self) -> None:
        _check_limits(self.idle_unload_after_s, self.suspended_unload_after_s)
        _check_count("hosts", self.hosts)
        _check_count("max_live_agents", self.max_live_agents)


@dataclass(frozen=True, slots=True)
class InProcess:
    """All agents in the driver's own process, on an event loop in a thread of it; no Ray is started.

    For tests, notebooks and a first run. Tools run on threads of the driver, and litellm is imported by the first call of a real
    model. The agents end with the driver and go on with the next one that uses the store.

    Raises:
        ConfigurationError: a value cannot be used.
    """

    idle_unload_after_s: float | None = IDLE_UNLOAD_AFTER_S
    suspended_unload_after_s: float | None = SUSPENDED_UNLOAD_AFTER_S
    max_live_agents: int = MAX_LIVE_AGENTS
    #: Threads for blocking tools.
    threads: int = 64

    def __post_init__(self) -> None:
        _check_limits(self.idle_unload_after_s, self.suspended_unload_after_s)
        _check_count("max_live_agents", self.max_live_agents)
        _check_count("threads", self.threads)


Placement: TypeAlias = Dedicated | Packed | InProcess


def _check_limits(idle_s: object, suspended_s: object) -> None:
    for name, value in (("idle_unload_after_s", idle_s), ("suspended_unload_after_s", suspended_s)):
        if value is not None and not _is_positive(value):
            raise ConfigurationError(f"{name} must be a positive number of seconds or None, not {value!r}")


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number of at least 1, not {value!r}")
