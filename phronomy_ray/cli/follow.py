"""Following an execution on the terminal: tokens and tool calls as they come, questions asked where a human sits.

The answer goes to standard output, everything else to standard error, so that ``phronomy run ... > answer.txt`` works.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.output import print_json, short
from phronomy_ray.cli.session import Session
from phronomy_ray.errors import NotFoundError, StateConflictError
from phronomy_ray.events import Event, EventType
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.results import RunResult
from phronomy_ray.tool_calls import Resolution

if TYPE_CHECKING:
    from phronomy_ray.runtime.execution_handle import ExecutionHandle


class NeedsHumanError(Exception):
    """The execution waits for a human and there is no terminal to ask on."""


class Follower:
    """Shows one execution until it ends.

    Args:
        as_json: show nothing on the way; one document at the end.
        patient: without a terminal, wait until somebody answers elsewhere.
    """

    def __init__(self, session: Session, handle: ExecutionHandle, *, as_json: bool, patient: bool) -> None:
        self._session = session
        self._handle = handle
        self._as_json = as_json
        self._patient = patient
        self._interactive = sys.stdin.isatty() and not as_json
        self._live = sys.stdout.isatty() and not as_json
        self._notes = session.error_console
        self._streamed = ""
        self._shown_answer = ""

    def run(self, *, after: int = 0) -> ExitCode:
        """Follow to the end; the exit code says how it was.

        Raises:
            KeyboardInterrupt: Ctrl-C; the execution goes on.
        """
        try:
            for event in self._handle.events(after=after):
                self._show(event)
        except NeedsHumanError:
            self._end_line()
            result = self._handle.view()
            print_questions(self._session, result) if not self._as_json else print_json(result.to_wire())
            return ExitCode.NEEDS_HUMAN
        self._end_line()
        result = self._handle.wait("terminal", timeout=60)
        if self._as_json:
            print_json(result.to_wire())
        else:
            print_outcome(self._session, result, shown=self._shown_answer == (result.output or ""))
        return exit_code_of(result)

    # --- events ------------------------------------------------------------------------------------------------

    def _show(self, event: Event) -> None:
        payload = event.payload
        match event.type:
            case EventType.TOKEN:
                self._token(str(payload.get("text", "")))
            case EventType.STREAM_RESET:
                self._note("(the answer is started again)")
                self._streamed = ""
            case EventType.TOOL_CALL:
                self._note(f"-> {payload['tool_name']} {short(payload.get('arguments') or {}, 100)}", "cyan")
            case EventType.TOOL_RESULT:
                good = payload["status"] == "succeeded"
                again = f" (attempt {payload['attempt']})" if payload.get("attempt", 1) > 1 else ""
                self._note(
                    f"<- {payload['tool_name']} {payload['status']}{again}: {short(payload.get('preview') or '', 100)}",
                    "dim" if good else "red",
                )
            case EventType.RECOVERED:
                self._note(
                    f"recovered in phase {payload.get('phase')} by pid {payload.get('pid')} on {payload.get('node')}",
                    "magenta",
                )
            case EventType.APPROVAL_REQUIRED:
                self._approval(payload)
            case EventType.RESOLUTION_REQUIRED:
                self._resolution(payload)
            case EventType.TOOL_REPEATED:
                names = ", ".join(payload["tool_names"])
                self._note(f"{names}: {payload['repeats']} times in a row with the same arguments", "yellow")
            case EventType.AUTHORIZATION_DECIDED:
                rule = f" {payload['rule']['rule_id']}" if payload.get("rule") else ""
                text = f"{payload['tool_name']}: {payload['verdict']}, by {payload['source']}{rule}"
                self._note(text, "dim")
            case EventType.APPROVAL_DECIDED if payload.get("status") == "expired":
                self._note("nobody answered in time: rejected", "red")
            case EventType.APPROVAL_DECIDED if not self._interactive:
                word = "approved" if payload.get("approved") else "rejected"
                self._note(f"{word} by {payload.get('decided_by') or 'somebody'}", "yellow")
            case EventType.LOST:
                self._note(f"({payload.get('events', 'some')} live events came too fast to be shown)", "dim")
            case EventType.ERROR:
                self._note(f"the agent stopped: {short(payload.get('error'), 200)}", "red")
            case _:
                pass

    def _token(self, text: str) -> None:
        self._streamed += text
        if self._live:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _end_line(self) -> None:
        if self._streamed and self._live:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._shown_answer = self._streamed
        self._streamed = ""

    def _note(self, text: str, style: str = "") -> None:
        if self._as_json:
            return
        self._end_line()
        self._notes.print(Text(text, style=style), soft_wrap=True)

    # --- questions ---------------------------------------------------------------------------------------------

    def _approval(self, payload: dict[str, Any]) -> None:
        request_id = payload["approval_request_id"]
        waiting = [item.approval_request_id for item in self._handle.view().approvals]
        if request_id not in waiting:
            return  # answered before we looked
        self._note(
            f"approval needed: {payload['tool_name']} {short(payload.get('arguments') or {}, 400)}",
            "bold yellow",
        )
        if payload.get("facts"):
            self._note(f"  facts: {short(payload['facts'], 400)}", "yellow")
        if payload.get("expires_at"):
            self._note(f"  counts as rejected from {payload['expires_at']}", "yellow")
        if not self._interactive:
            self._wait_or_give_up()
            return
        approved = _yes("Approve this call? [y/n]")
        from phronomy_ray.cli.decisions import default_decider

        try:
            self._handle.approve(request_id, approved=approved, decided_by=default_decider())
        except StateConflictError as error:
            self._note(f"not needed any more: {error.message}", "yellow")

    def _resolution(self, payload: dict[str, Any]) -> None:
        call_id = payload["tool_call_id"]
        if call_id not in [item.tool_call_id for item in self._handle.view().unresolved]:
            return
        self._note(
            f"{payload['tool_name']} {short(payload.get('arguments') or {}, 200)} was interrupted by a crash, and nobody "
            "knows whether it happened",
            "bold magenta",
        )
        if not self._interactive:
            self._wait_or_give_up()
            return
        from phronomy_ray.cli.decisions import default_decider, parse_value

        outcome = ""
        while outcome not in list(Resolution):
            outcome = _answer("What happened: succeeded, failed or not_performed (run it again)?")
        result = parse_value(_answer("Its result:")) if outcome == Resolution.SUCCEEDED else None
        reason = _answer("What went wrong?") if outcome == Resolution.FAILED else ""
        try:
            self._handle.agent.resolve(
                self._handle.execution_id,
                call_id,
                outcome,
                result=result,
                error=reason,
                decided_by=default_decider(),
            )
        except (StateConflictError, NotFoundError) as error:
            self._note(f"not needed any more: {error.message}", "yellow")

    def _wait_or_give_up(self) -> None:
        if not self._patient:
            raise NeedsHumanError


def _answer(question: str) -> str:
    """What the human types; the question goes to standard error. Raises `NeedsHumanError` at the end of the input."""
    sys.stderr.write(f"{question} ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise NeedsHumanError
    return line.strip()


def _yes(question: str) -> bool:
    while True:
        answer = _answer(question).lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False


def print_outcome(session: Session, result: RunResult, *, shown: bool = False) -> None:
    """The answer on standard output, or on standard error why there is none."""
    if result.suspended:
        print_questions(session, result)
        return
    if result.output and not shown:
        sys.stdout.write(result.output.rstrip("\n") + "\n")
        sys.stdout.flush()
    if result.status is not ExecutionStatus.COMPLETED:
        why = f": {result.error.message} [{result.error.code}]" if result.error else ""
        session.error_console.print(
            f"execution {result.execution_id} {result.status.value}{why}",
            style="red",
            markup=False,
            soft_wrap=True,
        )


def print_questions(session: Session, result: RunResult) -> None:
    """What a suspended execution waits for, with the commands that answer."""
    console = session.error_console
    console.print(f"execution {result.execution_id} waits for a human:", markup=False, soft_wrap=True)
    for approval in result.approvals:
        console.print(
            f"  {approval.tool_name} {short(approval.arguments, 200)}\n"
            f"    {session.command(f'approve {result.execution_id} {approval.approval_request_id}')}\n"
            f"    {session.command(f'reject {result.execution_id} {approval.approval_request_id}')}",
            markup=False,
            soft_wrap=True,
        )
    for call in result.unresolved:
        answer = f"resolve {result.execution_id} {call.tool_call_id} succeeded|failed|not_performed"
        console.print(
            f"  {call.tool_name} may or may not have happened\n    {session.command(answer)}",
            markup=False,
            soft_wrap=True,
        )


def exit_code_of(result: RunResult) -> ExitCode:
    """How a command ends that showed this result."""
    if result.status is ExecutionStatus.COMPLETED:
        return ExitCode.OK
    return ExitCode.NEEDS_HUMAN if result.suspended else ExitCode.FAILED


__all__ = ["Follower", "exit_code_of", "print_outcome", "print_questions"]
