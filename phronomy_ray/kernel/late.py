"""Bodies that end after their call had its outcome: written down, without effect on anything.

Such a fact changes no ledger row, no revision of an execution and nothing that a model sees. It may come while its
execution goes on, after it has ended, or while another one runs.
"""

from __future__ import annotations

from phronomy_ray.journal import Channel, JournalRecord, RecordKind
from phronomy_ray.kernel.effects import Step
from phronomy_ray.kernel.inputs import Env, ToolsLate
from phronomy_ray.kernel.root_step import root_step
from phronomy_ray.kernel.state import AgentState


def record_late(state: AgentState, event: ToolsLate, env: Env) -> Step:
    """One audit record for each report."""
    root = state.root
    records = tuple(
        JournalRecord(
            position=root.journal_position + number,
            kind=RecordKind.TOOL_LATE,
            channel=Channel.AUDIT,
            occurred_at=env.now,
            execution_id=report.execution_id,
            content={"attempt": report.attempt, "status": report.status, "ended_at": report.ended_at},
            causation_id=report.tool_call_id,
            generation=root.transcript_generation,
        )
        for number, report in enumerate(event.reports, start=1)
    )
    return root_step(state, env, "late", journal=records)
