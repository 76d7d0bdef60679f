"""``db`` and ``doctor``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from phronomy_ray.cli import doctor
from phronomy_ray.store.schema_state import HEAD

Cli = Callable[..., Result]


def test_a_schema_is_made_and_checked(run_cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    before = run_cli("db", "current", "--json", "--store", url)
    assert before.exit_code == 1
    assert json.loads(before.stdout) == {"store": url, "current": None, "head": HEAD, "ok": False}
    assert run_cli("db", "check", "--store", url).exit_code == 1
    assert not (tmp_path / "new.db").exists()
    made = run_cli("db", "upgrade", "--store", url)
    assert made.exit_code == 0
    assert f"none -> {HEAD}" in made.stdout
    assert "already" in run_cli("db", "upgrade", "--store", url).stdout
    after = run_cli("db", "current", "--json", "--store", url)
    assert after.exit_code == 0
    assert json.loads(after.stdout)["ok"] is True
    assert run_cli("db", "check", "--store", url).exit_code == 0


def test_check_sees_a_changed_table(run_cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    run_cli("db", "upgrade", "--store", url)
    with sqlite3.connect(tmp_path / "new.db") as connection:
        connection.execute("ALTER TABLE approvals ADD COLUMN extra TEXT")
    connection.close()
    result = run_cli("db", "check", "--json", "--store", url)
    assert result.exit_code == 1
    assert "extra" in " ".join(json.loads(result.stdout)["differences"])


def _findings(result: Result) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(result.stdout)["checks"]}


@pytest.fixture
def light_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the import of litellm, which takes seconds in its own process."""
    monkeypatch.setattr(doctor, "_litellm", lambda: doctor.Finding("litellm", "ok", "assumed"))


@pytest.mark.usefixtures("light_doctor")
def test_a_healthy_machine(run_cli: Cli, store: str) -> None:
    result = run_cli("doctor", "--json", "--store", store, "--address", "local")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ok"] is True
    found = _findings(result)
    assert list(found) == [
        "python",
        "packages",
        "store",
        "agents",
        "parked",
        "ray",
        "litellm",
        "gateway",
        "extras",
    ]
    assert "1 wait for approval" in found["store"]["detail"]
    assert "litellm" in found["packages"]["detail"]


@pytest.mark.usefixtures("light_doctor")
def test_what_is_wrong_is_named_with_its_repair(run_cli: Cli, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    connection.close()
    result = run_cli(
        "doctor", "--json", "--store", f"sqlite:///{tmp_path}/old.db", "--address", "127.0.0.1:1"
    )
    assert result.exit_code == 1
    found = _findings(result)
    assert found["ray"]["status"] == "wrong"
    assert found["ray"]["fix"]
    assert found["store"]["status"] == "wrong"
    assert found["store"]["fix"] == "upgrade phronomy-ray"


@pytest.mark.usefixtures("light_doctor")
def test_a_store_that_is_not_there_yet_is_no_illness(run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli("doctor", "--store", f"sqlite:///{tmp_path}/none.db", "--address", "local")
    assert result.exit_code == 0
    assert "phronomy db upgrade" in result.stdout


@pytest.mark.usefixtures("light_doctor")
def test_a_check_that_breaks_is_a_finding(run_cli: Cli, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> doctor.Finding:
        raise OSError("disk on fire")

    monkeypatch.setattr(doctor, "_packages", broken)
    result = run_cli("doctor", "--json", "--store", store, "--address", "local")
    assert result.exit_code == 1
    assert "disk on fire" in _findings(result)["packages"]["detail"]
