"""Commands that read the store: shapes, filters, errors, exit codes; none of them imports Ray."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from phronomy_ray import __version__
from phronomy_ray.cli.app import hoist_global_options
from phronomy_ray.cli.inspecting import raised_at

Cli = Callable[..., Result]


def test_version(run_cli: Cli) -> None:
    result = run_cli("--version")
    assert result.exit_code == 0
    assert result.output.strip() == f"phronomy-ray {__version__}"


@pytest.mark.parametrize(
    "arguments",
    [["agents"], ["executions"], ["approvals"], ["traces"], ["inspect", "ex_ada"], ["db", "current"]],
)
def test_json_is_one_document_and_nothing_else(run_cli: Cli, store: str, arguments: list[str]) -> None:
    result = run_cli(*arguments, "--json", "--store", store)
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)


def test_agents(run_cli: Cli, store: str) -> None:
    found = json.loads(run_cli("--store", store, "agents", "--json").stdout)
    assert [agent["agent_id"] for agent in found] == ["ada", "bob"]
    assert [agent["lifecycle"] for agent in found] == ["idle", "suspended"]
    assert found[0]["owner"] == {"pid": 7, "node": "here"}
    text = run_cli("--store", store, "agents").stdout
    assert "ada" in text
    assert "pid 7 on here" in text


def test_executions_by_agent_and_by_state(run_cli: Cli, store: str) -> None:
    every = json.loads(run_cli("--store", store, "executions", "--json").stdout)
    assert {row["execution_id"]: row["status"] for row in every} == {
        "ex_ada": "completed",
        "ex_bob": "suspended",
    }
    only = json.loads(run_cli("--store", store, "executions", "--agent", "ada", "--json").stdout)
    assert [row["execution_id"] for row in only] == ["ex_ada"]
    still = json.loads(run_cli("--store", store, "executions", "--open", "--json").stdout)
    assert [row["execution_id"] for row in still] == ["ex_bob"]


def test_a_misspelt_agent_is_an_error_and_not_an_empty_list(run_cli: Cli, store: str) -> None:
    for command in ("executions", "approvals"):
        result = run_cli(command, "--agent", "adda", "--store", store)
        assert result.exit_code == 4
        assert "adda" in result.stderr
        assert "[not_found]" in result.stderr


def test_approvals(run_cli: Cli, store: str, pending: Any) -> None:
    (found,) = json.loads(run_cli("--store", store, "approvals", "--json").stdout)
    assert found["approval_request_id"] == pending.approval_request_id
    assert found["tool_name"] == "write"
    every = json.loads(run_cli("--store", store, "approvals", "--all", "--json").stdout)
    assert {row["status"] for row in every} == {"approved", "pending"}


def test_traces_are_masked_and_filtered(run_cli: Cli, store: str) -> None:
    every = json.loads(run_cli("--store", store, "traces", "--json").stdout)
    assert {trace["agent_id"] for trace in every} == {"ada", "bob"}
    found = json.loads(run_cli("traces", "--execution", "ex_ada", "--json", "--store", store).stdout)
    assert [(trace["tool_name"], trace["status"], trace["ok"]) for trace in found] == [
        ("read", "succeeded", True),
        ("read", "failed", False),
        ("nope", "failed", False),
        ("write", "succeeded", True),
    ]
    assert found[0]["arguments"] == {"path": "x", "password": "[REDACTED]"}
    text = run_cli("traces", "--agent", "ada", "--store", store).stdout
    assert "ok z" in text
    assert "hunter2" not in text + json.dumps(every)
    assert run_cli("traces", "--agent", "adda", "--store", store).exit_code == 4


def test_a_pipe_gets_whole_ids(run_cli: Cli, store: str, pending: Any) -> None:
    assert pending.approval_request_id in run_cli("--store", store, "approvals").stdout


def test_inspect_tells_the_story_in_order(run_cli: Cli, store: str) -> None:
    found = json.loads(run_cli("--store", store, "inspect", "ex_ada", "--json").stdout)
    assert [moment["kind"] for moment in found["timeline"]] == [
        "started",
        "model_call",
        "tool_call",
        "tool_call",
        "tool_call",
        "model_call",
        "approval_required",
        "approval_decided",
        "tool_call",  # it ran after the answer, so it is told there
        "model_call",
        "ended",
    ]
    assert [call["position"] for call in found["tool_calls"]] == [0, 1, 2, 0]
    assert [call["status"] for call in found["tool_calls"]] == ["succeeded", "failed", "failed", "succeeded"]
    assert found["approvals"][0]["decided_by"] == "eve"
    assert found["execution"]["usage"]["input_tokens"] == 30
    text = run_cli("--store", store, "inspect", "ex_ada").stdout
    for word in ("hello ada", "xx", "approved by eve", "looks fine", "done", "pid", "10 tokens in"):
        assert word in text


def test_inspect_never_shows_a_redacted_argument(run_cli: Cli, store: str) -> None:
    for more in ([], ["--json"]):
        output = run_cli("--store", store, "inspect", "ex_ada", *more).output
        assert "hunter2" not in output


def test_inspect_names_the_lines_of_a_tool_that_raised_and_none_of_ours() -> None:
    def body() -> None:
        json.loads("{")

    def frames(depth: int) -> str:
        try:
            body()
        except ValueError as error:
            told = traceback.format_tb(error.__traceback__)
        return "".join(
            [f'  File "/x/phronomy_ray/tools/envelope.py", line {n}, in run\n' for n in range(depth)] + told
        )

    for depth in (0, 2):
        lines = raised_at(frames(depth))
        assert 'in body: json.loads("{")' in lines[1]
        assert not any("envelope.py" in line for line in lines)
    assert raised_at("") == []


def test_inspect_says_how_to_answer(run_cli: Cli, store: str, pending: Any) -> None:
    text = run_cli("--store", store, "inspect", "ex_bob").stdout
    assert f"phronomy approve {pending.approval_request_id}" in text


def test_an_ended_execution_is_watched_without_a_cluster(run_cli: Cli, store: str) -> None:
    result = run_cli("watch", "ex_ada", "--store", store)
    assert result.exit_code == 0
    assert result.stdout == "done\n"


@pytest.mark.parametrize("command", ["inspect", "watch", "cancel"])
def test_an_unknown_execution(run_cli: Cli, store: str, command: str) -> None:
    result = run_cli(command, "ex_nobody", "--store", store)
    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_a_store_that_is_not_there_is_not_created(run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli("agents", "--store", f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == 2
    assert "phronomy db upgrade" in result.stderr
    assert not (tmp_path / "none.db").exists()


def test_a_store_that_cannot_be_reached(run_cli: Cli) -> None:
    result = run_cli("agents", "--store", "postgresql://nobody@127.0.0.1:1/none")
    assert result.exit_code == 6
    assert "[store_unavailable]" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_password_in_the_store_url_is_not_shown(run_cli: Cli) -> None:
    result = run_cli("agents", "--store", "postgresql://nobody:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in result.output


def test_a_wrong_store_url(run_cli: Cli) -> None:
    result = run_cli("agents", "--store", "mysql://x")
    assert result.exit_code == 2
    assert "[configuration]" in result.stderr


def test_the_environment_names_the_store(run_cli: Cli, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRONOMY_STORE_URL", store)
    assert "ada" in run_cli("agents").stdout


def test_debug_shows_the_traceback(run_cli: Cli, store: str) -> None:
    assert "Traceback" in run_cli("--debug", "inspect", "ex_nobody", "--store", store).stderr


def test_global_options_may_stand_anywhere() -> None:
    assert hoist_global_options(["agents", "--store", "x", "--json", "--debug"]) == [
        "--store",
        "x",
        "--debug",
        "agents",
        "--json",
    ]
    assert hoist_global_options(["run", "--address=auto", "m:C", "hi"]) == [
        "--address=auto",
        "run",
        "m:C",
        "hi",
    ]
    assert hoist_global_options(["run", "m:C", "--", "--store"]) == ["run", "m:C", "--", "--store"]


def test_a_usage_error(run_cli: Cli) -> None:
    assert run_cli("inspect").exit_code == 2
    assert run_cli("no-such-command").exit_code == 2


def test_listing_imports_neither_ray_nor_litellm(store: str) -> None:
    program = (
        "import sys\n"
        "from phronomy_ray.cli.app import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'ray', 'litellm', 'aiohttp', 'alembic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for command in (["agents"], ["executions"], ["approvals"], ["inspect", "ex_ada"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *command, "--store", store],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
