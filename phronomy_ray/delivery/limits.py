"""How a deliverer is set: plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Limits of one deliverer."""

    #: How often the store is asked for events to deliver, in seconds.
    look_every_s: float = 0.5
    #: How long another deliverer may show no sign of life before its subscription is taken over, in seconds.
    takeover_after_s: float = 30.0
    #: Agents of one subscription whose events are under way at once.
    max_parallel: int = 8

    @property
    def beat_every_s(self) -> float:
        """How often a sign of life is shown, in seconds."""
        return self.takeover_after_s / 6


__all__ = ["DeliveryLimits"]
