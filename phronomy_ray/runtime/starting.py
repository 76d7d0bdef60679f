"""The calls that start an execution and wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from phronomy_ray.definition.busy import BusyRule, busy_rule
from phronomy_ray.engine.reserved import PLAIN_START, ReservedStart
from phronomy_ray.errors import WaitTimeoutError
from phronomy_ray.hosting.agent_client import SLICE_S, AgentClient
from phronomy_ray.hosting.agent_port import NoAnswer
from phronomy_ray.results import RunResult


async def start_execution(
    client: AgentClient,
    execution_id: str,
    input: Any,
    *,
    durable_context: dict[str, Any] | None = None,
    stream: bool = False,
    on_busy: BusyRule | str | None = None,
    reserved: ReservedStart = PLAIN_START,
) -> None:
    """Have the agent admit an execution, or let it wait; repeated when the answer is lost. Raises as `AgentEngine.start`."""
    rule = busy_rule(on_busy)
    await client.call(
        "start",
        execution_id,
        input,
        durable_context,
        stream,
        rule.value if rule is not None else None,
        reserved.start_id,
        reserved.correlation,
        reserved.budget_s,
    )


async def run_execution(
    client: AgentClient,
    execution_id: str,
    input: Any,
    *,
    durable_context: dict[str, Any] | None,
    on_busy: BusyRule | str | None,
    timeout_s: float | None,
) -> RunResult:
    """Start an execution and wait until it ends or needs a human: one message, for a turn that is short.

    When the answer is lost nobody knows whether the execution was admitted: it is started again by its id, which admits it at most
    once, and then waited for.

    Raises:
        WaitTimeoutError: it takes longer than `timeout_s`, which ends only the wait; else as `AgentEngine.start`.
    """
    rule = busy_rule(on_busy)

    async def start_and_wait(seconds: float) -> RunResult | None:
        wire = await client.ask(
            live,
            "invoke",
            input,
            execution_id,
            durable_context,
            False,
            seconds,
            rule.value if rule is not None else None,
            timeout_s=seconds + 10.0,
        )
        if isinstance(wire, NoAnswer):
            await start_execution(
                client, execution_id, input, durable_context=durable_context, on_busy=on_busy
            )
            return None
        result = RunResult.from_wire(wire)
        return result if result.status.is_terminal or result.suspended else None

    live = await client.live()  # waking it is no part of the wait
    return await wait_in_slices(client, execution_id, "suspended", timeout_s, first=start_and_wait)


async def wait_in_slices(
    client: AgentClient,
    execution_id: str,
    until: str,
    timeout_s: float | None,
    *,
    first: Callable[[float], Awaitable[RunResult | None]] | None = None,
) -> RunResult:
    """Wait until an execution is ``terminal`` or (by `until`) ``suspended``; `first` makes the first slice, however little time
    there is.

    Raises `WaitTimeoutError`, and as `AgentClient.wait_once`.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while True:
        left = SLICE_S if deadline is None else min(SLICE_S, deadline - loop.time())
        if first is not None:
            begin, first = first, None
            result = await begin(max(0.0, left))
        elif left > 0:
            result = await client.wait_once(execution_id, until, left)
        else:
            raise WaitTimeoutError(
                f"execution {execution_id} is not {until} after {timeout_s:g} s; it goes on",
                details={"execution_id": execution_id},
            )
        if result is not None:
            return result


__all__ = ["run_execution", "start_execution", "wait_in_slices"]
