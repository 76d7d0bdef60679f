"""Whether this database can be used by this release, on this host, with this key: checked once per process.

The version is read by a plain ``SELECT``: opening a store never imports Alembic.
"""

from __future__ import annotations

import hashlib
import os
import platform
import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, text, update

from phronomy_ray.errors import ConfigurationError, ContentIntegrityError, SchemaVersionError
from phronomy_ray.store import statements, tables
from phronomy_ray.store.content_codec import ENV_CONTENT_KEY
from phronomy_ray.store.locations import Location
from phronomy_ray.store.tables import VERSION_TABLE

#: Revision that this release reads and writes; a test compares it with the newest migration.
HEAD = "0012"

ENV_HOST_ID = "PHRONOMY_HOST_ID"
_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_STORE_ID, _HOST_ID, _CONTENT_KEY = "store_id", "host_id", "content_key"

_VERSION_QUERY = text(f"SELECT version_num FROM {VERSION_TABLE}")


def local_host_id() -> str:
    """A stable name of this machine: ``PHRONOMY_HOST_ID``, else a digest of its machine id, else its host name.

    Processes and Ray nodes on one machine agree on it. Containers without a machine id are known by their host name.
    """
    given = os.environ.get(ENV_HOST_ID)
    if given:
        return given
    for path in _MACHINE_ID_FILES:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                machine_id = file.read().strip()
        except OSError:
            continue
        if machine_id:
            digest = hashlib.sha256(b"phronomy host " + machine_id.encode()).hexdigest()
            return f"machine:{digest[:32]}"
    return f"host:{platform.node()}"


@dataclass(frozen=True, slots=True)
class Opener:
    """Who opens the database."""

    location: Location
    host_id: str
    #: Of its content keys, the writing one first; ``plain`` for none.
    key_fingerprints: tuple[str, ...]


def read_version(connection: Connection) -> str | None:
    """The schema's version, ``None`` for a database without our schema."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    versions = [str(row.version_num) for row in connection.execute(_VERSION_QUERY)]
    if len(versions) > 1:
        raise SchemaVersionError(f"the database has several schema versions: {', '.join(sorted(versions))}")
    return versions[0] if versions else None


def check_version(version: str | None, identity: str) -> None:
    """Refuse a database that this release cannot use.

    Raises:
        SchemaVersionError: no schema, an older one, or one that this release does not know.
    """
    details = {"store": identity, "found": version, "wanted": HEAD}
    if version == HEAD:
        return
    if version is None:
        raise SchemaVersionError(f"{identity} has no schema yet: run `phronomy db upgrade`", details=details)
    if version.isdigit() and int(version) < int(HEAD):
        raise SchemaVersionError(
            f"{identity} has schema version {version}, this release needs {HEAD}: run `phronomy db upgrade`",
            details=details,
        )
    raise SchemaVersionError(
        f"{identity} has schema version {version}, which is newer than this release's {HEAD}: upgrade phronomy-ray",
        details=details,
    )


def check_markers(connection: Connection, opener: Opener) -> bool:
    """Compare the database's markers with the opener; whether all are set.

    Raises:
        ConfigurationError: an SQLite file that belongs to another host.
        ContentIntegrityError: contents are encrypted with another key, or are plain, or the key is missing.
    """
    markers = {row.name: row.value for row in connection.execute(statements.META)}
    host = markers.get(_HOST_ID)
    if opener.location.backend == "sqlite" and host is not None and host != opener.host_id:
        raise ConfigurationError(
            f"{opener.location.identity} was created on another host ({host}; this one is {opener.host_id}). SQLite's "
            "locks do not work between hosts and two writers would destroy the file: use PostgreSQL for a cluster of "
            "several nodes. If the file has moved here for good, call phronomy_ray.store.migrate.adopt_host(url); "
            f"if this is the same host under a new name (a container), set {ENV_HOST_ID}.",
            details={"host_id": host, "opener": opener.host_id},
        )
    key = markers.get(_CONTENT_KEY)
    if key is not None and key not in opener.key_fingerprints:
        raise ContentIntegrityError(_key_mismatch(key, opener), details={"store": opener.location.identity})
    return set(_expected_markers(opener)) <= set(markers)


def write_markers(connection: Connection, opener: Opener) -> None:
    """Set the markers that are missing, then `check_markers`; the first writer wins."""
    rows = [{"name": name, "value": value} for name, value in sorted(_expected_markers(opener).items())]
    connection.execute(statements.INSERT_META[connection.dialect.name], rows)
    check_markers(connection, opener)


def set_writing_key(connection: Connection, opener: Opener) -> None:
    """Remember the writing key as the one that the contents are encrypted with: nothing is under another any more."""
    meta = tables.store_meta
    connection.execute(
        update(meta)
        .where(meta.c.name == _CONTENT_KEY, meta.c.value.in_(opener.key_fingerprints))
        .values(value=opener.key_fingerprints[0])
    )


def _expected_markers(opener: Opener) -> dict[str, str]:
    markers = {_STORE_ID: uuid.uuid4().hex, _CONTENT_KEY: opener.key_fingerprints[0]}
    if opener.location.backend == "sqlite":
        markers[_HOST_ID] = opener.host_id
    return markers


def _key_mismatch(stored: str, opener: Opener) -> str:
    if stored == "plain":
        return f"the contents of {opener.location.identity} are plain text: open it without a content key"
    if opener.key_fingerprints == ("plain",):
        return (
            f"the contents of {opener.location.identity} are encrypted: "
            f"give the key as content_key or {ENV_CONTENT_KEY}"
        )
    return (
        f"the contents of {opener.location.identity} are encrypted with another key than the one given "
        f"as content_key or {ENV_CONTENT_KEY}"
    )


__all__ = [
    "HEAD",
    "Opener",
    "check_markers",
    "check_version",
    "local_host_id",
    "read_version",
    "set_writing_key",
    "write_markers",
]
