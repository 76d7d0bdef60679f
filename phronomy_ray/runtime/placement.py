"""Where agents live: a policy that changes neither API nor guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Dedicated:
    """One named Ray actor per agent (the default)."""

    #: Custom Ray resources that each agent actor asks for, to bind agents to nodes; actors reserve no CPU.
    resources: Mapping[str, float] = field(default_factory=dict)
