"""``approve``, ``reject``, ``resolve``, ``cancel``: a human's word to an agent, which is woken if need be."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from phronomy_ray.cli.exit_codes import AmbiguousError, ExitCode
from phronomy_ray.cli.follow import exit_code_of, print_outcome
from phronomy_ray.cli.output import local_time
from phronomy_ray.cli.session import Session, session_of
from phronomy_ray.engine.reading import load_status
from phronomy_ray.errors import InvalidInputError, NotFoundError, StateConflictError
from phronomy_ray.journal import ApprovalRow, ApprovalStatus
from phronomy_ray.results import RunResult
from phronomy_ray.tool_calls import Resolution

#: Shortest beginning of an id that is taken for the id.
MIN_PREFIX_CHARS = 6

RequestArguments = Annotated[
    list[str],
    typer.Argument(metavar="[EXECUTION] REQUEST", help="Request id, if you like after the execution's."),
]
ByOption = Annotated[str, typer.Option("--by", help="Who decides; the user and host by default.")]
ReasonOption = Annotated[str, typer.Option(help="Why; kept in the journal.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the end or for the next question.")]
WorkingDirOption = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        exists=True,
        help="Folder with the agent's modules, shipped to the nodes when it is woken.",
    ),
]


EditOption = Annotated[
    str,
    typer.Option(
        "--edit",
        metavar="JSON",
        help="Run the call with these arguments (all of them) instead of the model's.",
    ),
]


def approve(
    context: typer.Context,
    request: RequestArguments,
    edit: EditOption = "",
    by: ByOption = "",
    reason: ReasonOption = "",
    wait: WaitOption = False,
    working_dir: WorkingDirOption = None,
) -> None:
    """Approve a tool call. Wakes the agent; needs the cluster it lives on (`--address`, by default the one here)."""
    _decide(
        session_of(context),
        request,
        approved=True,
        edited=_parse_edit(edit),
        by=by,
        reason=reason,
        wait=wait,
        working_dir=working_dir,
    )


def reject(
    context: typer.Context,
    request: RequestArguments,
    by: ByOption = "",
    reason: ReasonOption = "",
    wait: WaitOption = False,
    working_dir: WorkingDirOption = None,
) -> None:
    """Reject a tool call; its execution ends when no gated call of the batch was approved. Wakes the agent."""
    _decide(
        session_of(context),
        request,
        approved=False,
        edited=None,
        by=by,
        reason=reason,
        wait=wait,
        working_dir=working_dir,
    )


def _decide(
    session: Session,
    request: list[str],
    *,
    approved: bool,
    edited: dict[str, Any] | None,
    by: str,
    reason: str,
    wait: bool,
    working_dir: Path | None,
) -> None:
    row = _find_request(session, request)
    word = "approved" if approved else "rejected"
    if row.status is not ApprovalStatus.PENDING:
        if row.status.value != word or edited is not None:
            raise StateConflictError(
                f"request {row.approval_request_id} was answered already: {_answer(row)}"
            )
        session.console.print(f"{row.approval_request_id} is {_answer(row)} already", markup=False)
        return
    # A Ray of our own ends with this command: the agent must have done its work by then.
    wait = wait or session.address_or("auto") == "local"
    with session.open_runtime(working_dir=working_dir) as runtime:
        result = runtime.approve(
            row.execution_id,
            row.approval_request_id,
            approved=approved,
            edited_arguments=edited,
            decided_by=by or default_decider(),
            reason=reason or None,
        )
        session.console.print(
            f"{word} {row.tool_name} of agent {row.agent_id} ({row.execution_id})",
            markup=False,
            soft_wrap=True,
            style="green" if approved else "yellow",
        )
        if wait:
            result = runtime.execution(row.execution_id).wait("suspended")
            _finish(session, result)
        elif result.approvals:
            session.console.print(f"{len(result.approvals)} more requests of it wait", markup=False)


def resolve(
    context: typer.Context,
    execution: Annotated[str, typer.Argument(metavar="EXECUTION")],
    call: Annotated[str, typer.Argument(metavar="CALL", help="Id of the tool call; see `phronomy inspect`.")],
    outcome: Annotated[
        str, typer.Argument(metavar="OUTCOME", help="succeeded, failed or not_performed (it is run again).")
    ],
    result: Annotated[
        str, typer.Option(help="With succeeded: what it returned, as JSON (else taken as text).")
    ] = "",
    error: Annotated[str, typer.Option(help="With failed: what went wrong.")] = "",
    by: ByOption = "",
    wait: WaitOption = False,
    working_dir: WorkingDirOption = None,
) -> None:
    """Say what became of a tool call that a crash interrupted. Wakes the agent."""
    session = session_of(context)
    word = Resolution.of(outcome)
    with session.open_store() as store:
        row = store.load_execution(execution)
        if all(item.tool_call_id != call for item in store.tool_calls(execution)):
            raise NotFoundError(f"execution {execution} has no tool call {call!r}")
    wait = wait or session.address_or("auto") == "local"
    with session.open_runtime(working_dir=working_dir) as runtime:
        found = runtime.agent(row.agent_id).resolve(
            execution,
            call,
            word,
            result=parse_value(result) if word is Resolution.SUCCEEDED else None,
            error=error,
            decided_by=by or default_decider(),
        )
        session.console.print(f"{call} is {word.value}", markup=False, style="green")
        if wait:
            _finish(session, runtime.execution(execution).wait("suspended"))
        elif found.unresolved:
            session.console.print(f"{len(found.unresolved)} more calls wait for a resolution", markup=False)


def cancel(
    context: typer.Context,
    execution: Annotated[str, typer.Argument(metavar="EXECUTION")],
    reason: ReasonOption = "cancelled by the command line",
    working_dir: WorkingDirOption = None,
) -> None:
    """Cancel an execution; one that has ended stays as it is. Wakes the agent."""
    session = session_of(context)
    with session.open_store() as store:
        _, status = load_status(store, execution)
    if status.is_terminal:
        session.console.print(f"{execution} has ended already: {status.value}", markup=False, soft_wrap=True)
        return
    with session.open_runtime(working_dir=working_dir) as runtime:
        handle = runtime.execution(execution)
        handle.cancel(reason=reason)
        result = handle.wait("terminal")
    session.console.print(f"{execution} is {result.status.value}", markup=False, soft_wrap=True)


# --- parts -----------------------------------------------------------------------------------------------------


def _answer(row: ApprovalRow) -> str:
    by = f" by {row.decided_by}" if row.decided_by else ""
    when = f" at {local_time(row.decided_at)}" if row.decided_at else ""
    return f"{row.status.value}{by}{when}"


def _parse_edit(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    value = parse_value(text)
    if not isinstance(value, dict):
        raise InvalidInputError(
            '--edit takes a JSON object with all arguments, such as \'{"path": "a.txt"}\''
        )
    return value


def default_decider() -> str:
    """Who this is, for the journal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def parse_value(text: str) -> Any:
    """JSON if it is JSON, else the text; ``None`` for an empty one."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _find_request(session: Session, words: list[str]) -> ApprovalRow:
    """The request that the arguments mean.

    Raises:
        NotFoundError, AmbiguousError, InvalidInputError.
    """
    if len(words) > 2:
        raise InvalidInputError("give a request id, or an execution id and a request id")
    wanted = words[-1]
    with session.open_store() as store:
        if len(words) == 2:
            store.load_execution(words[0])  # tells a wrong execution from a wrong request
        rows = store.approvals(execution_id=words[0] if len(words) == 2 else None)
    exact = [row for row in rows if row.approval_request_id == wanted]
    if exact:
        return exact[0]
    pending = [row for row in rows if row.status is ApprovalStatus.PENDING]
    fitting = [
        row
        for row in pending
        if row.execution_id == wanted
        or (len(wanted) >= MIN_PREFIX_CHARS and row.approval_request_id.startswith(wanted))
    ]
    if len(fitting) > 1:
        raise AmbiguousError(
            f"{wanted!r} fits {len(fitting)} requests: {', '.join(row.approval_request_id for row in fitting)}"
        )
    if not fitting:
        raise NotFoundError(f"no approval request {wanted!r}; `phronomy approvals` lists those that wait")
    return fitting[0]


def _finish(session: Session, result: RunResult) -> None:
    print_outcome(session, result)
    code = exit_code_of(result)
    if code is not ExitCode.OK:
        raise typer.Exit(code)


__all__ = ["approve", "cancel", "default_decider", "parse_value", "reject", "resolve"]
