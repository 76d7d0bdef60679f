"""Handles: what a driver holds of an agent and of an execution. They hold names, not processes, so they survive both.

Every method has a blocking form and an async form called ``<name>_async``. A handle whose actor is lost finds the next
one, waking the agent where its work has to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError

from phronomy_ray.actors.ray_calls import call, is_gone, is_unreachable, kill
from phronomy_ray.engine.reading import load_result
from phronomy_ray.errors import (
    AgentUnloadedError,
    InvalidInputError,
    NotFoundError,
    PhronomyError,
    WaitTimeoutError,
)
from phronomy_ray.events import Event
from phronomy_ray.ids import new_execution_id
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.results import ApprovalRequest, RunResult
from phronomy_ray.runtime.bridge import Bridge, blocking, refuse_on_loop
from phronomy_ray.runtime.directory import CALL_TIMEOUT_S

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from phronomy_ray.actors.wiring import AgentWiring
    from phronomy_ray.runtime.runtime import Runtime

#: Slice of one waiting call, in seconds.
SLICE_S = 20.0
#: How often a waiter looks at the store while nobody holds the execution, in seconds.
STORE_POLL_S = 1.0
#: Pause before a lost actor is asked again, in seconds.
RECONNECT_S = 0.2
#: How long an operation goes on looking for a live actor, in seconds.
RECONNECT_TIMEOUT_S = 90.0


class AgentHandle:
    """An agent, live or not."""

    def __init__(self, runtime: Runtime, agent_id: str, wiring: AgentWiring | None = None) -> None:
        self._runtime = runtime
        self._wiring = wiring
        self._actor: ActorHandle[Any] | None = None
        #: The agent's id.
        self.agent_id = agent_id

    def __repr__(self) -> str:
        return f"AgentHandle({self.agent_id!r})"

    @property
    def bridge(self) -> Bridge:
        """The loop that blocking forms run on."""
        return self._runtime.bridge

    # --- executions --------------------------------------------------------------------------------------------

    async def start_async(
        self,
        input: Any,
        *,
        execution_id: str | None = None,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
    ) -> ExecutionHandle:
        """Start an execution and return its handle once it is admitted.

        Args:
            input: text, or a JSON mapping whose ``message``, ``query`` or ``user`` entry is the message.
            execution_id: your own id; the same id and input again gives the same execution, observed twice.
            durable_context: JSON mapping that tools can read, also after a crash.
            stream: whether tokens are sent to observers.

        Raises:
            AgentBusyError: another execution is non-terminal.
            StateConflictError: the id exists with another input.
            InvalidInputError: the input or context is not what it must be.
        """
        execution = execution_id or new_execution_id()
        await self.call("start", execution, input, durable_context, stream)
        return ExecutionHandle(self, execution)

    start = blocking(start_async)

    async def invoke_async(
        self,
        input: Any,
        *,
        execution_id: str | None = None,
        durable_context: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> RunResult:
        """Run until the end, or until a human is needed (`RunResult.suspended`).

        Args are those of `start_async`; `timeout` is in seconds and ends only the wait.

        Raises:
            the stored error of a failed or cancelled execution, with its class and code; else as `start_async`.
        """
        handle = await self.start_async(input, execution_id=execution_id, durable_context=durable_context)
        return (await handle.wait_async(until="suspended", timeout=timeout)).raise_for_status()

    invoke = blocking(invoke_async)

    def execution(self, execution_id: str) -> ExecutionHandle:
        """A handle on an execution of this agent; nothing is read."""
        return ExecutionHandle(self, execution_id)

    async def approve_async(
        self,
        execution_id: str,
        approval_request_id: str,
        *,
        approved: bool = True,
        decided_by: str | None = None,
        reason: str | None = None,
    ) -> RunResult:
        """Answer one approval request, from any driver; wakes the agent. The same answer again is harmless.

        Raises:
            StateConflictError: it was answered otherwise, or the execution has ended.
            NotFoundError: there is no such request.
        """
        if not isinstance(approved, bool):
            raise InvalidInputError(f"approved must be True or False, not {approved!r}")
        wire = await self.call("approve", execution_id, approval_request_id, approved, decided_by, reason)
        return RunResult.from_wire(wire)

    approve = blocking(approve_async)

    async def resume_async(self, execution_id: str) -> RunResult:
        """Wake the agent if need be (which continues what can be continued) and give the execution as it is."""
        return RunResult.from_wire(await self.call("resume", execution_id))

    resume = blocking(resume_async)

    async def resolve_async(
        self,
        execution_id: str,
        tool_call_id: str,
        outcome: str,
        *,
        result: Any = None,
        error: str = "",
        expected_revision: int | None = None,
        decided_by: str | None = None,
    ) -> RunResult:
        """Say what became of a call whose outcome is unknown.

        Args:
            execution_id: the suspended execution.
            tool_call_id: the call, see `RunResult.unresolved`.
            outcome: ``succeeded``, ``failed`` or ``not_performed`` (then it runs again).
            result: with ``succeeded``: what the tool returned, or would have.
            error: with ``failed``: what went wrong, for the model.
            decided_by: who says so.
            expected_revision: refuse if the execution has moved on (`UnresolvedCall.execution_revision`).

        Raises:
            StateConflictError: the revision differs, or the execution has ended.
            NotFoundError: the call does not wait for a resolution.
        """
        wire = await self.call(
            "resolve", execution_id, tool_call_id, outcome, result, error, expected_revision, decided_by
        )
        return RunResult.from_wire(wire)

    resolve = blocking(resolve_async)

    async def cancel_async(self, execution_id: str, *, reason: str = "cancelled") -> RunResult:
        """Cancel an execution; the intent is durable when this returns. A terminal one stays as it is."""
        return RunResult.from_wire(await self.call("cancel", execution_id, reason))

    cancel = blocking(cancel_async)

    # --- the agent ---------------------------------------------------------------------------------------------

    async def status_async(self) -> dict[str, Any]:
        """What the live agent is doing, from its memory; wakes it if need be."""
        return dict(await self.call("status"))

    status = blocking(status_async)

    async def transcript_async(self, *, after: int = 0, limit: int = 500) -> list[dict[str, Any]]:
        """Journal records behind position `after`, as JSON."""
        return list(await self.call("transcript", after, limit))

    transcript = blocking(transcript_async)

    async def pending_approvals_async(self) -> list[ApprovalRequest]:
        """Requests that wait for an answer, from the store; wakes nothing."""
        rows = await asyncio.to_thread(
            self._runtime.store.approvals, agent_id=self.agent_id, pending_only=True
        )
        return [ApprovalRequest.from_row(row) for row in rows]

    pending_approvals = blocking(pending_approvals_async)

    async def unload_async(self) -> bool:
        """Free the agent's process and keep everything; this handle wakes it again on its next use.

        Returns whether there was a process to free.

        Raises:
            AgentBusyError: work is running.
        """
        handle = self._runtime.directory.find(self.agent_id)
        self._actor = None
        if handle is None:
            return False
        try:
            await call(handle, "unload", timeout_s=CALL_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            if is_gone(error):
                return False
            raise
        kill(handle)
        return True

    unload = blocking(unload_async)

    # --- finding the actor -------------------------------------------------------------------------------------

    async def actor_async(self) -> ActorHandle[Any]:
        """The raw handle of the live actor; wakes the agent if need be."""
        if self._actor is None:
            wiring = await self._runtime.wiring_of(self.agent_id, self._wiring)
            self._wiring = wiring
            self._actor = await self._runtime.directory.wake(self.agent_id, wiring)
        return self._actor

    actor = blocking(actor_async)

    def use_actor(self, actor: ActorHandle[Any]) -> AgentHandle:
        """Start from an actor that is known to be live."""
        self._actor = actor
        return self

    def forget_actor(self) -> None:
        """Look the actor up again at the next call."""
        self._actor = None

    def live_actor(self) -> ActorHandle[Any] | None:
        """The actor under the agent's name, without starting one."""
        return self._actor or self._runtime.directory.find(self.agent_id)

    async def stored_result(self, execution_id: str) -> RunResult:
        """The execution as stored; wakes nothing. Raises `NotFoundError`."""
        return await asyncio.to_thread(load_result, self._runtime.store, execution_id)

    async def call(self, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Call a remote method of the live actor; a lost actor is found or woken again.

        Every method of the actor may be repeated: starts and answers carry their ids.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RECONNECT_TIMEOUT_S
        while True:
            actor = await self.actor_async()
            try:
                return await call(actor, method, *args, timeout_s=timeout_s)
            except AgentUnloadedError:
                self._actor = None
            except (RayError, TimeoutError) as error:
                if isinstance(error, PhronomyError) or not (is_gone(error) or is_unreachable(error)):
                    raise
                if is_gone(error):
                    self._actor = None
                if loop.time() > deadline:
                    raise WaitTimeoutError(
                        f"agent {self.agent_id!r} did not answer {method!r} within {RECONNECT_TIMEOUT_S:g} s",
                        details={"agent_id": self.agent_id},
                    ) from error
            await asyncio.sleep(RECONNECT_S)


class ExecutionHandle:
    """One execution. `result` and ``await`` go to its end; `wait` can also stop at a suspension."""

    def __init__(self, agent: AgentHandle, execution_id: str) -> None:
        #: The agent that runs it.
        self.agent = agent
        #: The execution's id.
        self.execution_id = execution_id

    def __repr__(self) -> str:
        return f"ExecutionHandle({self.execution_id!r}, agent={self.agent.agent_id!r})"

    @property
    def bridge(self) -> Bridge:
        """The loop that blocking forms run on."""
        return self.agent.bridge

    async def wait_async(self, until: str = "terminal", timeout: float | None = None) -> RunResult:
        """Wait until it is ``terminal`` or, with ``until="suspended"``, at the latest until it needs a human.

        Returns the result whatever the end is. A lost actor does not end the wait.

        Raises:
            WaitTimeoutError: after `timeout` seconds; the execution goes on.
            NotFoundError: there is no such execution.
        """
        if until not in ("terminal", "suspended"):
            raise InvalidInputError(f"until must be 'terminal' or 'suspended', not {until!r}")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = SLICE_S if deadline is None else min(SLICE_S, deadline - loop.time())
            if left <= 0:
                raise WaitTimeoutError(
                    f"execution {self.execution_id} is not {until} after {timeout:g} s; it goes on",
                    details={"execution_id": self.execution_id},
                )
            result = await self._wait_once(until, left)
            if result is not None:
                return result

    wait = blocking(wait_async)

    async def _wait_once(self, until: str, seconds: float) -> RunResult | None:
        actor = self.agent.live_actor()
        if actor is not None:
            try:
                wire = await call(
                    actor, "result", self.execution_id, until, seconds, timeout_s=seconds + 10.0
                )
                return RunResult.from_wire(wire) if wire is not None else None
            except AgentUnloadedError:
                self.agent.forget_actor()
            except (RayError, TimeoutError) as error:
                if isinstance(error, PhronomyError) or not (is_gone(error) or is_unreachable(error)):
                    raise
                if is_gone(error):
                    self.agent.forget_actor()
                else:
                    await asyncio.sleep(min(RECONNECT_S, seconds))
                    return None
        stored = await self.agent.stored_result(self.execution_id)
        if stored.status.is_terminal or (until == "suspended" and stored.suspended):
            return stored
        if stored.suspended:
            await asyncio.sleep(min(STORE_POLL_S, seconds))  # a human is waited for: no process is needed
            return None
        await self.agent.actor_async()  # nobody holds running work: wake its owner, which recovers it
        return None

    async def result_async(self, timeout: float | None = None) -> RunResult:
        """Wait until the end, through any number of suspensions.

        Raises:
            the stored error of a failed or cancelled execution; `WaitTimeoutError` after `timeout` seconds.
        """
        return (await self.wait_async("terminal", timeout)).raise_for_status()

    result = blocking(result_async)

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self.result_async().__await__()

    async def view_async(self) -> RunResult:
        """The execution as it is stored now; wakes nothing. Raises `NotFoundError`."""
        return await self.agent.stored_result(self.execution_id)

    view = blocking(view_async)

    async def status_async(self) -> ExecutionStatus:
        """Its durable status, from the store."""
        return (await self.view_async()).status

    status = blocking(status_async)

    async def cancel_async(self, *, reason: str = "cancelled") -> RunResult:
        """Cancel it; see `AgentHandle.cancel_async`."""
        return await self.agent.cancel_async(self.execution_id, reason=reason)

    cancel = blocking(cancel_async)

    async def approve_async(
        self,
        approval_request_id: str,
        *,
        approved: bool = True,
        decided_by: str | None = None,
        reason: str | None = None,
    ) -> RunResult:
        """Answer one of its approval requests; see `AgentHandle.approve_async`."""
        return await self.agent.approve_async(
            self.execution_id, approval_request_id, approved=approved, decided_by=decided_by, reason=reason
        )

    approve = blocking(approve_async)

    def events(self, *, after: int = 0) -> EventStream:
        """Its events behind the durable seq `after`, as iterator and async iterator; ends with the terminal event.

        Closing or losing the iterator changes nothing for the execution; come back with the last seq.
        """
        return EventStream(self, after)


class EventStream:
    """Iterator and async iterator over an execution's events."""

    def __init__(self, execution: ExecutionHandle, after: int) -> None:
        self._execution = execution
        self._after = after
        self._cursor: str | None = None
        self._ready: list[Event] = []
        self._ended = False

    @property
    def bridge(self) -> Bridge:
        """The loop that the blocking form runs on."""
        return self._execution.bridge

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        refuse_on_loop("iterating events", "async for")
        event = self.bridge.run(self._next())
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def _next(self) -> Event | None:
        while not self._ready:
            if self._ended:
                return None
            await self._fetch()
        event = self._ready.pop(0)
        self._after = max(self._after, event.seq)
        self._ended = self._ended or event.is_terminal
        return event

    async def _fetch(self) -> None:
        agent = self._execution.agent
        actor = agent.live_actor()
        if actor is not None:
            try:
                wire = await call(
                    actor,
                    "events",
                    self._execution.execution_id,
                    self._after,
                    self._cursor,
                    SLICE_S,
                    timeout_s=SLICE_S + 10,
                )
                self._cursor = wire["cursor"]
                self._ready = [Event.from_wire(item) for item in wire["events"]]
                if self._ready:
                    return
                await self._end_if_terminal()
                return
            except AgentUnloadedError:
                agent.forget_actor()
            except (RayError, TimeoutError) as error:
                if isinstance(error, PhronomyError) or not (is_gone(error) or is_unreachable(error)):
                    raise
                if is_gone(error):
                    agent.forget_actor()
                else:
                    await asyncio.sleep(RECONNECT_S)
                    return
        self._cursor = None
        store = agent._runtime.store
        rows = await asyncio.to_thread(store.events, self._execution.execution_id, after=self._after)
        self._ready = [Event.from_row(row) for row in rows]
        if self._ready:
            return
        stored = await agent.stored_result(self._execution.execution_id)
        if stored.status.is_terminal:
            self._ended = True
        elif stored.suspended:
            await asyncio.sleep(STORE_POLL_S)
        else:
            await agent.actor_async()

    async def _end_if_terminal(self) -> None:
        try:
            stored = await self._execution.agent.stored_result(self._execution.execution_id)
        except NotFoundError:
            self._ended = True
            raise
        if stored.status.is_terminal:
            rows = await asyncio.to_thread(
                self._execution.agent._runtime.store.events, self._execution.execution_id, after=self._after
            )
            self._ready = [Event.from_row(row) for row in rows]
            self._ended = not self._ready
