"""``gc``: delete what is old and what nothing refers to. It needs the store alone; agents may run meanwhile."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import print_json
from phronomy_ray.cli.session import session_of
from phronomy_ray.clock import utc_now
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.retention import Collected, RetentionPolicy

_AGE = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def gc(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option(help="Age of events, ended executions and closed agents that go: 30d, 12h.")
    ] = "",
    events: Annotated[str, typer.Option(help="The same for events alone.")] = "",
    executions: Annotated[str, typer.Option(help="The same for ended executions alone.")] = "",
    closed_agents: Annotated[str, typer.Option(help="The same for closed agents alone.")] = "",
    contents: Annotated[
        str, typer.Option(help="How long a text that nothing refers to stays before it is deleted.")
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete old events, ended executions and closed agents, and texts that nothing refers to any more.

    Without an age only such texts. What runs, waits for a human or is held (`phronomy retentions`) stays. Safe to stop and repeat.
    """
    from phronomy_ray.supervision.collecting import collect

    session = session_of(context)
    policy = RetentionPolicy(
        events=parse_age(events or older_than),
        executions=parse_age(executions or older_than),
        closed_agents=parse_age(closed_agents or older_than),
        contents=parse_age(contents),
    )
    with session.open_store() as store:
        if as_json:
            done = collect(store, policy, now=utc_now(), dry_run=dry_run)
        else:
            with session.error_console.status("looking") as status:

                def show(so_far: Collected) -> None:
                    status.update(so_far.summary)

                done = collect(store, policy, now=utc_now(), dry_run=dry_run, on_step=show)
    if as_json:
        print_json(done.to_wire())
    else:
        text = f"would delete {done.summary}" if dry_run else f"deleted {done.summary}"
        session.console.print(text, markup=False, soft_wrap=True)
    if not done.is_whole:
        raise typer.Exit(ExitCode.FAILED)


def parse_age(text: str) -> timedelta | None:
    """``30d``, ``12h``, ``2w``; ``None`` for no text. Raises `InvalidInputError`."""
    if not text:
        return None
    found = _AGE.fullmatch(text)
    if found is None:
        raise InvalidInputError(f"{text!r} is no age: a whole number and s, m, h, d or w, like 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


__all__ = ["gc", "parse_age"]
