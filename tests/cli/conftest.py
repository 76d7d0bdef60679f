"""The command line in this process, a store with a story in it, and one cluster for the end-to-end tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

# The modules of the Ray tests, which share one cluster with the end-to-end tests here.
_IMPORTABLE = str(Path(__file__).resolve().parents[1] / "actors" / "importable")
if _IMPORTABLE not in sys.path:
    sys.path.insert(0, _IMPORTABLE)

import ray_testbed.session  # noqa: E402, F401  sets the environment that agents are declared with
from ray_testbed.fixtures import shared  # noqa: E402, F401

from phronomy_ray import Agent, tool  # noqa: E402
from phronomy_ray.clock import SystemClock  # noqa: E402
from phronomy_ray.commits import NewAgent  # noqa: E402
from phronomy_ray.engine.engine import AgentEngine, EngineParts  # noqa: E402
from phronomy_ray.kernel.inputs import Decide  # noqa: E402
from phronomy_ray.models.script import call, calls, final  # noqa: E402
from phronomy_ray.models.scripted import ScriptedModel  # noqa: E402
from phronomy_ray.store.sql_store import open_store  # noqa: E402
from phronomy_ray.tools.local_executor import LocalToolExecutor  # noqa: E402

SECRET = "hunter2"


@tool(replay="safe", redact_params=["password"])
def read(path: str, password: str = "") -> str:
    """Read."""
    return path * 2


@tool(requires_approval=True)
async def write(path: str) -> str:
    """Write."""
    return "ok " + path


class Clerk(Agent):
    model = ScriptedModel(
        [
            calls(
                call("read", {"path": "x", "password": SECRET}), call("read", {"path": 3}), call("nope", {})
            ),
            calls(call("write", {"path": "z"})),
            final("done"),
        ]
    )
    tools = (read, write)


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run the command in this process, in an empty folder; ``run_cli("agents", "--json")``."""
    from phronomy_ray.cli.app import app

    monkeypatch.chdir(tmp_path)

    def run(*words: str, input: str | None = None) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], input=input, prog_name="phronomy")

    return run


async def _live_through(path: Path) -> str:
    """One finished execution and one that waits for approval; returns the store's URL."""
    url = f"sqlite:///{path}"
    store = open_store(url, create=True)
    definition = Clerk.definition()
    for agent_id in ("ada", "bob"):
        store.create_agent(
            NewAgent(
                agent_id,
                definition.definition_id,
                definition.definition_version,
                definition.class_path,
                {},
                (),
                SystemClock().now(),
            )
        )
        engine = AgentEngine(
            agent_id,
            definition,
            EngineParts(store, None, LocalToolExecutor(), owner={"pid": 7, "node": "here"}),
        )
        await engine.start(f"ex_{agent_id}", f"hello {agent_id}", stream=True)
        waiting = await engine.wait(f"ex_{agent_id}", until="suspended", timeout_s=20)
        assert waiting is not None
        assert waiting.approval is not None
        if agent_id == "ada":
            await engine.decide(
                Decide("ex_ada", waiting.approval.approval_request_id, True, "eve", "looks fine")
            )
            await engine.wait("ex_ada", until="terminal", timeout_s=20)
        await engine.seal()
    return url


@pytest.fixture(scope="session")
def story_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    path = tmp_path_factory.mktemp("cli") / "story.db"
    asyncio.run(_live_through(path))
    return path


@pytest.fixture
def store(story_file: Path, tmp_path: Path) -> str:
    """URL of a copy of the store with the story."""
    import shutil

    copy = tmp_path / "copy.db"
    shutil.copyfile(story_file, copy)
    return f"sqlite:///{copy}"


@pytest.fixture
def pending(store: str) -> Any:
    """The approval request that waits."""
    opened = open_store(store)
    (row,) = opened.approvals(pending_only=True)
    opened.close()
    return row
