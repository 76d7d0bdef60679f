"""Where agents live: a policy that changes neither API nor guarantees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from phronomy_ray.errors import ConfigurationError

#: How long an unused agent keeps its process, in seconds, and how long while a human is waited for.
IDLE_UNLOAD_AFTER_S = 900.0
SUSPENDED_UNLOAD_AFTER_S = 60.0


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

    def __post_init__(self) -> None:
        for name in ("idle_unload_after_s", "suspended_unload_after_s"):
            value: object = getattr(self, name)
            if value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and value > 0):  # type: ignore[arg-type,operator]
                raise ConfigurationError(
                    f"{name} must be a positive number of seconds or None, not {value!r}"
                )
