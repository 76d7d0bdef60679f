"""A ``create`` whose answer was late is sent again by the driver: that is one creation, not a second agent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import ray
from ray_testbed.agents import Puppet

from phronomy_ray import Runtime
from phronomy_ray.actors.agent_actor import AgentActor
from phronomy_ray.errors import AgentAlreadyExistsError
from phronomy_ray.hosting.assignment import agent_actor_name
from phronomy_ray.hosting.wiring import DefinitionSource, NewAgentRequest


def test_the_same_request_again_is_one_creation(runtime: Runtime, new_id: Callable[[str], str]) -> None:
    agent_id = new_id("repeated")
    wiring = runtime.config.wiring(DefinitionSource(Puppet.definition().class_path))
    actor = (
        ray.remote(AgentActor)
        .options(name=agent_actor_name(agent_id), namespace="phronomy", num_cpus=0, lifetime="detached")
        .remote(agent_id, wiring)
    )
    request = NewAgentRequest(request_id="one")
    answers = ray.get([actor.create.remote(request) for _ in range(3)], timeout=60)
    assert [answer["agent_id"] for answer in answers] == [agent_id] * 3
    assert answers[0]["epoch"] == answers[2]["epoch"] == 1
    with pytest.raises(AgentAlreadyExistsError):
        ray.get(actor.create.remote(NewAgentRequest(request_id="two")), timeout=60)
    with pytest.raises(AgentAlreadyExistsError):
        ray.get(actor.create.remote(NewAgentRequest()), timeout=60)
    assert ray.get(actor.create.remote(request), timeout=60)["epoch"] == 1
    runtime.agent(agent_id).unload()
    again = runtime.actor_for(agent_id)  # a new process knows it too
    assert ray.get(again.create.remote(request), timeout=60)["epoch"] == 2
