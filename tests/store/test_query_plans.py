"""Reads whose cost must not grow with history use the index that was made for them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from phronomy_ray.store import delivery_statements, group_statement, statements, supervision_statements
from phronomy_ray.testing.store_groups_conformance import TURN_COMMITS, turn_commit
from phronomy_ray.testing.store_samples import owned


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (statements.OPEN_EXECUTION, "uq_executions_one_open_per_agent"),
        (statements.execution_list(of_agent=False, open_only=True), "ix_executions_open_created_at"),
        (statements.execution_list(of_agent=True, open_only=False), "ix_executions_agent_id_created_at"),
        (statements.KNOWLEDGE, "journal USING INDEX ix_journal_knowledge (agent_id=? AND position>?)"),
        (statements.KNOWLEDGE, "clearings USING INDEX ix_journal_knowledge (agent_id=?)"),
        (statements.JOURNAL_OF_EXECUTION, "ix_journal_execution_id_position"),
        (
            statements.approval_list(of_execution=False, of_agent=False, pending_only=True),
            "ix_approvals_pending_created_at",
        ),
        (statements.RULES_IN_FORCE, "ix_standing_rules_in_force_scope"),
        (supervision_statements.RUNNING, "ix_executions_running_created_at"),
        (supervision_statements.QUEUED, "ix_queued_requests_agent_id_position"),
        (supervision_statements.EXPIRED, "ix_approvals_expiring_expires_at"),
        (supervision_statements.WISHED, "ix_executions_open_created_at"),
        (supervision_statements.OVERDUE, "ix_executions_deadline_at"),
        (supervision_statements.PARKED, "ix_agents_parked"),
        (delivery_statements.DUE_AGENTS, "ix_deliveries_waiting (subscription_id=? AND agent_id>?)"),
        (
            delivery_statements.DUE_AGENTS,
            "d USING INDEX ix_deliveries_waiting (subscription_id=? AND agent_id=?)",
        ),
        (delivery_statements.DELIVERIES_OF, "ix_deliveries_waiting (subscription_id=? AND agent_id=?)"),
        (delivery_statements.dead_letters(of_subscription=True), "ix_deliveries_dead"),
    ],
)
def test_sqlite_uses_the_index(sqlite_database: Any, query: Any, index: str) -> None:
    owned(sqlite_database.open())
    text = str(query.compile(dialect=sqlite.dialect(paramstyle="named")))
    names = ("the_agent_id", "the_execution_id", "row_limit", "param_1")
    names += ("everywhere", "of_agent", "of_definition", "now")
    names += ("after", "after_since", "after_key", "due", "the_subscription_id")
    with sqlite_database.engine().begin() as connection:
        plan = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + text, dict.fromkeys(names, 1)).all()
    steps = " / ".join(str(row[3]) for row in plan)
    assert index in steps, steps


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (supervision_statements.RUNNING, "ix_executions_running_created_at"),
        (supervision_statements.EXPIRED, "ix_approvals_expiring_expires_at"),
        (supervision_statements.OVERDUE, "ix_executions_deadline_at"),
        (supervision_statements.QUEUED, "ix_queued_requests_agent_id_position"),
        (supervision_statements.PARKED, "ix_agents_parked"),
    ],
)
def test_postgres_looks_for_open_work_by_index(postgres_database: Any, query: Any, index: str) -> None:
    owned(postgres_database.open())
    names = ("after", "after_since", "after_key", "due")
    parameters = dict.fromkeys(names, "") | {"row_limit": 500}
    text = str(query.compile(dialect=postgres_database.engine().dialect))
    with postgres_database.engine().begin() as connection:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(row[0] for row in connection.exec_driver_sql("EXPLAIN " + text, parameters))
    assert index in plan, plan


def test_postgres_uses_the_partial_index_under_a_generic_plan(postgres_database: Any) -> None:
    text = str(statements.OPEN_EXECUTION.compile(dialect=postgres_database.engine().dialect))
    text = text.replace("%(the_agent_id)s", "$1")
    with postgres_database.engine().begin() as connection:
        for setting in ("plan_cache_mode = force_generic_plan", "enable_seqscan = off"):
            connection.exec_driver_sql(f"SET LOCAL {setting}")
        connection.exec_driver_sql(f"PREPARE open_execution (text) AS {text}")
        plan = "\n".join(row[0] for row in connection.exec_driver_sql("EXPLAIN EXECUTE open_execution ('a')"))
    assert "uq_executions_one_open_per_agent" in plan, plan


def test_a_group_of_commits_reads_no_table_as_a_whole(postgres_database: Any, monkeypatch: Any) -> None:
    """Whatever the planner thinks of the tables, and of how many rows a JSON text holds."""
    texts: list[str] = []
    make = group_statement._text

    def text_of(shape: Any) -> bytes:
        texts.append(make(shape).decode())
        return make(shape)

    monkeypatch.setattr(group_statement, "_text", text_of)
    owners = [owned(postgres_database.open(), f"agent-{number}") for number in range(5)]
    for number in range(TURN_COMMITS):
        if number == TURN_COMMITS - 1:
            multiply_rows(postgres_database)
        commits = [turn_commit(owner, number) for owner in owners]
        assert owners[0].store.execute_group(commits) == [None] * 5
        for owner, commit in zip(owners, commits, strict=True):
            owner.revision, owner.position = commit.expected_revision + 1, commit.position_after
    assert len(texts) == TURN_COMMITS
    with postgres_database.engine().begin() as connection:
        connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
        for number, text in enumerate(texts):
            names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
            for position, name in enumerate(names, start=1):
                text = text.replace(f"%({name})s", f"${position}")
            connection.exec_driver_sql(f"PREPARE group_{number} AS {text}")
            values = ", ".join("0" if name.startswith("n") else "'[]'" for name in names)
            explained = connection.exec_driver_sql(f"EXPLAIN EXECUTE group_{number} ({values})")
            plan = "\n".join(row[0] for row in explained)
            assert "Seq Scan" not in plan, plan
            assert "ix_executions_open" not in plan, plan


def multiply_rows(database: Any) -> None:
    """2,000 rows more in every table that a commit changes rows of; few of them open."""
    keys = {
        "agents": "agent_id",
        "approvals": "approval_request_id",
        "executions": "execution_id",
        "model_calls": "model_call_id",
        "queued_requests": "execution_id",
        "tool_calls": "tool_call_id",
    }
    with database.engine().begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # no foreign keys
        for table, key in keys.items():
            changed = f"to_jsonb(t) || jsonb_build_object('{key}', 'x' || n, 'status', 'done')"
            connection.exec_driver_sql(
                f"INSERT INTO {table} SELECT (jsonb_populate_record(NULL::{table}, {changed})).* "
                f"FROM (SELECT * FROM {table} LIMIT 1) AS t, generate_series(1, 2000) AS n"
            )
        connection.exec_driver_sql("ANALYZE")
