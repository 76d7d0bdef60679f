"""Schema versions: creating, upgrading and checking a database.

Alembic is imported here and nowhere else, and only when something must be done. Every operation runs in one transaction
that is exclusive among migrations (an advisory lock on PostgreSQL, ``BEGIN IMMEDIATE`` on SQLite) and looks at the version
again once it holds it, so several processes may start at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

from phronomy_ray.store import statements
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.locations import Location, parse_location
from phronomy_ray.store.schema_state import HEAD, check_version, local_host_id, read_version
from phronomy_ray.store.tables import VERSION_TABLE, metadata, store_meta, vector_documents
from phronomy_ray.store.transactions import Transactions

if TYPE_CHECKING:
    from alembic.config import Config

#: Key of PostgreSQL's advisory lock for migrations; any constant of ours.
_ADVISORY_LOCK = 0x7068726F6E6F6D79
#: Alembic keeps the running environment in module globals: one upgrade at a time in a process.
_ALEMBIC = threading.Lock()


class Migrations:
    """The schema versions of one database (`store.port.MigrationTool`)."""

    def __init__(self, url: str, *, options: StoreOptions | None = None) -> None:
        self._location = parse_location(url)
        self._options = options or StoreOptions()

    def upgrade(self) -> str:
        """Bring the schema to this release's version and return it; creates the database file if need be.

        Atomic, idempotent, safe to call from several processes at once.

        Raises:
            SchemaVersionError: the schema is newer than this release.
        """

        def work(connection: Connection) -> None:
            _become_exclusive(connection)
            version = read_version(connection)
            if version is not None and not (version.isdigit() and int(version) < int(HEAD)):
                check_version(version, self._location.identity)
                return
            _run_upgrade(connection)

        _write(self._location, self._options, work)
        return HEAD

    def current(self) -> str | None:
        """Version that the database has, ``None`` for an empty or absent one."""
        if self._location.backend == "sqlite" and not os.path.exists(self._location.path):
            return None
        transactions = Transactions(self._location, self._options)
        try:
            return transactions.read(read_version)
        finally:
            transactions.close()

    def head(self) -> str:
        """Version that this release wants."""
        return HEAD

    def check(self) -> list[str]:
        """Differences between the database and `tables`, one readable line each; empty when they agree."""
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        def work(connection: Connection) -> list[str]:
            context = MigrationContext.configure(
                connection,
                opts={
                    "version_table": VERSION_TABLE,
                    "compare_type": True,
                    "include_object": _is_ours,
                },
            )
            return [str(difference) for difference in compare_metadata(context, metadata)]

        transactions = Transactions(self._location, self._options)
        try:
            return transactions.read(work)
        finally:
            transactions.close()


def _is_ours(item: Any, name: str | None, kind: str, reflected: bool, counterpart: Any) -> bool:
    """Whether a comparison looks at `item`; an index that somebody made on the vectors is theirs."""
    extra = kind == "index" and reflected and counterpart is None
    return not (extra and item.table.name == vector_documents.name)


def create_if_empty(location: Location, options: StoreOptions) -> None:
    """Give an empty database the schema; refuse an older or newer one (`SqlStore.ensure_schema`)."""
    tool = Migrations(location.url.render_as_string(hide_password=False), options=options)
    version = tool.current()
    if version is None:
        tool.upgrade()
    else:
        check_version(version, location.identity)


def adopt_host(url: str, *, host_id: str | None = None) -> None:
    """Declare that an SQLite file has moved to this host for good and that nobody uses it from the old one."""
    location = parse_location(url)

    def work(connection: Connection) -> None:
        connection.execute(store_meta.delete().where(store_meta.c.name == "host_id"))
        row = {"name": "host_id", "value": host_id or local_host_id()}
        connection.execute(statements.INSERT_META[connection.dialect.name], row)

    _write(location, StoreOptions(), work)


def alembic_config() -> Config:
    """Alembic's configuration for our migrations (no ini file, no logging set-up)."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    return config


def _run_upgrade(connection: Connection) -> None:
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def _become_exclusive(connection: Connection) -> None:
    if connection.dialect.name != "postgresql":
        return  # BEGIN IMMEDIATE has done it
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text("SET LOCAL lock_timeout = 0"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})


def _write(location: Location, options: StoreOptions, work: Callable[[Connection], None]) -> None:
    if location.path:
        Path(location.path).parent.mkdir(parents=True, exist_ok=True)
    transactions = Transactions(location, options, may_create=True)
    try:
        transactions.write(work)
    finally:
        transactions.close()


__all__ = ["Migrations", "adopt_host", "alembic_config", "create_if_empty"]
