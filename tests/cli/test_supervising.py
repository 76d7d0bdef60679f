"""``unpark``, and what ``doctor`` and ``agents`` say of parked agents; without a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from phronomy_ray.cli import doctor
from phronomy_ray.clock import utc_now
from phronomy_ray.journal import Lifecycle
from phronomy_ray.parking import ParkReason
from phronomy_ray.store.sql_store import open_store

Cli = Callable[..., Result]


@pytest.fixture
def parked(store: str) -> str:
    """The store, with ada out of service."""
    opened = open_store(store)
    epoch = opened.load_root("ada").epoch
    reason = ParkReason(
        "no_progress", "5 starts in a row made no progress", utc_now(), 5, "ex1", "calling_model"
    )
    assert opened.park_agent("ada", epoch=epoch, reason=reason)
    opened.close()
    return store


def test_a_parked_agent_is_put_back(run_cli: Cli, parked: str) -> None:
    [ada] = [
        item for item in json.loads(run_cli("agents", "--json", "--store", parked).stdout) if item["parked"]
    ]
    assert (ada["agent_id"], ada["lifecycle"], ada["parked"]["code"]) == ("ada", "parked", "no_progress")
    done = run_cli("unpark", "ada", "--store", parked)
    assert (done.exit_code, done.stdout.strip()) == (0, "agent ada is in service again")
    assert run_cli("unpark", "ada", "--store", parked).stdout.strip() == "agent ada was not parked"
    assert run_cli("unpark", "nobody", "--store", parked).exit_code == 4
    opened = open_store(parked)
    assert opened.load_root("ada").lifecycle is not Lifecycle.PARKED
    opened.close()


def test_the_doctor_names_parked_agents_and_the_way_back(
    run_cli: Cli, parked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_litellm", lambda: doctor.Finding("litellm", "ok", "assumed"))
    result = run_cli("doctor", "--json", "--store", parked, "--address", "local")
    assert result.exit_code == 1
    found = {item["check"]: item for item in json.loads(result.stdout)["checks"]}["parked"]
    assert found["status"] == "wrong"
    assert "ada (5 starts in a row made no progress)" in found["detail"]
    assert "unpark ada" in found["fix"]
