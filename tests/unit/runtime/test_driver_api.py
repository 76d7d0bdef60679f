"""What a driver sees of agents wherever they live: made, found, asked for by their executions, children at work. No Ray.

The same calls across processes, and what the death of one does to them, are tests on Ray.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session
from ray_testbed import checks, effects
from ray_testbed.agents import Puppet, PuppetTwo, Stranger, turn
from ray_testbed.children import helper, only_child
from ray_testbed.effects import PATIENCE_S, open_gate, recorded, until_recorded
from ray_testbed.families import Boss
from ray_testbed.imported import check_import

from phronomy_ray import InProcess, Message, Runtime
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    ConfigurationError,
    ExecutionRehydrationRequiredError,
    InvalidConversationError,
    InvalidInputError,
    NotFoundError,
)
from phronomy_ray.ids import new_execution_id
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.store.sql_store import open_store

Names = Callable[[str], str]


@pytest.fixture
def runtime(sqlite_template: Path, tmp_path: Path) -> Iterator[Runtime]:
    """On a store of its own; every agent in it is checked at the end."""
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    url = f"sqlite:///{tmp_path}/agents.db"
    with Runtime(placement=InProcess(), store=url) as made:
        yield made
    store = open_store(url)
    for root in store.list_agents():
        checks.check_agent(store, root.agent_id)
    store.close()


@pytest.fixture
def new_id() -> Names:
    return ray_testbed.session.fresh_name


# --- create -----------------------------------------------------------------------------------------------------


def test_create_refuses_what_exists_live_or_stored(runtime: Runtime, new_id: Names) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    with pytest.raises(AgentAlreadyExistsError) as live:
        runtime.create(Puppet, agent.agent_id)
    assert live.value.details == {"agent_id": agent.agent_id}
    assert agent.unload() is True
    with pytest.raises(AgentAlreadyExistsError):
        runtime.create(Stranger, agent.agent_id)
    assert runtime.get(agent.agent_id) is None, "a refused creation woke it"


@pytest.mark.parametrize("agent_id", ["", "   ", "a\nb", "x" * 201])
def test_an_id_must_be_text_that_can_be_printed(runtime: Runtime, agent_id: str) -> None:
    for operation in (runtime.create, runtime.load, runtime.load_or_create):
        with pytest.raises(ValueError, match="agent_id"):
            operation(Puppet, agent_id)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"context": [{"role": "tool", "tool_call_id": "c1", "content": "3"}]}, InvalidConversationError),
        (
            {
                "context": [
                    Message.user("add"),
                    {"role": "assistant", "content": None, "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
                    ]},
                    Message.user("well?"),
                ]
            },
            InvalidConversationError,
        ),
        ({"knowledge": [{"text": "no content"}]}, InvalidInputError),
        ({"knowledge": [""]}, InvalidInputError),
    ],
)  # fmt: skip
def test_a_malformed_import_is_refused_and_starts_nothing(
    runtime: Runtime, new_id: Names, options: dict[str, Any], error: type[Exception]
) -> None:
    agent_id = new_id("broken")
    with pytest.raises(error):
        runtime.create(Puppet, agent_id, **options)
    assert runtime.get(agent_id) is None
    with pytest.raises(NotFoundError):
        runtime.store.load_root(agent_id)


def test_what_create_imports_is_one_transaction_and_the_model_sees_it(
    runtime: Runtime, new_id: Names
) -> None:
    check_import(runtime, new_id("imported"))


# --- load, get --------------------------------------------------------------------------------------------------


def test_load_refuses_every_other_claim(runtime: Runtime, new_id: Names) -> None:
    with pytest.raises(NotFoundError):
        runtime.load(Puppet, new_id("nobody"))
    agent = runtime.create(Puppet, new_id("alice"))

    def refused_for_its_class() -> None:
        for other in (PuppetTwo, Stranger):
            with pytest.raises(ConfigurationError, match=r"is (stored|live) as 'puppet' version '1'"):
                runtime.load(other, agent.agent_id)
            with pytest.raises(ConfigurationError):
                runtime.load_or_create(other, agent.agent_id)

    refused_for_its_class()
    before = agent.status()
    assert agent.unload() is True
    refused_for_its_class()
    assert runtime.get(agent.agent_id) is None, "a refused load woke it"
    again = runtime.load(Puppet, agent.agent_id).status()
    assert again["epoch"] == before["epoch"] + 1
    assert again["journal_position"] == before["journal_position"]


def test_an_execution_leads_to_whoever_holds_it(runtime: Runtime, new_id: Names) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    handle = agent.start(turn([("send", {"text": "hi"})]))
    assert handle.wait("suspended", PATIENCE_S).suspended
    assert runtime.live_for_execution(handle.execution_id).status() == agent.status()
    assert agent.unload() is True
    with pytest.raises(ExecutionRehydrationRequiredError) as caught:
        runtime.live_for_execution(handle.execution_id)
    assert caught.value.details["agent_id"] == agent.agent_id
    assert runtime.get(agent.agent_id) is None, "asking who holds an execution wakes nobody"
    with pytest.raises(NotFoundError):
        runtime.live_for_execution(new_execution_id())


# --- children ---------------------------------------------------------------------------------------------------


def test_cancelling_the_parent_ends_the_child(runtime: Runtime, new_id: Names) -> None:
    boss = runtime.create(Boss, new_id("boss"))
    gate = new_id("gate")
    handle = boss.start(turn(helper([("hold", {"gate": gate})])))
    child_id, child_execution = only_child(runtime, boss, handle.execution_id)
    until_recorded(child_id, "hold", gate=gate)
    handle.cancel("enough")
    assert handle.wait(timeout=PATIENCE_S).status is ExecutionStatus.CANCELLED
    child = runtime.agent(child_id).execution(child_execution)
    effects.until(lambda: child.view().status.is_terminal, "the child to end")
    assert child.view().status is ExecutionStatus.CANCELLED
    effects.until(lambda: runtime.get(child_id) is None, "the child to leave")
    open_gate(gate)


def test_a_childs_question_is_answered_under_its_own_name(runtime: Runtime, new_id: Names) -> None:
    boss = runtime.create(Boss, new_id("boss"))
    handle = boss.start(turn(helper([("send", {"text": "really?"})])))
    [request] = effects.until(runtime.pending_approvals, "the child to ask")
    child_id, child_execution = only_child(runtime, boss, handle.execution_id)
    assert (request.agent_id, request.execution_id) == (child_id, child_execution)
    assert boss.status()["execution_status"] == "active"
    runtime.approve(child_execution, request.approval_request_id, approved=True)
    assert handle.result(timeout=PATIENCE_S).output == "done"
    assert len(recorded(child_id, "send")) == 1
