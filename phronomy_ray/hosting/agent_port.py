"""The way to live agents, as handles and parents need it: where an agent lives is behind it.

A placement implements both: a `LiveAgent` for one agent that is live somewhere, and an `AgentDirectory` that finds or wakes
agents. Every remote method of an agent is one of `hosting.agent_service.AgentService`.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol

from phronomy_ray.errors import PhronomyError
from phronomy_ray.hosting.wiring import AgentWiring, NewAgentRequest

#: How long a wake goes on, in seconds: a lost node is noticed by Ray within 7 to 18 s.
WAKE_TIMEOUT_S = 90.0
#: Limit of one call that starts or reads, in seconds.
CALL_TIMEOUT_S = 60.0
#: Limit of one call that only asks a live agent for its memory, in seconds.
STATUS_TIMEOUT_S = 5.0


class NoAnswer(enum.Enum):
    """Why a live agent gave no answer."""

    #: Its process is dead, or it has left it: another one may take its place.
    GONE = "gone"
    #: Its process is restarting, cut off or busy: nobody knows whether the call ran; ask again.
    SILENT = "silent"


class LiveAgent(Protocol):
    """One agent in the process that (most likely) owns it. Use it on one event loop."""

    async def ask(self, method: str, *args: Any, timeout_s: float) -> Any | NoAnswer:
        """Call a method of its service; the loss of the process is a value.

        Raises:
            our own typed errors, except `AgentUnloadedError` and `OwnershipLostError`, with which a process says that it is not
                the one to ask any more; what else the method raised.
        """
        ...

    def release(self) -> None:
        """It has left: end what is left of its process, if that was its own."""
        ...

    @property
    def raw(self) -> Any:
        """What `Runtime.actor_for` gives: an object whose methods have a ``remote``."""
        ...


class AgentDirectory(Protocol):
    """Finds and wakes agents."""

    async def find(self, agent_id: str) -> LiveAgent | None:
        """The agent where it lives (or is dying), or ``None``; starts nothing.

        The store is only asked, by a placement of several processes, where the agent lived last, and only when it lives in none
        of those that this directory knows.

        Raises:
            StoreUnavailableError: the store was to be asked, and is away.
        """
        ...

    async def wake(self, agent_id: str, wiring: AgentWiring) -> LiveAgent:
        """The stored agent, live; made live where it is not.

        Raises:
            NotFoundError, ConfigurationError, AgentParkedError: the agent cannot be served; no process is left behind.
            WaitTimeoutError: nobody answered within `WAKE_TIMEOUT_S`.
        """
        ...

    async def create(self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest) -> LiveAgent:
        """A new agent, live. Raises `AgentAlreadyExistsError` and as `wake`."""
        ...


async def live_status(directory: AgentDirectory, agent_id: str) -> tuple[LiveAgent, dict[str, Any]] | None:
    """The live agent with its `status`, or ``None`` when there is none that serves."""
    live = await directory.find(agent_id)
    if live is None:
        return None
    status = await status_of(live)
    return (live, status) if status is not None else None


async def status_of(live: LiveAgent) -> dict[str, Any] | None:
    """`status` of an agent that serves, or ``None``."""
    try:
        status = await live.ask("status", timeout_s=STATUS_TIMEOUT_S)
    except PhronomyError:
        return None
    return status if not isinstance(status, NoAnswer) and status["epoch"] is not None else None
