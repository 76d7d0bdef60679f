"""`ExecutionHandle` and its events: what a driver holds of one execution, through the loss of any number of actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from phronomy_ray.cancel_tokens import CancellationToken, Deadline
from phronomy_ray.errors import InvalidInputError, NotFoundError
from phronomy_ray.events import Event
from phronomy_ray.hosting.agent_client import RECONNECT_S, SLICE_S, STORE_POLL_S
from phronomy_ray.hosting.agent_port import NoAnswer
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.results import RunResult
from phronomy_ray.runtime.agent_link import AgentLink
from phronomy_ray.runtime.bridge import Bridge, blocking, refuse_on_loop
from phronomy_ray.runtime.cancelling import seconds_of, unless_cancelled
from phronomy_ray.runtime.starting import wait_in_slices
from phronomy_ray.worker_inputs import WorkerInputRestricted

if TYPE_CHECKING:
    from phronomy_ray.runtime.agent_handle import AgentHandle


class ExecutionHandle(WorkerInputRestricted):
    """One execution. `result` and ``await`` go to its end; `wait` can also stop at a suspension."""

    def __init__(
        self,
        agent: AgentHandle,
        link: AgentLink,
        execution_id: str,
        *,
        untie: Callable[[], None] = lambda: None,
    ) -> None:
        #: The agent that runs it.
        self.agent = agent
        #: The execution's id.
        self.execution_id = execution_id
        self._link = link
        #: Frees the token that it was started with.
        self._untie = untie

    def __repr__(self) -> str:
        return f"ExecutionHandle({self.execution_id!r}, agent={self.agent.agent_id!r})"

    @property
    def _bridge(self) -> Bridge:
        return self._link.bridge

    async def wait_async(
        self,
        until: str = "terminal",
        timeout: float | Deadline | None = None,
        *,
        cancellation: CancellationToken | None = None,
    ) -> RunResult:
        """Wait until it is ``terminal`` or, with ``until="suspended"``, at the latest until it needs a human.

        Returns the result whatever the end is. A lost actor does not end the wait. `timeout` and `cancellation` end only the wait.

        Raises:
            WaitTimeoutError: after `timeout` seconds, or when the token's time is over; the execution goes on.
            CancellationError: the token was cancelled (code ``wait_cancelled``); the execution goes on.
            NotFoundError: there is no such execution.
        """
        if until not in ("terminal", "suspended"):
            raise InvalidInputError(f"until must be 'terminal' or 'suspended', not {until!r}")
        waiting = self._wait(until, seconds_of(timeout))
        return await unless_cancelled(waiting, cancellation, what=f"execution {self.execution_id}")

    wait = blocking(wait_async)

    async def _wait(self, until: str, timeout: float | None) -> RunResult:
        result = await wait_in_slices(self._link.client, self.execution_id, until, timeout)
        if result.status.is_terminal:
            self._untie()
        return result

    async def result_async(
        self, timeout: float | Deadline | None = None, *, cancellation: CancellationToken | None = None
    ) -> RunResult:
        """Wait until the end, through any number of suspensions.

        Raises:
            the stored error of a failed or cancelled execution; else as `wait_async`.
        """
        return (await self.wait_async("terminal", timeout, cancellation=cancellation)).raise_for_status()

    result = blocking(result_async)

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self.result_async().__await__()

    async def view_async(self) -> RunResult:
        """The execution as it is stored now; wakes nothing. Raises `NotFoundError`."""
        return await self._link.client.stored_result(self.execution_id)

    view = blocking(view_async)

    async def status_async(self) -> ExecutionStatus:
        """Its durable status, from the store."""
        return (await self.view_async()).status

    status = blocking(status_async)

    async def cancel_async(self, reason: str = "cancelled") -> RunResult:
        """Cancel it; see `AgentHandle.cancel_async`."""
        return await self.agent.cancel_async(self.execution_id, reason)

    cancel = blocking(cancel_async)

    async def approve_async(
        self,
        approval_request_id: str,
        *,
        approved: bool = True,
        edited_arguments: dict[str, Any] | None = None,
        decided_by: str | None = None,
        reason: str | None = None,
    ) -> RunResult:
        """Answer one of its approval requests; see `AgentHandle.approve_async`."""
        return await self.agent.approve_async(
            self.execution_id,
            approval_request_id,
            approved=approved,
            edited_arguments=edited_arguments,
            decided_by=decided_by,
            reason=reason,
        )

    approve = blocking(approve_async)

    def events(self, *, after: int = 0) -> EventStream:
        """Its events behind the durable seq `after`, as iterator and async iterator; ends with the terminal event.

        Closing or losing the iterator changes nothing for the execution; come back with the last seq.
        """
        return EventStream(self, self._link, after)


class EventStream(WorkerInputRestricted):
    """Iterator and async iterator over an execution's events."""

    def __init__(self, execution: ExecutionHandle, link: AgentLink, after: int) -> None:
        self._execution = execution
        self._link = link
        self._after = after
        self._cursor: str | None = None
        self._ready: list[Event] = []
        self._ended = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        refuse_on_loop("iterating events", "async for")
        event = self._link.bridge.run(self._next())
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
        live = await self._link.client.find()
        if live is not None:
            execution_id = self._execution.execution_id
            wire = await self._link.client.ask(
                live, "events", execution_id, self._after, self._cursor, SLICE_S, timeout_s=SLICE_S + 10
            )
            if wire is NoAnswer.SILENT:
                await asyncio.sleep(RECONNECT_S)
                return
            if wire is not NoAnswer.GONE:
                self._cursor = wire["cursor"]
                self._ready = [Event.from_wire(item) for item in wire["events"]]
                if not self._ready:
                    await self._end_if_terminal()
                return
        self._cursor = None
        # in this order: what is terminal when it is looked at has its last event in the store
        stored = await self._link.client.stored_result(self._execution.execution_id)
        rows = await asyncio.to_thread(
            self._link.store.events, self._execution.execution_id, after=self._after
        )
        self._ready = [Event.from_row(row) for row in rows]
        if self._ready:
            return
        if stored.status.is_terminal:
            self._ended = True
        elif stored.suspended:
            await asyncio.sleep(STORE_POLL_S)
        else:
            await self._link.client.live()

    async def _end_if_terminal(self) -> None:
        try:
            stored = await self._link.client.stored_result(self._execution.execution_id)
        except NotFoundError:
            self._ended = True
            raise
        if stored.status.is_terminal:
            rows = await asyncio.to_thread(
                self._link.store.events, self._execution.execution_id, after=self._after
            )
            self._ready = [Event.from_row(row) for row in rows]
            self._ended = not self._ready
