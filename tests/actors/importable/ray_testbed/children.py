"""Child agents of the testbed: the calls that start them, and finding them in the store."""

from __future__ import annotations

from typing import Any

from phronomy_ray import AgentHandle, Runtime
from phronomy_ray.hosting.child_agents import child_ids
from ray_testbed import effects
from ray_testbed.agents import turn


def helper(
    *batches: list[tuple[str, dict[str, Any]]], answer: str = "helped"
) -> list[tuple[str, dict[str, Any]]]:
    """A batch with one call of the helper, which has these batches itself."""
    return [("helper", {"input": turn(*batches, answer=answer)})]


def only_child(runtime: Runtime, parent: AgentHandle, execution_id: str) -> tuple[str, str]:
    """The child of the execution's one call, once it works; there is no other."""
    [row] = effects.until(lambda: runtime.store.tool_calls(execution_id), "the call to be stored")
    child_id, child_execution = child_ids(parent.agent_id, execution_id, row.tool_call_id)
    effects.until(
        lambda: any(root.agent_id == child_id for root in runtime.store.list_agents()),
        "the child to be stored",
    )
    known = {root.agent_id for root in runtime.store.list_agents()} - {parent.agent_id}
    assert known == {child_id}
    return child_id, child_execution
