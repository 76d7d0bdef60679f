"""`StandingRules`: answers in advance to every call of a tool, kept in the store; every agent sees them at its next batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import cast

from phronomy_ray.approvals import RuleEffect, StandingRule
from phronomy_ray.clock import Clock, SystemClock
from phronomy_ray.definition.tool import Tool
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.ids import check_id, new_rule_id
from phronomy_ray.runtime.bridge import Bridge, blocking
from phronomy_ray.store.port import Store


class StandingRules:
    """The rules of one store. A decision about one call always counts more than any rule."""

    def __init__(
        self, store: Callable[[], Store], bridge: Callable[[], Bridge], clock: Clock | None = None
    ) -> None:
        self._store = store
        self._find_bridge = bridge
        self._clock = clock or SystemClock()

    @property
    def _bridge(self) -> Bridge:
        """The loop that blocking forms run on."""
        return self._find_bridge()

    async def allow_async(
        self,
        tool: str | Tool,
        *,
        created_by: str,
        agent_id: str | None = None,
        definition_id: str | None = None,
        reason: str | None = None,
        expires_at: datetime | None = None,
    ) -> StandingRule:
        """Calls of `tool` need no human from now on; requests that were made already still wait for their answers.

        Args:
            tool: its name as the model uses it (with the agent's alias), or the tool.
            created_by: who says so.
            agent_id: only for this agent; for all agents of the store when this and `definition_id` are left out.
            definition_id: only for agents of this definition.
            reason: why.
            expires_at: an aware time from which on the rule has no effect.

        Raises:
            InvalidInputError: a value is not what it must be.
        """
        return await self._add(
            RuleEffect.ALLOW, tool, created_by, agent_id, definition_id, reason, expires_at
        )

    allow = blocking(allow_async)

    async def refuse_async(
        self,
        tool: str | Tool,
        *,
        created_by: str,
        agent_id: str | None = None,
        definition_id: str | None = None,
        reason: str | None = None,
        expires_at: datetime | None = None,
    ) -> StandingRule:
        """Calls of `tool` are rejected from now on, whether or not it asks a human, and whatever rule allows it.

        The arguments, and what is raised, are those of `allow_async`; the model is told `reason`.
        """
        return await self._add(
            RuleEffect.REFUSE, tool, created_by, agent_id, definition_id, reason, expires_at
        )

    refuse = blocking(refuse_async)

    async def list_async(self, *, also_ended: bool = False) -> list[StandingRule]:
        """Rules in force, oldest first; with `also_ended` the revoked and expired ones too."""
        found = await asyncio.to_thread(self._store().list_rules)
        now = self._clock.now()
        return [rule for rule in found if also_ended or rule.is_active(now)]

    list = blocking(list_async)

    async def revoke_async(self, rule_id: str, *, revoked_by: str) -> StandingRule:
        """End a rule; what it has decided stays decided. The first revocation counts and is returned.

        Raises:
            NotFoundError: no such rule.
        """
        check_id(rule_id, "rule_id")
        check_id(revoked_by, "revoked_by")
        return await asyncio.to_thread(
            self._store().revoke_rule, rule_id, revoked_by=revoked_by, now=self._clock.now()
        )

    revoke = blocking(revoke_async)

    async def _add(
        self,
        effect: RuleEffect,
        tool: str | Tool,
        created_by: str,
        agent_id: str | None,
        definition_id: str | None,
        reason: str | None,
        expires_at: datetime | None,
    ) -> StandingRule:
        rule = new_rule(
            effect,
            tool,
            created_by=created_by,
            now=self._clock.now(),
            agent_id=agent_id,
            definition_id=definition_id,
            reason=reason,
            expires_at=expires_at,
        )
        return await asyncio.to_thread(self._store().add_rule, rule)


def new_rule(
    effect: RuleEffect,
    tool: str | Tool,
    *,
    created_by: str,
    now: datetime,
    agent_id: str | None = None,
    definition_id: str | None = None,
    reason: str | None = None,
    expires_at: datetime | None = None,
) -> StandingRule:
    """A checked rule that nobody has stored yet. Raises `InvalidInputError`."""
    name = tool.spec.name if isinstance(tool, Tool) else tool
    check_id(name, "tool")
    check_id(created_by, "created_by")
    for value, what in ((agent_id, "agent_id"), (definition_id, "definition_id"), (reason, "reason")):
        if value is not None:
            check_id(value, what) if what != "reason" else _check_reason(value)
    if expires_at is not None:
        if not isinstance(cast("object", expires_at), datetime) or expires_at.tzinfo is None:
            raise InvalidInputError(f"expires_at must be a time with a time zone, not {expires_at!r}")
        if expires_at <= now:
            raise InvalidInputError(f"expires_at {expires_at.isoformat()} is in the past")
    return StandingRule(
        rule_id=new_rule_id(),
        effect=effect,
        tool_name=name,
        created_by=created_by,
        created_at=now,
        agent_id=agent_id,
        definition_id=definition_id,
        reason=reason,
        expires_at=expires_at,
    )


def _check_reason(value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInputError(f"reason must be text, not {type(value).__name__}")
