"""Holds from the command line: no cluster is needed."""

from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

Cli = Callable[..., Result]


def test_holds_are_made_listed_and_released(run_cli: Cli, store: str) -> None:
    at = ("--store", store)
    assert json.loads(run_cli("retentions", "list", "--json", *at).stdout) == []
    made = run_cli("retentions", "add", "report", "--execution", "ex_ada", *at)
    assert made.exit_code == 0, made.stderr
    assert "report holds execution ex_ada of agent ada" in made.stdout
    assert run_cli("retentions", "add", "audit", "--agent", "ada", *at).exit_code == 0
    listed = json.loads(run_cli("retentions", "list", "--json", "--agent", "ada", *at).stdout)
    assert [(item["owner_key"], item["execution_id"]) for item in listed] == [
        ("report", "ex_ada"),
        ("audit", None),
    ]
    assert "ex_ada" in run_cli("retentions", "list", *at).stdout
    assert run_cli("retentions", "release", "report", "--execution", "ex_ada", *at).exit_code == 0
    assert run_cli("retentions", "release", "report", "--execution", "ex_ada", *at).exit_code == 4
    assert run_cli("retentions", "release", "audit", "--agent", "ada", *at).exit_code == 0
    assert json.loads(run_cli("retentions", "list", "--json", *at).stdout) == []


def test_what_cannot_be_held(run_cli: Cli, store: str) -> None:
    at = ("--store", store)
    assert run_cli("retentions", "add", "report", "--agent", "nobody", *at).exit_code == 4
    assert run_cli("retentions", "add", "report", "--execution", "ex_nobody", *at).exit_code == 4
    assert run_cli("retentions", "add", "report", *at).exit_code == 2
    assert run_cli("retentions", "add", "", "--agent", "ada", *at).exit_code == 2
