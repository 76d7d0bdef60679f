"""The work of one agent beside its single writer: user code on the input and on calls, the model call, tool bodies.

Every piece of work ends in exactly one kernel input that is fed back; nothing here changes the agent's state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar, cast

from phronomy_ray.approvals import StandingRule
from phronomy_ray.clock import timestamp
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.engine.authorization import Authorizer
from phronomy_ray.engine.model_runner import run_model_call
from phronomy_ray.engine.user_code import UserCode
from phronomy_ray.errors import ErrorRecord, ModelError
from phronomy_ray.events import Event, EventType
from phronomy_ray.faults import FaultPoints
from phronomy_ray.frozen import replace
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.kernel.effects import (
    Authorize,
    BuildInput,
    CallModel,
    DispatchTools,
    FilterOutput,
    Prepare,
    StopWork,
)
from phronomy_ray.kernel.inputs import (
    Input,
    ModelAnswered,
    ModelFailed,
    ModelStopped,
    ToolOutcomes,
    ToolsLate,
)
from phronomy_ray.kernel.state import Execution
from phronomy_ray.kernel.tool_call import ToolCall
from phronomy_ray.kernel.tools_step import live_invocations
from phronomy_ray.models.port import ModelPort
from phronomy_ray.redaction import REDACTED, redact_json, secret_values
from phronomy_ray.tool_calls import (
    Attachment,
    CallKey,
    ToolLate,
    ToolOutcome,
    ToolProgress,
    ToolSettings,
    ToolStarted,
)
from phronomy_ray.tools.executor import ToolExecutor, ToolReport
from phronomy_ray.tools.outcomes import not_performed
from phronomy_ray.worker_inputs import WorkerInputRestricted

#: An effect that user code is asked for.
Asked = TypeVar("Asked", Prepare, BuildInput, FilterOutput)

#: Tool outcomes that arrive within this time share a commit, in seconds.
GROUP_COMMIT_S = 0.004
#: The same for each call that is waited for: the outcomes of a large batch take longer to arrive, and a commit of some of
#: them holds up the one that lets the turn go on.
GROUP_COMMIT_PER_CALL_S = 0.000_1
#: How many times as long as the last commit took the next one is held back: where bodies use every core, commits of
#: single outcomes would take a part of them.
GROUP_COMMIT_PACE = 4
#: Longest that an outcome waits for its commit, while no commit runs.
MAX_GROUP_COMMIT_S = 0.05
#: Outcomes that say what a body did, whoever owns the agent by now.
_KNOWN = frozenset({ToolCallStatus.SUCCEEDED, ToolCallStatus.FAILED, ToolCallStatus.TIMED_OUT})


@dataclass(frozen=True, slots=True)
class WorkHooks:
    """What the work needs of its engine."""

    faults: FaultPoints
    publish: Callable[[Event], None]
    #: Hand an input to the single writer; whether it took it, which it does not when the engine has stopped.
    feed: Callable[[Input], Coroutine[Any, Any, bool]]
    spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
    #: The committed execution.
    execution: Callable[[], Execution | None]
    #: Standing rules in force for the agent now, from the store.
    rules: Callable[[], Awaitable[tuple[StandingRule, ...]]]
    #: Seconds that an execution may still take by its caller's word; ``None`` for no limit.
    remaining_s: Callable[[str], float | None]


class EngineWork(WorkerInputRestricted):
    """Runs effects."""

    def __init__(
        self,
        definition: AgentDefinition,
        model: ModelPort,
        tools: ToolExecutor,
        user_code: UserCode,
        hooks: WorkHooks,
        *,
        tool_settings: ToolSettings | None = None,
    ) -> None:
        self._definition = definition
        self._user_code = user_code
        self._tool_settings = tool_settings
        self._model = model
        self._tools = tools
        self._hooks = hooks
        self._authorizer = Authorizer(definition)
        self._model_task: asyncio.Task[Any] | None = None
        #: The model call that this engine has ended.
        self._ended_call: asyncio.Task[Any] | None = None
        #: Outcomes that no commit holds yet, those that are being committed included.
        self._outcomes: list[ToolOutcome] = []
        self._flush: asyncio.TimerHandle | None = None
        #: Whether outcomes are being committed: what arrives meanwhile goes together in the next commit.
        self._flushing = False
        #: How long the last commit of outcomes took, in seconds.
        self._flush_s = 0.0
        #: A committed batch and how many of its calls are live: counted once per commit, not once per outcome.
        self._counted: tuple[tuple[ToolCall, ...], int] = ((), 0)
        #: Dispatches since the last `reset` whose outcome is not committed: nobody has to be asked after them.
        self._begun: set[CallKey] = set()
        #: Execution whose work must stop; set before the cancellation is committed.
        self.stopping: str | None = None
        #: Seconds spent waiting for model calls, transport of the input included.
        self.model_s = 0.0

    def reset(self) -> tuple[ToolOutcome, ...]:
        """Begin again; returns what bodies of the earlier incarnation have done and nobody has committed.

        It is held until `forget`: the commit that is to keep it can fail like the one before.
        """
        self.stopping = None
        self._begun.clear()
        self._outcomes = [outcome for outcome in self._outcomes if outcome.status in _KNOWN]
        return tuple(self._outcomes)

    def forget(self, outcomes: tuple[ToolOutcome, ...]) -> None:
        """These are committed, or nothing waits for them any more."""
        self._begun.difference_update(outcome.key for outcome in outcomes)
        done = {id(outcome) for outcome in outcomes}
        self._outcomes = [outcome for outcome in self._outcomes if id(outcome) not in done]

    def abandon(self) -> None:
        """The engine has stopped: end the model call, whose answer nobody can commit."""
        self.stopping = None
        self._end_model_call()

    async def attach(self, execution: Execution, epoch: int) -> Attachment:
        """Go on with what an earlier owner dispatched, as far as anybody still knows of it."""
        waiting = live_invocations(execution, epoch)
        own = frozenset(invocation.key for invocation in waiting if invocation.key in self._begun)
        asked = [invocation for invocation in waiting if invocation.key not in own]
        if not asked:
            return Attachment(own)
        found = await self._tools.attach(asked, self._tools_of(execution), self._on_tool)
        return replace(found, attached=found.attached | own)

    def has_stragglers(self, execution_id: str) -> bool:
        """Whether a body of the execution may still run although its call has its outcome."""
        return self._tools.stragglers(execution_id)

    async def quiesce(self, execution_id: str, timeout_s: float) -> tuple[ToolLate, ...]:
        """Wait for those bodies; the ones that are given up."""
        abandoned = await self._tools.quiesce(execution_id, timeout_s)
        return tuple(ToolLate(*key, execution_id, "abandoned", timestamp()) for key in sorted(abandoned))

    async def stop(self) -> None:
        """End the model call and every body; bodies that do not end within the quiescence time are given up."""
        self._end_model_call()
        await self._tools.stop(self._definition.quiescence_timeout_s)

    def _end_model_call(self) -> None:
        if self._model_task is not None:
            self._ended_call = self._model_task
            self._model_task.cancel()

    def close(self) -> None:
        """Release the threads of user code."""
        self._authorizer.close()

    async def perform(
        self, effect: Prepare | BuildInput | FilterOutput | CallModel | Authorize | DispatchTools | StopWork
    ) -> None:
        """Begin an effect; returns once it is under way."""
        match effect:
            case Prepare():
                self._hooks.spawn(self._ask_user_code(self._user_code.prepare, effect))
            case BuildInput():
                self._hooks.spawn(self._ask_user_code(self._user_code.build_input, effect))
            case FilterOutput():
                self._hooks.spawn(self._ask_user_code(self._user_code.filter_output, effect))
            case CallModel():
                await self._hooks.faults.reach("before_model")
                self._hooks.spawn(self._call_model(effect))
            case Authorize():
                self._hooks.spawn(self._authorize(effect))
            case DispatchTools():
                await self._dispatch(effect)
            case StopWork():
                self.stopping = effect.execution_id
                self._hooks.spawn(self.stop())

    async def _ask_user_code(self, ask: Callable[[Asked], Awaitable[Input | None]], effect: Asked) -> None:
        event = await ask(effect)
        if event is not None:
            await self._hooks.feed(event)

    async def _call_model(self, effect: CallModel) -> None:
        request = effect.request
        if self.stopping == request.execution_id:
            await self._hooks.feed(ModelStopped(request.call_id))
            return
        running = self._hooks.execution()
        seq = running.event_seq if running is not None else 0

        def observe(type_: EventType, payload: dict[str, object]) -> None:
            self._hooks.publish(Event(request.execution_id, seq, type_, payload, False))

        begun = monotonic()
        model = self._definition.model
        port = self._model if isinstance(model, str) else cast("ModelPort", model)
        task = asyncio.get_running_loop().create_task(run_model_call(port, effect, observe=observe))
        self._model_task = task
        try:
            event: Input = await task
        except asyncio.CancelledError:  # stopped before its first step, or the loop is closing
            event = ModelStopped(request.call_id)
        if self._model_task is task:
            self._model_task = None
        self.model_s += monotonic() - begun
        if isinstance(event, ModelStopped) and self.stopping != request.execution_id:
            own = asyncio.current_task()
            if self._ended_call is task or (own is not None and own.cancelling()):
                return  # this engine has stopped or its loop is closing: nobody cancelled the execution
            error = ModelError("the model port cancelled its own call", code="model_protocol")
            event = ModelFailed(request.call_id, ErrorRecord.from_exception(error))
        if isinstance(event, ModelAnswered) and event.answer.message.tool_calls:
            event = replace(event, rules=await self._hooks.rules())
        await self._hooks.faults.reach("after_model")
        await self._hooks.feed(event)

    async def _authorize(self, effect: Authorize) -> None:
        event = await self._authorizer.authorize(effect, self._tools_of(self._hooks.execution()))
        await self._hooks.faults.reach("after_authorization")
        await self._hooks.feed(event)

    async def _dispatch(self, effect: DispatchTools) -> None:
        await self._hooks.faults.reach("before_dispatch")
        if self.stopping == effect.invocations[0].execution_id:
            for invocation in effect.invocations:
                self._on_tool(not_performed(invocation.key))
            return
        invocations = effect.invocations
        if self._tool_settings is not None:
            invocations = tuple(replace(item, settings=self._tool_settings) for item in invocations)
        budget_s = self._hooks.remaining_s(invocations[0].execution_id)
        if budget_s is not None:
            invocations = tuple(replace(item, budget_s=budget_s) for item in invocations)
        self._begun.update(invocation.key for invocation in invocations)
        self._tools.dispatch(invocations, self._tools_of(self._hooks.execution()), self._on_tool)
        await self._hooks.faults.reach("after_dispatch")

    def _tools_of(self, execution: Execution | None) -> Mapping[str, BoundTool]:
        assembled = execution.tools if execution is not None else None
        return (assembled or self._definition.tool_set).tools

    def _on_tool(self, item: ToolReport) -> None:
        execution = self._hooks.execution()
        if isinstance(item, ToolLate):
            self._hooks.publish(_late_event(execution, item))
            self._hooks.spawn(self._hooks.feed(ToolsLate((item,))))
            return
        if isinstance(item, ToolStarted):
            if execution is not None:
                self._hooks.publish(_started_event(execution, item))
            return
        if isinstance(item, ToolProgress):
            event = self._progress_event(execution, item)
            if event is not None:
                self._hooks.publish(event)
            return
        self._outcomes.append(item)
        if not self._flushing:
            self._flush_soon()

    def _progress_event(self, execution: Execution | None, item: ToolProgress) -> Event | None:
        """What observers are told of a call that runs, with what must be hidden hidden; nothing of any other."""
        key = (item.tool_call_id, item.attempt)
        row = next(
            (
                call.row
                for call in (execution.batch if execution is not None else ())
                if call.is_live and (call.row.tool_call_id, call.row.attempt) == key
            ),
            None,
        )
        if execution is None or row is None:
            return None
        bound = self._tools_of(execution).get(row.tool_name)
        if bound is None or bound.spec.redact_result:
            shown: Any = REDACTED
        else:
            hidden = bound.spec.redact_params
            shown = redact_json(item.value, secret_values(row.arguments, hidden) if hidden else ())
        payload = {
            "tool_call_id": item.tool_call_id,
            "tool_name": row.tool_name,
            "attempt": item.attempt,
            "progress": shown,
        }
        return Event(
            execution.row.execution_id, execution.event_seq, EventType.TOOL_PROGRESS, payload, durable=False
        )

    def _flush_soon(self) -> None:
        """Commit what has arrived within the group window; at once when nothing else can come."""
        live = self._live()
        window = max(GROUP_COMMIT_S + live * GROUP_COMMIT_PER_CALL_S, GROUP_COMMIT_PACE * self._flush_s)
        delay = 0.0 if len(self._outcomes) >= live else min(window, MAX_GROUP_COMMIT_S)
        if self._flush is not None:
            if delay:
                return
            self._flush.cancel()
        loop = asyncio.get_running_loop()
        self._flush = loop.call_later(delay, lambda: self._hooks.spawn(self._flush_outcomes()))

    def _live(self) -> int:
        execution = self._hooks.execution()
        batch = execution.batch if execution is not None else ()
        if batch is not self._counted[0]:
            self._counted = (batch, sum(call.is_live for call in batch))
        return self._counted[1]

    async def _flush_outcomes(self) -> None:
        """Commit what has arrived. It stays in the list meanwhile: an activation that goes first must see it, or what is
        known would become unknown. The kernel consumes what it is given twice.
        """
        self._flush = None
        outcomes = tuple(self._outcomes)
        if not outcomes:
            return
        self._flushing = True
        begun = monotonic()
        try:
            taken = await self._hooks.feed(ToolOutcomes(outcomes))
        finally:
            self._flushing = False
            self._flush_s = monotonic() - begun
        if taken:
            self.forget(outcomes)
            self._tools.acknowledge([outcome.key for outcome in outcomes])
            if self._outcomes:
                self._flush_soon()


def _started_event(execution: Execution, item: ToolStarted) -> Event:
    payload = {
        "tool_call_id": item.tool_call_id,
        "attempt": item.attempt,
        "node": item.node,
        "pid": item.pid,
        "started_at": item.started_at,
    }
    return Event(
        execution.row.execution_id, execution.event_seq, EventType.TOOL_STARTED, payload, durable=False
    )


def _late_event(execution: Execution | None, item: ToolLate) -> Event:
    seq = execution.event_seq if execution and execution.row.execution_id == item.execution_id else 0
    payload = {"tool_call_id": item.tool_call_id, "attempt": item.attempt, "status": item.status}
    return Event(item.execution_id, seq, EventType.TOOL_LATE, payload, durable=False)
