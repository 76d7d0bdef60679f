"""Store URLs: what is accepted, and what may be shown."""

from __future__ import annotations

import pytest

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.store.locations import parse_location
from phronomy_ray.store.sql_store import open_store


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("postgresql://me:secret@db.example:5433/agents", "postgresql://db.example:5433/agents"),
        ("postgres://me:secret@db.example/agents", "postgresql://db.example/agents"),
        ("postgresql+psycopg://me:secret@db.example/agents", "postgresql://db.example/agents"),
        ("postgresql://db.example/agents?sslmode=require&password=secret", "postgresql://db.example/agents"),
        ("postgresql:///agents?host=/run/pg&user=me", "postgresql:///agents?host=%2Frun%2Fpg"),
    ],
)
def test_postgresql_urls(url: str, identity: str) -> None:
    location = parse_location(url)
    assert (location.backend, location.url.drivername) == ("postgresql", "postgresql+psycopg")
    assert location.identity == identity
    assert "secret" not in repr(location) + repr(open_store(url)) + open_store(url).identity


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me@host/db",
        "postgresql+asyncpg://me@host/db",
        "sqlite+aiosqlite:///x.db",
        "just text",
        "",
        "sqlite://host/path.db",
        "sqlite:///x.db?timeout=3",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(url)


def test_refusal_does_not_show_the_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store("mysql://me:secret@host/db")
    assert "secret" not in str(caught.value)
