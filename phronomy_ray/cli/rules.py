"""``rules``: standing answers to the calls of a tool. They live in the store; no cluster is needed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from phronomy_ray.approvals import RuleEffect, StandingRule
from phronomy_ray.cli.decisions import default_decider
from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import iso, local_time, print_json, print_table, short, status_text
from phronomy_ray.cli.session import Session, session_of
from phronomy_ray.clock import utc_now
from phronomy_ray.errors import InvalidInputError

rules_app = typer.Typer(
    help="Standing rules: allow or refuse every call of a tool, until revoked.", no_args_is_help=True
)

ToolArgument = Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name as the model uses it.")]
AgentOption = Annotated[str, typer.Option("--agent", help="Only for this agent.")]
DefinitionOption = Annotated[str, typer.Option("--definition", help="Only for agents of this definition.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="Why; the model is told the reason of a refusal.")
]
ByOption = Annotated[str, typer.Option("--by", help="Who says so; the user and host by default.")]
ExpiresOption = Annotated[float, typer.Option("--expires-s", help="Seconds until it ends; 0 for never.")]


@rules_app.command("list")
def list_rules(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Also revoked and expired ones.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the rules in force, oldest first."""
    session = session_of(context)
    now = utc_now()
    with session.open_store() as store:
        rules = [rule for rule in store.list_rules() if every or rule.is_active(now)]
    if as_json:
        print_json([rule_wire(rule, now) for rule in rules])
        return
    print_table(
        session.console,
        ("RULE", "EFFECT", "TOOL", "SCOPE", "BY", "SINCE", "UNTIL", "STATE", "REASON"),
        (
            (
                rule.rule_id,
                rule.effect.value,
                rule.tool_name,
                rule.scope,
                rule.created_by,
                local_time(rule.created_at),
                local_time(rule.expires_at),
                status_text(_state(rule, now)),
                short(rule.reason or "", 60),
            )
            for rule in rules
        ),
        empty="no standing rules",
    )


@rules_app.command()
def allow(
    context: typer.Context,
    tool: ToolArgument,
    agent: AgentOption = "",
    definition: DefinitionOption = "",
    reason: ReasonOption = "",
    by: ByOption = "",
    expires_s: ExpiresOption = 0.0,
) -> None:
    """Let every further call of a tool run without asking."""
    _add(session_of(context), RuleEffect.ALLOW, tool, agent, definition, reason, by, expires_s)


@rules_app.command()
def refuse(
    context: typer.Context,
    tool: ToolArgument,
    agent: AgentOption = "",
    definition: DefinitionOption = "",
    reason: ReasonOption = "",
    by: ByOption = "",
    expires_s: ExpiresOption = 0.0,
) -> None:
    """Reject every further call of a tool, also of one that asks nobody."""
    _add(session_of(context), RuleEffect.REFUSE, tool, agent, definition, reason, by, expires_s)


@rules_app.command()
def revoke(
    context: typer.Context,
    rule: Annotated[str, typer.Argument(metavar="RULE", help="Id of the rule; see `phronomy rules list`.")],
    by: ByOption = "",
) -> None:
    """End a rule; what it has decided stays decided."""
    session = session_of(context)
    with session.open_store() as store:
        ended = store.revoke_rule(rule, revoked_by=by or default_decider(), now=utc_now())
    text = f"rule {ended.rule_id} ({ended.effect.value} {ended.tool_name}) was revoked by {ended.revoked_by}"
    session.console.print(text, markup=False, soft_wrap=True)


def _add(
    session: Session,
    effect: RuleEffect,
    tool: str,
    agent: str,
    definition: str,
    reason: str,
    by: str,
    expires_s: float,
) -> None:
    from phronomy_ray.runtime.rules import new_rule

    if expires_s < 0:
        raise InvalidInputError(f"--expires-s must be 0 or more, not {expires_s:g}")
    now = utc_now()
    rule = new_rule(
        effect,
        tool,
        created_by=by or default_decider(),
        now=now,
        agent_id=agent or None,
        definition_id=definition or None,
        reason=reason or None,
        expires_at=now + timedelta(seconds=expires_s) if expires_s else None,
    )
    with session.open_store() as store:
        if agent:
            store.load_root(agent)  # a misspelt id would be a rule for nobody
        store.add_rule(rule)
    text = f"rule {rule.rule_id}: {effect.value} {tool} ({rule.scope})"
    session.console.print(
        text, markup=False, soft_wrap=True, style="green" if effect is RuleEffect.ALLOW else "yellow"
    )


def _state(rule: StandingRule, now: datetime) -> str:
    if rule.revoked_at is not None:
        return "revoked"
    return "in force" if rule.is_active(now) else "expired"


def rule_wire(rule: StandingRule, now: datetime) -> dict[str, Any]:
    """A rule as JSON."""
    return {
        "rule_id": rule.rule_id,
        "effect": rule.effect.value,
        "tool_name": rule.tool_name,
        "scope": rule.scope,
        "agent_id": rule.agent_id,
        "definition_id": rule.definition_id,
        "created_by": rule.created_by,
        "created_at": iso(rule.created_at),
        "reason": rule.reason,
        "expires_at": iso(rule.expires_at),
        "revoked_at": iso(rule.revoked_at),
        "revoked_by": rule.revoked_by,
        "state": _state(rule, now),
    }


__all__ = ["rule_wire", "rules_app"]
