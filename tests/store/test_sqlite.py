"""What only SQLite can show: settings, refusals, the host check, and a disk that misbehaves."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from phronomy_ray.errors import ConfigurationError, StoreUnavailableError
from phronomy_ray.store import engines, schema_state
from phronomy_ray.store.migrate import Migrations, adopt_host
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.store_samples import owned


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:x?mode=memory&uri=true",
        "sqlite:///x.db?mode=memory",
    ],
)
def test_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="in-memory"):
        open_store(url)


def test_relative_path_means_the_same_file_everywhere(sqlite_database: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(sqlite_database.path.parent)
    store = open_store(f"sqlite:///{sqlite_database.path.name}")
    monkeypatch.chdir("/")
    owned(store)
    assert store.identity == sqlite_database.open().identity
    store.close()


def test_connections_have_our_settings(sqlite_database: Any) -> None:
    store = sqlite_database.open()
    owned(store)
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    found = store._transactions.read(
        lambda c: [c.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in pragmas]
    )
    assert found == ["wal", 2, 1, 30_000]


def test_other_host_is_refused_and_told_what_to_use(sqlite_database: Any) -> None:
    owned(sqlite_database.open(host_id="host-a"))
    sqlite_database.open(host_id="host-a").load_root("alice")
    for call in (
        lambda: sqlite_database.open(host_id="host-b").load_root("alice"),
        lambda: owned(sqlite_database.open(host_id="host-b"), "bob"),
    ):
        with pytest.raises(ConfigurationError, match="use PostgreSQL"):
            call()
    adopt_host(sqlite_database.url, host_id="host-b")
    sqlite_database.open(host_id="host-b").load_root("alice")
    with pytest.raises(ConfigurationError):
        sqlite_database.open(host_id="host-a").load_root("alice")


def test_reading_leaves_no_marker(sqlite_database: Any) -> None:
    sqlite_database.open(host_id="reader").list_agents()
    owned(sqlite_database.open(host_id="writer"))
    assert sqlite_database.sql("SELECT value FROM store_meta WHERE name = 'host_id'") == [("writer",)]


def test_host_id_is_stable_and_can_be_given(monkeypatch: Any, tmp_path: Any) -> None:
    assert schema_state.local_host_id() == schema_state.local_host_id()
    machine_id = tmp_path / "machine-id"
    machine_id.write_text("0123456789abcdef\n")
    monkeypatch.setattr(schema_state, "_MACHINE_ID_FILES", (str(tmp_path / "absent"), str(machine_id)))
    found = schema_state.local_host_id()
    assert found.startswith("machine:")
    assert "0123456789abcdef" not in found, "the machine id itself is confidential"
    machine_id.write_text("")
    assert schema_state.local_host_id().startswith("host:")
    monkeypatch.setenv("PHRONOMY_HOST_ID", "given")
    assert schema_state.local_host_id() == "given"


def test_S01_locked_while_switching_to_wal_is_retried(tmp_path: Any, monkeypatch: Any) -> None:
    path = tmp_path / "contended.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    tries = []
    real = engines._open_sqlite

    def counted(*arguments: Any) -> sqlite3.Connection:
        tries.append(1)
        if len(tries) == 3:
            holder.execute("COMMIT")
        return real(arguments[0], 0.01)  # answer at once, as the switch to WAL does

    monkeypatch.setattr(engines, "_open_sqlite", counted)
    connection = engines.connect_sqlite(str(path), busy_timeout_s=5)
    assert len(tries) == 3
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    holder.close()


def test_file_that_is_no_database_is_a_typed_error(tmp_path: Any) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all" * 100)
    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        open_store(f"sqlite:///{path}").list_agents()


def test_missing_folder_is_made_by_upgrade_only(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/a/b/store.db"
    Migrations(url).upgrade()
    store = open_store(url)
    owned(store)
    store.close()


def test_folder_instead_of_a_file_is_a_typed_error(tmp_path: Any) -> None:
    with pytest.raises(StoreUnavailableError):
        open_store(f"sqlite:///{tmp_path}").list_agents()


def test_full_disk_is_a_typed_error_and_the_agent_stays_usable(sqlite_database: Any) -> None:
    owner = owned(sqlite_database.open())
    store = owner.store

    def limit_pages(connection: Any) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1").all()

    store._transactions.read(limit_pages)  # type: ignore[attr-defined]
    commit = owner.commit("x" * 3_000_000)
    with pytest.raises(StoreUnavailableError, match="no room"):
        owner.execute(commit)
    store.close()
    owner.execute(commit)


def test_identity_shows_the_path(sqlite_database: Any) -> None:
    assert sqlite_database.open().identity == f"sqlite:///{sqlite_database.path}"
