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
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from phronomy_ray.approvals import StandingRule
from phronomy_ray.assembly.sources import SourceReference
from phronomy_ray.clock import Clock, SystemClock
from phronomy_ray.definition.agent import AgentDefinition
from phronomy_ray.definition.options import InstanceOptions, RuntimeDefaults
from phronomy_ray.engine.event_hub import EventHub
from phronomy_ray.engine.expiry import ExpiryAlarm
from phronomy_ray.engine.reading import check_definition, check_options, messages_of
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.engine.turn_clock import TurnClock
from phronomy_ray.engine.turn_tools import TurnTools
from phronomy_ray.engine.user_code import UserCode
from phronomy_ray.engine.work import EngineWork, WorkHooks
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnloadedError,
    ConfigurationError,
    ErrorRecord,
    ModelError,
    OwnershipLostError,
    PhronomyError,
    StateConflictError,
    safe_message,
)
from phronomy_ray.events import Event
from phronomy_ray.faults import FaultPoints
from phronomy_ray.journal import ExecutionRow, ExecutionStatus, JournalRecord
from phronomy_ray.kernel.context import Conversation
from phronomy_ray.kernel.effects import Effect, Publish, Settled, Step
from phronomy_ray.kernel.ending import TURN_TIMEOUT
from phronomy_ray.kernel.inputs import Cancel, Env, Expire, Input, Recover, ToolOutcomes, ToolsLate
from phronomy_ray.kernel.machine import step
from phronomy_ray.kernel.progress import binding_of
from phronomy_ray.kernel.state import AgentState, Execution, contents_of, pending_approvals
from phronomy_ray.messages import Message
from phronomy_ray.models.port import ModelPort
from phronomy_ray.redaction import redact_text
from phronomy_ray.results import ResultParts, RunResult, result_of
from phronomy_ray.store.port import Store
from phronomy_ray.tool_calls import ToolSettings
from phronomy_ray.tools.envelope import redacted
from phronomy_ray.tools.executor import ToolExecutor
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.engine")
#: Results of ended executions that are kept in memory.
KEPT_RESULTS = 32
#: Records that are read at once.
JOURNAL_PAGE = 2_000


@dataclass
class EngineParts:
    """What an engine is wired to."""

    store: Store
    model: ModelPort
    tools: ToolExecutor
    clock: Clock = field(default_factory=SystemClock)
    #: Who the owner is, for people: node, pid.
    owner: dict[str, Any] = field(default_factory=dict)
    #: Called once when another owner has taken the agent.
    on_ownership_lost: Callable[[], None] = lambda: None
    fault_directory: str | None = None
    #: The runtime's tool registries, for definitions that name none themselves (`assembly.sources`); empty for none.
    registry: SourceReference = ""
    #: How long an unreachable store is tried again, in seconds.
    store_retry_s: float = 10.0
    #: What is set for this agent beside its definition.
    options: InstanceOptions = field(default_factory=InstanceOptions)
    #: What the runtime sets for all its agents.
    defaults: RuntimeDefaults = field(default_factory=RuntimeDefaults)


@dataclass
class EngineTiming:
    """What this process has spent on the agent's commits."""

    #: Waiting for commits, in seconds.
    commit_s: float = 0.0
    commits: int = 0


class SingleWriter(WorkerInputRestricted):
    """Owner of one agent's state; `AgentEngine` adds what callers do with it."""

    def __init__(self, agent_id: str, definition: AgentDefinition, parts: EngineParts) -> None:
        policy = parts.options.tool_approval_policy
        if policy is not None:
            definition = replace(definition, tool_approval_policy=policy)
        self.agent_id = agent_id
        self.definition = definition
        self.hub = EventHub()
        self._timing = EngineTiming()
        self._parts = parts
        self._store = StoreClient(parts.store, retry_s=parts.store_retry_s)
        self._faults = FaultPoints(agent_id, parts.fault_directory)
        self._lock = asyncio.Lock()
        self._state: AgentState | None = None
        self._activating: asyncio.Task[None] | None = None
        self._halted: PhronomyError | None = None
        self._sealed = False
        self._tasks: set[asyncio.Task[Any]] = set()
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
                publish=self.hub.publish,
                feed=self._feed,
                spawn=self._spawn_guarded,
                execution=lambda: self._state.execution if self._state is not None else None,
                rules=self._rules,
            ),
            tool_settings=_tool_settings(parts),
        )
        self._turn_clock = TurnClock(
            definition.turn_timeout_s, lambda id_: self._spawn(self._guard(self._end_turn(id_)))
        )
        self._alarm = ExpiryAlarm(parts.clock, lambda: self._spawn(self._guard(self._expire())))
        self._results: OrderedDict[str, RunResult] = OrderedDict()
        self._budget: int | None = None
        self._budget_known = False

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

    async def activate(self) -> None:
        """Take ownership under a new epoch, read the state, recover; once, however many callers ask.

        Raises:
            NotFoundError: no such agent is stored.
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
            self._activating = self._spawn(self._activate())
        await asyncio.shield(self._activating)

    async def _activate(self) -> None:
        async with self._lock:
            if self._state is not None and self._halted is None:
                return
            if self._halted is not None:
                await self._work.stop()  # what an earlier incarnation of this engine left running
                self.hub.forget()  # the commit that it stopped with may have happened
            await self._faults.reach("before_claim")
            store = self._store.store
            root = await self._store.run(store.load_root, self.agent_id)
            check_definition(self.definition, root.definition_id, root.definition_version, self.agent_id)
            hydration = await self._store.run(
                store.claim, self.agent_id, owner=self._parts.owner, now=self._parts.clock.now()
            )
            if hydration.execution is not None:
                check_options(self._parts.options, hydration.execution.state, self.agent_id)
            conversation = Conversation().apply(await self._read_journal())
            contents = {
                digest: await self._store.run(store.read_content, digest) for digest in contents_of(hydration)
            }
            tools = None
            if hydration.execution is not None:
                tools = await self._turn_tools.rebind(
                    binding_of(hydration.execution.state),
                    lambda digest: self._store.run(store.read_content, digest),
                )
            self._state = AgentState.hydrate(hydration, conversation, contents, tools)
            self._halted = None
            try:
                await self._recover()
            except Exception as error:  # an execution that was found and not gone on with would never end
                if self._halted is None:
                    self._halt(error)
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
                await self._know_input_budget()
            await self._step(Recover(await self._work.attach(execution, self.state.root.epoch)))

    async def _read_journal(self) -> list[JournalRecord]:
        records: list[JournalRecord] = []
        after = 0
        while True:
            page = await self._store.run(
                self._store.store.read_journal, self.agent_id, after=after, limit=JOURNAL_PAGE
            )
            records.extend(page)
            if len(page) < JOURNAL_PAGE:
                return records
            after = page[-1].position

    async def seal(self) -> None:
        """Stop for good so that the process can go; everything stays stored.

        Raises:
            AgentBusyError: work is running.
        """
        async with self._lock:  # an admission that is being committed comes first
            if self._sealed:
                return
            execution = self._state.execution if self._state is not None and self._halted is None else None
            if execution is not None and execution.row.status is not ExecutionStatus.SUSPENDED:
                raise AgentBusyError(
                    f"agent {self.agent_id!r} cannot be unloaded: execution {execution.row.execution_id} is "
                    f"{execution.row.status.value} ({execution.row.phase.value})",
                    details={"execution_id": execution.row.execution_id},
                )
            self._sealed = True
            self._alarm.cancel()
            self._work.close()
            self.hub.wake()
            self._store.close()
            self._parts.tools.close()

    def is_cancelled(self, execution_id: str) -> bool:
        """Whether work of this execution should stop."""
        running = self._state.execution if self._state is not None else None
        return (
            running is None or running.row.execution_id != execution_id or self._work.stopping == execution_id
        )

    # --- the single writer -------------------------------------------------------------------------------------

    async def _apply(self, event: Input) -> None:
        await asyncio.shield(self._spawn(self._apply_locked(event)))

    async def _apply_locked(self, event: Input) -> None:
        """Decide and commit. The end of an execution waits for bodies that still run although their calls timed out,
        within the quiescence time; what is decided then is decided anew.
        """
        quiet = False
        while True:
            async with self._lock:
                if self._halted is not None:
                    raise self._halted
                if self._sealed:
                    raise AgentUnloadedError(f"agent {self.agent_id!r} was unloaded from this process")
                before = self.state
                decided = self._decide(event)
                ended = next((item.row for item in decided.effects if isinstance(item, Settled)), None)
                if ended is None or quiet or not self._work.has_stragglers(ended.execution_id):
                    await self._carry_out(before, decided)
                    return
                # a cancellation has waited already
                waited = ended.status is ExecutionStatus.CANCELLED
            limit_s = 0.0 if waited else self.definition.quiescence_timeout_s
            abandoned = await self._work.quiesce(ended.execution_id, limit_s)
            quiet = True
            if abandoned:
                await self._apply_locked(ToolsLate(abandoned))

    async def _step(self, event: Input) -> None:
        await self._carry_out(self.state, self._decide(event))

    def _decide(self, event: Input) -> Step:
        env = Env(
            self.definition,
            self._parts.clock.now(),
            self._budget,
            self._parts.owner,
            builds_input=self._user_code.builds_input,
            filters_output=self._user_code.filters_output,
        )
        return step(self.state, event, env)

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
                if not (refused and decided.commit.new_execution is not None):
                    self._halt(error)
                raise  # a refused admission has changed nothing, and its caller is told
        try:
            if decided.commit is not None:
                self._state = decided.state
                self._keep_result(before, decided.state, decided.commit.journal, decided.effects)
                await self._faults.reach(f"after_commit:{decided.commit.step}")
            for effect in decided.effects:
                await self._perform(effect)
        except Exception as error:  # an effect that was committed and not begun would never end
            self._halt(error)
            raise
        self._alarm.arm(self.state.execution)
        self._turn_clock.follow(self.state.execution)
        self.hub.wake()

    async def _expire(self) -> None:
        """The alarm: whether anything has expired is the kernel's to say."""
        if self._halted is None and not self._sealed:
            await self._know_input_budget()
            await self._feed(Expire())

    async def _end_turn(self, execution_id: str) -> None:
        """The turn's time is over."""
        running = self._state.execution if self._state is not None else None
        if self._halted is not None or running is None or running.row.execution_id != execution_id:
            return
        self._work.stopping = execution_id  # seen by a dispatch that has not happened yet
        try:
            await self._apply(Cancel(execution_id, TURN_TIMEOUT))
        except StateConflictError:
            pass  # it ended meanwhile

    async def _rules(self) -> tuple[StandingRule, ...]:
        found = await self._store.run(
            self._store.store.rules_in_force,
            agent_id=self.agent_id,
            definition_id=self.definition.definition_id,
            now=self._parts.clock.now(),
        )
        return tuple(found)

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
        if isinstance(error, OwnershipLostError):
            try:
                self._parts.on_ownership_lost()
            except Exception:  # noqa: BLE001 - a listener may raise anything; whoever waits must still be told
                _LOG.exception("agent %s: the listener for lost ownership failed", self.agent_id)

    def _error_payload(self) -> dict[str, Any]:
        error = self._halted or PhronomyError("stopped")
        return {"error": redacted(ErrorRecord.from_exception(error)).to_wire()}

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Publish():
                for row in effect.events:
                    self.hub.publish(Event.from_row(row))
            case Settled():
                self._work.stopping = None
            case _:
                await self._work.perform(effect)

    async def _feed(self, event: Input) -> bool:
        """Apply an input that no caller waits for; whether it was. A failure has stopped the engine and told its waiters."""
        try:
            await self._apply(event)
        except PhronomyError as error:
            if self._halted is None:
                self._halt(error)
            return False
        return True

    def _spawn_guarded(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._spawn(self._guard(work))
        task.add_done_callback(
            lambda _: work.close()
        )  # cancelled before its first step, nobody has awaited it
        return task

    async def _guard(self, work: Coroutine[Any, Any, Any]) -> None:
        """Work that ends without an input for the kernel would never be missed: whatever it raises stops the engine."""
        try:
            await work
        except Exception as error:
            if self._halted is None:
                self._halt(error)
            if not isinstance(error, PhronomyError):
                raise

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, PhronomyError):
            _LOG.error("agent %s: internal fault", self.agent_id, exc_info=error)
            if self._halted is None:
                self._halt(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    # --- results -----------------------------------------------------------------------------------------------

    async def _know_input_budget(self) -> None:
        """Before anything that can lead to a model call; a limit that cannot be learned now is asked for again."""
        try:
            await self._input_budget()
        except ModelError as error:
            _LOG.warning(
                "agent %s: the model's limits are not known: %s", self.agent_id, redact_text(str(error))
            )

    async def _input_budget(self) -> None:
        """Learn how much the model takes. Raises `ModelError` when nobody can say."""
        if self._budget_known:
            return
        definition = self.definition
        window = definition.context_window
        if window is None:
            by_name = isinstance(definition.model, str)
            port = self._parts.model if by_name else definition.model
            name = definition.model if by_name else type(definition.model).__name__
            window = await _window_of(port, name) if hasattr(port, "info") else None
        if window is not None:
            self._budget = max(1, window - (definition.max_output_tokens or 0))
        self._budget_known = True

    def _revisions(self) -> dict[str, int]:
        root = self.state.root
        return {
            "agent_revision": root.agent_revision,
            "context_revision": root.context_revision,
            "journal_position": root.journal_position,
        }

    def _keep_result(
        self,
        before: AgentState,
        after: AgentState,
        journal: tuple[JournalRecord, ...],
        effects: tuple[Effect, ...],
    ) -> None:
        row: ExecutionRow | None = next((item.row for item in effects if isinstance(item, Settled)), None)
        if row is None:
            return
        earlier = [message for _, message in before.conversation.current]
        messages = (*earlier, *messages_of(journal))
        parts = ResultParts(
            messages=tuple(Message.from_wire(item) for item in messages), revisions=self._revisions()
        )
        self._results[row.execution_id] = result_of(row, parts)
        while len(self._results) > KEPT_RESULTS:
            self._results.popitem(last=False)


def _may_expire(execution: Execution) -> bool:
    return any(item.expires_at is not None for item in pending_approvals(execution))


def _tool_settings(parts: EngineParts) -> ToolSettings | None:
    filters, limit = tuple(parts.options.result_filters), parts.defaults.max_result_chars
    return ToolSettings(limit, filters) if filters or limit is not None else None


async def _window_of(port: Any, name: Any) -> int | None:
    """Tokens that the model takes, ``None`` when the port does not know. Raises `ModelError`, whatever the port raises."""
    try:
        info = await port.info(name)
        return None if info is None else info.max_input_tokens
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model port cannot say what the model takes: {type(error).__name__}: {safe_message(error)}"
        ) from error
