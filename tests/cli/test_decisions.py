"""Decisions that need no cluster to be refused, and the error when there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from phronomy_ray.cli.decisions import parse_value
from phronomy_ray.cli.exit_codes import ExitCode, exit_code_for
from phronomy_ray.errors import PhronomyError, RateLimitError, SchemaVersionError

Cli = Callable[..., Result]
NOWHERE = "127.0.0.1:1"


def test_approval_without_a_cluster(run_cli: Cli, store: str, pending: Any) -> None:
    result = run_cli("approve", pending.approval_request_id, "--store", store, "--address", NOWHERE)
    assert result.exit_code == 6
    assert "[cluster_unavailable]" in result.stderr
    assert "--address" in result.stderr
    assert result.stderr.count("\n") == 1
    (still,) = json.loads(run_cli("approvals", "--json", "--store", store).stdout)
    assert still["status"] == "pending"


@pytest.mark.parametrize(
    "form", ["{request}", "{execution} {request}", "{execution}", "{prefix}", "{execution} {prefix}"]
)
def test_a_request_is_found_in_every_form(run_cli: Cli, store: str, pending: Any, form: str) -> None:
    words = form.format(
        request=pending.approval_request_id,
        execution=pending.execution_id,
        prefix=pending.approval_request_id[:12],
    ).split()
    result = run_cli("reject", *words, "--store", store, "--address", NOWHERE)
    assert result.exit_code == 6, result.stderr  # found, and then there was no cluster


@pytest.mark.parametrize("words", ["ap_nobody", "ex_bob ap_nobody", "ex_ada", "ap_", "ex_nobody ap_nobody"])
def test_a_request_that_is_not_there(run_cli: Cli, store: str, words: str) -> None:
    result = run_cli("approve", *words.split(), "--store", store, "--address", NOWHERE)
    assert result.exit_code == 4
    assert "[not_found]" in result.stderr


def test_a_request_that_was_answered(run_cli: Cli, store: str) -> None:
    answered = next(
        row
        for row in json.loads(run_cli("approvals", "--all", "--json", "--store", store).stdout)
        if row["status"] == "approved"
    )
    again = run_cli("approve", answered["approval_request_id"], "--store", store, "--address", NOWHERE)
    assert again.exit_code == 0
    assert "already" in again.stdout
    otherwise = run_cli("reject", answered["approval_request_id"], "--store", store, "--address", NOWHERE)
    assert otherwise.exit_code == 5
    assert "[state_conflict]" in otherwise.stderr
    assert "eve" in otherwise.stderr


def test_cancelling_what_has_ended(run_cli: Cli, store: str) -> None:
    result = run_cli("cancel", "ex_ada", "--store", store, "--address", NOWHERE)
    assert result.exit_code == 0
    assert "completed" in result.stdout


def test_resolve_checks_its_arguments_first(run_cli: Cli, store: str) -> None:
    wrong = run_cli("resolve", "ex_bob", "tc_1", "perhaps", "--store", store, "--address", NOWHERE)
    assert wrong.exit_code == 2
    assert "one of succeeded, failed, not_performed" in wrong.stderr
    unknown = run_cli("resolve", "ex_bob", "tc_1", "failed", "--store", store, "--address", NOWHERE)
    assert unknown.exit_code == 4


@pytest.mark.parametrize("command", ["unload", "close", "purge"])
def test_life_of_an_unknown_agent(run_cli: Cli, store: str, command: str) -> None:
    assert run_cli(command, "adda", "--store", store, "--address", NOWHERE).exit_code == 4


def test_a_deletion_is_asked_for(run_cli: Cli, store: str) -> None:
    asked = run_cli("purge", "ada", "--store", store, "--address", NOWHERE)
    assert asked.exit_code == 1
    assert "Delete agent ada with its" in asked.stdout
    assert run_cli("purge", "ada", "--yes", "--store", store, "--address", NOWHERE).exit_code == 6
    assert run_cli("close", "ada", "--store", store, "--address", NOWHERE).exit_code == 6


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("no_such_module:Agent", "no_such_module"),
        ("json", "module:Class"),
        ("json:JSONDecoder", "not an agent class"),
        ("broken_module:Agent", "ZeroDivisionError"),
        ("no_model:Half", "model is not set"),
    ],
)
def test_run_with_a_class_that_cannot_be_used(run_cli: Cli, tmp_path: Path, target: str, hint: str) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "no_model.py").write_text("from phronomy_ray import Agent\nclass Half(Agent):\n    pass\n")
    result = run_cli("run", target, "hello", "--agent-id", "x", "--address", NOWHERE)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert result.stderr.count("\n") == 1


def test_run_needs_an_agent_id(run_cli: Cli) -> None:
    assert run_cli("run", "a:B", "hello").exit_code == 2


def test_values_on_the_command_line() -> None:
    assert parse_value("") is None
    assert parse_value('{"a": 1}') == {"a": 1}
    assert parse_value("just text") == "just text"


def test_every_error_has_an_exit_code() -> None:
    assert exit_code_for(SchemaVersionError("x")) is ExitCode.USAGE
    assert exit_code_for(RateLimitError("x")) is ExitCode.FAILED
    assert exit_code_for(PhronomyError("x")) is ExitCode.FAILED
