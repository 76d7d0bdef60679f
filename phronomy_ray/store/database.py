"""`SqlDatabase`: one database with our schema, opened lazily and checked once per process.

Base of whatever keeps things in it: the agents' store and vector stores. It owns the connections and knows whether this
database may be used by this release, on this host, with this key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from phronomy_ray.store.content_codec import ContentCodec, resolve_key
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.locations import parse_location
from phronomy_ray.store.schema_state import (
    Opener,
    check_markers,
    check_version,
    local_host_id,
    read_version,
    write_markers,
)
from phronomy_ray.store.transactions import Transactions

T = TypeVar("T")


class SqlDatabase:
    """Nothing is connected before the first unit of work. Safe to fork and to share by threads."""

    def __init__(
        self,
        url: str,
        *,
        content_key: str | bytes | None = None,
        options: StoreOptions | None = None,
        host_id: str | None = None,
    ) -> None:
        self._location = parse_location(url)
        self._content_key = content_key
        self._options = options or StoreOptions()
        self._host_id = host_id
        self._codec = ContentCodec(resolve_key(content_key))
        self._transactions = Transactions(self._location, self._options)
        self._checked = False
        self._marked = False

    @property
    def identity(self) -> str:
        """URL without credentials: equal for two handles on one store, safe to show."""
        return self._location.identity

    def close(self) -> None:
        """Close idle connections; the database is checked again on the next use."""
        self._checked = self._marked = False
        self._transactions.close()

    def ensure_schema(self) -> None:
        """Give an *empty* database this release's schema; leave any other one as it is.

        Idempotent, and safe to call from several processes at once.

        Raises:
            SchemaVersionError: the schema is older (upgrade it on purpose) or newer.
        """
        from phronomy_ray.store.migrate import create_if_empty

        create_if_empty(self._location, self._options)

    def _write(self, work: Callable[[Connection], T], *, repeat_unknown: bool = False) -> T:
        self._ready(for_writing=True)
        return self._transactions.write(work, repeat_unknown=repeat_unknown)

    def _write_statement(self, work: Callable[[Connection], T]) -> T:
        self._ready(for_writing=True)
        return self._transactions.write_statement(work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        self._ready(for_writing=False)
        return self._transactions.read(work)

    def _ready(self, *, for_writing: bool) -> None:
        """Check once per process that this database is ours to use; the first writer leaves the markers."""
        if not self._checked:
            self._transactions.read(self._check)
            self._checked = True
        if for_writing and not self._marked:
            self._transactions.write(
                lambda connection: write_markers(connection, self._opener()), repeat_unknown=True
            )
            self._marked = True

    def _check(self, connection: Connection) -> None:
        check_version(read_version(connection), self.identity)
        self._marked = check_markers(connection, self._opener())

    def _opener(self) -> Opener:
        return Opener(self._location, self._host_id or local_host_id(), self._codec.fingerprints)


__all__ = ["SqlDatabase"]
