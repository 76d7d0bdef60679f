"""`HostedExecution`: an execution that this driver runs for somebody, until it ends or waits for a human and is let go of.

Follows Phronomy's hosted runs (2.9 of its contract). The detach is a commit of the agent's owner, so nothing is claimed beside the
store: any worker may go on with the `ApprovalWait`, and an answer that is delivered twice is one answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeAlias

from phronomy_ray.cancel_tokens import CancellationToken, Deadline
from phronomy_ray.detachment import ApprovalWait, DetachRefusal, refused
from phronomy_ray.engine.reserved import ReservedStart
from phronomy_ray.errors import (
    AgentUnreachableError,
    HostClosedError,
    InvalidInputError,
    PhronomyError,
    RuntimeShutdownError,
    StateConflictError,
    StoreUnavailableError,
    WaitTimeoutError,
)
from phronomy_ray.hosting.agent_client import SLICE_S, STORE_POLL_S
from phronomy_ray.ids import new_detach_id, new_start_id
from phronomy_ray.reservations import ReservedExecution
from phronomy_ray.results import RunResult
from phronomy_ray.runtime.agent_link import AgentLink
from phronomy_ray.runtime.bridge import Bridge, blocking
from phronomy_ray.runtime.cancelling import budget_of, cancel_execution, seconds_of, tie
from phronomy_ray.runtime.starting import start_execution
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.runtime")
#: What says nothing of the execution: it is looked for again.
_PASSING = (AgentUnreachableError, HostClosedError, StoreUnavailableError, WaitTimeoutError)
#: How a hosted run ends for its host.
HostedOutcome: TypeAlias = RunResult | ApprovalWait


class HostedExecution(WorkerInputRestricted):
    """One execution in the care of this driver. Only it lets go of it, and once it has, its outcome stays the wait."""

    def __init__(self, link: AgentLink, execution_id: str, token: CancellationToken | None = None) -> None:
        self._link = link
        self.agent_id = link.client.agent_id
        self.execution_id = execution_id
        self._token = token
        self._untie = tie(link, execution_id, token)
        self._outcome: Future[HostedOutcome] = Future()
        #: Whether a detach is under way, or has happened.
        self._detaching = False
        self._watch = self._begin_to_watch()

    def __repr__(self) -> str:
        return f"HostedExecution({self.execution_id!r}, agent={self.agent_id!r})"

    @property
    def _bridge(self) -> Bridge:
        return self._link.bridge

    async def result_async(self, timeout: float | Deadline | None = None) -> HostedOutcome:
        """The result at the end, or the `ApprovalWait` once this handle has let go of the execution.

        Raises:
            the stored error of a failed or cancelled execution, with its class and code.
            WaitTimeoutError: after `timeout` seconds; the execution goes on.
            RuntimeShutdownError: the runtime was closed.
        """
        seconds = seconds_of(timeout)
        loop, settled = asyncio.get_running_loop(), asyncio.Event()

        def done(outcome: Future[HostedOutcome]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settled.set)

        self._outcome.add_done_callback(done)
        try:
            await asyncio.wait_for(settled.wait(), seconds)
        except TimeoutError:
            raise WaitTimeoutError(
                f"hosted execution {self.execution_id} has neither ended nor been let go of after {seconds:g} s; it goes on",
                details={"execution_id": self.execution_id},
            ) from None
        outcome = self._outcome.result()
        return outcome.raise_for_status() if isinstance(outcome, RunResult) else outcome

    result = blocking(result_async)

    def on_complete(self, callback: Callable[[HostedOutcome | None, BaseException | None], object]) -> None:
        """Have `callback` called once with the outcome and ``None``, or with ``None`` and the error.

        It is called in a thread of the runtime, or at once when there is an outcome; what it raises is logged.
        """

        def done(outcome: Future[HostedOutcome]) -> None:
            value, error = None, outcome.exception()
            if error is None:
                value = outcome.result()
                error = _error_of(value)
            try:
                callback(value if error is None else None, error)
            except Exception:  # noqa: BLE001 - a listener must not harm the others
                _LOG.exception("a callback of hosted execution %s failed", self.execution_id)

        self._outcome.add_done_callback(done)

    async def cancel_async(self, reason: str = "cancelled") -> RunResult:
        """Cancel it; see `AgentHandle.cancel_async`."""
        return await cancel_execution(self._link, self.execution_id, reason)

    cancel = blocking(cancel_async)

    async def detach_async(self, approval_request_id: str) -> ApprovalWait:
        """Let go of the execution, which waits for this answer, and unload its agent. Any worker may go on with it then.

        The same detach again gives the same wait.

        Raises:
            AgentBusyError: it is refused, and this host stays responsible; ``details["reason"]`` is a `DetachRefusal`.
            StateConflictError: it has ended, or was let go of at another request.
        """
        if self._outcome.done():
            return self._detached_before(approval_request_id)
        details = {"agent_id": self.agent_id, "execution_id": self.execution_id}
        if self._detaching:
            raise refused(DetachRefusal.CONCURRENT_OPERATION, "another detach is under way", **details)
        if self._token is not None and self._token.is_cancelled:
            raise refused(DetachRefusal.CANCELLATION_PENDING, "the host's token is cancelled", **details)
        if self._link.scopes.hold(self.agent_id):
            raise refused(
                DetachRefusal.LIVE_SCOPE,
                f"an open scope of this driver holds agent {self.agent_id!r}",
                **details,
            )
        self._detaching = True
        # what leaves must not be missed, or the watch would wake it here again
        self._watch.cancel()
        try:
            wire = await self._link.client.call(
                "detach", self.execution_id, approval_request_id, new_detach_id()
            )
            wait = ApprovalWait.from_wire(wire)
        except BaseException:
            self._detaching = False
            try:
                self._watch = self._begin_to_watch()
            except PhronomyError as error:  # the runtime was closed meanwhile
                self._fail(error)
            raise
        self._settle(wait)
        self._link.client.forget()
        return wait

    detach = blocking(detach_async)

    def _detached_before(self, approval_request_id: str) -> ApprovalWait:
        outcome = self._outcome.result()
        if isinstance(outcome, ApprovalWait) and outcome.approval_request_id == approval_request_id:
            return outcome
        what = (
            f"was let go of at {outcome.approval_request_id}"
            if isinstance(outcome, ApprovalWait)
            else "has ended"
        )
        raise StateConflictError(
            f"hosted execution {self.execution_id} {what}", details={"execution_id": self.execution_id}
        )

    def _begin_to_watch(self) -> Future[RunResult]:
        watch = self._link.bridge.submit(self._follow())
        watch.add_done_callback(self._followed)
        return watch

    async def _follow(self) -> RunResult:
        while True:
            try:
                result = await self._link.client.wait_once(self.execution_id, "terminal", SLICE_S)
            except _PASSING as error:
                _LOG.warning("hosted execution %s is not seen for now: %s", self.execution_id, error)
                await asyncio.sleep(STORE_POLL_S)
                continue
            if result is not None:
                return result

    def _followed(self, watch: Future[RunResult]) -> None:
        try:
            result = watch.result()
        except CancelledError:
            if not self._detaching:
                self._fail(RuntimeShutdownError("the runtime was closed while a hosted execution ran"))
        except Exception as error:  # noqa: BLE001 - whoever waits for the outcome gets it
            self._fail(error)
        else:
            self._settle(result)

    def _settle(self, outcome: HostedOutcome) -> None:
        self._untie()
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _fail(self, error: Exception) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)


def _error_of(outcome: HostedOutcome) -> PhronomyError | Exception | None:
    """The stored error of an execution that has not ended well."""
    if isinstance(outcome, RunResult):
        try:
            outcome.raise_for_status()
        except Exception as error:  # noqa: BLE001 - it may be of any class that a tool has raised
            return error
    return None


async def start_hosted(
    link: AgentLink,
    reservation: ReservedExecution,
    input: Any,
    *,
    durable_context: dict[str, Any] | None = None,
    stream: bool = False,
    cancellation: CancellationToken | None = None,
) -> HostedExecution:
    """Start a reserved execution in the care of this driver.

    Raises:
        InvalidInputError: the reservation is another agent's, or a part of something (it has a correlation).
        StateConflictError: its id is spent.
        AgentBusyError: another execution of the agent is non-terminal.
        CancellationError: the token is cancelled; nothing was started.
    """
    reservation.check_agent(link.client.agent_id)
    if reservation.correlation is not None:
        raise InvalidInputError(
            "a reservation with a correlation is a part of something and cannot be hosted"
        )
    budget_s = budget_of(cancellation)
    await check_unspent(link, reservation.execution_id)
    await start_execution(
        link.client,
        reservation.execution_id,
        input,
        durable_context=durable_context,
        stream=stream,
        # so that of two hosts with one reservation the store lets only one begin
        reserved=ReservedStart(start_id=new_start_id(), budget_s=budget_s),
    )
    return HostedExecution(link, reservation.execution_id, cancellation)


async def check_unspent(link: AgentLink, execution_id: str) -> None:
    """Raise `StateConflictError` when something is stored under the id."""
    await asyncio.to_thread(_check_unspent, link, execution_id)


def _check_unspent(link: AgentLink, execution_id: str) -> None:
    if link.store.find_request(execution_id) is None and link.store.find_execution(execution_id) is None:
        return
    raise StateConflictError(
        f"the id {execution_id} is spent: something is stored under it; observe it instead",
        details={"execution_id": execution_id},
    )


__all__ = ["HostedExecution", "HostedOutcome", "check_unspent", "start_hosted"]
