"""Alembic environment: runs on the connection (and inside the transaction) that `store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from phronomy_ray.store.tables import VERSION_TABLE, metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError(
        "run migrations with `phronomy db upgrade` or phronomy_ray.store.migrate, not with alembic"
    )

context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
