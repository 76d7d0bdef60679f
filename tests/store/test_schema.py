"""Schema versions: who may open what, and what the migrations build."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import inspect

from phronomy_ray.errors import SchemaVersionError
from phronomy_ray.store import tables
from phronomy_ray.store.migrate import Migrations, alembic_config
from phronomy_ray.store.schema_state import HEAD
from phronomy_ray.testing.store_samples import owned


def test_head_is_the_newest_migration() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [HEAD]


def test_database_without_schema_is_refused_with_the_remedy(empty_database: Any) -> None:
    with pytest.raises(SchemaVersionError, match="phronomy db upgrade"):
        empty_database.open().list_agents()


def test_missing_sqlite_file_is_not_created_by_a_look(tmp_path: Any) -> None:
    from phronomy_ray.store.sql_store import open_store

    path = tmp_path / "absent.db"
    with pytest.raises(SchemaVersionError, match="phronomy db upgrade"):
        open_store(f"sqlite:///{path}").load_root("alice")
    assert Migrations(f"sqlite:///{path}").current() is None
    assert not path.exists()


def test_upgrade_from_scratch_equals_the_metadata(empty_database: Any) -> None:
    migrations = Migrations(empty_database.url)
    assert migrations.current() is None
    assert migrations.upgrade() == migrations.head() == HEAD
    assert migrations.current() == HEAD
    assert migrations.check() == []
    assert migrations.upgrade() == HEAD
    migrated = _shape(empty_database)
    for table in migrated:
        empty_database.sql(f'DROP TABLE "{table}"' + (" CASCADE" if "postgres" in empty_database.url else ""))
    tables.metadata.create_all(empty_database.engine())
    migrated.pop(tables.VERSION_TABLE)
    assert _shape(empty_database) == migrated


def test_check_names_a_difference(own_database: Any) -> None:
    assert Migrations(own_database.url).check() == []
    own_database.sql("DROP INDEX ix_journal_execution_id_position")
    own_database.sql("ALTER TABLE events ADD COLUMN extra TEXT")
    differences = "\n".join(Migrations(own_database.url).check())
    assert "ix_journal_execution_id_position" in differences
    assert "extra" in differences


@pytest.mark.parametrize("version", [f"{int(HEAD) + 1:04}", "9999", "abcdef"])
def test_newer_schema_is_refused(own_database: Any, version: str) -> None:
    own_database.sql("UPDATE alembic_version SET version_num = :v", v=version)
    for attempt in (
        lambda: own_database.open().list_agents(),
        lambda: own_database.open(create=True),
        lambda: Migrations(own_database.url).upgrade(),
    ):
        with pytest.raises(SchemaVersionError, match="newer"):
            attempt()


def test_older_schema_is_refused_with_the_remedy(own_database: Any) -> None:
    own_database.sql("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(SchemaVersionError, match="phronomy db upgrade"):
        own_database.open().list_agents()
    with pytest.raises(SchemaVersionError, match="phronomy db upgrade"):
        own_database.open(create=True)


def test_create_gives_an_empty_database_its_schema_once(empty_database: Any) -> None:
    owner = owned(empty_database.open(create=True))
    owner.append("kept")
    again = empty_database.open(create=True)
    again.ensure_schema()
    assert [record.content for record in again.read_journal("alice")] == ["kept"]


def test_concurrent_upgrades_all_succeed(empty_database: Any) -> None:
    barrier = threading.Barrier(6)

    def upgrade(_: int) -> str:
        barrier.wait(timeout=30)
        return Migrations(empty_database.url).upgrade()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(upgrade, range(6))) == [HEAD] * 6
    assert Migrations(empty_database.url).check() == []


def test_failed_upgrade_leaves_nothing(empty_database: Any) -> None:
    if "postgres" not in empty_database.url:
        with empty_database.engine().begin() as connection:
            connection.exec_driver_sql("CREATE TABLE events (x TEXT)")
    else:
        empty_database.sql("CREATE TABLE events (x TEXT)")
    with pytest.raises(Exception, match="events"):
        Migrations(empty_database.url).upgrade()
    assert set(_shape(empty_database)) == {"events"}
    assert Migrations(empty_database.url).current() is None


def _shape(database: Any) -> dict[str, Any]:
    inspector = inspect(database.engine())
    found: dict[str, Any] = {}
    for table in sorted(inspector.get_table_names()):
        columns = [
            (column["name"], str(column["type"]), column["nullable"], column.get("default"))
            for column in inspector.get_columns(table)
        ]
        indexes = sorted(
            (
                index["name"],
                tuple(index["column_names"]),
                bool(index["unique"]),
                str(sorted((key, str(value)) for key, value in index.get("dialect_options", {}).items())),
            )
            for index in inspector.get_indexes(table)
        )
        keys = sorted(
            (key["name"], tuple(key["constrained_columns"]), key["referred_table"], str(key["options"]))
            for key in inspector.get_foreign_keys(table)
        )
        found[table] = (columns, inspector.get_pk_constraint(table)["constrained_columns"], indexes, keys)
    return found


def test_requests_of_an_older_schema_belong_to_the_batches_of_their_calls(empty_database: Any) -> None:
    from alembic import command

    config = alembic_config()
    with empty_database.engine().begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    texts = {"e": "2026-01-02T03:04:05.000000+00:00", "no": False if "postgres" in empty_database.url else 0}
    empty_database.sql(
        "INSERT INTO agents VALUES ('a', 'd', '1', '', 1, 0, 0, 0, 'suspended', 1, NULL, '{}', '{}', 0, :e, :e)",
        e=texts["e"],
    )
    empty_database.sql(
        "INSERT INTO executions (execution_id, agent_id, status, phase, revision, input_hash, base_position, state,"
        " created_at, updated_at) VALUES ('ex', 'a', 'suspended', 'approval', 1, '\"h\"', 0, '{}', :e, :e)",
        e=texts["e"],
    )
    empty_database.sql(
        "INSERT INTO tool_calls (tool_call_id, execution_id, agent_id, model_call_id, position, provider_call_id,"
        " tool_name, status, replay, requires_approval, schema_hash, attempt, created_at)"
        " VALUES ('tc', 'ex', 'a', 'ex:m1', 0, 'c', 't', 'awaiting_approval', 'never', :no, 'h', 0, :e)",
        **texts,
    )
    empty_database.sql(
        "INSERT INTO approvals (approval_request_id, execution_id, agent_id, tool_call_id, tool_name, status,"
        " created_at) VALUES ('ap', 'ex', 'a', 'tc', 't', 'pending', :e)",
        e=texts["e"],
    )
    Migrations(empty_database.url).upgrade()
    store = empty_database.open()
    (request,) = store.approvals(pending_only=True)
    assert (request.batch_id, request.tool_origin, request.asked_by) == ("ex:m1", "local", "tool")
    assert (request.facts, request.expires_at, request.fingerprint, request.metadata) == (None, None, {}, {})
    (call,) = store.tool_calls("ex")
    assert (call.authorization, call.contract) == (None, {})


def test_executions_of_an_older_schema_have_no_moment_at_which_their_time_is_over(
    empty_database: Any,
) -> None:
    from alembic import command

    def go(move: Any, version: str) -> None:
        config = alembic_config()
        with empty_database.engine().begin() as connection:
            config.attributes["connection"] = connection
            move(config, version)

    go(command.upgrade, "0011")
    texts = {"e": "2026-01-02T03:04:05.000000+00:00", "no": False if "postgres" in empty_database.url else 0}
    empty_database.sql(
        "INSERT INTO agents (agent_id, definition_id, definition_version, class_path, agent_revision, context_revision,"
        " transcript_generation, journal_position, lifecycle, epoch, metadata, owner, starts_without_progress, created_at,"
        " updated_at) VALUES ('a', 'd', '1', '', 1, 0, 0, 0, 'active', 1, '{}', '{}', 0, :e, :e)",
        e=texts["e"],
    )
    empty_database.sql(
        "INSERT INTO executions (execution_id, agent_id, status, phase, revision, input_hash, base_position, state,"
        " created_at, updated_at) VALUES ('ex', 'a', 'active', 'calling_model', 1, '\"h\"', 0, '{}', :e, :e)",
        e=texts["e"],
    )
    empty_database.sql(
        "INSERT INTO queued_requests (execution_id, agent_id, position, interrupts, input_hash, stream, options, queued_at)"
        " VALUES ('q', 'a', 2, :no, '\"h\"', :no, '{}', :e)",
        **texts,
    )
    for _ in range(2):  # also after the way back
        Migrations(empty_database.url).upgrade()
        store = empty_database.open()
        assert store.load_execution("ex").deadline_at is None
        assert [request.deadline_at for request in store.queued_requests("a")] == [None]
        empty_database.sql("UPDATE executions SET deadline_at = :e", e=texts["e"])
        assert store.load_execution("ex").deadline_at is not None
        go(command.downgrade, "0011")
