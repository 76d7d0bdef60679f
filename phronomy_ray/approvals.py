"""Values of authorization: what is asked about a call, what may be answered, and rules that answer in advance.

The order of authorization follows Phronomy: facts, the tool's default, standing rules (ours), the agent's policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from phronomy_ray.errors import ErrorRecord, InvalidInputError


class ApprovalVerdict(StrEnum):
    """What becomes of a call before any body of its batch runs."""

    ALLOW = "allow"
    #: A human is asked.
    REQUIRE_APPROVAL = "require_approval"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class ApprovalEvaluationRequest:
    """What a tool's ``requires_approval`` and an agent's ``tool_approval_policy`` are asked about one call: values only.

    The fields follow Phronomy's request of this name. Mappings are the callee's own copies.
    """

    agent_id: str
    definition_id: str
    definition_version: str
    execution_id: str
    #: Name that the model used.
    tool_name: str
    #: JSON Schema of the arguments, as the model was shown it.
    tool_schema: dict[str, Any]
    tool_call_id: str
    #: Validated arguments, as they will run.
    arguments: dict[str, Any]
    #: What the tool's ``approval_facts`` said; ``None`` without it.
    facts: dict[str, Any] | None = None
    #: The execution's durable context.
    invocation_context: dict[str, Any] | None = None
    #: ``local``, ``mcp`` or ``agent``.
    origin: str = "local"
    #: The tool's ``approval_metadata``.
    metadata: dict[str, Any] = field(default_factory=dict)
    #: What happens unless the policy says otherwise; the tool's own function is asked before there is one and sees `ALLOW`.
    default_decision: ApprovalVerdict = ApprovalVerdict.ALLOW
    #: The standing rule that made the default, if one did.
    rule_id: str | None = None


class DecisionSource(StrEnum):
    """Who settled a call before it ran."""

    #: The tool's ``requires_approval``.
    TOOL = "tool"
    #: A standing rule.
    RULE = "rule"
    #: The agent class's ``tool_approval_policy``.
    POLICY = "policy"
    #: A human's answer to the request.
    HUMAN = "human"
    #: Nobody answered in time.
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class CallAuthorization:
    """What user code said about one call, or why it could not say anything."""

    tool_call_id: str
    #: ``None`` with `error`.
    verdict: ApprovalVerdict | None = None
    source: DecisionSource = DecisionSource.TOOL
    #: Whether the tool itself wants a human to be asked, whatever came of it.
    gated: bool = False
    facts: dict[str, Any] | None = None
    error: ErrorRecord | None = None


class RuleEffect(StrEnum):
    """What a standing rule does with the calls of its tool."""

    #: The question is saved.
    ALLOW = "allow"
    #: The call is rejected, also when its tool asks nobody.
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class StandingRule:
    """An answer in advance to every future call of one tool within a scope; it never touches a request that was made."""

    rule_id: str
    effect: RuleEffect
    #: Name that the model uses for the tool; for one from a registry its registry key (a refusal takes either).
    tool_name: str
    #: Who made it, for people.
    created_by: str
    created_at: datetime
    #: Only for this agent; with neither `agent_id` nor `definition_id` it holds everywhere.
    agent_id: str | None = None
    #: Only for agents of this definition.
    definition_id: str | None = None
    reason: str | None = None
    #: From this moment on it has no effect; ``None`` for never.
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None

    def __post_init__(self) -> None:
        if self.agent_id is not None and self.definition_id is not None:
            raise InvalidInputError(
                "a standing rule is for one agent, for one definition, or for all: not for two"
            )

    @property
    def scope(self) -> str:
        """``*``, ``agent:ID`` or ``definition:ID``: what the store looks rules up by."""
        return scope_key(agent_id=self.agent_id, definition_id=self.definition_id)

    def is_active(self, now: datetime) -> bool:
        """Whether it has an effect at `now`."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


@dataclass(frozen=True, slots=True)
class RulesAsked:
    """Whose rules are asked for."""

    agent_id: str
    definition_id: str
    #: When they must be in force.
    now: datetime

    def scopes(self) -> tuple[str, ...]:
        """The scopes of all rules that can hold for this agent."""
        return (scope_key(), scope_key(agent_id=self.agent_id), scope_key(definition_id=self.definition_id))


def scope_key(*, agent_id: str | None = None, definition_id: str | None = None) -> str:
    """The store's form of a scope."""
    if agent_id is not None:
        return f"agent:{agent_id}"
    return f"definition:{definition_id}" if definition_id is not None else "*"


def rule_for(rules: Iterable[StandingRule], tool_name: str, registry_key: str = "") -> StandingRule | None:
    """The rule of `rules` that counts for a call of `tool_name`: a refusal before a permission, then the oldest.

    A tool that a turn has from a registry is permitted by its `registry_key` alone: what stands behind the name may be
    another one in the next turn, and nobody has permitted that. It is refused by either.
    """
    found = tuple(rules)
    refusing = (
        rule
        for rule in found
        if rule.effect is RuleEffect.REFUSE and rule.tool_name in (tool_name, registry_key)
    )
    allowing = (
        rule
        for rule in found
        if rule.effect is RuleEffect.ALLOW and rule.tool_name == (registry_key or tool_name)
    )
    return next(refusing, None) or next(allowing, None)


__all__ = [
    "ApprovalEvaluationRequest",
    "ApprovalVerdict",
    "CallAuthorization",
    "DecisionSource",
    "RuleEffect",
    "StandingRule",
    "rule_for",
    "scope_key",
]
