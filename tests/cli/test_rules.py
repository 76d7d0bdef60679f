"""Standing rules from the command line: no cluster is needed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

Cli = Callable[..., Result]


def rules(run_cli: Cli, store: str, *words: str) -> list[dict[str, object]]:
    result = run_cli("rules", "list", "--json", *words, "--store", store)
    assert result.exit_code == 0, result.stderr
    return list(json.loads(result.stdout))


def test_a_rule_is_made_listed_and_revoked(run_cli: Cli, store: str) -> None:
    assert rules(run_cli, store) == []
    made = run_cli(
        "rules", "allow", "write", "--agent", "ada", "--reason", "trusted", "--by", "eve", "--store", store
    )
    assert made.exit_code == 0, made.stderr
    assert "allow write (agent:ada)" in made.stdout
    run_cli("rules", "refuse", "read", "--definition", "clerk", "--expires-s", "3600", "--store", store)
    first, second = rules(run_cli, store)
    assert (first["effect"], first["tool_name"], first["scope"]) == ("allow", "write", "agent:ada")
    assert (first["created_by"], first["reason"], first["state"]) == ("eve", "trusted", "in force")
    assert (second["effect"], second["scope"]) == ("refuse", "definition:clerk")
    assert second["expires_at"] is not None
    assert "@" in str(second["created_by"]), "the user and host by default"
    table = run_cli("rules", "list", "--store", store).stdout
    assert str(first["rule_id"]) in table
    ended = run_cli("rules", "revoke", str(first["rule_id"]), "--by", "bob", "--store", store)
    assert "revoked by bob" in ended.stdout
    again = run_cli("rules", "revoke", str(first["rule_id"]), "--by", "carol", "--store", store)
    assert "revoked by bob" in again.stdout, "the first revocation counts"
    assert [item["rule_id"] for item in rules(run_cli, store)] == [second["rule_id"]]
    assert [item["state"] for item in rules(run_cli, store, "--all")] == ["revoked", "in force"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["allow", "write", "--agent", "nobody"], 4),
        (["allow", "write", "--agent", "ada", "--definition", "clerk"], 2),
        (["allow", ""], 2),
        (["allow", "write", "--expires-s", "-1"], 2),
        (["revoke", "ru_nobody"], 4),
    ],
)
def test_a_wrong_rule_is_refused(run_cli: Cli, store: str, words: list[str], code: int) -> None:
    result = run_cli("rules", *words, "--store", store)
    assert result.exit_code == code, result.output
    assert rules(run_cli, store, "--all") == []


@pytest.mark.parametrize("edit", ["[1]", "7", "plain text", "null"])
def test_an_edit_must_be_an_object(run_cli: Cli, store: str, pending: object, edit: str) -> None:
    result = run_cli("approve", "ex_bob", "--edit", edit, "--store", store, "--address", "127.0.0.1:1")
    assert result.exit_code == 2, result.output
    assert "--edit takes a JSON object" in result.stderr
