"""``unload``, ``close``, ``purge``: what becomes of an agent beside its executions."""

from __future__ import annotations

from typing import Annotated

import typer

from phronomy_ray.cli.decisions import WorkingDirOption
from phronomy_ray.cli.session import session_of

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="Id of the agent.")]


def unload(context: typer.Context, agent: AgentArgument) -> None:
    """Free an agent's process; everything is kept and the next use wakes it."""
    session = session_of(context)
    with session.open_store() as store:
        store.load_root(agent)
    with session.open_runtime() as runtime:
        freed = runtime.agent(agent).unload()
    text = f"agent {agent} is unloaded" if freed else f"agent {agent} was not live"
    session.console.print(text, markup=False)


def close(context: typer.Context, agent: AgentArgument, working_dir: WorkingDirOption = None) -> None:
    """Let an idle agent take no more work, for ever; what it did stays readable."""
    session = session_of(context)
    with session.open_store() as store:
        store.load_root(agent)
    with session.open_runtime(working_dir=working_dir) as runtime:
        runtime.agent(agent).close()
    session.console.print(f"agent {agent} is closed", markup=False)


def purge(
    context: typer.Context,
    agent: AgentArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    working_dir: WorkingDirOption = None,
) -> None:
    """Delete an idle agent with everything that is stored of it."""
    session = session_of(context)
    with session.open_store() as store:
        root = store.load_root(agent)
    if not yes:
        typer.confirm(
            f"Delete agent {agent} with its {root.journal_position} journal records, for ever?", abort=True
        )
    with session.open_runtime(working_dir=working_dir) as runtime:
        runtime.agent(agent).purge()
    session.console.print(f"agent {agent} is deleted", markup=False)
