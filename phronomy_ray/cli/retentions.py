"""``retentions``: who holds what is stored of agents. They live in the store; no cluster is needed."""

from __future__ import annotations

from typing import Annotated

import typer

from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import local_time, print_json, print_table
from phronomy_ray.cli.session import Session, session_of
from phronomy_ray.clock import utc_now
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.ids import check_id
from phronomy_ray.retention import Retention

retentions_app = typer.Typer(
    help="Holds: what somebody still needs is neither purged nor collected.", no_args_is_help=True
)

OwnerArgument = Annotated[str, typer.Argument(metavar="OWNER", help="Who holds, in its own words.")]
AgentOption = Annotated[str, typer.Option("--agent", help="All that this agent has.")]
ExecutionOption = Annotated[str, typer.Option("--execution", help="Only this execution.")]


@retentions_app.command("list")
def list_retentions(
    context: typer.Context,
    agent: Annotated[str, typer.Option(help="Only those of this agent.")] = "",
    owner: Annotated[str, typer.Option(help="Only those of this owner.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List the holds, oldest first."""
    session = session_of(context)
    with session.open_store() as store:
        holds = store.retentions(agent_id=agent or None, owner_key=owner or None)
    if as_json:
        print_json([hold.to_wire() for hold in holds])
        return
    print_table(
        session.console,
        ("OWNER", "AGENT", "EXECUTION", "SINCE"),
        (
            (hold.owner_key, hold.agent_id, hold.execution_id or "(all)", local_time(hold.created_at))
            for hold in holds
        ),
        empty="nothing is held",
    )


@retentions_app.command()
def add(
    context: typer.Context,
    owner: OwnerArgument,
    agent: AgentOption = "",
    execution: ExecutionOption = "",
) -> None:
    """Hold an agent or an execution."""
    session = session_of(context)
    check_id(owner, "owner")
    with session.open_store() as store:
        agent_id = agent or store.load_execution(_given(execution)).agent_id
        store.retain(Retention(owner, agent_id, execution or None, utc_now()))
    _say(session, f"{owner} holds {_what(agent_id, execution)}")


@retentions_app.command()
def release(
    context: typer.Context,
    owner: OwnerArgument,
    agent: AgentOption = "",
    execution: ExecutionOption = "",
) -> None:
    """End a hold, named as it was made; exit code 4 when there was none."""
    session = session_of(context)
    with session.open_store() as store:
        agent_id = agent or store.load_execution(_given(execution)).agent_id
        ended = store.release(owner, agent_id=agent_id, execution_id=execution or None)
    what = _what(agent_id, execution)
    _say(session, f"{owner} holds {what} no more" if ended else f"{owner} did not hold {what}")
    if not ended:
        raise typer.Exit(ExitCode.NOT_FOUND)


def _given(execution: str) -> str:
    if not execution:
        raise InvalidInputError("say what is held: --agent or --execution")
    return execution


def _what(agent_id: str, execution: str) -> str:
    return f"execution {execution} of agent {agent_id}" if execution else f"agent {agent_id}"


def _say(session: Session, text: str) -> None:
    session.console.print(text, markup=False, soft_wrap=True)


__all__ = ["retentions_app"]
