"""The worker's shell without Ray: what arrives damaged takes nothing else with it."""

from __future__ import annotations

import pickle

from phronomy_ray import Agent, tool
from phronomy_ray.actors.tool_worker import ToolWorker
from phronomy_ray.definition.source import DefinitionSource
from phronomy_ray.tool_calls import ToolInvocation
from phronomy_ray.tools.pool_wire import ItemKind, PoolItem, outcome_of
from phronomy_ray.tools.worker_calls import WorkerCalls


@tool(replay="safe")
def echo(text: str) -> str:
    """Say it again."""
    return text


class Echoing(Agent):
    """Has one tool."""

    model = "openai/none"
    tools = [echo]


def test_a_call_that_cannot_be_read_fails_alone() -> None:
    worker = ToolWorker.__new__(ToolWorker)  # its constructor asks Ray for the node
    worker._calls = WorkerCalls("node")
    source = pickle.dumps(DefinitionSource(Echoing.definition().class_path))
    sound = ToolInvocation(
        tool_call_id="sound",
        tool_name="echo",
        arguments={"text": "hi"},
        agent_id="a",
        execution_id="e",
        attempt=1,
    )
    worker.run(
        {"s": source},
        [(("broken", 1), "s", b"no pickle"), (sound.key, "s", pickle.dumps(sound))],
    )
    found = {}
    news = worker._calls.serve()
    while len(found) < 2:
        found |= {item.key: item for item in next(news) if isinstance(item, PoolItem)}
    assert {item.kind for item in found.values()} == {ItemKind.OUTCOME}
    assert outcome_of(found["broken", 1]).status == "failed"
    assert outcome_of(found["sound", 1]).model_text == "hi"
