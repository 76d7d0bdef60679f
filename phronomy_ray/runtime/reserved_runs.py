"""What a runtime does with executions whose ids are fixed beforehand, and the scopes of a driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from phronomy_ray.cancel_tokens import CancellationToken
from phronomy_ray.detachment import ApprovalWait
from phronomy_ray.engine import observing
from phronomy_ray.reservations import ExecutionObservation, ReservedExecution
from phronomy_ray.runtime.administration import Administration
from phronomy_ray.runtime.bridge import blocking
from phronomy_ray.runtime.homes import Home
from phronomy_ray.runtime.hosted import HostedExecution
from phronomy_ray.runtime.open_scopes import OpenScopes
from phronomy_ray.store.port import Store

if TYPE_CHECKING:
    from phronomy_ray.runtime.agent_handle import AgentHandle
    from phronomy_ray.runtime.scope import Scope


class ReservedRuns(Administration):
    """The part of a `Runtime` that is about reservations, hosted runs and scopes."""

    def __init__(self, store: Store, home: Home) -> None:
        super().__init__(store, home)
        self._open_scopes = OpenScopes()

    def agent(self, agent_id: str) -> AgentHandle:
        """A handle by id alone."""
        raise NotImplementedError

    async def reserve_async(
        self, agent_id: str, *, execution_id: str | None = None, correlation: dict[str, Any] | None = None
    ) -> ReservedExecution:
        """An execution id of an agent, before anything is sent; see `AgentHandle.reserve_async`."""
        return await self.agent(agent_id).reserve_async(execution_id=execution_id, correlation=correlation)

    reserve = blocking(reserve_async)

    async def start_hosted_async(
        self,
        reservation: ReservedExecution,
        input: Any,
        *,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        cancellation: CancellationToken | None = None,
    ) -> HostedExecution:
        """Start a reserved execution in the care of this driver; see `AgentHandle.start_hosted_async`."""
        return await self.agent(reservation.agent_id).start_hosted_async(
            reservation, input, durable_context=durable_context, stream=stream, cancellation=cancellation
        )

    start_hosted = blocking(start_hosted_async)

    async def observe_async(self, execution_id: str) -> ExecutionObservation:
        """What is stored under an execution id: absent, queued, active, suspended or terminal. Wakes nothing.

        Raises:
            StoreError: the store could not be read, which is not the same as absent.
        """
        return await asyncio.to_thread(observing.observe, self.store, execution_id)

    observe = blocking(observe_async)

    async def approval_wait_async(self, agent_id: str, execution_id: str) -> ApprovalWait | None:
        """The committed wait for a human's answer of an execution that stands alone; wakes nothing.

        ``None`` when it is not stored, does not wait for an answer, is asked to end, or is a part of something.

        Raises:
            StateConflictError: the execution is another agent's.
            StoreError: the store could not be read.
        """
        return await asyncio.to_thread(observing.approval_wait, self.store, agent_id, execution_id)

    approval_wait = blocking(approval_wait_async)

    def scope(self) -> Scope:
        """``with runtime.scope() as scope:`` (or ``async with``): agents that are woken through it are unloaded at its end."""
        raise NotImplementedError


__all__ = ["ReservedRuns"]
