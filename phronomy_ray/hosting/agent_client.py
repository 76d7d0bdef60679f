"""`AgentClient`: calls to one agent by its id, whatever process owns it at the moment.

What a driver's handles and an agent with child agents share. A lost agent is found or woken again; every method of an agent
may be repeated, since starts and answers carry their ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from phronomy_ray.engine.reading import load_result
from phronomy_ray.errors import (
    ExecutionRehydrationRequiredError,
    NotFoundError,
    RuntimeShutdownError,
    WaitTimeoutError,
)
from phronomy_ray.hosting.agent_port import CALL_TIMEOUT_S, AgentDirectory, LiveAgent, NoAnswer
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.results import RunResult
from phronomy_ray.store.port import Store

#: How long an operation goes on looking for a live agent, in seconds.
RECONNECT_TIMEOUT_S = 90.0
#: Pause before a lost agent is asked again, in seconds.
RECONNECT_S = 0.2
#: Slice of one waiting call, in seconds.
SLICE_S = 20.0
#: How often a waiter looks at the store while nobody holds the execution, in seconds.
STORE_POLL_S = 1.0


class AgentClient:
    """An agent, live or not. Use it on one event loop."""

    def __init__(
        self,
        agent_id: str,
        directory: AgentDirectory,
        store: Store,
        wiring: Callable[[], Awaitable[AgentWiring]],
        *,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            agent_id: whom to call.
            directory: where to find it.
            store: where its executions are stored.
            wiring: how to start it; asked when it has to be woken, once.
            is_closed: whether nothing may be asked of it any more.
        """
        self.agent_id = agent_id
        self._directory = directory
        self._store = store
        self._find_wiring = wiring
        self._is_closed = is_closed
        self._wiring: AgentWiring | None = None
        self._live: LiveAgent | None = None

    async def live(self) -> LiveAgent:
        """The live agent; wakes it if need be. Raises as `AgentDirectory.wake`, and `RuntimeShutdownError`."""
        self._check_open()
        if self._live is None:
            if self._wiring is None:
                self._wiring = await self._find_wiring()
            self._live = await self._directory.wake(self.agent_id, self._wiring)
        return self._live

    def use(self, live: LiveAgent) -> None:
        """Start from an agent that is known to be live."""
        self._live = live

    def forget(self) -> None:
        """It has left where it lived."""
        self._live = None

    async def find(self) -> LiveAgent | None:
        """The agent where it lives, without waking it."""
        return self._live or await self._directory.find(self.agent_id)

    async def call(self, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Call a method of the live agent; a lost one is found or woken again.

        Raises:
            RuntimeShutdownError: nothing may be asked any more.
            WaitTimeoutError: nobody answered within `RECONNECT_TIMEOUT_S`; else what the method raises.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RECONNECT_TIMEOUT_S
        while True:
            answer = await self.ask(await self.live(), method, *args, timeout_s=timeout_s)
            if not isinstance(answer, NoAnswer):
                return answer
            if loop.time() > deadline:
                raise WaitTimeoutError(
                    f"agent {self.agent_id!r} did not answer {method!r} within {RECONNECT_TIMEOUT_S:g} s "
                    f"(its process is {answer.value})",
                    details={"agent_id": self.agent_id},
                )
            await asyncio.sleep(RECONNECT_S)

    async def ask(self, live: LiveAgent, method: str, *args: Any, timeout_s: float) -> Any | NoAnswer:
        """One call of one live agent; one that is gone is forgotten."""
        answer = await live.ask(method, *args, timeout_s=timeout_s)
        if answer is NoAnswer.GONE:
            self._live = None
        return answer

    async def stored_result(self, execution_id: str) -> RunResult:
        """The execution as stored; wakes nothing. Raises `NotFoundError`."""
        return await asyncio.to_thread(load_result, self._store, execution_id)

    async def wait_once(self, execution_id: str, until: str, seconds: float) -> RunResult | None:
        """One slice of a wait: the result once it is ``terminal`` or ``suspended`` (by `until`), else ``None``.

        A lost process does not end it; running work that nobody holds is woken.

        Raises:
            NotFoundError: there is no such execution.
            ExecutionRehydrationRequiredError: nobody holds it, and nothing may be woken any more.
        """
        live = await self.find()
        if live is not None:
            wire = await self.ask(live, "result", execution_id, until, seconds, timeout_s=seconds + 10.0)
            if wire is NoAnswer.SILENT:
                await asyncio.sleep(min(RECONNECT_S, seconds))
                return None
            if wire is not NoAnswer.GONE:
                return RunResult.from_wire(wire) if wire is not None else None
        stored = await self.stored_result(execution_id)
        if stored.status.is_terminal or (until == "suspended" and stored.suspended):
            return stored
        if stored.suspended:
            await asyncio.sleep(min(STORE_POLL_S, seconds))  # a human is waited for: no process is needed
            return None
        if self._is_closed():
            raise ExecutionRehydrationRequiredError(
                f"nobody holds execution {execution_id} ({stored.status.value}) any more; it goes on with the next runtime",
                details={"execution_id": execution_id, "agent_id": self.agent_id},
            )
        await self.live()  # nobody holds running work: wake its owner, which recovers it
        return None

    def _check_open(self) -> None:
        if self._is_closed():
            raise RuntimeShutdownError("the runtime is shut down: nothing is begun any more")

    async def purge(self) -> bool:
        """Delete the idle agent and free its process; whether there was one.

        Raises:
            AgentBusyError: an execution is non-terminal; nothing was deleted.
            WaitTimeoutError: its process does not answer.
        """
        try:
            created_at = (await asyncio.to_thread(self._store.load_root, self.agent_id)).created_at
            was_there = bool(await self.call("purge", created_at.isoformat() if created_at else None))
        except NotFoundError:  # also when the answer to an earlier try was lost
            was_there = False
        live, self._live, self._wiring = self._live, None, None
        if live is not None and was_there:  # else it may serve another agent that has got the id since
            live.release()
        return was_there

    async def unload(self) -> bool:
        """Free the agent's process and keep everything; the next use wakes it again.

        Returns whether there was a process to free.

        Raises:
            AgentBusyError: work is running.
            WaitTimeoutError: its process does not answer.
        """
        live = await self._directory.find(self.agent_id)
        self._live = None
        if live is None:
            return False
        answer = await live.ask("unload", timeout_s=CALL_TIMEOUT_S)
        if answer is NoAnswer.GONE:
            return False
        if answer is NoAnswer.SILENT:
            raise WaitTimeoutError(
                f"agent {self.agent_id!r} does not answer; try again", details={"agent_id": self.agent_id}
            )
        live.release()
        return True
