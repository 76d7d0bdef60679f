"""What holds after every step, whatever has happened."""

from __future__ import annotations

from dataclasses import replace

from hypothesis.stateful import invariant

from kernel_world.agents import DEFINITION
from kernel_world.shell import KernelWorld
from phronomy_ray.journal import (
    ApprovalStatus,
    ExecutionStatus,
    Phase,
    RecordKind,
    ToolCallStatus,
)
from phronomy_ray.kernel.state import AgentState
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.testing.prompts import check_paired


class KernelLaws(KernelWorld):
    """The invariants."""

    @invariant()
    def memory_equals_the_store(self) -> None:
        if not hasattr(self, "store"):
            return
        fresh = AgentState.hydrate(*self.store.read())
        assert replace(fresh.root, updated_at=None, starts_without_progress=0) == replace(
            self.state.root, updated_at=None, starts_without_progress=0
        )
        assert fresh.conversation == self.state.conversation
        assert fresh.queue == self.state.queue
        mine = self.state.execution
        assert (fresh.execution is None) is (mine is None)
        if mine is None or fresh.execution is None:
            return
        assert fresh.execution.row == mine.row
        assert fresh.execution.progress == mine.progress
        assert fresh.execution.instructions == mine.instructions
        assert fresh.execution.patch == mine.patch
        assert fresh.execution.output == mine.output
        assert fresh.execution.model_call == mine.model_call
        assert fresh.execution.event_seq == mine.event_seq
        assert [call.row for call in fresh.execution.batch] == [call.row for call in mine.batch]
        by_id = {item.approval_request_id: item for item in mine.approvals}
        assert {item.approval_request_id: item for item in fresh.execution.approvals} == by_id

    @invariant()
    def nobody_is_stuck_without_a_reason(self) -> None:
        if not hasattr(self, "store") or self.state.execution is None:
            return
        execution = self.state.execution
        row = execution.row
        live = {(call.row.tool_call_id, call.row.attempt) for call in execution.batch if call.is_live}
        assert live <= self.work.bodies, "a live call without a body"
        if row.status is ExecutionStatus.SUSPENDED:
            waiting = [a for a in execution.approvals if a.status is ApprovalStatus.PENDING]
            assert waiting or self.unresolved()
        elif row.phase is Phase.AUTHORIZING:
            (model_call,) = {call.row.model_call_id for call in execution.batch}
            assert model_call in self.work.authorizations
            assert not live
        elif row.status is ExecutionStatus.PREPARING:
            assert row.execution_id in self.work.prepares
        elif row.phase is Phase.BUILDING_INPUT:
            assert (row.execution_id, execution.progress.model_calls + 1) in self.work.builds
        elif row.phase is Phase.FILTERING_OUTPUT:
            assert row.execution_id in self.work.outputs
        elif execution.model_call is not None:
            assert execution.model_call.model_call_id in self.work.model_calls
        else:
            assert live

    @invariant()
    def the_gate_holds(self) -> None:
        if not hasattr(self, "store") or self.state.execution is None:
            return
        limit = self.definition.max_parallel_tools
        live = [call for call in self.state.execution.batch if call.is_live]
        if limit is not None:
            assert len(live) <= max(limit, sum(self.not_performed.values()))
        waiting = [call for call in self.state.execution.batch if call.phase is ToolPhase.AUTHORIZED]
        twins = dict(self.state.execution.progress.twins)
        if live and any(call.row.tool_call_id not in twins for call in waiting):
            assert limit is not None
            assert len(live) >= limit, "a place is free and somebody waits for one"

    @invariant()
    def every_call_has_one_outcome_in_request_order(self) -> None:
        if not hasattr(self, "store"):
            return
        batches: dict[str, list[tuple[str, str]]] = {}
        answers: dict[str, list[tuple[str, str]]] = {}
        for record in self.store.journal:
            if record.kind is RecordKind.ASSISTANT_MESSAGE and record.content.get("tool_calls"):
                assert record.model_call_id is not None
                batches[record.model_call_id] = [call["id"] for call in record.content["tool_calls"]]
            if record.kind is RecordKind.TOOL_MESSAGE:
                assert record.model_call_id is not None
                answers.setdefault(record.model_call_id, []).append(record.content["tool_call_id"])
        for model_call, ids in batches.items():
            execution_id = self.store.model_calls[model_call].execution_id
            open_batch = self.state.execution is not None and any(
                call.row.model_call_id == model_call for call in self.state.execution.batch
            )
            if open_batch:
                assert model_call not in answers, "results are journaled together"
                continue
            assert answers[model_call] == ids, f"{model_call} of {execution_id}"
            rows = [call for call in self.store.tool_calls.values() if call.model_call_id == model_call]
            assert [row.provider_call_id for row in sorted(rows, key=lambda row: row.position)] == ids
            assert all(row.status.is_settled or row.status is ToolCallStatus.UNKNOWN for row in rows)

    @invariant()
    def a_terminal_execution_is_closed(self) -> None:
        if not hasattr(self, "store"):
            return
        for row in self.store.executions.values():
            ends = [
                record
                for record in self.store.journal
                if record.execution_id == row.execution_id and record.kind.value.startswith("execution_")
            ]
            assert len(ends) == (1 if row.status.is_terminal else 0)
            if not row.status.is_terminal:
                continue
            assert ends[0].kind.value == f"execution_{row.status.value}"
            assert row.ended_at is not None
            of = row.execution_id
            assert all(c.status != "pending" for c in self.store.model_calls.values() if c.execution_id == of)
            assert all(
                a.status is not ApprovalStatus.PENDING
                for a in self.store.approvals.values()
                if a.execution_id == of
            )
            last = [event for event in self.store.events if event.execution_id == of][-1]
            assert last.type == row.status.value

    @invariant()
    def the_next_prompt_is_paired(self) -> None:
        if not hasattr(self, "store"):
            return
        messages = [m for exchange in self.state.conversation.exchanges for m in exchange.messages]
        check_paired([*messages, {"role": "user", "content": "next"}])

    @invariant()
    def usage_is_that_of_the_answered_calls(self) -> None:
        if not hasattr(self, "store"):
            return
        for row in self.store.executions.values():
            calls = [c for c in self.store.model_calls.values() if c.execution_id == row.execution_id]
            answered = sum(c.status == "completed" for c in calls)
            assert row.state["usage"]["input_tokens"] == answered
            assert len(calls) <= DEFINITION.max_iterations
