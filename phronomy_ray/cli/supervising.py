"""``up``, ``supervisor``, ``unpark``: who looks after agents that nobody calls, and those that were taken out of service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from phronomy_ray.cli.collecting import parse_age
from phronomy_ray.cli.decisions import WorkingDirOption
from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.lifecycle import AgentArgument
from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import print_json, print_table, short
from phronomy_ray.cli.session import Session, session_of
from phronomy_ray.clock import utc_now
from phronomy_ray.retention import RetentionPolicy
from phronomy_ray.supervision.limits import SupervisionLimits

CancelOption = Annotated[
    bool, typer.Option("--cancel", help="End what it was working on instead of going on with it.")
]


def up(
    context: typer.Context,
    working_dir: WorkingDirOption = None,
    keep_for: Annotated[
        str,
        typer.Option(
            help="Age at which ended executions, their events and closed agents are deleted every hour: 30d."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Start the supervisor on the cluster: whatever was interrupted goes on, and nobody has to call for it.

    One that runs already keeps what it was started with.
    """
    session = session_of(context)
    age = parse_age(keep_for)
    limits = SupervisionLimits(retention=RetentionPolicy.keep_for(age) if age is not None else None)
    with session.open_runtime(working_dir=working_dir, supervisor=limits) as runtime:
        runtime.start_supervisor()
        found = runtime.supervisor_report() or []
    _show(session, found, as_json=as_json)


def supervisor(context: typer.Context, as_json: JsonOption = False) -> None:
    """What the supervisor sees and does; exit code 1 when there is none."""
    session = session_of(context)
    with session.open_runtime(supervisor=False) as runtime:
        found = runtime.supervisor_report()
    if found is None:
        session.error_console.print("no supervisor runs here; start it with: " + session.command("up"))
        raise typer.Exit(ExitCode.FAILED)
    _show(session, found, as_json=as_json)


def unpark(
    context: typer.Context,
    agent: AgentArgument,
    cancel: CancelOption = False,
    reason: Annotated[str, typer.Option("--reason", help="With --cancel: why.")] = "unparked",
) -> None:
    """Put a parked agent back into service; the supervisor, or the next call, wakes it. Needs no cluster."""
    session = session_of(context)
    with session.open_store() as store:
        was_parked = store.unpark_agent(
            agent, now=utc_now(), cancel_reason=(reason or "unparked") if cancel else ""
        )
    text = f"agent {agent} is in service again" if was_parked else f"agent {agent} was not parked"
    session.console.print(text, markup=False)


def _show(session: Session, reports: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(reports)
        return
    for report in reports:
        session.console.print(f"{report['store']} ({report.get('cluster', '')})", markup=False)
        if report["error"]:
            session.console.print(f"  the last round failed: {report['error']}", style="red", markup=False)
        if "counts" not in report:
            continue
        counts = report["counts"]
        session.console.print(
            f"  {report['agents_with_work']} agents with work, {report['waiting_for_a_wake']} wait for a wake, "
            f"{len(report['wakes_under_way'])} wakes under way, {report['watched_elsewhere']} watched by other clusters; "
            f"so far {counts['wakes']} wakes, {counts['failed_wakes']} failed, {counts['ended_processes']} hung processes ended",
            markup=False,
            soft_wrap=True,
        )
        rows = [
            (item["agent_id"], "parked", f"{item.get('code', '')}: {item.get('message', '')}")
            for item in report["parked"]
        ]
        rows += [
            (
                item["agent_id"],
                f"parked: {item['parked']}" if item["parked"] else f"again in {item['next_try_in_s']:g} s",
                item["message"],
            )
            for item in report["failing"]
        ]
        print_table(
            session.console,
            ("agent", "state", "why"),
            [(name, state, short(why, 200)) for name, state, why in rows],
            empty="  no agent is held up",
        )


__all__ = ["supervisor", "unpark", "up"]
