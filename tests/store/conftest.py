"""Databases for store tests: a fresh one per test, copied from one migrated template per session and engine."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

pytest.register_assert_rewrite(
    "phronomy_ray.testing.store_commits_conformance",
    "phronomy_ray.testing.store_conformance",
    "phronomy_ray.testing.store_delivery_conformance",
    "phronomy_ray.testing.store_groups_conformance",
    "phronomy_ray.testing.store_placement_conformance",
    "phronomy_ray.testing.store_contents_conformance",
    "phronomy_ray.testing.store_purge_conformance",
    "phronomy_ray.testing.store_queue_conformance",
    "phronomy_ray.testing.store_retention_conformance",
    "phronomy_ray.testing.store_supervision_conformance",
    "phronomy_ray.testing.store_values_conformance",
    "phronomy_ray.testing.store_samples",
)

from phronomy_ray.store.engines import StoreOptions, make_engine  # noqa: E402  after the rewrite hook
from phronomy_ray.store.locations import parse_location  # noqa: E402
from phronomy_ray.store.migrate import Migrations  # noqa: E402
from phronomy_ray.store.sql_store import SqlStore, open_store  # noqa: E402
from phronomy_ray.store.tables import VERSION_TABLE  # noqa: E402
from phronomy_ray.testing.postgres import PostgresServer  # noqa: E402


class Database:
    """One database of one test; everything opened through it is closed with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stores: list[SqlStore] = []
        self._engine: Engine | None = None

    @property
    def path(self) -> Path:
        return Path(parse_location(self.url).path)

    def open(self, **arguments: Any) -> SqlStore:
        store = open_store(self.url, **arguments)
        self._stores.append(store)
        return store

    def engine(self) -> Engine:
        """An engine of our own for raw SQL, with several connections."""
        if self._engine is None:
            self._engine = make_engine(
                parse_location(self.url), StoreOptions(pool_size=4, application_name="raw"), may_create=True
            )
        return self._engine

    def sql(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with self.engine().begin() as connection:
            result = connection.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    def dump(self) -> str:
        """All that is stored, as one text."""
        if self.url.startswith("sqlite"):
            files = [self.path, *self.path.parent.glob(self.path.name + "-*")]
            return "".join(file.read_bytes().decode("latin-1") for file in files)
        names = self.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        return "\n".join(str(self.sql(f'SELECT * FROM "{name}"')) for (name,) in names)

    def close(self) -> None:
        for store in self._stores:
            store.close()
        if self._engine is not None:
            self._engine.dispose()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    url = postgres.create_database()
    Migrations(url).upgrade()
    return url


@pytest.fixture
def sqlite_database(sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / f"{uuid.uuid4().hex[:8]}.db"
    shutil.copyfile(sqlite_template, path)
    database = Database(f"sqlite:///{path}")
    yield database
    database.close()


@pytest.fixture
def postgres_database(postgres: PostgresServer, postgres_template: str) -> Iterator[Database]:
    database = Database(postgres.create_database(template=postgres_template))
    yield database
    database.close()
    postgres.drop_database(database.url)


class KeptPostgres:
    """One database for many tests, emptied between them: making one takes longer than most tests that only read and write."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._admin = Database(url)
        named = self._admin.sql(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_name <> :version",
            version=VERSION_TABLE,
        )
        self._meta = self._admin.sql("SELECT name, value FROM store_meta")
        self._empty = "; ".join(
            [
                "SET LOCAL session_replication_role = replica",  # in any order
                *(f'DELETE FROM "{name}"' for (name,) in sorted(named)),
            ]
        )

    def lend(self) -> Iterator[Database]:
        database = Database(self.url)
        yield database
        database.close()
        with self._admin.engine().begin() as connection:
            connection.exec_driver_sql(self._empty)
            for name, value in self._meta:
                connection.execute(
                    text("INSERT INTO store_meta (name, value) VALUES (:name, :value)"),
                    {"name": name, "value": value},
                )

    def close(self) -> None:
        self._admin.close()


@pytest.fixture(scope="session")
def kept_postgres(postgres: PostgresServer, postgres_template: str) -> Iterator[KeptPostgres]:
    kept = KeptPostgres(postgres.create_database(template=postgres_template))
    yield kept
    kept.close()


@pytest.fixture
def lent_postgres(kept_postgres: KeptPostgres) -> Iterator[Database]:
    """A migrated database for a test that leaves its schema alone."""
    yield from kept_postgres.lend()


@pytest.fixture(scope="session")
def kept_without_pgvector(postgres: PostgresServer, postgres_template: str) -> Iterator[KeptPostgres]:
    url = postgres.create_database(template=postgres_template)
    database = Database(url)
    database.sql("DROP EXTENSION vector")
    database.close()
    kept = KeptPostgres(url)
    yield kept
    kept.close()


@pytest.fixture
def lent_without_pgvector(kept_without_pgvector: KeptPostgres) -> Iterator[Database]:
    """The same on a server without pgvector."""
    yield from kept_without_pgvector.lend()


@pytest.fixture
def empty_postgres(postgres: PostgresServer) -> Iterator[Database]:
    database = Database(postgres.create_database())
    yield database
    database.close()
    postgres.drop_database(database.url)


def _one_of(request: pytest.FixtureRequest, names: dict[str, str]) -> Database:
    found = request.getfixturevalue(names[request.param])
    assert isinstance(found, Database)
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """A migrated database without rows, for a test that leaves its schema alone."""
    return _one_of(request, {"sqlite": "sqlite_database", "postgres": "lent_postgres"})


@pytest.fixture(params=["sqlite", "postgres"])
def own_database(request: pytest.FixtureRequest) -> Database:
    """The same for a test that changes the schema, or what is known of it."""
    return _one_of(request, {"sqlite": "sqlite_database", "postgres": "postgres_database"})


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "postgres":
        yield request.getfixturevalue("empty_postgres")
        return
    fresh = Database(f"sqlite:///{tmp_path / 'fresh.db'}")
    yield fresh
    fresh.close()
