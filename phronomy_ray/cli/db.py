"""``db``: the store's schema and the key of its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import print_json
from phronomy_ray.cli.session import Session, session_of

if TYPE_CHECKING:
    from phronomy_ray.store.migrate import Migrations

db_app = typer.Typer(
    help="Create, upgrade and check the store's schema; write its contents anew under a new key.",
    no_args_is_help=True,
)


@db_app.command()
def upgrade(context: typer.Context) -> None:
    """Bring the schema to this release's version; creates an SQLite file. Safe to repeat and to run at once."""
    session = session_of(context)
    tool, name = _tool(session)
    before = tool.current()
    after = tool.upgrade()
    if before == after:
        session.console.print(f"{name} has schema version {after} already", markup=False, soft_wrap=True)
    else:
        session.console.print(
            f"{name}: schema {before or 'none'} -> {after}", markup=False, soft_wrap=True, style="green"
        )


@db_app.command()
def current(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show the schema's version; exit code 1 when it is not this release's."""
    session = session_of(context)
    tool, name = _tool(session)
    found, wanted = tool.current(), tool.head()
    if as_json:
        print_json({"store": name, "current": found, "head": wanted, "ok": found == wanted})
    else:
        text = f"{name}: schema {found or 'none'}, this release wants {wanted}"
        if found != wanted:
            text += "; run `phronomy db upgrade`"
        session.console.print(text, markup=False, soft_wrap=True)
    if found != wanted:
        raise typer.Exit(ExitCode.FAILED)


@db_app.command()
def check(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Compare the database with the tables that this release expects; exit code 1 when they differ."""
    session = session_of(context)
    tool, name = _tool(session)
    found, wanted = tool.current(), tool.head()
    differences = tool.check() if found == wanted else [f"schema version is {found or 'none'}, not {wanted}"]
    if as_json:
        print_json({"store": name, "ok": not differences, "differences": differences})
    elif differences:
        for difference in differences:
            session.console.print(difference, markup=False, soft_wrap=True, style="red")
        session.console.print("run `phronomy db upgrade`", markup=False)
    else:
        session.console.print(f"{name}: the schema is right ({found})", markup=False, soft_wrap=True)
    if differences:
        raise typer.Exit(ExitCode.FAILED)


@db_app.command()
def reencrypt(
    context: typer.Context,
    batch: Annotated[int, typer.Option(min=1, help="Rows that are looked at in one transaction.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Write all contents anew under the first key of PHRONOMY_CONTENT_KEY, while agents run. Safe to stop and repeat.

    Exit code 1 when a process goes on writing with another key.
    """
    from phronomy_ray.store.engines import StoreOptions
    from phronomy_ray.store.reencryption import Reencrypted, Reencryption

    session = session_of(context)
    store = Reencryption(session.store_url, options=StoreOptions(application_name="phronomy-cli"))
    try:
        if as_json:
            done = store.run(batch_rows=batch)
        else:
            with session.error_console.status("looking for other keys") as status:

                def show(so_far: Reencrypted) -> None:
                    status.update(f"{so_far.total} rows written anew")

                done = store.run(batch_rows=batch, on_progress=show)
    finally:
        store.close()
    if as_json:
        print_json({"store": store.identity, "key": done.key_id, "rows": done.rows, "left": done.left})
    else:
        session.console.print(
            f"{store.identity}: {done.total} rows written anew under the key {done.key_id!r}",
            markup=False,
            soft_wrap=True,
            style="green",
        )
        if done.left:
            session.console.print(
                f"{done.left} rows are under another key again: a process still writes with it; restart it with "
                f"{done.key_id!r} in front, then run this again",
                markup=False,
                soft_wrap=True,
                style="red",
            )
    if done.left:
        raise typer.Exit(ExitCode.FAILED)


def _tool(session: Session) -> tuple[Migrations, str]:
    """The schema tool and the store's name without credentials."""
    from phronomy_ray.store.locations import parse_location
    from phronomy_ray.store.migrate import Migrations

    url = session.store_url
    return Migrations(url), parse_location(url).identity


__all__ = ["db_app"]
