"""Standing rules in SQL: a part of `SqlStore` that no commit writes and no content belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable

from phronomy_ray.approvals import RulesAsked, StandingRule, scope_key
from phronomy_ray.errors import ConflictError, InvalidInputError, NotFoundError
from phronomy_ray.store import approval_rows, statements
from phronomy_ray.store.codec import RowDecoder, RowEncoder, encode_time
from phronomy_ray.store.database import SqlDatabase


class SqlRules(SqlDatabase):
    """The rules of one SQL database (see `store.port.Store` for the contract of each method)."""

    def add_rule(self, rule: StandingRule) -> StandingRule:
        """As `Store.add_rule`."""
        columns = approval_rows.rule_columns(rule, RowEncoder(self._codec))

        def work(connection: Connection) -> StandingRule:
            connection.execute(statements.INSERT_RULE[connection.dialect.name], columns)
            row = connection.execute(statements.RULE, {"the_rule_id": rule.rule_id}).one()
            return approval_rows.to_rule(row, RowDecoder(self._codec, {}))

        stored = self._write(work, repeat_unknown=True)
        if replace(stored, revoked_at=None, revoked_by=None) != rule:
            raise ConflictError(
                f"another standing rule is stored as {rule.rule_id}", details={"rule_id": rule.rule_id}
            )
        return stored

    def revoke_rule(self, rule_id: str, *, revoked_by: str, now: datetime) -> StandingRule:
        """As `Store.revoke_rule`."""
        changes = {
            "the_rule_id": rule_id,
            "new_revoked_at": encode_time(now),
            "new_revoked_by": RowEncoder(self._codec).sealed(revoked_by),
        }

        def work(connection: Connection) -> StandingRule:
            connection.execute(statements.REVOKE_RULE, changes)
            row = connection.execute(statements.RULE, {"the_rule_id": rule_id}).one_or_none()
            if row is None:
                raise NotFoundError(f"no standing rule {rule_id!r}", details={"rule_id": rule_id})
            return approval_rows.to_rule(row, RowDecoder(self._codec, {}))

        return self._write(work, repeat_unknown=True)

    def rules_in_force(self, *, agent_id: str, definition_id: str, now: datetime) -> list[StandingRule]:
        """As `Store.rules_in_force`."""
        parameters = {
            "everywhere": scope_key(),
            "of_agent": scope_key(agent_id=agent_id),
            "of_definition": scope_key(definition_id=definition_id),
            "now": encode_time(now),
        }
        return self._rules(statements.RULES_IN_FORCE, parameters)

    def rules_of(self, asked: Sequence[RulesAsked]) -> list[list[StandingRule]]:
        """As `Store.rules_of`."""
        if not asked:
            return []
        scopes = sorted({scope for item in asked for scope in item.scopes()})
        first = encode_time(min(item.now for item in asked))
        found = self._rules(statements.RULES_OF, {"scopes": scopes, "now": first})
        return [
            [rule for rule in found if rule.scope in item.scopes() and rule.is_active(item.now)]
            for item in asked
        ]

    def list_rules(self, *, limit: int = 1000) -> list[StandingRule]:
        """As `Store.list_rules`."""
        if limit < 0:
            raise InvalidInputError(f"limit must not be negative, got {limit}")
        return self._rules(statements.RULES, {"row_limit": limit})

    def _rules(self, query: Executable, parameters: dict[str, Any]) -> list[StandingRule]:
        decoder = RowDecoder(self._codec, {})
        return self._read(
            lambda connection: [
                approval_rows.to_rule(row, decoder) for row in connection.execute(query, parameters)
            ]
        )
