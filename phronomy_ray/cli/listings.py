"""``agents``, ``executions`` and ``approvals``: what the store holds. Ray is neither started nor needed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from phronomy_ray.cli.output import (
    between,
    duration,
    iso,
    local_time,
    print_json,
    print_table,
    short,
    status_text,
)
from phronomy_ray.cli.session import session_of
from phronomy_ray.journal import AgentRoot, ApprovalRow, ExecutionRow

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Most entries shown.")]


def agents(context: typer.Context, as_json: JsonOption = False, limit: LimitOption = 100) -> None:
    """List the stored agents."""
    session = session_of(context)
    with session.open_store() as store:
        roots = store.list_agents(limit=limit)
    if as_json:
        print_json([agent_wire(root) for root in roots])
        return
    print_table(
        session.console,
        ("AGENT", "CLASS", "VERSION", "STATUS", "JOURNAL", "EPOCH", "LAST OWNER", "LAST CHANGE"),
        (
            (
                root.agent_id,
                root.class_path or f"{root.definition_id} (a script's own)",
                root.definition_version,
                status_text(root.lifecycle.value),
                str(root.journal_position),
                str(root.epoch),
                owner_text(root.owner),
                local_time(root.updated_at),
            )
            for root in roots
        ),
        empty='no agents yet: make one with `phronomy run module:Class "message" --agent-id ID`',
    )


def executions(
    context: typer.Context,
    agent: Annotated[str, typer.Option(help="Only those of this agent.")] = "",
    running: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    as_json: JsonOption = False,
    limit: LimitOption = 50,
) -> None:
    """List executions, newest first."""
    session = session_of(context)
    with session.open_store() as store:
        if agent:
            store.load_root(agent)  # a misspelt id is an error, not an empty list
        rows = store.list_executions(agent_id=agent or None, non_terminal_only=running, limit=limit)
    if as_json:
        print_json([execution_wire(row) for row in rows])
        return
    print_table(
        session.console,
        ("EXECUTION", "AGENT", "STATUS", "PHASE", "STARTED", "TOOK", "INPUT", "REASON"),
        (
            (
                row.execution_id,
                row.agent_id,
                status_text(row.status.value),
                row.phase.value,
                local_time(row.created_at),
                duration(between(row.created_at, row.ended_at)),
                short(row.input, 40),
                row.terminal_reason or "",
            )
            for row in rows
        ),
        empty="no executions",
    )


def approvals(
    context: typer.Context,
    agent: Annotated[str, typer.Option(help="Only those of this agent.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Also those that were answered.")] = False,
    as_json: JsonOption = False,
    limit: LimitOption = 100,
) -> None:
    """List the tool calls that wait for a human, oldest first."""
    session = session_of(context)
    with session.open_store() as store:
        if agent:
            store.load_root(agent)
        rows = store.approvals(agent_id=agent or None, pending_only=not every, limit=limit)
    if as_json:
        print_json([approval_wire(row) for row in rows])
        return
    print_table(
        session.console,
        ("REQUEST", "AGENT", "EXECUTION", "TOOL", "ARGUMENTS", "FACTS", "SINCE", "UNTIL", "STATUS"),
        (
            (
                row.approval_request_id,
                row.agent_id,
                row.execution_id,
                row.tool_name if row.tool_origin == "local" else f"{row.tool_name} ({row.tool_origin})",
                short(row.arguments, 60),
                short(row.facts, 40) if row.facts else "",
                local_time(row.created_at),
                local_time(row.expires_at),
                status_text(row.status.value),
            )
            for row in rows
        ),
        empty="nothing waits for approval",
    )
    if rows and not every and session.console.is_terminal:
        session.console.print(
            "\nAnswer with `phronomy approve REQUEST` or `phronomy reject REQUEST`.", style="dim"
        )


# --- JSON forms ------------------------------------------------------------------------------------------------


def agent_wire(root: AgentRoot) -> dict[str, Any]:
    """An agent as JSON."""
    return {
        "agent_id": root.agent_id,
        "definition_id": root.definition_id,
        "definition_version": root.definition_version,
        "class_path": root.class_path,
        "lifecycle": root.lifecycle.value,
        "agent_revision": root.agent_revision,
        "context_revision": root.context_revision,
        "journal_position": root.journal_position,
        "epoch": root.epoch,
        "starts_without_progress": root.starts_without_progress,
        "parked": root.parked.to_wire() if root.parked is not None else None,
        "owner": root.owner,
        "metadata": root.metadata,
        "created_at": iso(root.created_at),
        "updated_at": iso(root.updated_at),
    }


def execution_wire(row: ExecutionRow) -> dict[str, Any]:
    """An execution as JSON."""
    return {
        "execution_id": row.execution_id,
        "agent_id": row.agent_id,
        "status": row.status.value,
        "phase": row.phase.value,
        "revision": row.revision,
        "input": row.input,
        "output": row.output,
        "usage": row.state.get("usage"),
        "error": row.error,
        "terminal_reason": row.terminal_reason,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
        "ended_at": iso(row.ended_at),
        "cancel_requested_at": iso(row.cancel_requested_at),
    }


def approval_wire(row: ApprovalRow) -> dict[str, Any]:
    """An approval request as JSON."""
    return {
        "approval_request_id": row.approval_request_id,
        "execution_id": row.execution_id,
        "agent_id": row.agent_id,
        "tool_call_id": row.tool_call_id,
        "tool_name": row.tool_name,
        "arguments": row.arguments,
        "status": row.status.value,
        "created_at": iso(row.created_at),
        "decided_at": iso(row.decided_at),
        "decided_by": row.decided_by,
        "reason": row.reason,
        "batch_id": row.batch_id,
        "asked_by": row.asked_by,
        "tool_origin": row.tool_origin,
        "metadata": row.metadata,
        "facts": row.facts,
        "expires_at": iso(row.expires_at),
        "edited_arguments": row.edited_arguments,
    }


def owner_text(owner: dict[str, Any]) -> str:
    """Who holds an agent, or held it last."""
    if not owner:
        return ""
    return f"pid {owner.get('pid', '?')} on {owner.get('node', '?')}"


__all__ = ["agent_wire", "agents", "approval_wire", "approvals", "execution_wire", "executions"]
