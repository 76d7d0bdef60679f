"""What becomes of a start while its agent has a non-terminal execution."""

from __future__ import annotations

from enum import StrEnum

from phronomy_ray.errors import InvalidInputError

#: Requests that may wait for one agent.
DEFAULT_MAX_QUEUED = 100


class BusyRule(StrEnum):
    """What becomes of a start that finds its agent busy."""

    #: `AgentBusyError`.
    REJECT = "reject"
    #: It waits, durably and in order, until the agent is free.
    QUEUE = "queue"
    #: The running execution is cancelled, and it is next.
    INTERRUPT = "interrupt"


def busy_rule(given: BusyRule | str | None) -> BusyRule | None:
    """A rule as a caller gives it. Raises `InvalidInputError`."""
    try:
        return None if given is None else BusyRule(given)
    except ValueError:
        raise InvalidInputError(f"on_busy must be 'reject', 'queue' or 'interrupt', not {given!r}") from None
