"""Filters and hooks of an instance and of a runtime, on real processes: where they run, what they outlive, what ends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from ray_testbed import filters
from ray_testbed.agents import Puppet, asked, turn
from ray_testbed.effects import PATIENCE_S, recorded
from ray_testbed.fixtures import Bench

from phronomy_ray import InstanceOptions
from phronomy_ray.errors import ConfigurationError, FilterBlockError
from phronomy_ray.testing import processes

Names = Callable[[str], str]


def options() -> InstanceOptions:
    return InstanceOptions(
        input_filters=[filters.no_secret],
        output_filters=[filters.Suffix("|out")],
        result_filters=[filters.Suffix("|result")],
    )


def told(messages: Any) -> list[str]:
    return [message.content for message in messages if message.role.value == "tool"]


def test_options_of_an_instance_run_with_it_survive_its_actor_and_end_with_an_unload(
    bench: Bench, new_id: Names
) -> None:
    runtime = bench.runtime(before_llm_input=[filters.counted])
    agent_id = new_id("filtered")
    with pytest.raises(ConfigurationError, match="InstanceOptions"):
        runtime.create(Puppet, agent_id, options=InstanceOptions(input_filters=[filters.unpicklable()]))
    agent = runtime.create(Puppet, agent_id, options=options())
    both = turn([("note", {"text": "a"}), ("pay", {"amount": 1})])
    for number in (1, 2):
        result = agent.invoke(both)
        assert result.output == "done|out"
        assert told(result.messages) == ["noted a|result", "paid 1|result"]
        shown = [entry["messages"][1] for entry in asked(agent_id)[-2:]]
        assert [message["content"] for message in shown] == ["This is call 1.", "This is call 2."]
        pid = agent.status()["pid"]
        found = recorded(agent_id, "filter-result")[-2:]
        assert {entry["tool"]: entry["pid"] == pid for entry in found} == {"note": False, "pay": True}, (
            "a result is filtered where its body ran"
        )
        assert len(recorded(agent_id, "filter-result")) == 2 * number
        with pytest.raises(FilterBlockError, match="a secret"):
            agent.invoke("my secret")
        if number == 1:
            os.kill(pid, signal.SIGKILL)
            assert not processes.wait_dead([pid], timeout_s=PATIENCE_S)
    with pytest.raises(ConfigurationError, match="other options"):
        runtime.load(Puppet, agent_id, options=InstanceOptions(input_filters=[filters.no_secret]))
    assert runtime.load(Puppet, agent_id, options=options()).status()["options"] == options().names()
    assert runtime.load(Puppet, agent_id).invoke("hello").output == "you said: hello|out"
    agent.unload()
    assert runtime.agent(agent_id).invoke("my secret").output == "you said: my secret"
