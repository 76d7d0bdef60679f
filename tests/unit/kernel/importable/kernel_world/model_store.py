"""The store as dicts: fed by commits alone, and strict about each."""

from __future__ import annotations

from dataclasses import replace

from kernel_world.agents import AGENT
from phronomy_ray.commits import Commit, Hydration
from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    ApprovalStatus,
    EventRow,
    ExecutionRow,
    JournalRecord,
    ModelCallRow,
    QueuedRequest,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.kernel.context import Conversation
from phronomy_ray.kernel.state import contents_of


class ModelStore:
    """What a store holds after a sequence of commits; refuses what a store must refuse, and more."""

    def __init__(self) -> None:
        self.root = AgentRoot(AGENT, "clerk", "1", "")
        self.journal: list[JournalRecord] = []
        self.executions: dict[str, ExecutionRow] = {}
        self.model_calls: dict[str, ModelCallRow] = {}
        self.tool_calls: dict[str, ToolCallRow] = {}
        self.approvals: dict[str, ApprovalRow] = {}
        self.events: list[EventRow] = []
        self.contents: dict[str, str] = {}
        self.queue: dict[str, QueuedRequest] = {}
        self.commit_ids: set[str] = set()

    def execute(self, commit: Commit) -> None:
        root = self.root
        assert commit.epoch == root.epoch
        assert commit.expected_revision == root.agent_revision
        assert commit.expected_position == root.journal_position
        assert commit.commit_id not in self.commit_ids
        self.commit_ids.add(commit.commit_id)
        assert [record.position for record in commit.journal] == list(
            range(len(self.journal) + 1, len(self.journal) + len(commit.journal) + 1)
        )
        assert commit.context_revision in (root.context_revision, root.context_revision + 1)
        if commit.execution is None and commit.new_execution is None:
            for record in commit.journal:
                assert self.open_execution() is None, "an agent that works was edited"
                assert record.execution_id is None
            assert not commit.events
            self.journal.extend(commit.journal)
        else:
            touched = self._execution(commit)
            for record in commit.journal:
                assert record.execution_id == touched.execution_id
            self.journal.extend(commit.journal)
            self._rows(commit, touched)
        self.contents.update(commit.contents)
        for request in commit.new_requests:
            assert request.execution_id not in self.queue
            assert request.execution_id not in self.executions
            self.queue[request.execution_id] = request
        for execution_id in commit.ended_requests:
            del self.queue[execution_id]
            assert execution_id in self.executions, "a request was lost"
        self.root = replace(
            root,
            agent_revision=root.agent_revision + 1,
            context_revision=commit.context_revision,
            transcript_generation=commit.transcript_generation,
            journal_position=commit.position_after,
            lifecycle=commit.lifecycle,
            updated_at=commit.now,
        )

    def _execution(self, commit: Commit) -> ExecutionRow:
        if commit.new_execution is not None:
            new = commit.new_execution
            assert commit.execution is None
            assert new.execution_id not in self.executions
            assert new.status.is_terminal or self.open_execution() is None, "two non-terminal executions"
            assert new.revision == 1
            self.executions[new.execution_id] = new
            return new
        update = commit.execution
        assert update is not None, "a commit without an execution"
        before = self.executions[update.row.execution_id]
        assert not before.status.is_terminal, "a terminal execution was changed"
        assert before.revision == update.expected_revision
        assert update.row.revision == before.revision + 1
        for name in ("agent_id", "input", "input_hash", "durable_context", "base_position", "created_at"):
            assert getattr(update.row, name) == getattr(before, name)
        self.executions[update.row.execution_id] = update.row
        return update.row

    def _rows(self, commit: Commit, touched: ExecutionRow) -> None:
        for row in commit.new_model_calls:
            assert row.model_call_id not in self.model_calls
            self.model_calls[row.model_call_id] = row
        for row in commit.model_calls:
            assert self.model_calls[row.model_call_id].status == "pending", "a settled model call was changed"
            self.model_calls[row.model_call_id] = row
        for call in commit.new_tool_calls:
            assert call.tool_call_id not in self.tool_calls
            self.tool_calls[call.tool_call_id] = call
        for call in commit.tool_calls:
            before = self.tool_calls[call.tool_call_id]
            assert not before.status.is_settled, f"{before.status} became {call.status}"
            assert call.attempt >= before.attempt
            assert call.arguments == before.arguments
            assert call.requires_approval == before.requires_approval
            self.tool_calls[call.tool_call_id] = call
        for call in commit.revised_tool_calls:
            before = self.tool_calls[call.tool_call_id]
            assert before.status in (ToolCallStatus.AUTHORIZING, ToolCallStatus.AWAITING_APPROVAL)
            assert call.attempt in (0, 1), "revised after its first dispatch"
            self.tool_calls[call.tool_call_id] = call
        for approval in commit.new_approvals:
            assert approval.approval_request_id not in self.approvals
            self.approvals[approval.approval_request_id] = approval
        for approval in commit.approvals:
            assert self.approvals[approval.approval_request_id].status is ApprovalStatus.PENDING
            self.approvals[approval.approval_request_id] = approval
        for event in commit.events:
            assert event.execution_id == touched.execution_id
            assert event.seq == self.last_seq(event.execution_id) + 1
            self.events.append(event)

    def last_seq(self, execution_id: str) -> int:
        return max((event.seq for event in self.events if event.execution_id == execution_id), default=0)

    def open_execution(self) -> ExecutionRow | None:
        found = [row for row in self.executions.values() if not row.status.is_terminal]
        assert len(found) <= 1
        return found[0] if found else None

    def claim(self) -> tuple[Hydration, Conversation, dict[str, str]]:
        self.root = replace(self.root, epoch=self.root.epoch + 1)
        return self.read()

    def read(self) -> tuple[Hydration, Conversation, dict[str, str]]:
        row = self.open_execution()
        conversation = Conversation().apply(self.journal)
        queue = tuple(sorted(self.queue.values(), key=lambda item: item.order))
        if row is None:
            return Hydration(self.root, None, queue=queue), conversation, {}
        of = row.execution_id
        hydration = Hydration(
            self.root,
            row,
            tuple(item for item in self.model_calls.values() if item.execution_id == of),
            tuple(item for item in self.tool_calls.values() if item.execution_id == of),
            tuple(item for item in self.approvals.values() if item.execution_id == of),
            self.last_seq(of),
            queue,
        )
        return hydration, conversation, {key: self.contents[key] for key in contents_of(hydration)}
