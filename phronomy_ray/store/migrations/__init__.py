"""Alembic environment and versions; used by `store.migrate` only."""
