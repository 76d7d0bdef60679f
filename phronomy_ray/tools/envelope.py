"""The envelope around one tool body: bind, run with timeout and retries, encode, and always one outcome.

Whatever a body does short of killing its process, the envelope returns a `ToolOutcome`: also for ``BaseException``,
``sys.exit`` and exceptions that do not pickle or whose ``__str__`` raises. The outcome holds plain values only.
"""

from __future__ import annotations

import asyncio
import copy
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential
from tenacity.asyncio import AsyncRetrying

from phronomy_ray.canonical_json import dumps_plain, to_json_value
from phronomy_ray.clock import timestamp, utc_now
from phronomy_ray.definition.filters import FilterContext, FilterSite
from phronomy_ray.definition.schema import ArgumentError
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import (
    CancellationError,
    ErrorRecord,
    PhronomyError,
    SerializationError,
    ToolError,
    ToolTimeoutError,
)
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.redaction import redact_error, secret_values
from phronomy_ray.tool_calls import MAX_PROGRESS_CHARS, ToolContext, ToolInvocation, ToolOutcome
from phronomy_ray.tool_results import DEFAULT_SHOWN_CHARS, encode_result
from phronomy_ray.tools.calling import PhysicalEnd, attempt_of, is_custom, settle, settle_blocking
from phronomy_ray.tools.filtering import FiltersStopped, run_filters
from phronomy_ray.tools.off_loop import off_loop
from phronomy_ray.tools.process import Process, run_to_result
from phronomy_ray.tools.progress import ProgressGate

#: Longest error text that the model is told.
MAX_ERROR_CHARS = 600
#: Timeouts above this give a deadline this far away, in seconds: a date has an end.
MAX_DEADLINE_S = 1e9
#: How soon a cancelled call is noticed that waits for its next attempt, in seconds.
_CANCEL_POLL_S = 0.05
_RETRY_WAIT = wait_exponential(multiplier=0.1, max=5)

NODE = socket.gethostname()


class _Stopped(CancellationError):
    """The execution was cancelled between two attempts."""


async def run_async(
    bound: BoundTool,
    invocation: ToolInvocation,
    *,
    is_cancelled: Callable[[], bool],
    node: str = NODE,
    on_finished: Callable[[], None] = lambda: None,
    on_progress: Callable[[Any], None] = lambda value: None,
) -> ToolOutcome:
    """Run one call on the present event loop. Cancelling the task gives a ``cancelled`` outcome, not an exception.

    `on_finished` is called once, when nothing of the body runs any more: before this returns, unless the tool says that
    its work outlives its result (`ToolCompletion`). `on_progress` gets what the body reports, in the thread that does.
    """
    started = timestamp()
    end = PhysicalEnd(on_finished, tool=bound.spec.name)
    gate = ProgressGate(on_progress, clock=time.monotonic)
    try:
        begin = _bind(bound, invocation, is_cancelled, gate.report)
        value: Any = None
        if not bound.spec.retries:  # an iterator of attempts costs more than a short body
            value = await _call_async(bound, begin, end)
        else:
            async for attempt in AsyncRetrying(**_retry_options(bound, is_cancelled, end)):
                with attempt:
                    value = await _call_async(bound, begin, end)
        value = await _filtered_async(bound, invocation, value, is_cancelled)
        return _succeeded(bound, invocation, value, node, started)
    except asyncio.CancelledError as error:
        if is_cancelled():
            return _cancelled(invocation, node, started)
        return _failed(bound, invocation, error, node, started)
    except BaseException as error:  # noqa: BLE001 - one outcome whatever a body raises; SystemExit must not end the agent
        if isinstance(error, CancellationError) and is_cancelled():
            return _cancelled(invocation, node, started)
        return _failed(bound, invocation, error, node, started)
    finally:
        gate.close()
        end.close()


def run_sync(
    bound: BoundTool,
    invocation: ToolInvocation,
    *,
    is_cancelled: Callable[[], bool],
    node: str = NODE,
    on_attempt: Callable[[], None] = lambda: None,
    on_attempt_end: Callable[[], None] = lambda: None,
    on_finished: Callable[[], None] = lambda: None,
    on_progress: Callable[[Any], None] = lambda value: None,
) -> ToolOutcome:
    """Run one call in the present thread. The caller enforces the timeout: a thread cannot be stopped.

    `on_attempt` is called before each attempt, so that the caller's clock can start again, and `on_attempt_end` after
    it: the wait before the next one is not the body's time. `on_finished` is as for `run_async`; it may be called in
    another thread.
    """
    started = timestamp()
    end = PhysicalEnd(on_finished, tool=bound.spec.name)
    gate = ProgressGate(on_progress, clock=time.monotonic)
    try:
        begin = _bind(bound, invocation, is_cancelled, gate.report)
        custom, limit = is_custom(bound.tool), bound.spec.timeout_s
        value: Any = None
        attempts: Iterable[AbstractContextManager[Any]] = (nullcontext(),)
        if bound.spec.retries:  # tenacity costs as much as all the rest
            attempts = Retrying(
                **_retry_options(bound, is_cancelled, end), sleep=partial(_rest, is_cancelled=is_cancelled)
            )
        for attempt in attempts:
            on_attempt()
            with attempt:
                try:
                    value = settle_blocking(begin, custom=custom, timeout_s=limit, end=end)
                    if isinstance(value, Process):
                        value = run_to_result(value, timeout_s=limit)
                finally:
                    on_attempt_end()
        value = _filtered_sync(bound, invocation, value, is_cancelled, on_attempt, on_attempt_end)
        return _succeeded(bound, invocation, value, node, started)
    except BaseException as error:  # noqa: BLE001 - as in run_async
        if isinstance(error, CancellationError) and is_cancelled():
            return _cancelled(invocation, node, started)
        return _failed(bound, invocation, error, node, started)
    finally:
        gate.close()
        end.close()


def _bind(
    bound: BoundTool,
    invocation: ToolInvocation,
    is_cancelled: Callable[[], bool],
    on_progress: Callable[[Any], None],
) -> Callable[[], Any]:
    """What begins an attempt of the body; each has arguments and a context of its own."""
    begun, budget_s = utc_now(), invocation.budget_s
    end = begun + timedelta(seconds=min(budget_s, MAX_DEADLINE_S)) if budget_s is not None else None

    def prepared() -> Callable[[], Any]:
        deadline = utc_now() + timedelta(seconds=min(bound.spec.timeout_s, MAX_DEADLINE_S))
        context = ToolContext(
            agent_id=invocation.agent_id,
            execution_id=invocation.execution_id,
            tool_call_id=invocation.tool_call_id,
            idempotency_key=invocation.tool_call_id,
            attempt=invocation.attempt,
            durable_context=copy.deepcopy(
                invocation.durable_context
            ),  # one body must not change what others get
            timeout_s=bound.spec.timeout_s,
            deadline=deadline if end is None else min(deadline, end),
            is_cancelled=is_cancelled,
            report_progress=lambda value: on_progress(_checked_progress(value)),
        )
        return attempt_of(bound, bound.spec.parameters.bind(invocation.arguments, context), context)

    try:
        ready = [prepared()]
    except ArgumentError as error:
        raise ToolError(
            f"the stored arguments do not fit the tool's schema any more: {error}", code="definition_changed"
        ) from None
    return lambda: (ready.pop() if ready else prepared())()


def _checked_progress(value: Any) -> Any:
    plain = to_json_value(value)
    size = len(dumps_plain(plain))
    if size > MAX_PROGRESS_CHARS:
        raise SerializationError(
            f"a report of progress has {size} characters; at most {MAX_PROGRESS_CHARS} are told"
        )
    return plain


async def _call_async(bound: BoundTool, begin: Callable[[], Any], end: PhysicalEnd) -> Any:
    try:
        return await settle(begin(), timeout_s=bound.spec.timeout_s, end=end)
    except (StopIteration, StopAsyncIteration) as error:
        # the loop over attempts would take these for its own end, and the call for one that returned nothing
        raise RuntimeError(f"the tool raised {type(error).__name__}") from error


# --- result filters: after the attempts, since a filter that fails must not make the body run again ------------


def _filters(bound: BoundTool, invocation: ToolInvocation) -> tuple[Callable[..., Any], ...]:
    if bound.is_framework:
        return ()
    own = invocation.settings.result_filters if invocation.settings is not None else ()
    return (*bound.result_filters, *own)


def _filter_context(invocation: ToolInvocation, is_cancelled: Callable[[], bool]) -> FilterContext:
    return FilterContext(
        FilterSite.RESULT,
        invocation.agent_id,
        invocation.execution_id,
        copy.deepcopy(invocation.durable_context),
        invocation.tool_name,
        invocation.tool_call_id,
        is_cancelled,
    )


async def _filtered_async(
    bound: BoundTool, invocation: ToolInvocation, value: Any, is_cancelled: Callable[[], bool]
) -> Any:
    filters = _filters(bound, invocation)
    if not filters:
        return value
    context, limit = _filter_context(invocation, is_cancelled), bound.spec.timeout_s
    try:
        return await off_loop(
            run_filters, filters, value, context, timeout_s=limit, name="phronomy-result-filter"
        )
    except TimeoutError:
        raise ToolTimeoutError(f"the tool's result filters did not finish within {limit:g} s") from None


def _filtered_sync(
    bound: BoundTool,
    invocation: ToolInvocation,
    value: Any,
    is_cancelled: Callable[[], bool],
    on_attempt: Callable[[], None],
    on_attempt_end: Callable[[], None],
) -> Any:
    filters = _filters(bound, invocation)
    if not filters:
        return value
    on_attempt()  # the caller's clock holds for the filters as it does for an attempt of the body
    try:
        return run_filters(filters, value, _filter_context(invocation, is_cancelled))
    finally:
        on_attempt_end()


def _retry_options(bound: BoundTool, is_cancelled: Callable[[], bool], end: PhysicalEnd) -> dict[str, Any]:
    def before(state: RetryCallState) -> None:
        if state.attempt_number > 1 and is_cancelled():
            raise _Stopped("cancelled before another attempt")

    # Exception only: cancellation, ours included, KeyboardInterrupt and SystemExit are never tried again; nor is a body that
    # timed out, or says that it goes on, since the first attempt may still run
    retriable = retry_if_exception(
        lambda error: (
            isinstance(error, Exception)
            and not isinstance(error, CancellationError | ToolTimeoutError)
            and not end.is_pending
        )
    )
    return {
        "stop": stop_after_attempt(bound.spec.retries + 1),
        "retry": retriable,
        "wait": _RETRY_WAIT,
        "before": before,
        "reraise": True,
    }


def _rest(wait_s: float, *, is_cancelled: Callable[[], bool]) -> None:
    """Wait before another attempt, on a thread; no longer than the call is wanted."""
    until = time.monotonic() + wait_s
    while not is_cancelled() and (left_s := until - time.monotonic()) > 0:
        time.sleep(min(left_s, _CANCEL_POLL_S))


def _succeeded(
    bound: BoundTool, invocation: ToolInvocation, value: Any, node: str, started: str
) -> ToolOutcome:
    encoded = encode_result(value, shown_chars=_shown_chars(bound, invocation))
    return ToolOutcome(
        invocation.tool_call_id,
        invocation.attempt,
        ToolCallStatus.SUCCEEDED,
        encoded.text,
        encoded.json,
        None,
        node,
        os.getpid(),
        started,
        timestamp(),
        encoded.is_cut,
    )


def _shown_chars(bound: BoundTool, invocation: ToolInvocation) -> int:
    own, settings = bound.spec.max_result_chars, invocation.settings
    if own is None and settings is not None:
        own = settings.max_result_chars
    return DEFAULT_SHOWN_CHARS if own is None else own


def _failed(
    bound: BoundTool, invocation: ToolInvocation, error: BaseException, node: str, started: str
) -> ToolOutcome:
    if isinstance(error, _Stopped | FiltersStopped):
        return _cancelled(invocation, node, started)
    status = ToolCallStatus.TIMED_OUT if isinstance(error, ToolTimeoutError) else ToolCallStatus.FAILED
    secrets = (
        secret_values(invocation.arguments, bound.spec.redact_params) if bound.spec.redact_params else ()
    )
    record = redact_error(_describe(error), secrets)
    label = record.code if isinstance(error, PhronomyError) else record.type
    text = f"Error ({label}): {record.message}"
    return ToolOutcome(
        invocation.tool_call_id,
        invocation.attempt,
        status,
        text[:MAX_ERROR_CHARS],
        None,
        record,
        node,
        os.getpid(),
        started,
        timestamp(),
    )


def _describe(error: BaseException) -> ErrorRecord:
    try:
        return ErrorRecord.from_exception(error, with_traceback=not isinstance(error, PhronomyError))
    except BaseException:  # noqa: BLE001 - even looking at a foreign exception can raise; the outcome must be made
        return ErrorRecord(type(error).__name__, "remote_error", "<the exception cannot be described>")


def _cancelled(invocation: ToolInvocation, node: str, started: str) -> ToolOutcome:
    return ToolOutcome(
        invocation.tool_call_id,
        invocation.attempt,
        ToolCallStatus.CANCELLED,
        "Cancelled: this call was stopped.",
        node=node,
        pid=os.getpid(),
        started_at=started,
        ended_at=timestamp(),
    )
