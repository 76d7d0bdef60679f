"""The store port's contract as tests, commits: what one changes, what it leaves alone, and what it is refused for."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.commits import ExecutionUpdate
from phronomy_ray.errors import (
    AgentBusyError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.journal import (
    ApprovalStatus,
    ExecutionStatus,
    Lifecycle,
    ModelCallStatus,
    Phase,
    ToolCallStatus,
)
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, StoreFactory, owned, race


class CommitConformance:
    """What one commit guards and writes."""

    def test_root_takes_the_new_values(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        commit = owner.append(
            "a", "b", lifecycle=Lifecycle.SUSPENDED, context_revision=7, transcript_generation=3
        )
        root = owner.store.load_root("alice")
        assert (root.agent_revision, root.journal_position, root.lifecycle) == (1, 2, Lifecycle.SUSPENDED)
        assert (root.context_revision, root.transcript_generation) == (7, 3)
        assert root.updated_at == commit.now
        assert root.created_at == START

    def test_same_commit_twice_writes_once(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        commit = owner.append("once")
        owner.store.execute(commit)
        store_factory().execute(pickle.loads(pickle.dumps(commit)))
        assert len(owner.store.read_journal("alice")) == 1
        assert owner.store.load_root("alice").agent_revision == 1
        owner.append("next")

    def test_same_commit_from_two_threads_writes_once(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        commit = owner.commit("once")
        stores = [store_factory() for _ in range(4)]
        assert race(*(lambda s=s: s.execute(commit) for s in stores)) == [None] * 4
        assert len(owner.store.read_journal("alice")) == 1

    @pytest.mark.parametrize("change", [{"expected_revision": 3}, {"expected_revision": 0}])
    def test_wrong_revision_is_refused(self, store_factory: StoreFactory, change: dict[str, Any]) -> None:
        owner = owned(store_factory())
        owner.append("a")
        with pytest.raises(ConflictError) as caught:
            owner.execute(owner.commit("b", **change))
        assert not isinstance(caught.value, StateConflictError)
        assert len(owner.store.read_journal("alice")) == 1

    @pytest.mark.parametrize("position", [0, 5])
    def test_wrong_journal_position_is_refused(self, store_factory: StoreFactory, position: int) -> None:
        owner = owned(store_factory())
        owner.append("a")
        commit = owner.commit(expected_position=position, journal=(samples.record(position + 1, "b"),))
        with pytest.raises(ConflictError):
            owner.execute(commit)
        assert [record.content for record in owner.store.read_journal("alice")] == ["a"]

    @pytest.mark.parametrize("positions", [[2], [1, 3], [1, 1], [2, 1], [0]])
    def test_journal_gap_or_duplicate_is_refused(
        self, store_factory: StoreFactory, positions: list[int]
    ) -> None:
        owner = owned(store_factory())
        commit = owner.commit(journal=tuple(samples.record(position) for position in positions))
        with pytest.raises(ConflictError):
            owner.execute(commit)
        assert owner.store.read_journal("alice") == []
        assert owner.store.load_root("alice").agent_revision == 0

    def test_refused_commit_leaves_nothing(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        row = owner.start("e1")
        owner.append(events=(samples.event("e1", "alice", 1),))
        before = owner.store.load_root("alice")
        commit = owner.commit(
            "lost",
            execution=ExecutionUpdate(1, replace(row, revision=2, state={"iteration": 1})),
            new_model_calls=(samples.model_call("e1"),),
            events=(samples.event("e1", "alice", 1),),
            contents=((content_hash("never"), "never"),),
        )
        with pytest.raises(ConflictError):
            owner.store.execute(commit)
        assert owner.store.load_root("alice") == before
        assert owner.store.load_execution("e1") == row
        assert owner.store.model_calls("e1") == []
        assert owner.store.read_journal("alice") == []
        with pytest.raises(NotFoundError):
            owner.store.read_content(content_hash("never"))

    @pytest.mark.parametrize("kind", ["model_call", "tool_call", "approval"])
    def test_rows_that_exist_are_refused(self, store_factory: StoreFactory, kind: str) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        call = samples.tool_call("e1", "alice")
        rows: dict[str, Any] = {
            "model_call": {"new_model_calls": (samples.model_call("e1"),)},
            "tool_call": {"new_tool_calls": (call,)},
            "approval": {"new_approvals": (samples.approval(call),)},
        }
        owner.append(**rows[kind])
        with pytest.raises(ConflictError):
            owner.append(**rows[kind])

    @pytest.mark.parametrize("kind", ["model_calls", "tool_calls", "approvals"])
    def test_changing_a_row_that_is_not_stored_is_refused(
        self, store_factory: StoreFactory, kind: str
    ) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        call = samples.tool_call("e1", "alice")
        rows: dict[str, Any] = {
            "model_calls": (samples.model_call("e1"),),
            "tool_calls": (call,),
            "approvals": (samples.approval(call),),
        }
        with pytest.raises(ConflictError):
            owner.append(**{kind: rows[kind]})

    def test_rows_of_another_agent_are_refused(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        alice, bob = owned(store, "alice"), owned(store, "bob")
        alice.start("e1")
        alice.append(new_tool_calls=(samples.tool_call("e1", "alice"),))
        with pytest.raises((ConflictError, InvalidInputError)):
            bob.append(tool_calls=(samples.tool_call("e1", "alice", status=ToolCallStatus.SUCCEEDED),))
        with pytest.raises(ConflictError):
            bob.append(tool_calls=(samples.tool_call("e1", "bob", status=ToolCallStatus.SUCCEEDED),))
        assert store.tool_calls("e1")[0].status is ToolCallStatus.INTENT

    def test_changing_columns_are_overwritten_and_others_kept(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        row = owner.start("e1", deadline_at=START + timedelta(hours=1))
        call = samples.tool_call("e1", "alice", requires_approval=True)
        request = samples.approval(call)
        model = samples.model_call("e1")
        owner.append(new_model_calls=(model,), new_tool_calls=(call,), new_approvals=(request,))
        later = START + timedelta(minutes=1)
        error = {"type": "ToolError", "code": "tool_error", "message": "boom"}
        call = replace(
            call,
            status=ToolCallStatus.FAILED,
            attempt=2,
            model_text="it failed " * 1000,
            result={"raw": "z" * 9000},
            error=error,
            attempts=[{"number": 1, "node": "n1"}, {"number": 2, "node": "n2"}],
            started_at=later,
            ended_at=later,
        )
        request = replace(
            request, status=ApprovalStatus.APPROVED, decided_at=later, decided_by="bob", reason="fine"
        )
        model = replace(
            model,
            status=ModelCallStatus.COMPLETED,
            manifest={"ranges": [[1, 9]]},
            ended_at=later,
            usage={"input_tokens": 3},
            attempts=[{"n": 1}],
            error=error,
        )
        row = replace(
            row,
            status=ExecutionStatus.FAILED,
            phase=Phase.ENDED,
            revision=2,
            state={"iteration": 9},
            updated_at=later,
            ended_at=later,
            output="w" * 5000,
            error=error,
            terminal_reason="max_iterations",
            cancel_requested_at=later,
        )
        owner.append(
            execution=ExecutionUpdate(
                1, replace(row, input="changed", durable_context=None, deadline_at=None)
            ),
            model_calls=(replace(model, started_at=later),),
            tool_calls=(replace(call, arguments={"q": "changed"}),),
            approvals=(request,),
        )
        store = owner.store
        assert store.load_execution("e1") == row
        assert store.model_calls("e1") == [model]
        assert store.tool_calls("e1") == [call]
        assert store.approvals(execution_id="e1") == [request]


class ExecutionConformance:
    """Admission and the life of an execution."""

    def test_second_open_execution_is_refused(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        first = owner.start("e1")
        with pytest.raises(AgentBusyError):
            owner.start("e2")
        assert owner.store.find_execution("e2") is None
        owner.change(first, status=ExecutionStatus.SUSPENDED)
        with pytest.raises(AgentBusyError):
            owner.start("e2")

    @pytest.mark.parametrize("status", [status for status in ExecutionStatus if status.is_terminal])
    def test_terminal_execution_frees_its_agent(
        self, store_factory: StoreFactory, status: ExecutionStatus
    ) -> None:
        owner = owned(store_factory())
        row = owner.start("e1")
        owner.change(row, status=status, phase=Phase.ENDED, ended_at=START)
        owner.start("e2")
        found = owner.claim().execution
        assert found is not None
        assert found.execution_id == "e2"

    @pytest.mark.parametrize("ended", [False, True])
    def test_known_execution_id_is_refused(self, store_factory: StoreFactory, ended: bool) -> None:
        owner = owned(store_factory())
        row = owner.start("e1")
        if ended:
            row = owner.change(row, status=ExecutionStatus.COMPLETED)
        with pytest.raises(StateConflictError):
            owner.start("e1")
        assert owner.store.load_execution("e1") == row

    def test_execution_id_of_another_agent_is_refused(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owned(store, "alice").start("e1")
        with pytest.raises(StateConflictError):
            owned(store, "bob").start("e1")

    def test_execution_revision_is_guarded(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        row = owner.start("e1")
        changed = owner.change(row, state={"iteration": 1})
        with pytest.raises(ConflictError):
            owner.change(row, state={"iteration": 2})
        assert owner.store.load_execution("e1") == changed

    def test_terminal_execution_is_never_written_again(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        row = owner.start("e1")
        done = owner.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED, output="answer")
        for status in (ExecutionStatus.ACTIVE, ExecutionStatus.FAILED, ExecutionStatus.COMPLETED):
            with pytest.raises(ConflictError):
                owner.change(done, status=status, output="other")
        assert owner.store.load_execution("e1") == done

    def test_executions_are_listed_newest_first(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        alice, bob = owned(store, "alice"), owned(store, "bob")
        for number in (1, 2, 3):
            row = alice.start(f"e{number}", created_at=START + timedelta(seconds=number))
            if number < 3:
                alice.change(row, status=ExecutionStatus.COMPLETED)
        bob.start("b1", created_at=START + timedelta(seconds=2, microseconds=1))

        def listed(**filters: Any) -> list[str]:
            return [row.execution_id for row in store.list_executions(**filters)]

        assert listed() == ["e3", "b1", "e2", "e1"]
        assert listed(agent_id="alice") == ["e3", "e2", "e1"]
        assert listed(non_terminal_only=True) == ["e3", "b1"]
        assert listed(agent_id="bob", non_terminal_only=True) == ["b1"]
        assert listed(limit=2) == ["e3", "b1"]
        assert listed(agent_id="nobody") == []

    def test_missing_execution(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        assert store.find_execution("e9") is None
        with pytest.raises(NotFoundError):
            store.load_execution("e9")
        reads = (store.model_calls, store.tool_calls, store.events, store.journal_of_execution)
        assert [read("e9") for read in reads] == [[]] * 4
        assert store.approvals(execution_id="e9") == []
