"""The engine: the single writer of one agent.

All changes go through `_apply`: one at a time, kernel step, commit, and only when that is durable the new state and its
effects. Work (model call, tool bodies, user code) runs beside it and comes back as kernel inputs. When a commit cannot
be made, the engine stops with the error instead of going on from memory; the next caller makes it read the store again
under a new epoch.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from phronomy_ray.canonical_json import content_hash, dumps, to_json_value
from phronomy_ray.clock import Clock, SystemClock
from phronomy_ray.definition.agent import AgentDefinition
from phronomy_ray.engine.event_hub import EventHub
from phronomy_ray.engine.model_runner import run_model_call
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import (
    AgentBusyError,
    AgentUnloadedError,
    ConfigurationError,
    ErrorRecord,
    InvalidInputError,
    NotFoundError,
    OwnershipLostError,
    PhronomyError,
    StateConflictError,
)
from phronomy_ray.events import Event, EventType
from phronomy_ray.faults import FaultPoints
from phronomy_ray.ids import check_id
from phronomy_ray.journal import ExecutionRow, ExecutionStatus, JournalRecord, RecordKind
from phronomy_ray.kernel.context import Conversation, sendable
from phronomy_ray.kernel.machine import message_of_input, step
from phronomy_ray.kernel.state import (
    AgentState,
    CallModel,
    Cancel,
    Decide,
    DispatchTools,
    Effect,
    Env,
    Input,
    ModelStopped,
    PreparationDone,
    PreparationFailed,
    Prepare,
    Prepared,
    Publish,
    Recover,
    Resolve,
    Settled,
    Start,
    StopWork,
    ToolOutcomes,
)
from phronomy_ray.messages import Message
from phronomy_ray.models.port import ModelPort
from phronomy_ray.results import ResultParts, RunResult, result_of
from phronomy_ray.store.port import Store
from phronomy_ray.tool_calls import ToolOutcome, ToolStarted
from phronomy_ray.tool_results import encode_result
from phronomy_ray.tools.envelope import not_performed, redacted
from phronomy_ray.tools.executor import ToolExecutor

_LOG = logging.getLogger("phronomy_ray.engine")
#: Tool outcomes that arrive within this time share a commit, in seconds.
GROUP_COMMIT_S = 0.004
KEPT_RESULTS = 32
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
    #: How long an unreachable store is tried again, in seconds.
    store_retry_s: float = 10.0


class AgentEngine:
    """One live agent."""

    def __init__(self, agent_id: str, definition: AgentDefinition, parts: EngineParts) -> None:
        self.agent_id = agent_id
        self.definition = definition
        self.hub = EventHub()
        self._parts = parts
        self._store = StoreClient(parts.store, retry_s=parts.store_retry_s)
        self._faults = FaultPoints(agent_id, parts.fault_directory)
        self._lock = asyncio.Lock()
        self._state: AgentState | None = None
        self._activating: asyncio.Task[None] | None = None
        self._halted: PhronomyError | None = None
        self._sealed = False
        self._stopping: str | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._model_task: asyncio.Task[Any] | None = None
        self._outcomes: list[ToolOutcome] = []
        self._flush: asyncio.TimerHandle | None = None
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
            ConfigurationError: it is stored under another class or definition version.
            AgentUnloadedError: this engine was sealed.
        """
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
            await self._faults.reach("before_claim")
            store = self._store.store
            root = await self._store.run(store.load_root, self.agent_id)
            check_definition(self.definition, root.definition_id, root.definition_version, self.agent_id)
            hydration = await self._store.run(
                store.claim, self.agent_id, owner=self._parts.owner, now=self._parts.clock.now()
            )
            conversation = Conversation().apply(await self._read_journal())
            instructions = ""
            if hydration.execution is not None:
                digest = hydration.execution.state.get("instructions")
                if digest:
                    instructions = await self._store.run(store.read_content, digest)
            self._state = AgentState.hydrate(hydration, conversation, instructions)
            self._halted = None
            self._stopping = None
            self._outcomes.clear()
        if self._state.execution is not None:
            await self._input_budget()
            await self._apply(Recover())

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
        self.hub.wake()
        async with self._lock:
            self._store.close()
            self._parts.tools.close()

    # --- operations --------------------------------------------------------------------------------------------

    async def start(
        self, execution_id: str, input: Any, *, durable_context: Any = None, stream: bool = False
    ) -> RunResult:
        """Admit an execution and return at once; the same id and input again gives the same execution.

        Raises:
            AgentBusyError: another execution is non-terminal.
            StateConflictError: the id is stored with another input or for another agent.
            InvalidInputError: input or context is not what it must be; nothing was admitted.
        """
        check_id(execution_id, "execution_id")
        value = to_json_value(input)
        text = message_of_input(value)
        if durable_context is not None and not isinstance(durable_context, dict):
            raise InvalidInputError(
                f"durable_context must be a mapping, not {type(durable_context).__name__}"
            )
        context: Any = to_json_value(durable_context)
        digest = content_hash(dumps({"input": value, "durable_context": context}))
        await self.activate()
        await self._input_budget()
        prepared = None
        if isinstance(self.definition.instructions, str):
            prepared = Prepared(self.definition.instructions, text)
        event = Start(execution_id, value, digest, context, stream, prepared)
        try:
            await self._apply(event)
        except (AgentBusyError, StateConflictError):
            row = await self._store.run(self._store.store.find_execution, execution_id)
            if row is None:
                raise
            if row.agent_id != self.agent_id or row.input_hash != digest:
                raise StateConflictError(
                    f"execution {execution_id} exists with another "
                    f"{'agent' if row.agent_id != self.agent_id else 'input or durable context'}",
                    details={"execution_id": execution_id, "agent_id": row.agent_id},
                ) from None
        return await self.view(execution_id)

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
            changed = self.hub.changed
            if self._halted is not None:
                raise self._halted
            if self._sealed:
                raise AgentUnloadedError(f"agent {self.agent_id!r} was unloaded from this process")
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
                await asyncio.wait_for(changed.wait(), remaining)
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
                    self._revisions(),
                ),
            )
        result = self._results.get(execution_id) or await read_result(self._store, execution_id)
        if result.agent_id != self.agent_id:
            raise NotFoundError(f"execution {execution_id} belongs to agent {result.agent_id!r}")
        return result

    async def decide(self, event: Decide) -> RunResult:
        """Answer an approval request; repeating the same answer is harmless.

        Raises:
            StateConflictError: it was answered otherwise, or its execution is not the running one.
            NotFoundError: no such request.
        """
        await self.activate()
        try:
            await self._apply(event)
        except StateConflictError:
            if not await self._decided_before(event):
                raise
        return await self.view(event.execution_id)

    async def _decided_before(self, event: Decide) -> bool:
        approvals = await self._store.run(self._store.store.approvals, execution_id=event.execution_id)
        wanted = "approved" if event.approved else "rejected"
        return any(
            item.approval_request_id == event.approval_request_id and item.status.value == wanted
            for item in approvals
        )

    async def resolve(self, event: Resolve) -> RunResult:
        """Say what became of an unknown call. Raises as `kernel.tools_step.resolve`."""
        await self.activate()
        if event.outcome == "succeeded":
            encoded = encode_result(event.result)
            event = Resolve(
                event.execution_id,
                event.tool_call_id,
                event.outcome,
                encoded.json,
                encoded.text,
                event.error,
                event.expected_revision,
                event.decided_by,
            )
        await self._apply(event)
        return await self.view(event.execution_id)

    async def cancel(self, execution_id: str, reason: str) -> RunResult:
        """Cancel: the intent is durable when this returns. A terminal execution stays as it is.

        Raises:
            NotFoundError: no such execution.
        """
        await self.activate()
        running = self.state.execution
        if running is None or running.row.execution_id != execution_id:
            return await self.view(execution_id)
        self._stopping = execution_id  # seen by a dispatch that has not happened yet
        await self._apply(Cancel(execution_id, reason))
        return await self.view(execution_id)

    async def events(
        self, execution_id: str, *, after: int, cursor: str | None, timeout_s: float
    ) -> tuple[list[Event], str]:
        """Events behind `cursor` or, without a valid one, behind the durable seq `after`; waits for at least one.

        Returns the events (none after `timeout_s`) and the cursor to come back with. A terminal event is the last.
        """
        await self.activate()
        position = self._position(cursor)
        if position is None:
            position = self.hub.position_after_seq(execution_id, after)
        if position is None:
            rows = await self._store.run(self._store.store.events, execution_id, after=after)
            if rows:
                found = [Event.from_row(row) for row in rows]
                known = self.hub.position_after_seq(execution_id, found[-1].seq)
                return found, self._cursor(known if known is not None else 0)
            position = 0
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            changed = self.hub.changed
            events, position = self.hub.read(execution_id, position)
            fresh = [event for event in events if not event.durable or event.seq > after]
            if fresh:
                return fresh, self._cursor(position)
            if self._halted is not None:
                error = Event(execution_id, after, EventType.ERROR, self._error_payload(), False)
                return [error], self._cursor(position)
            if self._sealed:
                raise AgentUnloadedError(f"agent {self.agent_id!r} was unloaded from this process")
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                return [], self._cursor(position)
            try:
                await asyncio.wait_for(changed.wait(), remaining)
            except TimeoutError:
                return [], self._cursor(position)

    def _cursor(self, position: int) -> str:
        return f"{self.state.root.epoch}:{position}"

    def _position(self, cursor: str | None) -> int | None:
        epoch, _, position = (cursor or "").partition(":")
        return int(position) if epoch == str(self.state.root.epoch) and position.isdigit() else None

    def status(self) -> dict[str, Any]:
        """What this agent is doing, from memory: plain JSON."""
        state = self._state
        running = state.execution if state is not None else None
        return {
            "agent_id": self.agent_id,
            "definition_id": self.definition.definition_id,
            "definition_version": self.definition.definition_version,
            "store": self._store.store.identity,
            "epoch": state.root.epoch if state else None,
            "lifecycle": "recovery_required"
            if self._halted is not None
            else (state.root.lifecycle.value if state else "loading"),
            "agent_revision": state.root.agent_revision if state else None,
            "journal_position": state.root.journal_position if state else None,
            "execution_id": running.row.execution_id if running else None,
            "execution_status": running.row.status.value if running else None,
            "phase": running.row.phase.value if running else None,
            "error": self._error_payload()["error"] if self._halted is not None else None,
            **self._parts.owner,
        }

    def is_cancelled(self, execution_id: str) -> bool:
        """Whether bodies of this execution should stop."""
        running = self._state.execution if self._state is not None else None
        return running is None or running.row.execution_id != execution_id or self._stopping == execution_id

    # --- the single writer -------------------------------------------------------------------------------------

    async def _apply(self, event: Input) -> None:
        await asyncio.shield(self._spawn(self._apply_locked(event)))

    async def _apply_locked(self, event: Input) -> None:
        async with self._lock:
            if self._halted is not None:
                raise self._halted
            before = self.state
            env = Env(self.definition, self._parts.clock.now(), self._budget, self._parts.owner)
            decided = step(before, event, env)
            if decided.commit is not None:
                try:
                    await self._faults.reach(f"before_commit:{decided.commit.step}")
                    await self._store.commit(decided.commit)
                except (AgentBusyError, StateConflictError):
                    raise  # the store refused an admission: nothing changed, and the caller is told
                except Exception as error:
                    self._halt(error)
                    raise
                self._state = decided.state
                self._keep_result(before, decided.state, decided.commit.journal, decided.effects)
                await self._faults.reach(f"after_commit:{decided.commit.step}")
            for effect in decided.effects:
                await self._perform(effect)
            self.hub.wake()

    def _halt(self, error: Exception) -> None:
        """Stop with `error`: the state in memory may differ from the store, so nothing is done from it any more."""
        self._halted = (
            error if isinstance(error, PhronomyError) else ConfigurationError(f"internal fault: {error!r}")
        )
        if self._halted is not error:
            self._halted.__cause__ = error
        _LOG.warning("agent %s stopped: %s (%s)", self.agent_id, self._halted, self._halted.code)
        if self._model_task is not None:
            self._model_task.cancel()
        self._stopping = None
        self.hub.wake()
        if isinstance(error, OwnershipLostError):
            self._parts.on_ownership_lost()

    def _error_payload(self) -> dict[str, Any]:
        error = self._halted or PhronomyError("stopped")
        return {"error": redacted(ErrorRecord.from_exception(error)).to_wire()}

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Publish():
                for row in effect.events:
                    self.hub.publish(Event.from_row(row))
            case Prepare():
                self._spawn(self._prepare(effect))
            case CallModel():
                await self._faults.reach("before_model")
                self._model_task = self._spawn(self._call_model(effect))
            case DispatchTools():
                await self._dispatch(effect)
            case StopWork():
                self._spawn(self._stop_work(effect.execution_id))
            case Settled():
                self._stopping = None

    # --- work --------------------------------------------------------------------------------------------------

    async def _prepare(self, effect: Prepare) -> None:
        instructions = self.definition.instructions
        event: Input
        try:
            if not isinstance(instructions, str):
                value = await asyncio.get_running_loop().run_in_executor(None, instructions, effect.input)
                if inspect.isawaitable(value):
                    value = await value
                if not isinstance(value, str):
                    raise ConfigurationError(f"instructions must give text, not {type(value).__name__}")
                instructions = value
            event = PreparationDone(
                effect.execution_id, Prepared(instructions, message_of_input(effect.input))
            )
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the execution must end
            event = PreparationFailed(effect.execution_id, redacted(ErrorRecord.from_exception(error)))
        await self._feed(event)

    async def _call_model(self, effect: CallModel) -> None:
        seq = self.state.execution.event_seq if self.state.execution else 0

        def observe(type_: EventType, payload: dict[str, object]) -> None:
            self.hub.publish(Event(effect.request.execution_id, seq, type_, payload, False))

        if self._stopping == effect.request.execution_id:
            await self._feed(ModelStopped(effect.request.call_id))
            return
        event = await run_model_call(self._port(), effect, observe=observe)
        self._model_task = None
        if isinstance(event, ModelStopped) and self._halted is not None:
            return
        await self._faults.reach("after_model")
        await self._feed(event)

    def _port(self) -> ModelPort:
        model = self.definition.model
        return self._parts.model if isinstance(model, str) else model

    async def _dispatch(self, effect: DispatchTools) -> None:
        await self._faults.reach("before_dispatch")
        execution_id = effect.invocations[0].execution_id
        if self._stopping == execution_id:
            for invocation in effect.invocations:
                self._on_tool(not_performed(invocation))
            return
        self._parts.tools.dispatch(effect.invocations, self.definition.tools, self._on_tool)
        await self._faults.reach("after_dispatch")

    def _on_tool(self, item: ToolOutcome | ToolStarted) -> None:
        execution = self._state.execution if self._state is not None else None
        if isinstance(item, ToolStarted):
            if execution is not None:
                payload = {
                    "tool_call_id": item.tool_call_id,
                    "attempt": item.attempt,
                    "node": item.node,
                    "pid": item.pid,
                    "started_at": item.started_at,
                }
                event = Event(
                    execution.row.execution_id, execution.event_seq, EventType.TOOL_STARTED, payload, False
                )
                self.hub.publish(event)
            return
        self._outcomes.append(item)
        live = sum(call.is_live for call in execution.batch) if execution is not None else 0
        delay = 0.0 if len(self._outcomes) >= live else GROUP_COMMIT_S
        if self._flush is not None:
            if delay:
                return
            self._flush.cancel()
        loop = asyncio.get_running_loop()
        self._flush = loop.call_later(delay, lambda: self._spawn(self._flush_outcomes()))

    async def _flush_outcomes(self) -> None:
        self._flush = None
        outcomes, self._outcomes = tuple(self._outcomes), []
        if outcomes:
            await self._feed(ToolOutcomes(outcomes))

    async def _stop_work(self, execution_id: str) -> None:
        self._stopping = execution_id
        if self._model_task is not None:
            self._model_task.cancel()
        await self._parts.tools.stop(self.definition.quiescence_timeout_s)

    async def _feed(self, event: Input) -> None:
        """Apply an input that no caller waits for: a failure has already stopped the engine and told its waiters."""
        try:
            await self._apply(event)
        except PhronomyError as error:
            if self._halted is None:
                self._halt(error)

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

    async def _input_budget(self) -> None:
        if self._budget_known:
            return
        definition = self.definition
        window = definition.context_window
        if window is None and isinstance(definition.model, str):
            window = (await self._port().info(definition.model)).max_input_tokens
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
        messages = (*earlier, *_messages(journal))
        parts = ResultParts(
            messages=tuple(Message.from_wire(item) for item in messages), revisions=self._revisions()
        )
        self._results[row.execution_id] = result_of(row, parts)
        while len(self._results) > KEPT_RESULTS:
            self._results.popitem(last=False)


def check_definition(definition: AgentDefinition, stored_id: str, stored_version: str, agent_id: str) -> None:
    """Raise `ConfigurationError` unless the stored agent belongs to this definition and version."""
    if (stored_id, stored_version) != (definition.definition_id, definition.definition_version):
        raise ConfigurationError(
            f"agent {agent_id!r} is stored as {stored_id!r} version {stored_version!r}; this class is "
            f"{definition.definition_id!r} version {definition.definition_version!r}",
            details={"agent_id": agent_id, "stored_id": stored_id, "stored_version": stored_version},
        )


async def read_result(client: StoreClient, execution_id: str) -> RunResult:
    """A result read back from the store. Raises `NotFoundError`."""
    return await client.run(load_result, client.store, execution_id)


def load_result(store: Store, execution_id: str) -> RunResult:
    """A result read back from the store. Raises `NotFoundError`."""
    row = store.load_execution(execution_id)
    parts = ResultParts(
        approvals=tuple(store.approvals(execution_id=execution_id, pending_only=True)),
        tool_calls=tuple(store.tool_calls(execution_id)) if row.status is ExecutionStatus.SUSPENDED else (),
        messages=tuple(
            Message.from_wire(item) for item in _messages(tuple(store.journal_of_execution(execution_id)))
        ),
    )
    return result_of(row, parts)


_MESSAGE_KINDS = (RecordKind.EXTERNAL_MESSAGE, RecordKind.ASSISTANT_MESSAGE, RecordKind.TOOL_MESSAGE)


def _messages(journal: tuple[JournalRecord, ...]) -> list[dict[str, Any]]:
    return [sendable(record.content) for record in journal if record.kind in _MESSAGE_KINDS]
