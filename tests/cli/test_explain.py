"""``doctor --explain`` from the command line: the store alone tells most."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import Owner

Cli = Callable[..., Result]
NOWHERE = ("--address", "127.0.0.1:1")


def test_what_waits_is_explained_with_the_command_that_helps(run_cli: Cli, store: str, pending: Any) -> None:
    result = run_cli("doctor", "--explain", "ex_bob", "--store", store, *NOWHERE)
    assert result.exit_code == 0, result.output
    assert f"approve {pending.approval_request_id}" in result.stdout
    found = json.loads(run_cli("doctor", "--explain", "bob", "--json", "--store", store, *NOWHERE).stdout)
    assert found["agent_id"] == "bob"
    assert "approval" in [reason["why"] for reason in found["reasons"]]


def test_an_end_an_idle_agent_and_nobody(run_cli: Cli, store: str) -> None:
    ended = run_cli("doctor", "--explain", "ex_ada", "--store", store, *NOWHERE)
    assert "has ended: completed" in ended.stdout
    assert "idle" in run_cli("doctor", "--explain", "ada", "--store", store, *NOWHERE).stdout
    assert run_cli("doctor", "--explain", "nobody", "--store", store, *NOWHERE).exit_code == 4


def test_a_store_of_another_version_is_a_reason(run_cli: Cli, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('0001')")
    connection.close()
    result = run_cli("doctor", "--explain", "ada", "--store", f"sqlite:///{tmp_path}/old.db", *NOWHERE)
    assert result.exit_code == 1
    assert "db upgrade" in result.stdout


def test_a_repair_needs_a_cluster(run_cli: Cli, store: str) -> None:
    assert run_cli("doctor", "--repair", "--store", store, *NOWHERE).exit_code == 6


def test_a_repair_wakes_what_was_interrupted_and_says_so(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHRONOMY_PLACEMENT", "in-process")
    url = f"sqlite:///{tmp_path}/interrupted.db"
    opened = open_store(url, create=True)
    for agent_id, version in (("good", "2"), ("changed", "0"), ("abroad", "2")):
        opened.create_agent(
            samples.new_agent(
                agent_id,
                definition_id="puppet",
                definition_version=version,
                class_path="ray_testbed.agents:PuppetTwo",
            )
        )
        owner = Owner(opened, agent_id)
        owner.claim()
        if agent_id == "abroad":
            opened.claim(agent_id, owner={"cluster": "another"}, now=owner.now)
            owner.epoch += 1
        owner.start(f"ex_{agent_id}", status=ExecutionStatus.PREPARING, phase=Phase.PREPARING, state={"v": 1})
    result = run_cli("doctor", "--repair", "--store", url)
    assert result.exit_code == 0, result.output
    assert "good: woken: execution ex_good is" in result.stdout
    assert "changed" not in result.stdout, "it is no use to wake it, and it is left alone"
    assert "left alone (abroad)" in result.stdout
    assert opened.load_root("abroad").epoch == 2
    assert opened.load_root("good").epoch > 1
    assert opened.load_root("changed").epoch == 1
    why = run_cli("doctor", "--repair", "--explain", "changed", "--store", url)
    assert "nothing that is safe to do" in why.stdout
    assert "version '0'" in why.stdout
    opened.close()
