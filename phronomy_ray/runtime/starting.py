"""The call that starts an execution."""

from __future__ import annotations

from typing import Any

from phronomy_ray.definition.busy import BusyRule, busy_rule
from phronomy_ray.engine.reserved import PLAIN_START, ReservedStart
from phronomy_ray.hosting.agent_client import AgentClient


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


__all__ = ["start_execution"]
