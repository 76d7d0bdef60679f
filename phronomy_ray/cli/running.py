"""``run`` and ``watch``: start an execution, or come back to one, and follow it on the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phronomy_ray.cli.decisions import WorkingDirOption, parse_value
from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.output import print_json
from phronomy_ray.cli.present_folder import import_from_here
from phronomy_ray.cli.session import Session, session_of
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.ids import new_execution_id

if TYPE_CHECKING:
    from phronomy_ray.definition.agent import Agent
    from phronomy_ray.results import RunResult
    from phronomy_ray.runtime.execution_handle import ExecutionHandle

JsonOption = Annotated[bool, typer.Option("--json", help="Only the result, as one JSON document.")]
PatientOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="Without a terminal: wait until a human answers elsewhere, instead of ending."
    ),
]


def run(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS", help="The agent's class; the present folder counts.")
    ],
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="Text for the agent; - reads standard input.")
    ],
    agent_id: Annotated[
        str, typer.Option("--agent-id", help="The agent: loaded if it is stored, else created.")
    ],
    execution_id: Annotated[
        str, typer.Option(help="Your own id: the same id and message again is one execution, observed twice.")
    ] = "",
    durable_context: Annotated[
        str, typer.Option("--context", help="JSON object that the tools can read (durable context).")
    ] = "",
    as_json: JsonOption = False,
    patient: PatientOption = False,
    working_dir: WorkingDirOption = None,
) -> None:
    """Send a message to an agent and follow the execution: tokens, tool calls, questions.

    Starts a Ray of its own unless an address is given (--address auto for the cluster on this machine).
    Ctrl-C ends the watching, not the execution.
    """
    session = session_of(context)
    agent_class = load_class(target)
    text = sys.stdin.read() if message == "-" else message
    facts = _parse_context(durable_context)
    execution = execution_id or new_execution_id()
    try:
        with session.open_runtime("local", working_dir=working_dir) as runtime:
            agent = runtime.load_or_create(agent_class, agent_id)
            handle = agent.start(text, execution_id=execution, durable_context=facts, stream=True)
            code = _follow(session, handle, as_json=as_json, patient=patient)
    except KeyboardInterrupt:
        _say_how_to_return(session, execution)
        code = ExitCode.INTERRUPTED
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def watch(
    context: typer.Context,
    execution: Annotated[str, typer.Argument(metavar="EXECUTION")],
    after: Annotated[int, typer.Option(min=0, help="Only events behind this number.")] = 0,
    as_json: JsonOption = False,
    patient: PatientOption = False,
    working_dir: WorkingDirOption = None,
) -> None:
    """Come back to an execution and follow it; wakes its agent if work has to go on."""
    from phronomy_ray.engine.reading import load_result, load_status

    session = session_of(context)
    with session.open_store() as store:
        agent_id, status = load_status(store, execution)
        ended = load_result(store, execution) if status.is_terminal else None
    if ended is not None:  # nothing to follow: no cluster is needed
        code = _show_ended(session, ended, as_json=as_json)
        if code is not ExitCode.OK:
            raise typer.Exit(code)
        return
    import_from_here()
    try:
        with session.open_runtime(working_dir=working_dir) as runtime:
            handle = runtime.agent(agent_id).execution(execution)
            code = _follow(session, handle, as_json=as_json, patient=patient, after=after)
    except KeyboardInterrupt:
        _say_how_to_return(session, execution)
        code = ExitCode.INTERRUPTED
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def _follow(
    session: Session, handle: ExecutionHandle, *, as_json: bool, patient: bool, after: int = 0
) -> ExitCode:
    from phronomy_ray.cli.follow import Follower

    return Follower(session, handle, as_json=as_json, patient=patient).run(after=after)


def _show_ended(session: Session, result: RunResult, *, as_json: bool) -> ExitCode:
    from phronomy_ray.cli.follow import exit_code_of, print_outcome

    if as_json:
        print_json(result.to_wire())
    else:
        print_outcome(session, result)
    return exit_code_of(result)


def _say_how_to_return(session: Session, execution: str) -> None:
    watch_it = session.command(f"watch {execution}")
    if session.owns_ray:
        what = (
            "The Ray that this command started ends with it. The execution is stored and goes on when its agent is woken:\n"
            f"  {watch_it}"
        )
    else:
        what = (
            f"The execution goes on.\n  {watch_it}      come back to it\n"
            f"  {session.command(f'inspect {execution}')}    see what it has done\n"
            f"  {session.command(f'cancel {execution}')}     end it"
        )
    session.error_console.print(f"\n{what}", markup=False, soft_wrap=True)


def load_class(target: str) -> type[Agent]:
    """The agent class that ``module:Class`` names, also from the present folder.

    Raises:
        DefinitionUnavailableError: it cannot be imported, or is no agent class.
        ConfigurationError: its declaration is wrong.
    """
    from phronomy_ray.definition.agent import import_agent

    import_from_here()
    found = import_agent(target)
    found.definition()
    return found


def _parse_context(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    value = parse_value(Path(text[1:]).read_text() if text.startswith("@") else text)
    if not isinstance(value, dict):
        raise InvalidInputError("--context must be a JSON object")
    return value


__all__ = ["load_class", "run", "watch"]
