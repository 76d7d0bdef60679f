"""Agents as tools on real processes: a parent that dies, a parent that is cancelled, a child that asks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from ray_testbed import effects
from ray_testbed.agents import obedient, turn
from ray_testbed.children import helper, only_child
from ray_testbed.effects import PATIENCE_S, open_gate, recorded, until_recorded
from ray_testbed.families import Boss, Helper
from ray_testbed.fixtures import Bench

from phronomy_ray import Agent, AgentHandle, Runtime
from phronomy_ray.errors import CleanupError
from phronomy_ray.faults import write_plan
from phronomy_ray.hosting.child_agents import LINEAGE_KEY
from phronomy_ray.journal import ExecutionStatus, ToolCallStatus
from phronomy_ray.retrieval import (
    Document,
    HashEmbeddings,
    LitellmEmbeddings,
    SqlVectorStore,
    VectorSearch,
    add_documents,
)
from phronomy_ray.testing import processes
from phronomy_ray.testing.model_server import ModelServer


@pytest.fixture
def boss(runtime: Runtime, new_id: Callable[[str], str]) -> AgentHandle:
    return runtime.create(Boss, new_id("boss"))


def test_a_child_works_and_its_process_is_freed(runtime: Runtime, boss: AgentHandle) -> None:
    handle = boss.start(turn(helper([("note", {"text": "from below"})])), durable_context={"user": "u1"})
    result = handle.result(timeout=PATIENCE_S)
    child_id, child_execution = only_child(runtime, boss, handle.execution_id)
    [row] = runtime.store.tool_calls(handle.execution_id)
    assert (row.status, row.result, row.attempt) == (ToolCallStatus.SUCCEEDED, "helped", 1)
    assert result.output == "done"
    [effect] = recorded(child_id, "note", text="from below")
    assert effect["run"] == child_execution
    root = runtime.store.load_root(child_id)
    assert root.metadata[LINEAGE_KEY]["lineage"] == [
        Boss.definition().definition_id,
        Helper.definition().definition_id,
    ]
    assert not processes.wait_dead([root.owner["pid"]], timeout_s=PATIENCE_S)
    assert runtime.get(child_id) is None
    assert runtime.store.load_execution(child_execution).durable_context == {"user": "u1"}
    assert runtime.agent(child_id).execution(child_execution).view().output == "helped"
    assert runtime.retry_unload(CleanupError(details={"child_agent_id": child_id})) is False, (
        "nothing to free"
    )


def test_a_parent_that_dies_finds_its_child_again(
    runtime: Runtime, boss: AgentHandle, new_id: Callable[[str], str]
) -> None:
    gate = new_id("gate")
    handle = boss.start(turn(helper([("wire", {"amount": 7})], [("hold", {"gate": gate})])))
    child_id, child_execution = only_child(runtime, boss, handle.execution_id)
    until_recorded(child_id, "hold", gate=gate)
    pid = boss.status()["pid"]
    child_pid = runtime.agent(child_id).status()["pid"]
    os.kill(pid, signal.SIGKILL)

    def runs_again() -> bool:
        [row] = runtime.store.tool_calls(handle.execution_id)
        return bool(row.attempt == 2)

    effects.until(runs_again, "the next owner to run the call again")
    assert runtime.agent(child_id).status()["pid"] == child_pid, "the child never noticed"
    open_gate(gate)
    assert handle.result(timeout=PATIENCE_S).output == "done"
    assert len(recorded(child_id, "wire")) == 1
    assert len(recorded(child_id, "hold", gate=gate)) == 1
    assert only_child(runtime, boss, handle.execution_id) == (child_id, child_execution)
    assert len(runtime.executions(agent_id=child_id)) == 1
    assert not processes.wait_dead([child_pid], timeout_s=PATIENCE_S)


def test_both_die_and_there_is_still_one_child_and_one_result(
    runtime: Runtime, boss: AgentHandle, new_id: Callable[[str], str]
) -> None:
    gate = new_id("gate")
    handle = boss.start(turn(helper([("wire", {"amount": 8})], [("hold", {"gate": gate})])))
    child_id, _ = only_child(runtime, boss, handle.execution_id)
    until_recorded(child_id, "hold", gate=gate)
    for agent in (boss, runtime.agent(child_id)):
        os.kill(agent.status()["pid"], signal.SIGKILL)
    open_gate(gate)
    assert handle.result(timeout=PATIENCE_S).output == "done"
    assert len(recorded(child_id, "wire")) == 1
    assert len(runtime.executions(agent_id=child_id)) == 1


async def test_vector_search_asks_the_gateways(
    bench: Bench, runtime: Runtime, new_id: Callable[[str], str]
) -> None:
    store = SqlVectorStore(bench.store, "rules")
    with ModelServer() as server:
        settings = {"api_base": server.base_url, "api_key": "test"}
        documents = [Document("a", "refunds take five days"), Document("b", "open from nine to five")]
        await add_documents(store, documents, embeddings=HashEmbeddings(64))

        class Clerk(Agent):
            """Knows the rules."""

            model = obedient()
            tools = [
                VectorSearch.from_store(
                    store,
                    embeddings=LitellmEmbeddings("openai/embed", settings=settings),
                    k=1,
                    timeout_s=2 * PATIENCE_S,
                )
            ]

        # the first call starts the gateway, which loads litellm
        clerk = await runtime.create_async(Clerk, new_id("clerk"))
        result = await clerk.invoke_async(
            turn([("vector_search", {"query": "how long do refunds take"})]), timeout=2 * PATIENCE_S
        )
        assert [m.content for m in result.messages if m.role == "tool"] == [
            "1. [0.447] refunds take five days"
        ]
        assert [request.body["input"] for request in server.embeddings] == [["how long do refunds take"]]
        through_driver = LitellmEmbeddings("openai/embed", settings=settings, port=runtime.embedding_port())
        assert len((await through_driver.embed(["x"]))[0]) == 64
    store.close()


def test_a_parent_killed_while_it_is_cancelled_does_not_leave_its_child_at_work(
    runtime: Runtime, boss: AgentHandle, new_id: Callable[[str], str], faults: Any
) -> None:
    gate = new_id("gate")
    handle = boss.start(turn(helper([("hold", {"gate": gate})])))
    child_id, child_execution = only_child(runtime, boss, handle.execution_id)
    until_recorded(child_id, "hold", gate=gate)
    killed = write_plan(faults, boss.agent_id, point="after_commit:cancel_intent", action="kill")
    handle.cancel("enough")
    effects.until(killed.exists, "the parent to be killed behind the commit of its cancellation")
    assert handle.wait(timeout=PATIENCE_S).status is ExecutionStatus.CANCELLED
    child = runtime.agent(child_id).execution(child_execution)
    effects.until(lambda: child.view().status.is_terminal, "the child to end")
    assert child.view().status is ExecutionStatus.CANCELLED
    open_gate(gate)
