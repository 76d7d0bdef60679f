"""``traces``: one masked line for each tool call. Ray is neither started nor needed."""

from __future__ import annotations

from typing import Annotated

import typer

from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import duration, local_time, print_json, print_table, short, status_text
from phronomy_ray.cli.session import session_of


def traces(
    context: typer.Context,
    execution: Annotated[str, typer.Option(help="Only calls of this execution.")] = "",
    agent: Annotated[str, typer.Option(help="Only calls of this agent.")] = "",
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option(min=1, help="Most calls shown, the newest.")] = 50,
) -> None:
    """Show tool calls with outcome, times, and masked arguments and results."""
    from phronomy_ray.runtime.traces import read_traces

    session = session_of(context)
    with session.open_store() as store:
        found = read_traces(store, execution_id=execution or None, agent_id=agent or None, limit=limit)
    if as_json:
        print_json([trace.to_wire() for trace in found])
        return
    print_table(
        session.console,
        ("TOOL", "STATUS", "AGENT", "EXECUTION", "AT", "WAITED", "RAN", "TRIES", "ARGUMENTS", "RESULT"),
        (
            (
                trace.tool_name,
                status_text("wrong" if trace.status == "succeeded" and not trace.ok else trace.status.value),
                trace.agent_id,
                trace.execution_id,
                local_time(trace.created_at),
                duration(_seconds(trace.waited_ms)),
                duration(_seconds(trace.ran_ms)),
                str(trace.attempts),
                short(trace.arguments, 40),
                trace.problem or short(trace.error or trace.result, 60),
            )
            for trace in found
        ),
        empty="no tool calls",
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


__all__ = ["traces"]
