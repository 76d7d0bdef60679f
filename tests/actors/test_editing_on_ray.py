"""Edits and the end of an agent, through handles and the command line, on real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import ray
from ray_testbed.agents import Puppet, asked
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import Bench

from phronomy_ray.errors import AgentClosedError, NotFoundError
from phronomy_ray.testing import processes

Names = Callable[[str], str]


def test_an_agent_is_edited_closed_deleted_and_made_anew(bench: Bench, new_id: Names) -> None:
    runtime = bench.runtime()
    agent_id = new_id("edited")
    agent = runtime.create(Puppet, agent_id, knowledge=["First."])
    agent.invoke("one")
    agent.add_knowledge("It rains.", metadata={"by": "ann"})
    agent.clear_transcript()
    os.kill(agent.status()["pid"], signal.SIGKILL)
    agent.add_knowledge("It is late.")  # the handle finds the next owner
    assert agent.invoke("two").output == "you said: two"
    texts = [message["content"] for message in asked(agent_id)[-1]["messages"]]
    assert "Knowledge:\nFirst.\n\nIt rains.\n\nIt is late." in texts
    assert "one" not in texts
    said = [message.content for message in agent.transcript_messages()]
    assert said == ["two", "you said: two"]
    agent.reset_context()
    agent.clear_knowledge()
    assert agent.transcript_messages() == ()

    agent.close()
    with pytest.raises(AgentClosedError):
        agent.invoke("three")
    agent.unload()
    with pytest.raises(AgentClosedError):
        agent.add_knowledge("too late")

    pid = agent.status()["pid"]
    assert agent.purge() is True
    assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    assert agent.purge() is False
    with pytest.raises(NotFoundError):
        agent.status()
    with pytest.raises(NotFoundError):
        runtime.load(Puppet, agent_id)
    again = runtime.create(Puppet, agent_id)
    assert again.invoke("four").output == "you said: four"
    assert agent.transcript_messages()[0].content == "four", "a handle holds a name"

    actor = again.actor()  # the same by plain calls of the actor
    first = ray.get(actor.add_knowledge.remote("It rains.", "ed_1"))
    assert ray.get(actor.add_knowledge.remote({"content": "It rains."}, "ed_1")) == first
    assert ray.get(actor.close.remote())["agent_revision"] == first["agent_revision"] + 1
    assert ray.get(actor.purge.remote()) is True
    assert runtime.load_or_create(Puppet, agent_id).invoke("one").output == "you said: one"
