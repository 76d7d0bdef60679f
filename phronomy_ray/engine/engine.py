"""`AgentEngine`: one live agent with everything that callers do with it: start, watch, answer, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, cast

from phronomy_ray.canonical_json import clean_text, content_hash, dumps, to_json_value
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.engine.detaching import DetachableAgent, operation
from phronomy_ray.engine.event_hub import Place, Reading
from phronomy_ray.engine.kept_results import revisions_of
from phronomy_ray.engine.parts import EngineParts
from phronomy_ray.engine.reading import load_result
from phronomy_ray.engine.reserved import PLAIN_START, ReservedStart
from phronomy_ray.errors import (
    AgentBusyError,
    AgentClosedError,
    AgentUnloadedError,
    ApprovalExpiredError,
    InvalidInputError,
    NotFoundError,
    OwnershipLostError,
    SerializationError,
    StateConflictError,
    StoreError,
)
from phronomy_ray.events import Event, EventType
from phronomy_ray.frozen import replace
from phronomy_ray.ids import check_id
from phronomy_ray.journal import ApprovalRow, ApprovalStatus, ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.admission import message_of_input
from phronomy_ray.kernel.humans import answered_otherwise, is_same_answer
from phronomy_ray.kernel.inputs import Cancel, Decide, Expire, Resolve
from phronomy_ray.messages import Message
from phronomy_ray.results import ApprovalDecision, ResultParts, RunResult, result_of, result_of_request
from phronomy_ray.tool_calls import Resolution
from phronomy_ray.tool_results import encode_result

__all__ = ["AgentEngine", "EngineParts"]


class AgentEngine(DetachableAgent):
    """One live agent."""

    @operation
    async def start(
        self,
        execution_id: str,
        input: Any,
        *,
        durable_context: Any = None,
        stream: bool = False,
        on_busy: BusyRule | None = None,
        reserved: ReservedStart = PLAIN_START,
    ) -> RunResult:
        """Admit an execution, or let it wait, and return at once; the same id and input again gives the same execution.

        Args:
            execution_id: its id.
            input: text or a mapping.
            durable_context: JSON for tools.
            stream: whether observers get tokens.
            on_busy: what to do while another execution is non-terminal; the definition's rule by default.
            reserved: what else must be so for it to be the same execution, and how long it may take.

        Raises:
            AgentBusyError: another execution is non-terminal, and the rule is to reject.
            BackpressureError: too many requests wait.
            StateConflictError: the id is stored, or waits, with another input, another correlation or for another agent, or comes
                from another start.
            InvalidInputError: input or context is not what it must be; nothing was admitted.
        """
        check_id(execution_id, "execution_id")
        value = _as_json(input, "input")
        message_of_input(value)
        if durable_context is not None and not isinstance(durable_context, dict):
            raise InvalidInputError(
                f"durable_context must be a mapping, not {type(durable_context).__name__}"
            )
        if not isinstance(cast("object", stream), bool):
            raise InvalidInputError(f"stream must be True or False, not {stream!r}")
        context = _as_json(durable_context, "durable_context")
        digest = content_hash(dumps({"input": value, "durable_context": context}))
        await self.activate()
        self._refuse_when_retiring()
        await self._budget.learn()
        # a request that waits keeps none of this
        rule = (on_busy or self.definition.on_busy) if reserved.may_wait else BusyRule.REJECT
        if rule is not BusyRule.REJECT and await self._began_before(execution_id, digest, reserved):
            return await self.view(execution_id)  # it must not wait for itself
        event = self._start_event(
            execution_id, value, digest, context, stream=stream, on_busy=rule, reserved=reserved
        )
        try:
            await self._apply(event)
        except (AgentBusyError, AgentClosedError, StateConflictError):
            if not await self._began_before(execution_id, digest, reserved):
                raise
        if self.runs(execution_id):
            self._deadlines.arm(execution_id, reserved.budget_s)
        return await self.view(execution_id)

    async def _began_before(self, execution_id: str, input_hash: str, reserved: ReservedStart) -> bool:
        """Whether this very execution is stored. Raises `StateConflictError` when another one of its id is."""
        row = await self._store.run(self._store.store.find_execution, execution_id)
        if row is None:
            return False
        reserved.check(execution_id, row.state)
        if row.agent_id != self.agent_id or row.input_hash != input_hash:
            raise StateConflictError(
                f"execution {execution_id} exists with another input or durable context"
                if row.agent_id == self.agent_id
                else f"execution {execution_id} exists: it is one of agent {row.agent_id!r}",
                details={"execution_id": execution_id, "agent_id": row.agent_id},
            )
        return True

    async def wait(self, execution_id: str, *, until: str, timeout_s: float) -> RunResult | None:
        """The result once the execution is terminal (or suspended, by `until`); ``None`` after `timeout_s`.

        Raises:
            NotFoundError: no such execution of this agent.
            PhronomyError: the engine has stopped with this error.
        """
        if until not in ("terminal", "suspended"):
            raise InvalidInputError(f"until must be 'terminal' or 'suspended', not {until!r}")
        await self.activate()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            changed = self.settled.changed
            self._check_serving()
            running = self.state.execution
            if running is None or running.row.execution_id != execution_id:
                result = await self.view(execution_id)
                if result.status.is_terminal:
                    return result
            elif until == "suspended" and running.row.status is ExecutionStatus.SUSPENDED:
                return await self.view(execution_id)
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                return None
            try:
                async with asyncio.timeout(
                    remaining
                ):  # no task, as `wait_for` would make: a waiter is woken by every change
                    await changed.wait()
            except TimeoutError:
                return None

    async def view(self, execution_id: str) -> RunResult:
        """The execution as committed. Raises `NotFoundError`."""
        await self.activate()
        running = self.state.execution
        if running is not None and running.row.execution_id == execution_id:
            return result_of(
                running.row,
                ResultParts(
                    running.approvals,
                    tuple(call.row for call in running.batch),
                    tuple(Message.from_wire(message) for _, message in self.state.conversation.current),
                    revisions_of(self.state.root),
                ),
            )
        waiting = self._waiting(execution_id)
        if waiting is not None:
            return result_of_request(waiting)
        result = self._results.get(execution_id)
        if result is None:
            result = await self._store.run(load_result, self._store.store, execution_id)
        if result.agent_id != self.agent_id:
            raise NotFoundError(f"execution {execution_id} belongs to agent {result.agent_id!r}")
        return result

    @operation
    async def decide(self, event: Decide) -> RunResult:
        """Answer an approval request; the result's `decision` is the one in force.

        The first answer counts. The same again is harmless at any time, also after the end of the execution.

        Raises:
            InvalidInputError: the answer is neither True nor False, or the edited arguments do not fit the tool.
            StateConflictError: it was answered otherwise (says by whom, when and how), or its execution is not running.
            ApprovalExpiredError: its time was over.
            DefinitionChangedError: the tool is not the one that was asked about; nothing was changed.
            NotFoundError: no such request.
        """
        if not isinstance(cast("object", event.approved), bool):
            raise InvalidInputError(f"approved must be True or False, not {event.approved!r}")
        check_id(event.execution_id, "execution_id")
        check_id(event.approval_request_id, "approval_request_id")
        _check_text(event.decided_by, "decided_by")
        _check_text(event.reason, "reason")
        if event.edited_arguments is not None:
            event = replace(event, edited_arguments=_json_object(event.edited_arguments, "edited_arguments"))
        await self.activate()
        await self._budget.try_to_learn()
        try:
            await self._apply(event)
        except ApprovalExpiredError:
            await self._apply(Expire())
            raise
        except (StateConflictError, NotFoundError):
            if not await self._decided_before(event):
                raise
        result = await self.view(event.execution_id)
        request = await self._stored_request(event)
        return replace(result, decision=ApprovalDecision.from_row(request) if request is not None else None)

    async def _decided_before(self, event: Decide) -> bool:
        """Whether this is the stored answer to a request of an earlier batch, an ended execution or a lost owner."""
        request = await self._stored_request(event)
        if request is None or request.status is ApprovalStatus.PENDING:
            return False
        running = self.state.execution
        assembled = running.tools if running is not None else None
        if is_same_answer(request, event, (assembled or self.definition.tool_set).tools):
            return True
        raise answered_otherwise(request)

    async def _stored_request(self, event: Decide) -> ApprovalRow | None:
        running = self.state.execution
        known: Iterable[ApprovalRow] = running.approvals if running is not None else ()
        wanted = event.approval_request_id
        found = next((item for item in known if item.approval_request_id == wanted), None)
        if found is None:
            stored = await self._store.run(self._store.store.approvals, execution_id=event.execution_id)
            found = next((item for item in stored if item.approval_request_id == wanted), None)
        return found if found is not None and found.agent_id == self.agent_id else None

    @operation
    async def resolve(self, event: Resolve) -> RunResult:
        """Say what became of an unknown call; the same word about the same attempt again is harmless.

        Raises as `kernel.resolution.resolve`.
        """
        _check_text(event.error, "error")
        _check_text(event.decided_by, "decided_by")
        await self.activate()
        await self._budget.try_to_learn()
        if event.outcome is Resolution.SUCCEEDED:
            encoded = encode_result(event.result)
            event = replace(event, result=encoded.json, result_text=encoded.text)
        try:
            await self._apply(event)
        except (StateConflictError, NotFoundError):
            if not await self._resolved_before(event):
                raise
        return await self.view(event.execution_id)

    async def _resolved_before(self, event: Resolve) -> bool:
        """Whether this word about this attempt was taken already: its answer was lost, and the caller has repeated it."""
        calls = await self._store.run(self._store.store.tool_calls, event.execution_id)
        row = next((call for call in calls if call.tool_call_id == event.tool_call_id), None)
        if row is None or row.agent_id != self.agent_id or event.expected_attempt is None:
            return False
        if event.outcome is Resolution.NOT_PERFORMED:
            return row.attempt > event.expected_attempt
        if row.attempt != event.expected_attempt:
            return False
        if event.outcome is Resolution.SUCCEEDED:
            return row.status is ToolCallStatus.SUCCEEDED and row.result == event.result
        return (row.error or {}).get("code") == "resolved_failed" and (row.error or {}).get(
            "message"
        ) == event.error

    @operation
    async def cancel(self, execution_id: str, reason: str) -> RunResult:
        """Cancel: the intent is stored before anything is told to stop. The first reason counts; a terminal execution stays as it
        is.

        Raises:
            NotFoundError: no such execution.
            InvalidInputError: the reason is not text.
        """
        _check_text(reason, "reason")
        await self.activate()
        while not self.runs(execution_id):
            found = await self.view(execution_id)
            if found.status.is_terminal:
                return found
            await self.confirm_ownership()  # a former owner knows nothing of what has begun since
        intent = await self._wish_end(execution_id, clean_text(reason or "cancelled"))
        self._check_serving()
        running = self.state.execution
        if running is not None and running.row.execution_id == execution_id:
            self._work.stopping = execution_id  # seen by a dispatch that has not happened yet
        elif self._waiting(execution_id) is None:
            return await self.view(execution_id)
        try:
            await self._apply(Cancel(execution_id, intent.reason if intent is not None else reason))
        except StateConflictError:
            # it ended, or began and ended, while the cancellation waited for its turn
            if self._waiting(execution_id) is not None:
                await self._drop_taken(execution_id)
        return await self.view(execution_id)

    async def take_up_wish(self) -> None:
        """Cancel what is wished to end, if somebody's wish has not been told here."""
        await self.activate()
        running = self.state.execution
        if running is not None and (reason := await self._wished_end(running)) is not None:
            await self.cancel(running.row.execution_id, reason)

    async def events(
        self, execution_id: str, *, after: int, cursor: str | None, timeout_s: float
    ) -> tuple[list[Event], str]:
        """Events behind `cursor` or, without a valid one, behind the durable seq `after`; waits for at least one.

        Returns the events (none after `timeout_s`, or at once when the execution has ended and all are read) and the
        cursor to come back with. A terminal event is the last; an engine that has stopped and cannot read its store again
        gives an ``error`` event. A reader that fell further behind than the buffer reaches is given a ``lost`` event with the
        number of live ones that are gone, and the durable ones from the store: it misses none of those.

        Raises:
            NotFoundError: no such execution of this agent.
            InvalidInputError: `after` or `cursor` is not what it must be.
        """
        if not isinstance(cast("object", after), int) or not 0 <= after < 2**63:
            raise InvalidInputError(f"after must be the seq of an event or 0, not {after!r}")
        _check_text(cursor, "cursor")
        try:
            await self.activate()
        except StoreError as error:
            if self._state is None or isinstance(error, NotFoundError):
                raise
            return [self._error_event(execution_id, after)], ""
        place = self._place(cursor)
        if place is None:
            place = self.hub.place_after_seq(execution_id, after)
        if place is None:
            found = await self.stored_events(execution_id, after)
            if found:
                known = self.hub.place_after_seq(execution_id, found[-1].seq)
                # without a place the reader comes back by seq: the store may hold more than one page
                return found, self._cursor(known) if known is not None else ""
            place = self.hub.oldest(execution_id)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            changed = self.hub.changed
            reading = self.hub.read(execution_id, place)
            if reading.gap_until is not None:
                return await self._over_the_gap(execution_id, after, place, reading)
            place = reading.place
            fresh = [event for event in reading.events if not event.durable or event.seq > after]
            if fresh:
                return fresh, self._cursor(place)
            if isinstance(self._halted, OwnershipLostError):
                raise self._halted  # the new owner has what comes next
            if self._halted is not None:
                return [self._error_event(execution_id, after)], self._cursor(place)
            if self._sealed:
                raise AgentUnloadedError(f"agent {self.agent_id!r} was unloaded from this process")
            if not self.runs(execution_id):
                await self.view(execution_id)  # it ended, or never was
                read = max(after, self.hub.last_seq(execution_id))
                return await self.stored_events(execution_id, read), self._cursor(place)
            remaining = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(changed.wait(), max(0.0, remaining))
            except TimeoutError:
                return [], self._cursor(place)

    async def _over_the_gap(
        self, execution_id: str, after: int, place: Place, reading: Reading
    ) -> tuple[list[Event], str]:
        """What a reader that fell behind is given: what it lost, and from the store what it did not lose."""
        until = reading.gap_until or 0
        found = await self.stored_events(execution_id, after) if until > after else []
        missing = [event for event in found if event.seq <= until]
        if missing and missing[-1].seq < until:
            return missing, self._cursor(place)  # there is a next page before the buffer's first event
        # its seq is the one that the reader has: a reader that stops right behind it has not skipped anything
        lost = Event(execution_id, after, EventType.LOST, {"events": reading.lost_live}, False)
        fresh = [event for event in reading.events if not event.durable or event.seq > after]
        told = [lost] if reading.lost_live > 0 else []
        return [*told, *missing, *fresh], self._cursor(reading.place)

    def _error_event(self, execution_id: str, seq: int) -> Event:
        return Event(execution_id, seq, EventType.ERROR, self._error_payload(), False)

    def _cursor(self, place: Place) -> str:
        return f"{self.state.root.epoch}:{place.position}:{place.live}"

    def _place(self, cursor: str | None) -> Place | None:
        epoch, *numbers = (cursor or "").split(":")
        if epoch != str(self.state.root.epoch) or len(numbers) != 2 or not all(map(str.isdecimal, numbers)):
            return None
        return Place(*map(int, numbers))

    def status(self) -> dict[str, Any]:
        """What this agent is doing, from memory: plain JSON. Without an epoch it serves nobody (yet, or any more)."""
        state = self._state if not self._sealed else None
        running = state.execution if state is not None else None
        return {
            "agent_id": self.agent_id,
            "definition_id": self.definition.definition_id,
            "definition_version": self.definition.definition_version,
            "store": self._store.store.identity,
            "epoch": state.root.epoch if state else None,
            "lifecycle": "recovery_required"
            if self._halted is not None
            else (state.root.lifecycle.value if state else "unloaded" if self._sealed else "loading"),
            "agent_revision": state.root.agent_revision if state else None,
            "journal_position": state.root.journal_position if state else None,
            "execution_id": running.row.execution_id if running else None,
            "execution_status": running.row.status.value if running else None,
            "phase": running.row.phase.value if running else None,
            "queued": len(state.queue) if state else 0,
            "error": self._error_payload()["error"] if self._halted is not None else None,
            "options": self._parts.options.names(),
            "timing": {**asdict(self._timing), "model_s": self._work.model_s},
            **({"on_event": [item.counts for item in self._listeners]} if self._listeners else {}),
            **self._parts.owner,
        }


def _as_json(value: Any, what: str) -> Any:
    """Plain JSON. Raises `InvalidInputError`."""
    try:
        return to_json_value(value)
    except SerializationError as error:
        raise InvalidInputError(f"{what} must be plain JSON: {error.message}") from error


def _check_text(value: object, what: str) -> None:
    """Refuse what no commit could hold before it stops the agent. Raises `InvalidInputError`."""
    if value is not None and not isinstance(value, str):
        raise InvalidInputError(f"{what} must be text, not {type(value).__name__}")


def _json_object(value: object, what: str) -> dict[str, Any]:
    """A plain JSON object given by a caller. Raises `InvalidInputError`."""
    plain = _as_json(value, what)
    if not isinstance(plain, dict):
        raise InvalidInputError(f"{what} must be a mapping, not {type(value).__name__}")
    return plain
