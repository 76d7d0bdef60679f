"""Store URLs: which database, by which driver, and what may be shown of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from phronomy_ray.errors import ConfigurationError

Backend = Literal["sqlite", "postgresql"]

_POSTGRES_SCHEMES = {"postgresql", "postgres", "postgresql+psycopg"}
_SQLITE_SCHEMES = {"sqlite", "sqlite+pysqlite"}
#: Connection parameters that say *where* a database is; all others stay out of `identity`.
_PLACE_PARAMETERS = ("host", "hostaddr", "port", "service", "dbname")


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed store URL."""

    backend: Backend
    #: URL for SQLAlchemy, with the driver that we use and with credentials.
    url: URL
    #: URL without credentials; equal for two handles on one database.
    identity: str
    #: Absolute path of an SQLite file, else empty.
    path: str = ""

    def __repr__(self) -> str:
        return f"Location({self.identity!r})"


def parse_location(url: str) -> Location:
    """Parse ``sqlite:///path`` or ``postgresql://user@host/database``.

    A relative SQLite path is made absolute here, so that a handle that travels to a process with another working
    directory still means the same file.

    Raises:
        ConfigurationError: not such a URL, another driver, or an in-memory SQLite database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(
            "a store URL looks like sqlite:///path/to/file.db or postgresql://user@host/database"
        ) from error
    if parsed.drivername in _SQLITE_SCHEMES:
        return _sqlite(parsed)
    if parsed.drivername in _POSTGRES_SCHEMES:
        return _postgresql(parsed)
    raise ConfigurationError(
        f"unknown store {parsed.drivername!r}: use sqlite:///path or postgresql://... "
        "(the driver is chosen by phronomy-ray: psycopg 3 for PostgreSQL)"
    )


def _sqlite(parsed: URL) -> Location:
    database = parsed.database or ""
    if not database or ":memory:" in database or parsed.query.get("mode") == "memory":
        raise ConfigurationError(
            "an in-memory SQLite database is lost with its connection and cannot hold durable agents; "
            "use a file: sqlite:///path/to/file.db"
        )
    if database.startswith("file:") or parsed.query or parsed.host:
        raise ConfigurationError("an SQLite store URL is sqlite:///path, without host or parameters")
    path = os.path.realpath(os.path.abspath(os.path.expanduser(database)))
    return Location("sqlite", URL.create("sqlite+pysqlite", database=path), f"sqlite:///{path}", path)


def _postgresql(parsed: URL) -> Location:
    place = {name: parsed.query[name] for name in _PLACE_PARAMETERS if name in parsed.query}
    shown = URL.create(
        "postgresql", host=parsed.host, port=parsed.port, database=parsed.database, query=place
    )
    return Location(
        "postgresql", parsed.set(drivername="postgresql+psycopg"), shown.render_as_string(hide_password=True)
    )


__all__ = ["Backend", "Location", "parse_location"]
