"""What a driver can rely on wherever its agents live: one suite, run on every placement.

Subclass `PlacementSuite` and give it a fixture ``home``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from phronomy_ray import AgentHandle, Runtime
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    AgentBusyError,
    CancellationError,
    ConfigurationError,
    InvalidInputError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.events import EventType
from ray_testbed import effects
from ray_testbed.agents import Puppet, PuppetTwo, turn
from ray_testbed.effects import PATIENCE_S

Names = Callable[[str], str]


class Place(Protocol):
    """One placement with a store behind it."""

    runtime: Runtime

    def lose(self, agent: AgentHandle) -> AgentHandle:
        """Have the agent's owner lost in the middle of whatever it does; a handle that works afterwards."""
        ...


class PlacementSuite:
    """The same calls, the same answers."""

    def test_tools_on_the_loop_and_elsewhere_and_a_second_turn(self, home: Place, new_id: Names) -> None:
        agent = home.runtime.create(Puppet, new_id("modes"), knowledge=["the sky is blue"])
        batch = [("pay", {"amount": 3}), ("wire", {"amount": 4}), ("note", {"text": "x"})]
        result = agent.invoke(turn(batch, answer="all done"))
        assert result.output == "all done"
        told = [message.content for message in result.messages if message.role.value == "tool"]
        assert told == ["paid 3", "wired 4", "noted x"]
        assert agent.invoke("more").output == "you said: more"
        assert [item.content for item in agent.transcript_messages()][-2:] == ["more", "you said: more"]
        assert agent.status()["lifecycle"] == "idle"

    def test_typed_errors_reach_the_driver(self, home: Place, new_id: Names) -> None:
        agent_id = new_id("errors")
        with pytest.raises(NotFoundError):
            home.runtime.load(Puppet, agent_id)
        agent = home.runtime.create(Puppet, agent_id)
        with pytest.raises(AgentAlreadyExistsError):
            home.runtime.create(Puppet, agent_id)
        with pytest.raises(ConfigurationError, match="version"):
            home.runtime.load(PuppetTwo, agent_id)
        with pytest.raises(InvalidInputError):
            agent.invoke(["no", "message"])
        assert agent.invoke("x", execution_id=f"ex-{agent_id}").output == "you said: x"
        with pytest.raises(StateConflictError):
            agent.invoke("y", execution_id=f"ex-{agent_id}")
        assert agent.invoke("x", execution_id=f"ex-{agent_id}").output == "you said: x"

    def test_a_human_is_waited_for_without_a_process(self, home: Place, new_id: Names) -> None:
        agent = home.runtime.create(Puppet, new_id("human"))
        handle = agent.start(turn([("send", {"text": "hello"})]))
        waiting = handle.wait("suspended", timeout=PATIENCE_S)
        assert agent.unload() is True
        assert home.runtime.get(agent.agent_id) is None
        assert agent.unload() is False
        (request,) = home.runtime.pending_approvals()
        assert request.approval_request_id == waiting.approvals[0].approval_request_id
        home.runtime.approve(handle.execution_id, request.approval_request_id, decided_by="ann")
        assert handle.result(timeout=PATIENCE_S).output == "done"
        assert len(effects.recorded(agent.agent_id, "send", text="hello")) == 1
        kinds = [event.type for event in handle.events()]
        assert kinds[-3:] == [EventType.APPROVAL_DECIDED, EventType.TOOL_RESULT, EventType.COMPLETED]
        assert [event.seq for event in handle.events(after=2)] == list(range(3, len(kinds) + 1))

    def test_one_execution_at_a_time_and_cancellation(self, home: Place, new_id: Names) -> None:
        agent = home.runtime.create(Puppet, new_id("busy"))
        handle = agent.start(turn([("polite", {})]))
        effects.until_recorded(agent.agent_id, "polite")
        with pytest.raises(AgentBusyError):
            agent.start("another")
        with pytest.raises(AgentBusyError):
            agent.unload()
        later = agent.start("another", on_busy="queue")
        assert handle.cancel("enough").status.value in ("active", "cancelled")
        with pytest.raises(CancellationError, match="enough"):
            handle.result(timeout=PATIENCE_S)
        assert later.result(timeout=PATIENCE_S).output == "you said: another"
        assert len(effects.recorded(agent.agent_id, "polite_end")) == 1

    def test_tokens_reach_an_observer(self, home: Place, new_id: Names) -> None:
        agent = home.runtime.create(Puppet, new_id("tokens"))
        handle = agent.start("speak", stream=True)
        events = list(handle.events())
        text = "".join(event.payload["text"] for event in events if event.type is EventType.TOKEN)
        assert text in ("you said: speak", ""), "live tokens may be over before anybody looks"
        assert events[-1].type is EventType.COMPLETED

    def test_a_lost_owner_leaves_what_it_has_begun_to_the_next(self, home: Place, new_id: Names) -> None:
        agent = home.runtime.create(Puppet, new_id("lost"))
        gate = new_id("gate")
        handle = agent.start(turn([("linger", {"gate": gate})], answer="survived"))
        effects.until_recorded(agent.agent_id, "linger")
        before = agent.status()["epoch"]
        agent = home.lose(agent)
        effects.open_gate(gate)
        assert agent.execution(handle.execution_id).result(timeout=PATIENCE_S).output == "survived"
        assert agent.status()["epoch"] > before

    def test_raw_handles(self, home: Place, new_id: Names) -> None:
        agent = home.runtime.create(Puppet, new_id("raw"))
        answer = self.wait_for(home.runtime.actor_for(agent.agent_id).invoke.remote("by hand", wait_s=20.0))
        assert answer["output"] == "you said: by hand"

    def wait_for(self, reference: object) -> dict[str, object]:
        """What a raw call gives."""
        raise NotImplementedError

    def test_an_agent_is_purged_and_its_id_is_free(self, home: Place, new_id: Names) -> None:
        agent = home.runtime.create(Puppet, new_id("purged"))
        agent.invoke("remember")
        assert agent.purge() is True
        assert home.runtime.get(agent.agent_id) is None
        again = home.runtime.create(Puppet, agent.agent_id)
        assert again.transcript_messages() == ()
        assert agent.invoke("new").output == "you said: new"
