"""Subscriptions from the command line: no cluster is needed."""

from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

Cli = Callable[..., Result]


def test_subscriptions_are_added_listed_and_removed(run_cli: Cli, store: str) -> None:
    at = ("--store", store)
    add = (
        "subscriptions",
        "add",
        "--url",
        "https://example.org/in",
        "--event",
        "completed",
        "--id",
        "billing",
    )
    made = run_cli(*add, *at)
    assert made.exit_code == 0, made.stderr
    assert "subscription billing" in made.stdout
    assert run_cli(*add, *at).exit_code == 0, "the same again is one"
    assert run_cli(*add, "--secret-env", "S", *at).exit_code == 5
    assert run_cli("subscriptions", "add", "--function", "audit:write", *at).exit_code == 0
    listed = json.loads(run_cli("subscriptions", "list", "--json", *at).stdout)
    assert [item["target"]["kind"] for item in listed] == ["webhook", "callback"]
    assert listed[0]["target"]["events"] == ["completed"]
    assert (listed[0]["waiting"], listed[0]["dead"], listed[0]["holder"]) == (0, 0, "")
    shown = run_cli("subscriptions", "list", *at).stdout
    assert "billing" in shown
    assert "(nobody)" in shown
    assert run_cli("subscriptions", "remove", "billing", *at).exit_code == 0
    assert run_cli("subscriptions", "remove", "billing", *at).exit_code == 4
    other = listed[1]["subscription_id"]
    assert run_cli("subscriptions", "remove", other, *at).exit_code == 0
    assert json.loads(run_cli("subscriptions", "list", "--json", *at).stdout) == []


def test_dead_letters(run_cli: Cli, store: str) -> None:
    at = ("--store", store)
    assert "nothing was given up" in run_cli("subscriptions", "dead-letters", *at).stdout
    assert json.loads(run_cli("subscriptions", "dead-letters", "--json", *at).stdout) == []
    assert "0 to be delivered again" in run_cli("subscriptions", "redeliver", *at).stdout


def test_what_cannot_be_subscribed(run_cli: Cli, store: str) -> None:
    at = ("--store", store)
    assert run_cli("subscriptions", "add", *at).exit_code == 2
    assert run_cli("subscriptions", "add", "--url", "https://u:p@example.org", *at).exit_code == 2
    assert run_cli("subscriptions", "add", "--url", "https://x.org", "--function", "a:b", *at).exit_code == 2
    assert run_cli("subscriptions", "add", "--url", "https://x.org", "--event", "token", *at).exit_code == 2
