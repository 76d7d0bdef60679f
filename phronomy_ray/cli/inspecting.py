"""``inspect``: the timeline of one execution, readable."""

from __future__ import annotations

from itertools import dropwhile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import between, duration, local_time, print_json, short, status_text
from phronomy_ray.cli.session import session_of
from phronomy_ray.cli.timeline import Moment, Story, read_story
from phronomy_ray.journal import ApprovalStatus, ToolCallStatus

#: What every file of ours has in its path.
_OUR_CODE = f"/{Path(__file__).parents[1].name}/"


def inspect_execution(
    context: typer.Context,
    execution: Annotated[str, typer.Argument(metavar="EXECUTION", help="Id of the execution.")],
    as_json: JsonOption = False,
) -> None:
    """Show what happened in an execution: model calls, tool calls, approvals, recoveries."""
    session = session_of(context)
    with session.open_store() as store:
        story = read_story(store, execution)
    if as_json:
        print_json(story.to_wire())
        return
    render_story(session.console, story)


def render_story(console: Console, story: Story) -> None:
    """Print the head and one line or two for each moment."""
    row = story.execution
    head = Text.assemble((row.execution_id, "bold"), "  agent ", (row.agent_id, "bold"), "  ")
    head.append_text(status_text(row.status.value))
    if not row.status.is_terminal:
        head.append(f" ({row.phase.value})")
    console.print(head, soft_wrap=True)
    usage = row.state.get("usage") or {}
    tokens = f"{usage.get('input_tokens', 0)} tokens in, {usage.get('output_tokens', 0)} out"
    took = duration(between(row.created_at, row.ended_at or row.updated_at))
    facts = [
        f"started {local_time(row.created_at)}",
        f"{'took' if row.ended_at else 'last change after'} {took}",
        f"{len(story.model_calls)} model calls ({tokens})",
        f"{len(story.tool_calls)} tool calls",
        f"{len(story.recoveries)} recoveries",
        f"{story.journal_records} journal records",
    ]
    console.print(", ".join(facts), style="dim", markup=False, soft_wrap=True)
    console.print()
    for moment in story.moments:
        offset = (moment.at - row.created_at).total_seconds()
        line = Text(f"{local_time(moment.at, with_date=False)}  +{offset:8.3f}s  ", style="dim")
        title, details = _LINES[moment.kind](moment.facts)
        line.append_text(title)
        console.print(line, soft_wrap=True)
        for detail in details:
            console.print(Text(" " * 27 + detail, style="dim"), soft_wrap=True)
    for question in _open_questions(story):
        console.print(f"\n{question}", style="yellow", markup=False, soft_wrap=True)


def _open_questions(story: Story) -> list[str]:
    """What a human is waited for, with the command that answers."""
    found = []
    for approval in story.approvals:
        if approval.status is ApprovalStatus.PENDING:
            found.append(
                f"waits for approval of {approval.tool_name}: phronomy approve {approval.approval_request_id}"
            )
    for call in story.tool_calls:
        if call.status is ToolCallStatus.UNKNOWN and not story.execution.status.is_terminal:
            found.append(
                f"nobody knows whether {call.tool_name} happened: phronomy resolve {call.execution_id} "
                f"{call.tool_call_id} succeeded|failed|not_performed"
            )
    return found


# --- one line for each kind ------------------------------------------------------------------------------------


def _started(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    return Text.assemble(("input      ", "bold"), short(facts["input"], 200)), []


def _model_call(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    usage = facts["usage"] or {}
    title = Text.assemble((f"model {facts['sequence']:<5}", "bold blue"))
    title.append_text(status_text(facts["status"]))
    if facts["seconds"] is not None:
        title.append(f" in {duration(facts['seconds'])}")
    if usage:
        title.append(f", {usage.get('input_tokens', 0)} tokens in, {usage.get('output_tokens', 0)} out")
    details = []
    attempts = facts["attempts"]
    failed = [attempt for attempt in attempts if attempt.get("error")]
    if len(attempts) > 1 or failed:
        title.append(f", {len(attempts)} attempts")
        details += [f"attempt {item['number']}: {_error_text(item['error'])}" for item in failed]
    if facts["error"]:
        details.append(_error_text(facts["error"]))
    return title, details


def _tool_call(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    arguments = "" if facts["arguments"] is None else short(facts["arguments"], 100)
    title = Text.assemble(("tool       ", "bold cyan"), (facts["tool_name"], "bold"), f" {arguments}  ")
    title.append_text(status_text(facts["status"]))
    if facts["seconds"] is not None:
        title.append(f" in {duration(facts['seconds'])}")
    attempts = facts["attempts"]
    place = next((item for item in reversed(attempts) if item.get("pid")), None)
    if place is not None:
        title.append(f", pid {place['pid']} on {place.get('node') or '?'}")
    details = []
    if facts["attempt"] > 1:
        title.append(f", run {facts['attempt']} times ({facts['replay']})", style="magenta")
        details += [_attempt_text(item) for item in attempts]
    elif attempts and attempts[0].get("answered_by"):
        details.append(f"got the outcome of the equal call {attempts[0]['answered_by']}")
    settled = facts["authorization"]
    if settled.get("source") in ("rule", "policy"):
        rule = f" {settled['rule']['rule_id']}" if settled.get("rule") else ""
        details.append(f"{settled['verdict']} by {settled['source']}{rule}")
    if facts["result_preview"]:
        details.append(f"-> {short(facts['result_preview'], 160)}")
    details += raised_at(facts["traceback"])
    return title, details


def raised_at(traceback: str) -> list[str]:
    """The frames of the tool's own code, outermost first, a line each."""
    frames = [frame.splitlines() for frame in traceback.split('  File "')[1:]]
    own = list(dropwhile(lambda frame: _OUR_CODE in frame[0], frames))
    return [f'at "{frame[0]}: {frame[1].strip() if len(frame) > 1 else ""}' for frame in own]


def _attempt_text(item: dict[str, Any]) -> str:
    where = f", pid {item['pid']} on {item.get('node') or '?'}" if item.get("pid") else ""
    why = f": {item['reason']}" if item.get("reason") else ""
    return f"attempt {item.get('number')}: {item.get('status')}{where}{why}"


def _approval_required(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    title = Text.assemble(("approval   ", "bold yellow"), f"asked for {facts['tool_name']}")
    details = [f"request {facts['approval_request_id']}"]
    if facts["facts"]:
        details.append(f"facts {short(facts['facts'], 160)}")
    if facts["expires_at"]:
        details.append(f"counts as rejected from {facts['expires_at']}")
    return title, details


def _approval_decided(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    title = Text.assemble(("approval   ", "bold yellow"))
    title.append_text(status_text(facts["status"]))
    if facts["decided_by"]:
        title.append(f" by {facts['decided_by']}")
    details = [facts["reason"]] if facts["reason"] else []
    if facts["edited_arguments"] is not None:
        details.append(f"with arguments {short(facts['edited_arguments'], 160)}")
    return title, details


def _recovered(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    title = Text.assemble(
        ("recovered  ", "bold magenta"),
        f"in phase {facts.get('phase')} by pid {facts.get('pid', '?')} on {facts.get('node', '?')}, "
        f"epoch {facts.get('epoch')}",
    )
    return title, []


def _resolution_required(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    title = Text.assemble(
        ("unknown    ", "bold magenta"), f"{facts['tool_name']} may or may not have happened"
    )
    why = [facts["reason"]] if facts.get("reason") else []
    return title, [f"call {facts['tool_call_id']}", *why]


def _resolved(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    by = f" by {facts['decided_by']}" if facts.get("decided_by") else ""
    return Text.assemble(("resolved   ", "bold magenta"), f"{facts['outcome']}{by}"), [
        f"call {facts['tool_call_id']}"
    ]


def _capability(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    chosen = facts.get("chosen") or {}
    title = Text.assemble(("capability ", "bold"), (facts["capability"], "bold"))
    if chosen:
        plugin = f" of {chosen['plugin']}" if chosen.get("plugin") else ""
        title.append(f" by {chosen['implementation']}{plugin}")
    if facts.get("reason"):
        title.append(f": {short(facts['reason'], 160)}", style="magenta")
    dropped = [f"not {item['implementation']}: {item['reason']}" for item in facts.get("dropped", ())]
    return title, [short(text, 160) for text in dropped]


def _ended(facts: dict[str, Any]) -> tuple[Text, list[str]]:
    title = Text.assemble(("end        ", "bold"))
    title.append_text(status_text(facts["status"]))
    details = []
    if facts["error"]:
        details.append(_error_text(facts["error"]))
    if facts["output"]:
        details.append(short(facts["output"], 400))
    return title, details


def _error_text(error: dict[str, Any]) -> str:
    return f"{error.get('type')} [{error.get('code')}]: {short(error.get('message', ''), 200)}"


_LINES = {
    "started": _started,
    "model_call": _model_call,
    "tool_call": _tool_call,
    "approval_required": _approval_required,
    "approval_decided": _approval_decided,
    "recovered": _recovered,
    "resolution_required": _resolution_required,
    "resolved": _resolved,
    "capability_resolved": _capability,
    "capability_shadowed": _capability,
    "capability_skipped": _capability,
    "capability_failed": _capability,
    "ended": _ended,
}

__all__ = ["Moment", "inspect_execution", "render_story"]
