"""The store: SQLAlchemy Core on SQLite and PostgreSQL, behind the narrow port in `store.port`."""

from __future__ import annotations

# the repository's top holds a link `store`; a second copy of every class must never load
if __name__ != "phronomy_ray.store":
    raise ImportError("import phronomy_ray.store, not the link 'store' at the repository's top")
