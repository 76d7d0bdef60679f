"""The single writer of one agent: ownership, and the one path that every change takes.

All changes go through `_apply`: one at a time, kernel step, commit, and only when that is durable the new state and its
effects. Work (model call, tool bodies, user code) runs beside it and comes back as kernel inputs. When a commit cannot
be made, or its effects cannot be begun, the engine stops with the error instead of going on from memory; the next caller
makes it read the store again under a new epoch. Only when another owner has taken the agent it stays stopped: taking it
back would stop the other one in turn.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from time import monotonic
from typing import Any

from phronomy_ray.approvals import RulesAsked, StandingRule
from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.engine.activation import OLDER_GROWTH, OLDER_RECORDS, read_older, take_over
from phronomy_ray.engine.deadlines import Deadlines
from phronomy_ray.engine.event_hub import EventHub, Signal
from phronomy_ray.engine.event_listener import EventListener
from phronomy_ray.engine.expiry import ExpiryAlarm
from phronomy_ray.engine.input_budget import InputBudget
from phronomy_ray.engine.kept_results import KeptResults
from phronomy_ray.engine.parts import EngineParts, EngineTiming
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.engine.tasks import EngineTasks
from phronomy_ray.engine.turn_clock import TurnClock
from phronomy_ray.engine.turn_tools import TurnTools
from phronomy_ray.engine.user_code import UserCode
from phronomy_ray.engine.work import EngineWork, WorkHooks
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnloadedError,
    ConfigurationError,
    ErrorRecord,
    NotFoundError,
    OwnershipLostError,
    PhronomyError,
    StateConflictError,
    StoreError,
)
from phronomy_ray.events import Event
from phronomy_ray.faults import FaultPoints
from phronomy_ray.frozen import replace
from phronomy_ray.journal import ExecutionRow, ExecutionStatus
from phronomy_ray.kernel.context import OlderRecordsNeeded
from phronomy_ray.kernel.effects import Effect, Publish, Settled, Step
from phronomy_ray.kernel.ending import DEADLINE, TURN_TIMEOUT
from phronomy_ray.kernel.inputs import (
    Cancel,
    Env,
    Expire,
    Input,
    Recover,
    ToolOutcomes,
    ToolsLate,
)
from phronomy_ray.kernel.machine import step
from phronomy_ray.kernel.state import AgentState, Execution, pending_approvals
from phronomy_ray.redaction import redact_error, redact_text
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.engine")
#: How often it is looked, for those who wait, whether this owner still is the owner, in seconds.
CONFIRM_EVERY_S = 1.0


class SingleWriter(WorkerInputRestricted):
    """Owner of one agent's state; `AgentEngine` adds what callers do with it."""

    def __init__(self, agent_id: str, definition: AgentDefinition, parts: EngineParts) -> None:
        policy = parts.options.tool_approval_policy
        if policy is not None:
            definition = replace(definition, tool_approval_policy=policy)
        self.agent_id = agent_id
        self.definition = definition
        self.hub = EventHub()
        #: Wakes who waits for an execution to end, to need a human or to begin: what happens in between is none of theirs.
        self.settled = Signal()
        self._timing = EngineTiming()
        self._parts = parts
        self._store = StoreClient(parts.store, retry_s=parts.store_retry_s)
        self._faults = FaultPoints(agent_id, parts.fault_directory)
        self._lock = asyncio.Lock()
        self._state: AgentState | None = None
        self._activating: asyncio.Task[None] | None = None
        self._halted: PhronomyError | None = None
        self._sealed = False
        self._confirm_after = 0.0
        self._tasks = EngineTasks(agent_id, self._halt_once)
        self._turn_tools = TurnTools(agent_id, definition, parts.registry)
        self._user_code = UserCode(
            agent_id,
            definition,
            self._turn_tools,
            parts.options,
            parts.defaults,
            is_cancelled=self.is_cancelled,
        )
        self._work = EngineWork(
            definition,
            parts.model,
            parts.tools,
            self._user_code,
            WorkHooks(
                faults=self._faults,
                publish=self._publish,
                feed=self._feed,
                spawn=self._tasks.spawn_guarded,
                execution=lambda: self._state.execution if self._state is not None else None,
                rules=self._rules,
                remaining_s=lambda id_: self._deadlines.remaining_s(id_),
            ),
            tool_settings=parts.tool_settings,
        )
        self._turn_clock = TurnClock(
            definition.turn_timeout_s,
            lambda id_: self._tasks.spawn_guarded(self._end_in_time(id_, TURN_TIMEOUT)),
        )
        self._deadlines = Deadlines(lambda id_: self._tasks.spawn_guarded(self._end_in_time(id_, DEADLINE)))
        self._alarm = ExpiryAlarm(parts.clock, lambda: self._tasks.spawn_guarded(self._expire()))
        self._listeners = self._listeners_of(definition, parts.options)
        self._results = KeptResults()
        self._budget = InputBudget(agent_id, definition, parts.model)

    def _listeners_of(self, definition: AgentDefinition, options: InstanceOptions) -> list[EventListener]:
        """The ``on_event`` functions of the class and of the instance."""
        given = ((definition.on_event, definition.on_event_live), (options.on_event, options.on_event_live))
        return [
            EventListener(
                self.agent_id,
                hook,
                live=live,
                timeout_s=definition.hook_timeout_s,
                stored_events=self.stored_events,
            )
            for hook, live in given
            if hook is not None
        ]

    async def stored_events(self, execution_id: str, after: int) -> list[Event]:
        """Durable events behind seq `after`, from the store."""
        rows = await self._store.run(self._store.store.events, execution_id, after=after)
        return [Event.from_row(row) for row in rows]

    # --- life --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> AgentState:
        """The committed state. Raises `ConfigurationError` before activation."""
        if self._state is None:
            raise ConfigurationError(f"agent {self.agent_id!r} is not active")
        return self._state

    @property
    def store(self) -> StoreClient:
        """The agent's store."""
        return self._store

    @property
    def is_active(self) -> bool:
        """Whether this engine owns the agent and serves it."""
        return self._state is not None and self._halted is None and not self._sealed

    async def confirm_ownership(self) -> None:
        """Look whether this engine still owns the agent, and stop if not. One that is not active owns nothing, and says nothing.

        Raises:
            OwnershipLostError: another owner has taken it, or it is not stored any more.
            AgentUnloadedError: it was unloaded from here.
        """
        if self.ownership_lost is not None:
            raise self.ownership_lost
        if self._sealed:
            raise AgentUnloadedError(f"agent {self.agent_id!r} was unloaded from this process")
        if self._state is None or self._halted is not None:
            return
        epoch = self._state.root.epoch
        try:
            found = (await self._store.run(self._store.store.load_root, self.agent_id)).epoch
        except NotFoundError:
            found = 0
        if not self.is_active or self._state.root.epoch != epoch:
            # it has stopped, or begun anew, meanwhile: that answer is about the past
            await self.confirm_ownership()
        elif found != epoch:
            error = OwnershipLostError(
                f"agent {self.agent_id!r} is owned by epoch {found}; this owner had {epoch}",
                details={"agent_id": self.agent_id, "epoch": found},
            )
            self._halt_once(error)
            raise error

    async def find_out(self) -> None:
        """Know what runs, as far as that can be known, before somebody asks to stop: a start that is under way is waited for, and
        after a failure the store is read again.

        Raises:
            OwnershipLostError, AgentUnloadedError: it is not the owner any more.
            StoreError: the store cannot be read to see that.
        """
        if self._activating is not None or self._halted is not None:
            try:
                await self.activate()
            except NotFoundError:
                return  # there is no such agent, so nothing runs
            except (AgentUnloadedError, StoreError):
                raise
            except PhronomyError:
                return  # it cannot be served here, so nothing runs
        await self.confirm_ownership()

    async def confirm_ownership_at_times(self) -> None:
        """The same for callers that wait, however many there are: looks once in `CONFIRM_EVERY_S`. Raises `OwnershipLostError`."""
        if monotonic() >= self._confirm_after:
            self._confirm_after = monotonic() + CONFIRM_EVERY_S
            await self.confirm_ownership()

    @property
    def ownership_lost(self) -> OwnershipLostError | None:
        """That another owner has taken the agent from this engine, if so."""
        return self._halted if isinstance(self._halted, OwnershipLostError) else None

    @property
    def is_over(self) -> bool:
        """Whether this engine serves nobody ever again: it was sealed, or another owner has taken the agent."""
        return self._sealed or self.ownership_lost is not None

    @property
    def waits_for_time(self) -> bool:
        """Whether something of a waiting agent happens by itself here: an expiry, a deadline, or the beginning of the next
        request.
        """
        state = self.state
        execution = state.execution
        if execution is None:
            return bool(state.queue)
        return _may_expire(execution) or self._deadlines.remaining_s(execution.row.execution_id) is not None

    async def activate(self) -> None:
        """Take ownership under a new epoch, read the state, recover; once, however many callers ask.

        Raises:
            NotFoundError: no such agent is stored.
            AgentParkedError: it is out of service.
            ConfigurationError: it is stored under another class or definition version, or its running execution was
                started with instance options that this engine has not.
            AgentUnloadedError: this engine was sealed.
            OwnershipLostError: another owner has taken the agent from this engine.
        """
        if isinstance(self._halted, OwnershipLostError):
            raise self._halted
        if self._sealed:
            raise AgentUnloadedError(
                f"agent {self.agent_id!r} was unloaded from this process; wake it and ask again"
            )
        if self._state is not None and self._halted is None:
            return
        if self._activating is None or self._activating.done():
            self._activating = self._tasks.spawn(self._activate())
        await asyncio.shield(self._activating)

    async def _activate(self) -> None:
        async with self._lock:
            if self._state is not None and self._halted is None:
                return
            if self._halted is not None:
                await self._work.stop()  # what an earlier incarnation of this engine left running
                self.hub.forget()  # the commit that it stopped with may have happened
            await self._faults.reach("before_claim")
            self._state = await take_over(
                self.agent_id,
                self._store,
                self.definition,
                self._parts.options,
                self._turn_tools,
                owner=self._parts.owner,
                now=self._parts.clock.now(),
                may_park=not isinstance(self._halted, StoreError),
            )
            self._halted = None
            try:
                await self._recover()
            except Exception as error:  # an execution that was found and not gone on with would never end
                self._halt_once(error)
                raise

    async def _recover(self) -> None:
        """Go on with the execution that was found; under the lock, so that nothing of an earlier activation comes between.

        Outcomes that this process still holds because their commit failed count first: what is known stays known.
        """
        kept = self._work.reset()
        before = self.state
        if kept and before.execution is not None:
            await self._step(ToolOutcomes(kept))
            self._parts.tools.acknowledge([outcome.key for outcome in kept])
        self._work.forget(kept)
        execution = self.state.execution
        if execution is not None and (self.state is before or any(call.is_live for call in execution.batch)):
            if execution.row.status is not ExecutionStatus.SUSPENDED or _may_expire(execution):
                await self._budget.try_to_learn()
            attached = await self._work.attach(execution, self.state.root.epoch)
            await self._step(Recover(attached, await self._wished_end(execution)))
        elif execution is not None and (reason := await self._wished_end(execution)) is not None:
            await self._step(Cancel(execution.row.execution_id, reason))
        self._count_deadlines()
        self._next_soon()

    def _count_deadlines(self) -> None:
        """Count what is left of the time of whoever asked for what was found; rows of an older release know only the whole."""
        execution = self.state.execution
        if execution is not None:
            left_s = self._left_s(execution.row.deadline_at)
            self._deadlines.arm(
                execution.row.execution_id, execution.progress.budget_s if left_s is None else left_s
            )
        for request in self.state.queue:
            self._deadlines.arm(request.execution_id, self._left_s(request.deadline_at))

    def _left_s(self, deadline_at: datetime | None) -> float | None:
        """Seconds until a stored deadline, by the clock; not positive when it is over, ``None`` without one."""
        return None if deadline_at is None else (deadline_at - self._parts.clock.now()).total_seconds()

    def _is_overdue(self, deadline_at: datetime | None) -> bool:
        left_s = self._left_s(deadline_at)
        return left_s is not None and left_s <= 0

    async def _wished_end(self, execution: Execution) -> str | None:
        """Why the execution is to end, by somebody's wish that no owner has taken up, or because its caller's time is over."""
        row = execution.row
        if row.cancel_requested_at is not None:
            return None
        wish = await self._store.run(self._store.store.find_cancellation, row.execution_id)
        if wish is None and self._is_overdue(row.deadline_at):
            wish = await self._wish_end(row.execution_id, DEADLINE)
        return wish.reason if wish is not None else None

    async def _wish_end(self, execution_id: str, reason: str) -> CancellationIntent | None:
        """Store the wish that it ends, before anything of it is told to stop; the one in force, ``None`` when it has ended or its
        id is another execution's.
        """
        wish = CancellationIntent(execution_id, self.agent_id, reason, self._parts.clock.now())
        try:
            return await self._store.run(self._store.store.request_cancellation, wish)
        except NotFoundError:
            return None

    async def seal(self, *, leave_queue: bool = False) -> None:
        """Stop for good so that the process can go; everything stays stored.

        Args:
            leave_queue: leave requests that wait to the next owner.

        Raises:
            AgentBusyError: work is running, or a request is about to begin.
        """
        async with self._lock:  # an admission that is being committed comes first
            if self._sealed:
                return
            state = self._state if self._halted is None else None
            execution = state.execution if state is not None else None
            if execution is not None and execution.row.status is not ExecutionStatus.SUSPENDED:
                raise AgentBusyError(
                    f"agent {self.agent_id!r} cannot be unloaded: execution {execution.row.execution_id} is "
                    f"{execution.row.status.value} ({execution.row.phase.value})",
                    details={"execution_id": execution.row.execution_id},
                )
            if execution is None and state is not None and state.queue and not leave_queue:
                raise AgentBusyError(
                    f"agent {self.agent_id!r} cannot be unloaded: the queued request "
                    f"{state.queue[0].execution_id} is about to begin",
                    details={"execution_id": state.queue[0].execution_id},
                )
            self._close_down()
        await self._hear_out()

    def abandon(self) -> None:
        """Release everything at once, also what runs: another owner has taken the agent."""
        if not self._sealed:
            self._close_down()

    def _close_down(self) -> None:
        """Serve nobody any more."""
        self._sealed = True
        self._alarm.cancel()
        self._deadlines.clear()
        self._work.close()
        for listener in self._listeners:
            listener.close()
        self.hub.wake()
        self.settled.wake()
        self._store.close()
        self._parts.tools.close()

    async def _hear_out(self) -> None:
        """After the end, outside the lock: let ``on_event`` hear what has happened, within its bound."""
        for listener in self._listeners:
            await listener.closed()

    def _publish(self, event: Event) -> None:
        self.hub.publish(event)
        for listener in self._listeners:
            listener.publish(event)

    def is_cancelled(self, execution_id: str) -> bool:
        """Whether work of this execution should stop."""
        running = self._state.execution if self._state is not None else None
        return (
            running is None or running.row.execution_id != execution_id or self._work.stopping == execution_id
        )

    # --- the single writer -------------------------------------------------------------------------------------

    async def _apply(self, event: Input) -> None:
        await asyncio.shield(self._tasks.spawn(self._apply_locked(event)))

    async def _apply_locked(self, event: Input) -> None:
        """Decide and commit. The end of an execution waits for bodies that still run although their calls timed out,
        within the quiescence time; what is decided then is decided anew.
        """
        quiet = False
        while True:
            async with self._lock:
                self._check_serving()
                decided = await self._decide(event)
                before = self.state
                ended = _ended_by(decided)
                if ended is None or quiet or not self._work.has_stragglers(ended.execution_id):
                    await self._carry_out(before, decided)
                    return
                # a cancellation that has stopped work has waited for it already
                asked = before.execution is not None and before.execution.row.cancel_requested_at is not None
                waited = ended.status is ExecutionStatus.CANCELLED and asked
            limit_s = 0.0 if waited else self.definition.quiescence_timeout_s
            abandoned = await self._work.quiesce(ended.execution_id, limit_s)
            quiet = True
            if abandoned:
                await self._apply_locked(ToolsLate(abandoned))

    def _check_serving(self) -> None:
        """Raise why this engine serves nobody (any more), if so."""
        if self._halted is not None:
            raise self._halted
        if self._sealed:
            raise AgentUnloadedError(f"agent {self.agent_id!r} was unloaded from this process")

    async def _step(self, event: Input) -> None:
        decided = await self._decide(event)
        await self._carry_out(self.state, decided)

    async def _decide(self, event: Input) -> Step:
        """What is to be done, under the lock; as much of the history is read as the decision needs."""
        env = Env(
            self.definition,
            self._parts.clock.now(),
            self._budget.tokens,
            self._parts.owner,
            builds_input=self._user_code.builds_input,
            filters_output=self._user_code.filters_output,
        )
        page = OLDER_RECORDS
        while True:
            try:
                return step(self.state, event, env)
            except OlderRecordsNeeded:
                older = await read_older(self.agent_id, self._store, self.state.conversation, page=page)
                page *= OLDER_GROWTH
                self._state = replace(self.state, conversation=older)

    async def _carry_out(self, before: AgentState, decided: Step) -> None:
        if decided.commit is not None:
            try:
                await self._faults.reach(f"before_commit:{decided.commit.step}")
                begun = monotonic()
                await self._store.commit(decided.commit)
                self._timing.commit_s += monotonic() - begun
                self._timing.commits += 1
            except Exception as error:
                refused = isinstance(error, AgentBusyError | StateConflictError)
                admits = decided.commit.new_execution is not None or bool(decided.commit.new_requests)
                if not (refused and admits):
                    self._halt(error)
                raise  # a refused admission has changed nothing, and its caller is told
        try:
            if decided.commit is not None:
                self._state = decided.state
                ended = _ended_by(decided)
                if ended is not None:
                    self._results.keep(ended, before, decided.state, decided.commit.journal)
                await self._faults.reach(f"after_commit:{decided.commit.step}")
            for effect in decided.effects:
                await self._perform(effect)
        except Exception as error:  # an effect that was committed and not begun would never end
            self._halt(error)
            raise
        self._alarm.arm(self.state.execution)
        self._turn_clock.follow(self.state.execution)
        self.hub.wake()
        if not _is_under_way(before, self.state):
            self.settled.wake()
        self._next_soon()

    def _next_soon(self) -> None:
        """A change is durable, or the agent was taken over: begin what waits for it."""

    async def _expire(self) -> None:
        """The alarm: whether anything has expired is the kernel's to say."""
        if self._halted is None and not self._sealed:
            await self._budget.try_to_learn()
            await self._feed(Expire())

    async def _end_in_time(self, execution_id: str, reason: str) -> None:
        """The turn's time, or its caller's, is over."""
        if self._halted is not None or self._sealed or not self.runs(execution_id):
            self._deadlines.forget(execution_id)
            return
        wish = await self._wish_end(execution_id, reason)
        running = self._state.execution if self._state is not None else None
        if running is not None and running.row.execution_id == execution_id:
            self._work.stopping = execution_id  # seen by a dispatch that has not happened yet
        try:
            await self._apply(Cancel(execution_id, wish.reason if wish is not None else reason))
        except (StateConflictError, AgentUnloadedError):
            pass  # it ended meanwhile, or ends with its next owner

    def runs(self, execution_id: str) -> bool:
        """Whether it is the non-terminal execution of this engine, or a request that waits, as committed."""
        if self._state is None:
            return False
        running = self._state.execution
        if running is not None and running.row.execution_id == execution_id:
            return True
        return any(item.execution_id == execution_id for item in self._state.queue)

    async def _rules(self) -> tuple[StandingRule, ...]:
        asked = RulesAsked(self.agent_id, self.definition.definition_id, self._parts.clock.now())
        return tuple(await self._store.rules_in_force(asked))

    def _halt_once(self, error: Exception) -> None:
        if self._halted is None:
            self._halt(error)

    def _halt(self, error: Exception) -> None:
        """Stop with `error`: the state in memory may differ from the store, so nothing is done from it any more."""
        self._halted = (
            error if isinstance(error, PhronomyError) else ConfigurationError(f"internal fault: {error!r}")
        )
        if self._halted is not error:
            self._halted.__cause__ = error
        reason = redact_text(str(self._halted))
        _LOG.warning("agent %s stopped: %s (%s)", self.agent_id, reason, self._halted.code)
        self._work.abandon()
        self._turn_clock.stop()
        self._alarm.cancel()
        self.hub.wake()
        self.settled.wake()
        if isinstance(error, OwnershipLostError):
            try:
                self._parts.on_ownership_lost()
            except Exception:  # noqa: BLE001 - a listener may raise anything; whoever waits must still be told
                _LOG.exception("agent %s: the listener for lost ownership failed", self.agent_id)

    def _error_payload(self) -> dict[str, Any]:
        error = self._halted or PhronomyError("stopped")
        return {"error": redact_error(ErrorRecord.from_exception(error)).to_wire()}

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Publish():
                for row in effect.events:
                    self._publish(Event.from_row(row))
            case Settled():
                self._work.stopping = None
                self._deadlines.forget(effect.row.execution_id)
            case _:
                await self._work.perform(effect)

    async def _feed(self, event: Input) -> bool:
        """Apply an input that no caller waits for; whether it was. A failure has stopped the engine and told its waiters.

        Called in tasks of this engine, which nobody cancels: unlike `_apply` it needs none of its own.
        """
        try:
            await self._apply_locked(event)
        except PhronomyError as error:
            self._halt_once(error)
            return False
        return True


def _is_under_way(before: AgentState, after: AgentState) -> bool:
    """Whether the same execution works on, and no request has come or gone."""
    old, new = before.execution, after.execution
    return (
        old is not None
        and new is not None
        and old.row.execution_id == new.row.execution_id
        and new.row.status is not ExecutionStatus.SUSPENDED
        and before.queue is after.queue
    )


def _may_expire(execution: Execution) -> bool:
    return any(item.expires_at is not None for item in pending_approvals(execution))


def _ended_by(decided: Step) -> ExecutionRow | None:
    return next((item.row for item in decided.effects if isinstance(item, Settled)), None)
