"""Where an agent's code comes from: modules that only the driver has, and classes of the driver's own script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import Bench, kill_actor

from phronomy_ray import Runtime
from phronomy_ray.errors import DefinitionUnavailableError
from phronomy_ray.journal import ExecutionStatus

Names = Callable[[str], str]

SHIPPED = '''
"""An agent that no node knows."""
from phronomy_ray import Agent, tool
from phronomy_ray.models.scripted import C, F, ScriptedModel, call

import shipped_helper


@tool(replay="safe")
def where() -> str:
    """Where this code was found."""
    return shipped_helper.__file__


class Clerk(Agent):
    model = ScriptedModel([C(call("where")), F("shipped")])
    tools = [where]
'''

SHIPPING_DRIVER = """
import json, os, signal, sys
address, store, agent_id, modules, elsewhere = sys.argv[1:]
sys.path.insert(0, modules)
from phronomy_ray import Runtime
from phronomy_ray.testing import processes
from shipped_agents import Clerk


def turn(agent):
    result = agent.invoke("where are you?", timeout=90)
    return [result.output, *(message.content for message in result.messages if message.role == "tool")]


with Runtime(address, store=store, working_dir=modules) as runtime:
    os.rename(modules, elsewhere)  # from here on nobody can import from where the driver did
    agent = runtime.create(Clerk, agent_id)
    first = turn(agent)
    pid = agent.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    assert not processes.wait_dead([pid], timeout_s=30)
    after_a_kill = turn(agent)
    agent.unload()
    after_an_unload = turn(agent)
    agent.unload()
print(json.dumps([first, after_a_kill, after_an_unload]))
"""

MAIN_DRIVER = '''
import json, os, signal, sys
from phronomy_ray import Agent, Runtime, tool
from phronomy_ray.models.scripted import C, F, ScriptedModel, call
from phronomy_ray.testing import processes

address, store, agent_id = sys.argv[1:]


@tool(replay="safe")
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


@tool(requires_approval=True)
def publish() -> str:
    """Needs a human."""
    return "published"


class Mine(Agent):
    model = ScriptedModel([C(call("double", {"number": 21})), C(call("publish")), F("all mine")])
    tools = [double, publish]


with Runtime(address, store=store) as runtime:
    agent = runtime.create(Mine, agent_id)
    handle = agent.start("go")
    held = handle.wait("suspended", timeout=90)
    pid = agent.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    assert not processes.wait_dead([pid], timeout_s=30)
    handle.approve(held.approval.approval_request_id)
    first = handle.result(timeout=90)
    agent.unload()
    second = agent.start("again").wait("suspended", timeout=90)
    print(json.dumps([first.output, [m.content for m in first.messages if m.role == "tool"], second.execution_id]))
'''


def run_driver(bench: Bench, script: str, folder: Path, *arguments: str) -> Any:
    """Run a script as a driver of its own; what it printed last, as JSON."""
    path = folder / "driver_script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path), bench.session.connect(), bench.store, *arguments],
        env=os.environ | bench.session.environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_module_that_only_the_driver_has_reaches_the_nodes(
    bench: Bench, runtime: Runtime, tmp_path: Path, new_id: Names
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "shipped_agents.py").write_text(SHIPPED)
    (modules / "shipped_helper.py").write_text('"""Beside it."""\n')
    agent_id = new_id("shipped")
    elsewhere = tmp_path / "elsewhere"
    turns = run_driver(bench, SHIPPING_DRIVER, tmp_path, agent_id, str(modules), str(elsewhere))
    assert len(turns) == 3
    for output, found_at in turns:
        assert output == "shipped"
        assert not found_at.startswith(str(tmp_path)), "the node imported from the driver's own folder"
    # this driver does not bring the module along
    assert runtime.store.load_root(agent_id).class_path == "shipped_agents:Clerk"
    with pytest.raises(DefinitionUnavailableError, match="working_dir"):
        runtime.agent(agent_id).status()
    assert runtime.get(agent_id) is None
    assert runtime.executions(agent_id=agent_id)[0].status is ExecutionStatus.COMPLETED


def test_a_class_of_the_drivers_script_lives_as_long_as_its_process_is_known(
    bench: Bench, runtime: Runtime, tmp_path: Path, new_id: Names
) -> None:
    agent_id = new_id("mine")
    output, results, waiting = run_driver(bench, MAIN_DRIVER, tmp_path, agent_id)
    assert output == "all mine"
    assert results == ["42", "published"]
    handle = runtime.execution(waiting)
    live = runtime.get(agent_id)
    assert live is not None, "a live agent outlasts its driver"
    assert live.status()["execution_id"] == waiting
    kill_actor(agent_id)
    request = handle.view().approvals[0].approval_request_id
    with pytest.raises(DefinitionUnavailableError) as caught:
        runtime.approve(waiting, request)
    assert "__main__" in caught.value.details["definition_id"]
    assert "load it from that script, or move the class to a module" in caught.value.message
    assert handle.view().suspended, "nothing is lost by the attempt"
    assert handle.view().approvals[0].approval_request_id == request
