"""Where an agent lives, as the store remembers it: a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What the store knows of where an agent lives."""

    #: The actor that owned it last; empty for none.
    last: str = ""
    #: Where somebody has said that it must live (see `hosting.assignment`); empty for nowhere in particular.
    pin: str = ""
