"""User code that authorises tool calls: facts, a tool's own condition, the agent's policy; on threads of its own.

Everything here fails closed: an error, a timeout or a full queue is an answer that lets nothing run. Code that does not end
keeps its thread; when all are kept, later calls are refused at once instead of waiting for nobody.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeVar

from phronomy_ray.approvals import (
    ApprovalEvaluationRequest,
    ApprovalVerdict,
    CallAuthorization,
    DecisionSource,
)
from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool import ToolSpec
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import (
    BackpressureError,
    ConfigurationError,
    ErrorRecord,
    SerializationError,
    WaitTimeoutError,
)
from phronomy_ray.frozen import replace
from phronomy_ray.kernel.effects import Authorize
from phronomy_ray.kernel.inputs import Authorized
from phronomy_ray.redaction import redact_error
from phronomy_ray.worker_inputs import WorkerInputRestricted

T = TypeVar("T")
#: Threads of one agent for user code that authorises.
THREADS = 4
#: Calls that may wait for one of them.
QUEUE = 100
#: A timer may fire this much early.
_CLOCK_STEP_S = 0.02


class CodePool(WorkerInputRestricted):
    """A few daemon threads behind a bounded queue; both are made when the first code comes."""

    def __init__(self, *, threads: int = THREADS, waiting: int = QUEUE) -> None:
        self._most_waiting = waiting
        #: Made for the first work: an idle agent has none.
        self._made: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] | None = None
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def _queue(self) -> queue.Queue[tuple[Future[Any], Callable[[], Any]] | None]:
        if self._made is None:
            self._made = queue.Queue(self._most_waiting)
        return self._made

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a thread run `work`.

        Raises:
            BackpressureError: the queue is full, or the pool is closed.
        """
        future: Future[T] = Future()
        if self._closed:
            raise BackpressureError("the agent is being unloaded")
        try:
            self._queue.put_nowait((future, work))
        except queue.Full:
            raise BackpressureError(
                f"{self._queue.maxsize} calls wait for user code to authorise them, and {self._limit} threads are busy"
            ) from None
        if len(self._threads) < self._limit:
            thread = threading.Thread(target=self._run, name="phronomy-authorize", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    @property
    def waiting(self) -> int:
        """Work that no thread has taken yet."""
        return self._made.qsize() if self._made is not None else 0

    def close(self) -> None:
        """Let the threads go; what still waits is cancelled."""
        self._closed = True
        if self._made is None:
            return
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[0].cancel()
        for _ in self._threads:
            self._queue.put_nowait(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - user code may raise anything; the waiter is told
                future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


class Authorizer(WorkerInputRestricted):
    """Asks the user code of one agent."""

    def __init__(self, definition: AgentDefinition, *, pool: CodePool | None = None) -> None:
        self._definition = definition
        self._pool = pool or CodePool()

    async def authorize(self, effect: Authorize, tools: Mapping[str, BoundTool]) -> Authorized:
        """One answer for each request, whatever the code does; a batch does not crowd itself out of the queue."""
        window = asyncio.Semaphore(QUEUE)

        async def one(request: ApprovalEvaluationRequest) -> CallAuthorization:
            async with window:
                return await self._one(request, tools.get(request.tool_name))

        verdicts = await asyncio.gather(*(one(request) for request in effect.requests))
        return Authorized(effect.execution_id, effect.model_call_id, tuple(verdicts))

    async def _one(self, request: ApprovalEvaluationRequest, bound: BoundTool | None) -> CallAuthorization:
        timeout_s = self._definition.authorization_timeout_s
        policy = self._definition.tool_approval_policy
        deadline = monotonic() + timeout_s
        try:
            if bound is None:
                raise ConfigurationError(f"the agent has no tool {request.tool_name!r} any more")
            spec = bound.spec
            future = self._pool.submit(lambda: evaluate(spec, policy, request, deadline))
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(future)
        except Exception as raised:  # noqa: BLE001 - whatever it was, the call does not run and its record says why
            error: Exception = raised
            if isinstance(raised, TimeoutError) and monotonic() >= deadline - _CLOCK_STEP_S:
                error = WaitTimeoutError(f"user code did not authorise the call within {timeout_s:g} s")
        record = redact_error(ErrorRecord.from_exception(error))
        return CallAuthorization(request.tool_call_id, error=record)

    def close(self) -> None:
        """Let the threads go."""
        self._pool.close()


def evaluate(
    spec: ToolSpec,
    policy: Callable[[ApprovalEvaluationRequest], Any] | None,
    request: ApprovalEvaluationRequest,
    deadline: float,
) -> CallAuthorization:
    """Facts, the tool's default, and the policy, in this order, on the present thread (which has no event loop).

    Raises:
        ConfigurationError: the code answered with something that is no answer.
        anything that the code raises.
    """
    facts = None
    if spec.approval_facts is not None:
        context = copy.deepcopy(request.invocation_context)
        found = _run(spec.approval_facts, deadline, copy.deepcopy(request.arguments), context)
        if found is not None and not isinstance(found, Mapping):
            raise ConfigurationError(
                f"tool {spec.name!r}: approval_facts must give a mapping or None, not {type(found).__name__}"
            )
        facts = None if found is None else _plain(spec, dict(found))
    gated, default, source = False, ApprovalVerdict.ALLOW, DecisionSource.TOOL
    if request.rule_id is not None:
        source = DecisionSource.RULE
    else:
        gated = _wants_approval(spec, replace(_own(request), facts=copy.deepcopy(facts)), deadline)
        default = ApprovalVerdict.REQUIRE_APPROVAL if gated else ApprovalVerdict.ALLOW
    verdict = default
    if policy is not None:
        asked = replace(_own(request), facts=copy.deepcopy(facts), default_decision=default)
        verdict = _verdict(_run(policy, deadline, asked))
        source = source if verdict is default else DecisionSource.POLICY
    return CallAuthorization(request.tool_call_id, verdict, source, gated, facts)


def _wants_approval(spec: ToolSpec, request: ApprovalEvaluationRequest, deadline: float) -> bool:
    if not callable(spec.requires_approval):
        return bool(spec.requires_approval)
    answer = _run(spec.requires_approval, deadline, request)
    if not isinstance(answer, bool):
        raise ConfigurationError(
            f"tool {spec.name!r}: requires_approval must give True or False, not {answer!r}"
        )
    return answer


def _verdict(answer: object) -> ApprovalVerdict:
    if isinstance(answer, str):
        try:
            return ApprovalVerdict(answer)
        except ValueError:
            pass
    allowed = ", ".join(repr(item.value) for item in ApprovalVerdict)
    raise ConfigurationError(f"tool_approval_policy must give one of {allowed}, not {answer!r}")


def _plain(spec: ToolSpec, facts: dict[str, Any]) -> dict[str, Any]:
    try:
        value = to_json_value(facts)
    except SerializationError as error:
        raise ConfigurationError(
            f"tool {spec.name!r}: approval_facts must be plain JSON: {error.message}"
        ) from error
    assert isinstance(value, dict)
    return value


def _own(request: ApprovalEvaluationRequest) -> ApprovalEvaluationRequest:
    """A copy that the callee may do anything to."""
    return replace(
        request,
        tool_schema=copy.deepcopy(request.tool_schema),
        arguments=copy.deepcopy(request.arguments),
        invocation_context=copy.deepcopy(request.invocation_context),
        metadata=copy.deepcopy(request.metadata),
    )


def _run(function: Callable[..., Any], deadline: float, *arguments: Any) -> Any:
    """Call user code; an awaitable is run to its end on a loop of this thread, and stopped at the deadline."""
    result = function(*arguments)
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        async with asyncio.timeout(max(0.0, deadline - monotonic())):
            return await result

    return asyncio.run(wait())


__all__ = ["QUEUE", "THREADS", "Authorizer", "CodePool", "evaluate"]
