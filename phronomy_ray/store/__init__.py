"""The store: SQLAlchemy Core on SQLite and PostgreSQL, behind the narrow port in `store.port`."""

from __future__ import annotations

if __name__ != "phronomy_ray.store":  # the repository's top holds a link `store`; a second copy must never load
    raise ImportError("import phronomy_ray.store, not the link 'store' at the repository's top")
