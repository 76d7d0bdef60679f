"""The wish that an execution ends, as a value: durable before anybody is told, and never taken back.

Follows the cancellation intents of Phronomy's agent store (4.6 of its contract).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class CancellationIntent:
    """Somebody wants an execution, or a request that waits, to end."""

    execution_id: str
    agent_id: str
    #: Why, in the words of whoever came first.
    reason: str
    requested_at: datetime


__all__ = ["CancellationIntent"]
