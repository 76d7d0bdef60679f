"""`Scope`: agents that are woken for a piece of work are unloaded at its end, whatever that is.

Follows Phronomy's agent scope. A scope lives in its driver and never keeps a process: an agent that was live before, or that
somebody else has woken, is left as it is.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any

from phronomy_ray.definition.agent import Agent
from phronomy_ray.errors import ConfigurationError, ErrorRecord, PhronomyError, ScopeCleanupError
from phronomy_ray.hosting.agent_port import AgentDirectory, LiveAgent, live_status
from phronomy_ray.hosting.wiring import AgentWiring, NewAgentRequest
from phronomy_ray.runtime.agent_handle import AgentHandle
from phronomy_ray.runtime.bridge import Bridge, blocking, refuse_on_loop
from phronomy_ray.runtime.open_scopes import OpenScopes
from phronomy_ray.worker_inputs import WorkerInputRestricted

if TYPE_CHECKING:
    from phronomy_ray.runtime.runtime import Runtime

_LOG = logging.getLogger("phronomy_ray.runtime")


class ScopedDirectory(WorkerInputRestricted):
    """The way to agents through a scope, which remembers whom it has woken."""

    def __init__(self, inner: AgentDirectory) -> None:
        self._inner = inner
        #: Agents that were woken through it, in order.
        self.woken: dict[str, None] = {}

    async def find(self, agent_id: str) -> LiveAgent | None:
        """As `AgentDirectory.find`."""
        return await self._inner.find(agent_id)

    async def wake(self, agent_id: str, wiring: AgentWiring) -> LiveAgent:
        """As `AgentDirectory.wake`."""
        was_live = await live_status(self._inner, agent_id) is not None
        live = await self._inner.wake(agent_id, wiring)
        if not was_live:
            self.woken[agent_id] = None
        return live

    async def create(self, agent_id: str, wiring: AgentWiring, request: NewAgentRequest) -> LiveAgent:
        """As `AgentDirectory.create`."""
        live = await self._inner.create(agent_id, wiring, request)
        self.woken[agent_id] = None
        return live


class Scope(WorkerInputRestricted):
    """Use it as a context manager, plain or async; its methods are those of the runtime.

    At its end every agent that was woken through it is unloaded. `ScopeCleanupError` says which ones were not, because they work or
    do not answer. An error of the body goes on instead, with a note of it, and `cleanup_error` has it.
    """

    def __init__(self, runtime: Runtime, open_scopes: OpenScopes) -> None:
        self._directory = ScopedDirectory(runtime.directory)
        self._view = runtime._with_directory(self._directory)
        self._plain = runtime
        self._open_scopes = open_scopes
        self._is_open = False
        #: What went wrong at the end.
        self.cleanup_error: ScopeCleanupError | None = None

    @property
    def _bridge(self) -> Bridge:
        return self._plain._bridge

    @property
    def woken(self) -> tuple[str, ...]:
        """Agents that were woken through this scope."""
        return tuple(self._directory.woken)

    # --- agents ------------------------------------------------------------------------------------------------

    async def create_async(self, /, agent_class: type[Agent], agent_id: str, **options: Any) -> AgentHandle:
        """As `Runtime.create_async`."""
        self._enter_agent(agent_id)
        return await self._view.create_async(agent_class, agent_id, **options)

    create = blocking(create_async)

    async def load_async(self, /, agent_class: type[Agent], agent_id: str, **options: Any) -> AgentHandle:
        """As `Runtime.load_async`."""
        self._enter_agent(agent_id)
        return await self._view.load_async(agent_class, agent_id, **options)

    load = blocking(load_async)

    async def load_or_create_async(
        self, /, agent_class: type[Agent], agent_id: str, **options: Any
    ) -> AgentHandle:
        """As `Runtime.load_or_create_async`."""
        self._enter_agent(agent_id)
        return await self._view.load_or_create_async(agent_class, agent_id, **options)

    load_or_create = blocking(load_or_create_async)

    def agent(self, agent_id: str) -> AgentHandle:
        """As `Runtime.agent`: whenever the handle wakes the agent, it is this scope's."""
        self._enter_agent(agent_id)
        return self._view.agent(agent_id)

    def _enter_agent(self, agent_id: str) -> None:
        if not self._is_open:
            raise ConfigurationError("a scope gives agents only between its beginning and its end")
        self._open_scopes.enter(self, agent_id)

    # --- beginning and end -------------------------------------------------------------------------------------

    def __enter__(self) -> Scope:
        refuse_on_loop("with scope", "async with scope")
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bridge.run(self._end(error))

    async def __aenter__(self) -> Scope:
        return self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    def _begin(self) -> Scope:
        if self._is_open:
            raise ConfigurationError("a scope has one beginning and one end; make another one")
        self._is_open = True
        return self

    async def _end(self, error: BaseException | None) -> None:
        self._is_open = False
        self._open_scopes.leave(self)
        ended = await asyncio.gather(*(self._unload(agent_id) for agent_id in self.woken))
        failures = {
            agent_id: failure.to_wire()
            for agent_id, failure in zip(self.woken, ended, strict=True)
            if failure is not None
        }
        self._directory.woken.clear()
        if not failures:
            return
        self.cleanup_error = ScopeCleanupError(
            f"{len(failures)} of {len(ended)} agents could not be unloaded: {', '.join(failures)}",
            details={"failures": failures},
        )
        if error is None:
            raise self.cleanup_error
        _LOG.warning("%s", self.cleanup_error)
        error.add_note(f"At the end of the scope {self.cleanup_error}.")

    async def _unload(self, agent_id: str) -> ErrorRecord | None:
        try:
            await self._plain.agent(agent_id).unload_async()
        except PhronomyError as error:
            return ErrorRecord.from_exception(error)
        return None


__all__ = ["Scope", "ScopedDirectory"]
