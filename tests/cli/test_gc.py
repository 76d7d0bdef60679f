"""``gc`` from the command line: no cluster is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from typer.testing import Result

from phronomy_ray.cli.collecting import parse_age
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.store.sql_store import open_store

Cli = Callable[..., Result]


def test_old_executions_go_unless_it_is_a_dry_run(run_cli: Cli, store: str) -> None:
    def run(*words: str) -> Result:
        return run_cli("gc", *words, "--store", store)

    kept = json.loads(run("--older-than", "30d", "--json").stdout)
    assert (kept["executions"], kept["is_whole"]) == (0, True)
    dry = run("--older-than", "0s", "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert "would delete" in dry.stdout
    assert "1 executions" in dry.stdout
    done = json.loads(run("--older-than", "0s", "--json").stdout)
    assert done["executions"] == 1
    assert done["events"] > 0
    opened = open_store(store)
    assert [row.execution_id for row in opened.list_executions()] == ["ex_bob"], (
        "what waits for a human stays"
    )
    assert len(opened.approvals(pending_only=True)) == 1
    opened.close()


@pytest.mark.parametrize("words", [("--older-than", "soon"), ("--older-than", "3"), ("--contents", "1m")])
def test_a_wrong_age_is_refused(run_cli: Cli, store: str, words: tuple[str, str]) -> None:
    assert run_cli("gc", *words, "--store", store).exit_code == 2


def test_ages() -> None:
    assert parse_age("") is None
    assert [parse_age(text) for text in ("90s", "12h", "30d", "2w")] == [
        timedelta(seconds=90), timedelta(hours=12), timedelta(days=30), timedelta(days=14),
    ]  # fmt: skip
    with pytest.raises(InvalidInputError):
        parse_age("-1d")
