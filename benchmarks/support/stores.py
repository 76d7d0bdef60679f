"""Fresh stores of both engines, and how many bytes they hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, text

from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.postgres import PostgresServer, fresh_database

ENGINES = ("sqlite", "postgres")


@dataclass(frozen=True, slots=True)
class FreshStore:
    """An empty store with its schema."""

    engine: str
    url: str

    def bytes(self) -> int:
        """Bytes that its tables and indexes take, free pages not counted."""
        if self.engine == "sqlite":
            engine = create_engine(self.url)
            query = text(
                "SELECT (SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count)"
                " * (SELECT page_size FROM pragma_page_size)"
            )
        else:
            engine = create_engine(self.url.replace("postgresql://", "postgresql+psycopg://"))
            query = text("SELECT " + " + ".join(f"({_BYTES} FROM {name} t)" for name in _TABLES))
        with engine.connect() as connection:
            size = int(connection.execute(query).scalar_one())
        engine.dispose()
        return size


_BYTES = "SELECT coalesce(sum(pg_column_size(t.*)), 0)"
_TABLES = ("agents", "executions", "journal", "contents", "model_calls", "tool_calls", "approvals", "events")


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL with its durability on."""
    server = PostgresServer(durable=True).start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def fresh_store(engine: str, server: PostgresServer | None) -> Iterator[FreshStore]:
    """An empty store of one engine."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory(prefix="phronomy-bench-") as folder:
            yield _prepared(engine, f"sqlite:///{Path(folder) / 'store.db'}")
    else:
        assert server is not None
        with fresh_database(server) as url:
            yield _prepared(engine, url)


def _prepared(engine: str, url: str) -> FreshStore:
    open_store(url, create=True).close()
    return FreshStore(engine, url)
