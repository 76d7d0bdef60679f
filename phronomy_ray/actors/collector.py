"""The garbage collector of our actors' processes: it looks at what a turn leaves behind, not at the program again and again."""

from __future__ import annotations

import gc

#: Objects that are made before the young ones are looked through. What a turn in flight holds is found alive every time and looked
#: through for nothing: with Python's 700, one host of 64 agents spent a fifth of its time so. 10,000 are a megabyte or two.
YOUNG_OBJECTS = 10_000


def settle_collector() -> None:
    """Call it when the process has loaded what it works with: code and definitions stay as long as the process does, and looking
    through all of it takes the collector some 80 ms, for which a turn with hundreds of calls would pay every few times.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


__all__ = ["YOUNG_OBJECTS", "settle_collector"]
