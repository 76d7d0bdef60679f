"""`AgentService`: what others may call of an agent, wherever it lives. It decodes, calls the engine, encodes.

Its public methods are the raw-handle API (`docs/guide/actor-handles.md`): stable, plain JSON in and out, and our typed errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from phronomy_ray.clock import SystemClock
from phronomy_ray.definition.busy import busy_rule
from phronomy_ray.engine.creation import new_agent
from phronomy_ray.engine.reserved import ReservedStart
from phronomy_ray.errors import (
    AgentBusyError,
    AgentClosedError,
    AgentUnloadedError,
    BackpressureError,
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from phronomy_ray.hosting.agent_life import AgentLife
from phronomy_ray.hosting.wiring import NewAgentRequest
from phronomy_ray.ids import check_id, new_detach_id, new_execution_id
from phronomy_ray.journal import JournalRecord
from phronomy_ray.kernel.inputs import Decide, EditKind, Resolve
from phronomy_ray.results import RunResult
from phronomy_ray.retention import Retention
from phronomy_ray.tool_calls import Resolution

P = ParamSpec("P")
R = TypeVar("R")
#: Longest slice of one waiting call, in seconds.
MAX_WAIT_S = 30.0


def from_the_owner(
    method: Callable[Concatenate[AgentService, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[AgentService, P], Coroutine[Any, Any, R]]:
    """A method whose refusals come from the agent's memory: they count only while it still owns the agent.

    What is done is fenced by its commit; what is refused commits nothing, and a former owner's memory may be of the past.
    """

    @functools.wraps(method)
    async def confirmed(self: AgentService, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(self, *args, **kwargs)
        except (AgentBusyError, AgentClosedError, BackpressureError, ConflictError, NotFoundError):
            await self._engine().confirm_ownership()
            raise

    return confirmed


class AgentService(AgentLife):
    """One agent in this process, and the methods that others call."""

    # --- life --------------------------------------------------------------------------------------------------

    async def activate(self) -> dict[str, Any]:
        """Be live: own the agent, recover it, and end what is wished to end. Returns `status`."""
        await self._engine().take_up_wish()
        return self._engine().status()

    async def create(self, request: NewAgentRequest) -> dict[str, Any]:
        """Store a new agent of this id, then be live; the same request again is one creation, also after a crash.

        Raises `AgentAlreadyExistsError`.
        """
        engine = self._engine()
        store = engine.store
        new = new_agent(
            self.agent_id,
            engine.definition,
            context=request.context,
            knowledge=request.knowledge,
            metadata=request.metadata,
            now=SystemClock().now(),
            request_id=request.request_id,
        )
        try:
            await store.run(store.store.create_agent, new)
        except CommitOutcomeUnknownError:
            if not request.request_id:
                raise
            await store.run(store.store.create_agent, new)  # creating the same again tells
        await engine.activate()
        return engine.status()

    async def status(self) -> dict[str, Any]:
        """What the agent is doing, from memory; never reads the store. Looking is no use: it keeps no unused agent live.

        Raises `AgentUnloadedError` when it does not live here any more.
        """
        self._check_here()
        return (self._engine_made or self._engine()).status()

    @from_the_owner
    async def unload(self) -> dict[str, Any]:
        """Free this process and keep everything.

        Raises `AgentBusyError` while work runs, and as `status` when the agent does not live here any more: a former owner cannot say
        that nothing runs.
        """
        self._check_here()
        engine = self._engine()
        await engine.find_out()
        await engine.seal()
        if engine.ownership_lost is not None:
            raise engine.ownership_lost
        self._process.left(self)
        return {"agent_id": self.agent_id, "unloaded": True}

    @from_the_owner
    async def add_knowledge(self, knowledge: Any, edit_id: str | None = None) -> dict[str, int]:
        """Add knowledge to the idle agent; see `EditableAgent.edit`, also for the methods that follow."""
        return await self._engine().edit(EditKind.ADD_KNOWLEDGE, knowledge=knowledge, edit_id=edit_id)

    @from_the_owner
    async def clear_transcript(self, edit_id: str | None = None) -> dict[str, int]:
        """Let the model see no earlier message any more."""
        return await self._engine().edit(EditKind.CLEAR_TRANSCRIPT, edit_id=edit_id)

    @from_the_owner
    async def clear_knowledge(self, edit_id: str | None = None) -> dict[str, int]:
        """Let the model see no earlier knowledge any more."""
        return await self._engine().edit(EditKind.CLEAR_KNOWLEDGE, edit_id=edit_id)

    @from_the_owner
    async def reset_context(self, edit_id: str | None = None) -> dict[str, int]:
        """`clear_transcript` and `clear_knowledge` in one."""
        return await self._engine().edit(EditKind.RESET_CONTEXT, edit_id=edit_id)

    @from_the_owner
    async def close(self, edit_id: str | None = None) -> dict[str, int]:
        """Take no more work, for ever."""
        return await self._engine().edit(EditKind.CLOSE, edit_id=edit_id)

    @from_the_owner
    async def purge(self, created_at: str | None = None) -> bool:
        """Delete the idle agent and everything that belongs to it, and leave this process; whether it was there. With `created_at`
        (ISO 8601), an agent that was created at another time is left alone.
        """
        try:
            meant = datetime.fromisoformat(created_at) if created_at is not None else None
        except ValueError:
            raise InvalidInputError(f"created_at must be an ISO 8601 time, not {created_at!r}") from None
        engine = self._engine()
        was_there = await engine.purge(meant)
        if not engine.is_active:
            self._process.left(self)
        return was_there

    async def retain(self, owner_key: str, execution_id: str | None = None) -> dict[str, Any]:
        """Hold the agent, or one of its executions, so that nobody deletes it; returns the hold in force."""
        check_id(owner_key, "owner_key")
        if execution_id is not None:
            check_id(execution_id, "execution_id")
        store = self._engine().store
        hold = Retention(owner_key, self.agent_id, execution_id, SystemClock().now())
        return (await store.run(store.store.retain, hold)).to_wire()

    async def release(self, owner_key: str, execution_id: str | None = None) -> bool:
        """End a hold, named as it was made; whether there was one."""
        store = self._engine().store
        return await store.run(
            store.store.release, owner_key, agent_id=self.agent_id, execution_id=execution_id
        )

    async def retentions(self) -> list[dict[str, Any]]:
        """Who holds the agent or one of its executions, oldest first."""
        store = self._engine().store
        return [hold.to_wire() for hold in await store.run(store.store.retentions, agent_id=self.agent_id)]

    # --- executions --------------------------------------------------------------------------------------------

    @from_the_owner
    async def start(
        self,
        execution_id: str,
        input: Any,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        on_busy: str | None = None,
        start_id: str = "",
        correlation: dict[str, Any] | None = None,
        budget_s: float | None = None,
    ) -> dict[str, Any]:
        """Admit an execution, or let it wait, and return at once; see `AgentEngine.start` and `ReservedStart`."""
        result = await self._engine().start(
            execution_id,
            input,
            durable_context=durable_context,
            stream=stream,
            on_busy=busy_rule(on_busy),
            reserved=ReservedStart(start_id, correlation, budget_s),
        )
        return result.to_wire()

    @from_the_owner
    async def invoke(
        self,
        input: Any,
        execution_id: str | None = None,
        durable_context: dict[str, Any] | None = None,
        stream: bool = False,
        wait_s: float = MAX_WAIT_S,
        on_busy: str | None = None,
    ) -> dict[str, Any]:
        """Start, and wait up to `wait_s` seconds for the end or a suspension; else the execution as it is then."""
        execution = execution_id or new_execution_id()
        engine = self._engine()
        await engine.start(
            execution,
            input,
            durable_context=durable_context,
            stream=stream,
            on_busy=busy_rule(on_busy),
        )
        with self._waiting():
            result = await engine.wait(execution, until="suspended", timeout_s=min(wait_s, MAX_WAIT_S))
        result = result or await engine.view(execution)
        await self._confirm_wait(result)
        return result.to_wire()

    async def result(
        self, execution_id: str, until: str = "terminal", wait_s: float = MAX_WAIT_S
    ) -> dict[str, Any] | None:
        """The result, or ``None`` when it is not there after `wait_s` seconds (at most 30): ask again."""
        with self._waiting():
            result = await self._engine().wait(execution_id, until=until, timeout_s=min(wait_s, MAX_WAIT_S))
        if result is None:  # a former owner would wait for ever
            await self._engine().confirm_ownership_at_times()
        await self._confirm_wait(result)
        return result.to_wire() if result is not None else None

    async def resume(self, execution_id: str) -> dict[str, Any]:
        """The execution as it is; activation has already continued whatever could be continued."""
        result = await self._engine().view(execution_id)
        await self._confirm_wait(result)
        return result.to_wire()

    async def events(
        self, execution_id: str, after: int = 0, cursor: str | None = None, wait_s: float = 10.0
    ) -> dict[str, Any]:
        """Events behind `cursor` or the durable seq `after`: ``{"events", "cursor", "ended"}``; waits for the first."""
        engine = self._engine()
        with self._waiting():
            events, cursor = await engine.events(
                execution_id, after=after, cursor=cursor, timeout_s=min(wait_s, MAX_WAIT_S)
            )
        if not events:  # a former owner would wait for ever
            await engine.confirm_ownership_at_times()
        ended = any(event.is_terminal for event in events) or not (events or engine.runs(execution_id))
        return {"events": [event.to_wire() for event in events], "cursor": cursor, "ended": ended}

    @from_the_owner
    async def approve(
        self,
        execution_id: str,
        approval_request_id: str,
        approved: bool = True,
        decided_by: str | None = None,
        reason: str | None = None,
        edited_arguments: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Answer one approval request; the same answer again is harmless and gives the decision in force."""
        decision = Decide(execution_id, approval_request_id, approved, decided_by, reason, edited_arguments)
        return (await self._engine().decide(decision)).to_wire()

    @from_the_owner
    async def resolve(
        self,
        execution_id: str,
        tool_call_id: str,
        outcome: str,
        result: Any = None,
        error: str = "",
        expected_revision: int | None = None,
        decided_by: str | None = None,
        expected_attempt: int | None = None,
    ) -> dict[str, Any]:
        """Say what became of a call whose outcome is unknown: ``succeeded``, ``failed`` or ``not_performed``."""
        word = Resolve(
            execution_id,
            tool_call_id,
            Resolution.of(outcome),
            result,
            "",
            error,
            expected_revision,
            decided_by,
            expected_attempt,
        )
        return (await self._engine().resolve(word)).to_wire()

    @from_the_owner
    async def cancel(self, execution_id: str, reason: str = "cancelled") -> dict[str, Any]:
        """Cancel: the intent is durable when this returns, the end follows when nothing of it runs any more."""
        return (await self._engine().cancel(execution_id, reason)).to_wire()

    @from_the_owner
    async def detach(
        self, execution_id: str, approval_request_id: str, detach_id: str = ""
    ) -> dict[str, Any]:
        """Let go of the agent, whose execution waits for this answer, and leave this process; see `DetachableAgent.detach`.

        Without a `detach_id` a repetition is not recognised once the execution has gone on.
        """
        engine = self._engine()
        wait = await engine.detach(execution_id, approval_request_id, detach_id or new_detach_id())
        if not engine.is_active:
            self._process.left(self)
        return wait.to_wire()

    async def transcript(self, after: int = 0, limit: int = 500) -> list[dict[str, Any]]:
        """Journal records behind position `after`, as JSON."""
        engine = self._engine()
        await engine.activate()
        records = await engine.store.run(
            engine.store.store.read_journal, self.agent_id, after=after, limit=limit
        )
        return [record_wire(record) for record in records]

    async def _confirm_wait(self, result: RunResult | None) -> None:
        """Of a former owner's executions some wait for ever: whoever is told that one waits is told so by the owner."""
        if result is not None and result.suspended:
            await self._engine().confirm_ownership()

    def _check_here(self) -> None:
        """Raise `AgentUnloadedError` when the agent has left this process: its memory is of the past."""
        if self.is_lost:
            raise AgentUnloadedError(
                f"agent {self.agent_id!r} does not live in this process any more",
                details={"agent_id": self.agent_id},
            )

    async def is_cancelled(self, execution_id: str) -> bool:
        """Whether tool bodies of this execution should stop (asked by the tasks that run them)."""
        return self._engine().is_cancelled(execution_id)


def record_wire(record: JournalRecord) -> dict[str, Any]:
    """A journal record as JSON."""
    return {
        "position": record.position,
        "kind": record.kind.value,
        "channel": record.channel.value,
        "occurred_at": record.occurred_at.isoformat(),
        "execution_id": record.execution_id,
        "model_call_id": record.model_call_id,
        "role": record.role,
        "content": record.content,
        "causation_id": record.causation_id,
        "metadata": record.metadata,
    }
