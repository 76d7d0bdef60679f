"""``run``, ``approve`` and their kin as real processes on a real cluster."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ray_testbed.fixtures import kill_actor
from ray_testbed.session import Session
from typer.testing import CliRunner, Result

from phronomy_ray.cli.app import app
from phronomy_ray.store.sql_store import open_store

AGENTS = """
import time
from pathlib import Path

from phronomy_ray import Agent, ToolContext, tool
from phronomy_ray.models.script import call, calls, final
from phronomy_ray.models.scripted import ScriptedModel


@tool(replay="safe")
async def look(path: str) -> str:
    "Look."
    return "seen " + path


@tool(requires_approval=True)
async def write(path: str) -> str:
    "Write."
    return "wrote " + path


@tool(replay="safe", timeout_s=120)
def hold(until: str, context: ToolContext) -> str:
    "Wait for a file."
    while not Path(until).exists() and not context.is_cancelled():
        time.sleep(0.05)
    return "held"


class Helper(Agent):
    model = ScriptedModel(
        [
            calls(call("look", {"path": "a"}), text="Let me look."),
            calls(call("write", {"path": "b"})),
            final("All is well."),
        ]
    )
    tools = (look, write)


class Holder(Agent):
    model = ScriptedModel(lambda request: (
        calls(call("hold", {"until": request.last_user})) if request.sequence == 1 else final("let go")
    ))
    tools = (hold,)
"""

#: Settings of commands that start no Ray, and have none to fall back on.
WITHOUT_CLUSTER = {"PHRONOMY_PLACEMENT": "in-process", "PHRONOMY_RAY_ADDRESS": "nowhere:1"}


def _hear_interrupts() -> None:
    """A shell starts background jobs deaf to SIGINT, and their children inherit that; a terminal's programs are not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """The command as processes in a folder of their own, on the shared cluster and a store of its own."""

    def __init__(self, shared: Session, folder: Path) -> None:
        (folder / "cli_agents.py").write_text(AGENTS)
        self.folder = folder
        self.store = shared.new_store("sqlite")
        self._environment = {
            **os.environ,
            **shared.environment,
            "PHRONOMY_RAY_ADDRESS": shared.cluster.address,
            "PHRONOMY_STORE_URL": self.store,
        }

    def run(
        self, *words: str, code: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "phronomy_ray.cli", *words],
            cwd=self.folder,
            env={**self._environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str) -> Any:
        """What a command says that only reads the store; in this process, since another one takes seconds to start."""
        done = CliRunner().invoke(app, [*words, "--json", "--store", self.store], prog_name="phronomy")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def here(self, *words: str, code: int = 0) -> Result:
        """The same command in this process, which is then the process of the agents too: no cluster is asked."""
        done = CliRunner().invoke(
            app, words, prog_name="phronomy", env={**WITHOUT_CLUSTER, "PHRONOMY_STORE_URL": self.store}
        )
        assert done.exit_code == code, done.output
        return done

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "phronomy_ray.cli", *words],
            cwd=self.folder,
            env=self._environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_hear_interrupts,
        )

    def until(self, condition: Callable[[Any], bool], what: str) -> None:
        """Wait until the store's content is as wanted."""
        store = open_store(self.store)
        try:
            deadline = time.monotonic() + 60
            while not condition(store):
                assert time.monotonic() < deadline, f"waited 60 s until {what}"
                time.sleep(0.1)
        finally:
            store.close()


@pytest.fixture(scope="module")
def terminal(shared: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    made = Terminal(shared, tmp_path_factory.mktemp("terminal"))
    yield made
    shared.connect()
    for agent in made.json("agents"):
        kill_actor(agent["agent_id"])
    shared.disconnect()


def test_run_needs_a_human_and_approve_brings_it_to_its_end(terminal: Terminal) -> None:
    ended = terminal.run("run", "cli_agents:Helper", "hello", "--agent-id", "one", code=3)
    assert ended.stdout == ""
    assert "-> look" in ended.stderr
    (request,) = terminal.json("approvals")
    assert f"phronomy approve {request['execution_id']} {request['approval_request_id']}" in ended.stderr
    terminal.run("unload", "one")
    approved = terminal.run(
        "approve", request["approval_request_id"], "--by", "me", "--reason", "fine", "--wait"
    )
    assert approved.stdout.splitlines()[-1] == "All is well."
    story = terminal.json("inspect", request["execution_id"])
    assert story["execution"]["status"] == "completed"
    assert story["approvals"][0]["decided_by"] == "me"
    assert story["approvals"][0]["reason"] == "fine"


def test_a_rejection_ends_it_without_any_cluster(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command is the agent's process for as long as it runs."""
    monkeypatch.chdir(terminal.folder)
    result = terminal.run(
        "run", "cli_agents:Helper", "hello", "--agent-id", "two", "--json", code=3, env=WITHOUT_CLUSTER
    )
    execution = json.loads(result.stdout)["execution_id"]
    busy = terminal.here("run", "cli_agents:Helper", "another", "--agent-id", "two", code=5)
    assert "[agent_busy]" in busy.stderr
    rejected = terminal.run("reject", execution, "--wait", code=1, env=WITHOUT_CLUSTER)
    assert "rejected" in rejected.stderr
    terminal.here("watch", execution, code=1)
    spent = ("--execution-id", execution)
    other = terminal.here("run", "cli_agents:Helper", "other", "--agent-id", "two", *spent, code=5)
    assert "[state_conflict]" in other.stderr


def test_a_terminal_is_asked(terminal: Terminal) -> None:
    """A human sits at a pseudo-terminal and says yes."""
    outside, inside = pty.openpty()
    try:
        process = terminal.start("run", "cli_agents:Helper", "hello", "--agent-id", "three", stdin=inside)
        os.write(outside, b"y\n")
        out, err = process.communicate(timeout=90)
    finally:
        os.close(outside)
        os.close(inside)
    assert process.returncode == 0, err
    assert out == "All is well.\n"
    assert "approval needed: write" in err


def test_ctrl_c_leaves_it_running_and_says_how_to_come_back(terminal: Terminal) -> None:
    gate = terminal.folder / "gate"
    process = terminal.start(
        "run", "cli_agents:Holder", str(gate), "--agent-id", "four", "--execution-id", "ex_four"
    )
    terminal.until(
        lambda store: any(call.status.value == "dispatched" for call in store.tool_calls("ex_four")),
        "the tool runs",
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "phronomy watch ex_four" in err
    assert "Traceback" not in err
    (row,) = terminal.json("executions", "--agent", "four")
    assert row["status"] == "active"
    gate.touch()
    assert terminal.run("watch", "ex_four").stdout.strip().endswith("let go")


def test_cancel(terminal: Terminal) -> None:
    never = terminal.folder / "never"
    process = terminal.start(
        "run", "cli_agents:Holder", str(never), "--agent-id", "five", "--execution-id", "ex_five"
    )
    terminal.until(
        lambda store: any(call.status.value == "dispatched" for call in store.tool_calls("ex_five")),
        "the tool runs",
    )
    assert "cancelled" in terminal.run("cancel", "ex_five", "--reason", "enough").stdout
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cancelled" in err


def test_the_doctor_sees_the_cluster(terminal: Terminal) -> None:
    found = {item["check"]: item for item in json.loads(terminal.run("doctor", "--json").stdout)["checks"]}
    assert found["ray"]["status"] == "ok"
    assert "nodes" in found["ray"]["detail"]
    assert found["litellm"]["status"] == "ok"
