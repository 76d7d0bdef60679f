"""``drain``, ``move``, ``shutdown``: emptying hosts, nodes and whole namespaces, and saying where an agent lives."""

from __future__ import annotations

from typing import Annotated

import typer

from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.lifecycle import AgentArgument
from phronomy_ray.cli.session import session_of
from phronomy_ray.errors import InvalidInputError

TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.0, help="How long to wait for what works, in seconds.")
]


def drain(
    context: typer.Context,
    node: Annotated[str | None, typer.Option("--node", help="Node id, or the beginning of it.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Name of a host, such as host:2.")] = None,
    timeout: TimeoutOption = 60.0,
    reopen: Annotated[bool, typer.Option("--reopen", help="Let the host take agents again.")] = False,
) -> None:
    """Have all agents leave a node that goes away, or a host; they wake elsewhere with their next use."""
    if (node is None) == (host is None) or (reopen and host is None):
        raise InvalidInputError("say --node or --host; --reopen is for a host")
    session = session_of(context)
    with session.open_runtime() as runtime:
        if host is not None and reopen:
            runtime.reopen_host(host)
            session.console.print(f"{host} takes agents again", markup=False)
            return
        if host is not None:
            report = runtime.drain_host(host, timeout=timeout)
            done, left = f"{report.unloaded} agents have left {host}", report.left
        else:
            moved = runtime.drain_node(str(node), timeout=timeout)
            done, left = f"{len(moved.moved)} agents and hosts have left node {moved.node[:12]}", moved.left
            if moved.ray_refusal:
                session.error_console.print(
                    f"Ray may still start something there: {moved.ray_refusal}", markup=False
                )
    session.console.print(done, markup=False)
    _tell_left(context, left)


def move(
    context: typer.Context,
    agent: AgentArgument,
    place: Annotated[str, typer.Argument(help="'dedicated', 'host:<n>', or 'anywhere' to end that.")],
) -> None:
    """Say where an agent must live; it leaves where it is and wakes there with its next use."""
    session = session_of(context)
    with session.open_runtime() as runtime:
        runtime.move(agent, None if place == "anywhere" else place)
    session.console.print(f"agent {agent} lives {place}", markup=False)


def shutdown(context: typer.Context, timeout: TimeoutOption = 30.0) -> None:
    """Shut down all agents of the namespace and what serves them; everything goes on with the next runtime."""
    session = session_of(context)
    with session.open_runtime() as runtime:
        result = runtime.shutdown(drain=timeout)
    for failure in result.failures:
        session.error_console.print(f"{failure.message} [{failure.code}]", markup=False)
    if result.is_clean:
        session.console.print("all agents have left", markup=False)
    _tell_left(context, result.left)
    if result.failures:
        raise typer.Exit(ExitCode.FAILED)


def _tell_left(context: typer.Context, left: tuple[str, ...]) -> None:
    if left:
        session_of(context).console.print(f"still at work: {', '.join(left)}", markup=False)
        raise typer.Exit(ExitCode.CONFLICT)
