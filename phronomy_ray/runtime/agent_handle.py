"""`AgentHandle`: what a driver holds of an agent. It holds a name, not a process, so it survives every process.

Every method has a blocking form and an async form called ``<name>_async``. A handle whose actor is lost finds the next
one, waking the agent where its work has to go on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from phronomy_ray.cancel_tokens import CancellationToken, Deadline
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.detachment import ApprovalWait
from phronomy_ray.engine.observing import approval_wait
from phronomy_ray.engine.reserved import ReservedStart
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.ids import new_execution_id
from phronomy_ray.reservations import ReservedExecution
from phronomy_ray.results import RunResult
from phronomy_ray.runtime.agent_link import AgentLink
from phronomy_ray.runtime.agent_record import AgentRecord
from phronomy_ray.runtime.bridge import blocking
from phronomy_ray.runtime.cancelling import budget_of, cancel_execution, seconds_of, tie
from phronomy_ray.runtime.execution_handle import ExecutionHandle
from phronomy_ray.runtime.hosted import HostedExecution, check_unspent, start_hosted
from phronomy_ray.runtime.starting import run_execution, start_execution
from phronomy_ray.tool_calls import Resolution

if TYPE_CHECKING:
    from phronomy_ray.hosting.agent_port import LiveAgent
    from phronomy_ray.hosting.wiring import AgentWiring
    from phronomy_ray.runtime.runtime import Runtime


class AgentHandle(AgentRecord):
    """An agent, live or not: its executions, and what `AgentRecord` has."""

    def __init__(
        self,
        runtime: Runtime,
        agent_id: str,
        wiring: AgentWiring | None = None,
        *,
        live: LiveAgent | None = None,
    ) -> None:
        client = AgentClient(
            agent_id,
            runtime.directory,
            runtime.store,
            lambda: runtime.wiring_of(agent_id, wiring),
            is_closed=lambda: runtime.is_shut_down,
        )
        if live is not None:
            client.use(live)
        super().__init__(AgentLink(client, runtime.store, runtime._bridge, runtime._open_scopes))

    def __repr__(self) -> str:
        return f"AgentHandle({self.agent_id!r})"

    # --- executions --------------------------------------------------------------------------------------------

    async def start_async(
        self,
        input: Any,
        *,
        execution_id: str | None = None,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        on_busy: BusyRule | str | None = None,
        cancellation: CancellationToken | None = None,
    ) -> ExecutionHandle:
        """Start an execution and return its handle once it is admitted, or waits for its turn.

        Args:
            input: text, or a JSON mapping whose ``message``, ``query`` or ``user`` entry is the message.
            execution_id: your own id; the same id and input again gives the same execution, observed twice.
            durable_context: JSON mapping that tools can read, also after a crash.
            stream: whether tokens are sent to observers.
            on_busy: what to do while another execution is non-terminal: ``reject`` it, ``queue`` it (durably, in order), or
                ``interrupt`` the other one and be next; the agent class's `on_busy` by default.
            cancellation: cancels the execution when it is cancelled, as long as this runtime is open; its deadline holds at
                the agent too (reason ``deadline_exceeded``).

        Raises:
            CancellationError: the token is cancelled already (`DeadlineExceededError`: its time is over); nothing was sent.
            AgentBusyError: another execution is non-terminal, and the rule is to reject.
            BackpressureError: too many requests wait.
            StateConflictError: the id exists with another input.
            InvalidInputError: the input or context is not what it must be.
        """
        execution = execution_id or new_execution_id()
        await start_execution(
            self._client,
            execution,
            input,
            durable_context=durable_context,
            stream=stream,
            on_busy=on_busy,
            reserved=ReservedStart(budget_s=budget_of(cancellation)),
        )
        return ExecutionHandle(self, self._link, execution, untie=tie(self._link, execution, cancellation))

    start = blocking(start_async)

    async def invoke_async(
        self,
        input: Any,
        *,
        execution_id: str | None = None,
        durable_context: dict[str, Any] | None = None,
        timeout: float | Deadline | None = None,
        on_busy: BusyRule | str | None = None,
        cancellation: CancellationToken | None = None,
    ) -> RunResult:
        """Run until the end, or until a human is needed (`RunResult.suspended`).

        Args are those of `start_async`; `timeout` is in seconds and ends only the wait, while a token ends the execution.

        Raises:
            the stored error of a failed or cancelled execution, with its class and code; else as `start_async`.
        """
        execution = execution_id or new_execution_id()
        if cancellation is None:
            result = await run_execution(
                self._client,
                execution,
                input,
                durable_context=durable_context,
                on_busy=on_busy,
                timeout_s=seconds_of(timeout),
            )
            return result.raise_for_status()
        # in two messages: a token that is cancelled must find the execution before it ends
        await start_execution(
            self._client,
            execution,
            input,
            durable_context=durable_context,
            on_busy=on_busy,
            reserved=ReservedStart(budget_s=budget_of(cancellation)),
        )
        untie = tie(self._link, execution, cancellation)
        handle = ExecutionHandle(self, self._link, execution, untie=untie)
        return (await handle.wait_async(until="suspended", timeout=timeout)).raise_for_status()

    invoke = blocking(invoke_async)

    def execution(self, execution_id: str) -> ExecutionHandle:
        """A handle on an execution of this agent; nothing is read."""
        return ExecutionHandle(self, self._link, execution_id)

    async def approve_async(
        self,
        execution_id: str,
        approval_request_id: str,
        *,
        approved: bool = True,
        edited_arguments: dict[str, Any] | None = None,
        decided_by: str | None = None,
        reason: str | None = None,
    ) -> RunResult:
        """Answer one approval request, from any driver; wakes the agent. The first answer counts.

        The execution goes on when every request of the batch is answered. The same answer again is harmless at any time; the
        result's `decision` is the one in force.

        Args:
            execution_id: the suspended execution.
            approval_request_id: the request, see `RunResult.approvals`.
            approved: the answer.
            edited_arguments: with an approval: run the call with these arguments instead of the model's.
            decided_by: who says so.
            reason: why; the model is told the reason of a rejection.

        Raises:
            InvalidInputError: the answer is no bool, or the edited arguments do not fit the tool's schema (says where).
            StateConflictError: it was answered otherwise (says by whom and when), or the execution has ended.
            ApprovalExpiredError: its time was over.
            DefinitionChangedError: the tool has changed since; nothing was decided.
            NotFoundError: there is no such request.
        """
        if not isinstance(approved, bool):
            raise InvalidInputError(f"approved must be True or False, not {approved!r}")
        wire = await self._client.call(
            "approve", execution_id, approval_request_id, approved, decided_by, reason, edited_arguments
        )
        return RunResult.from_wire(wire)

    approve = blocking(approve_async)

    # --- executions whose ids are fixed beforehand -------------------------------------------------------------

    async def reserve_async(
        self, *, execution_id: str | None = None, correlation: dict[str, Any] | None = None
    ) -> ReservedExecution:
        """An execution id of this agent, before anything is sent: keep it, then start under it. Nothing is stored.

        Args:
            execution_id: your own id; a fresh one by default.
            correlation: what it is a part of; such an execution is not hosted.

        Raises:
            StateConflictError: the id is spent.
            InvalidInputError: it is no id, or the correlation is no JSON mapping.
        """
        reserved = ReservedExecution(self.agent_id, execution_id or new_execution_id(), correlation)
        if execution_id is not None:
            await check_unspent(self._link, execution_id)
        return reserved

    reserve = blocking(reserve_async)

    async def start_reserved_async(
        self,
        reservation: ReservedExecution,
        input: Any,
        *,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        cancellation: CancellationToken | None = None,
    ) -> ExecutionHandle:
        """Start exactly the reserved execution; the same reservation and input again observes it and never runs it twice.

        Raises:
            InvalidInputError: the reservation is another agent's; else as `start_async`.
            StateConflictError: the id exists with another input, correlation or agent.
        """
        reservation.check_agent(self.agent_id)
        await start_execution(
            self._client,
            reservation.execution_id,
            input,
            durable_context=durable_context,
            stream=stream,
            on_busy=BusyRule.REJECT,
            reserved=ReservedStart(correlation=reservation.correlation, budget_s=budget_of(cancellation)),
        )
        execution = reservation.execution_id
        return ExecutionHandle(self, self._link, execution, untie=tie(self._link, execution, cancellation))

    start_reserved = blocking(start_reserved_async)

    async def start_hosted_async(
        self,
        reservation: ReservedExecution,
        input: Any,
        *,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        cancellation: CancellationToken | None = None,
    ) -> HostedExecution:
        """Start a reserved execution in the care of this driver, which may let go of it while a human is waited for.

        Raises:
            InvalidInputError: the reservation is another agent's, or has a correlation.
            StateConflictError: its id is spent.
            AgentBusyError: another execution is non-terminal; else as `start_async`.
        """
        return await start_hosted(
            self._link,
            reservation,
            input,
            durable_context=durable_context,
            stream=stream,
            cancellation=cancellation,
        )

    start_hosted = blocking(start_hosted_async)

    async def approve_hosted_async(
        self,
        execution_id: str,
        approval_request_id: str,
        *,
        approved: bool = True,
        edited_arguments: dict[str, Any] | None = None,
        decided_by: str | None = None,
        reason: str | None = None,
        cancellation: CancellationToken | None = None,
    ) -> HostedExecution:
        """Answer a request like `approve_async`, and take the execution into the care of this driver, which may let go of it again
        at its next request. Raises as `approve_async`.
        """
        budget_of(cancellation)  # a cancelled token starts nothing
        await self.approve_async(
            execution_id,
            approval_request_id,
            approved=approved,
            edited_arguments=edited_arguments,
            decided_by=decided_by,
            reason=reason,
        )
        return HostedExecution(self._link, execution_id, cancellation)

    approve_hosted = blocking(approve_hosted_async)

    def hosted(self, execution_id: str, *, cancellation: CancellationToken | None = None) -> HostedExecution:
        """An execution of this agent, which runs or waits, taken into the care of this driver: for a host that was restarted."""
        return HostedExecution(self._link, execution_id, cancellation)

    async def approval_wait_async(self, execution_id: str) -> ApprovalWait | None:
        """The committed wait of an execution; see `Runtime.approval_wait_async`. Wakes nothing."""
        return await asyncio.to_thread(approval_wait, self._link.store, self.agent_id, execution_id)

    approval_wait = blocking(approval_wait_async)

    async def resume_async(self, execution_id: str) -> RunResult:
        """Wake the agent if need be (which continues what can be continued) and give the execution as it is."""
        return RunResult.from_wire(await self._client.call("resume", execution_id))

    resume = blocking(resume_async)

    async def resolve_async(
        self,
        execution_id: str,
        tool_call_id: str,
        outcome: Resolution | str,
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
            InvalidInputError: the outcome is none of these, or does not fit what is given with it.
        """
        word = Resolution.of(outcome)
        # the client repeats what may not have arrived: the word must never be taken for an attempt that came after it
        calls = await asyncio.to_thread(self._link.store.tool_calls, execution_id)
        attempt = next((call.attempt for call in calls if call.tool_call_id == tool_call_id), None)
        wire = await self._client.call(
            "resolve",
            execution_id,
            tool_call_id,
            word.value,
            result,
            error,
            expected_revision,
            decided_by,
            attempt,
        )
        return RunResult.from_wire(wire)

    resolve = blocking(resolve_async)

    async def cancel_async(self, execution_id: str, reason: str = "cancelled") -> RunResult:
        """Cancel an execution, from any driver: the wish is stored before its owner, who is woken for it, is told. The first reason
        counts. A terminal execution stays as it is.

        Raises:
            NotFoundError: the agent has no such execution.
            PhronomyError: the owner could not be told; the wish is stored, and the next owner takes it up.
        """
        return await cancel_execution(self._link, execution_id, reason)

    cancel = blocking(cancel_async)

    # --- finding the actor -------------------------------------------------------------------------------------

    async def actor_async(self) -> Any:
        """The raw handle of the live agent, whose methods have a ``remote``; wakes the agent if need be.

        Ray's own handle where the agent has an actor to itself; in a host or in this process something that looks like it.
        """
        return (await self._client.live()).raw

    actor = blocking(actor_async)
