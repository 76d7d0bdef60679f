"""A conversation that is imported when an agent is created: one transaction, and the model sees it."""

from __future__ import annotations

from typing import Any

from phronomy_ray import Message, Runtime
from phronomy_ray.journal import RecordKind
from ray_testbed.agents import Puppet, asked
from ray_testbed.effects import PATIENCE_S


def check_import(runtime: Runtime, agent_id: str) -> None:
    """Create the agent from a conversation, and have it answer."""
    called = {"id": "c1", "type": "function", "function": {"name": "note", "arguments": '{"text":"x"}'}}
    context: list[Any] = [
        Message.user("my name is Ann"),
        {"role": "assistant", "content": None, "tool_calls": [called]},
        Message.tool("c1", "noted x"),
        Message.assistant("hello Ann"),
    ]
    agent = runtime.create(
        Puppet,
        agent_id,
        context=context,
        knowledge=["the office is blue", {"content": "the code is 7", "metadata": {"from": "manual"}}],
        metadata={"team": "red"},
    )
    root = runtime.store.load_root(agent.agent_id)
    assert (root.agent_revision, root.context_revision, root.journal_position) == (1, 1, 6)
    assert root.metadata == {"team": "red"}
    journal = runtime.store.read_journal(agent.agent_id)
    assert [record.kind for record in journal[4:]] == [RecordKind.KNOWLEDGE, RecordKind.KNOWLEDGE]
    assert {record.occurred_at for record in journal} == {root.created_at}
    assert agent.invoke("who am I?", timeout=PATIENCE_S).output == "you said: who am I?"
    [entry] = asked(agent.agent_id)
    texts = [str(message["content"]) for message in entry["messages"]]
    assert [message["role"] for message in entry["messages"] if message["role"] != "system"][-1] == "user"
    assert [text for text in texts if text in ("my name is Ann", "noted x", "hello Ann", "who am I?")] == [
        "my name is Ann", "noted x", "hello Ann", "who am I?",
    ]  # fmt: skip
    assert any("the office is blue" in text for text in texts)
    assert any("the code is 7" in text for text in texts)
