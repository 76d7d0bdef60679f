"""Whose bodies ran while a host grew: memory belongs to a process, so a leak can be narrowed down to agents, not measured by agent.

Pure but for `resident_bytes`. An agent that is named can be moved to a process of its own, where what it leaks ends with it.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Growth that is worth a word, in bytes.
GROWTH_BYTES = 256 * 2**20
#: Agents that are named.
MAX_NAMED = 5
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Growth:
    """A process has grown."""

    resident_bytes: int
    #: Since the last time that this was said, or the lowest it had since.
    grown_bytes: int
    #: Agents whose cooperative bodies ran meanwhile, and how many, the busiest first.
    suspects: tuple[tuple[str, int], ...]

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "resident_bytes": self.resident_bytes,
            "grown_bytes": self.grown_bytes,
            "suspects": [{"agent_id": agent_id, "bodies": count} for agent_id, count in self.suspects],
        }


class MemoryWatch:
    """Looks at one process. `began` and `look` may be called on different threads."""

    def __init__(self, *, growth_bytes: int = GROWTH_BYTES) -> None:
        self._growth_bytes = growth_bytes
        self._base_bytes: int | None = None
        self._begun: Counter[str] = Counter()
        #: The last growth that was worth a word.
        self.last: Growth | None = None

    def began(self, agent_id: str) -> None:
        """A body of this agent begins on the loop."""
        self._begun[agent_id] += 1

    def look(self, resident_bytes: int | None) -> Growth | None:
        """The process has this size now (``None``: nobody knows). Returns what is worth a word."""
        if resident_bytes is None:
            return None
        if self._base_bytes is None or resident_bytes < self._base_bytes:
            self._base_bytes = resident_bytes
            return None
        grown = resident_bytes - self._base_bytes
        if grown < self._growth_bytes:
            return None
        begun, self._begun = self._begun, Counter()
        self._base_bytes = resident_bytes
        self.last = Growth(resident_bytes, grown, tuple(begun.most_common(MAX_NAMED)))
        return self.last


def resident_bytes() -> int | None:
    """Memory that this process has in RAM; ``None`` where the system does not say (it is asked as Linux has it)."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


__all__ = ["Growth", "MemoryWatch", "resident_bytes"]
