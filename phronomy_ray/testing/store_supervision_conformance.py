"""The store port's contract as tests: what a supervisor reads and writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.errors import ConflictError, NotFoundError, OwnershipLostError
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus, Lifecycle, Phase
from phronomy_ray.open_work import OpenWork, WorkKind
from phronomy_ray.parking import ParkReason
from phronomy_ray.store.port import Store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned

REASON = ParkReason("no_progress", "6 starts made no progress: \u6f22", START, 6, "ex1", "calling_model")


class SupervisionConformance:
    """Open work, parking, and beats."""

    def test_running_executions_come_oldest_first_in_pages(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        for number, age in enumerate((3, 1, 2, 1)):
            owner = owned(store, f"agent-{number}")
            owner.start(f"ex{number}", created_at=START - timedelta(seconds=age))
        for number, status in enumerate(ExecutionStatus):
            if status not in (ExecutionStatus.QUEUED, ExecutionStatus.PREPARING, ExecutionStatus.ACTIVE):
                owner = owned(store, f"other-{number}")
                phase = Phase.APPROVAL if status is ExecutionStatus.SUSPENDED else Phase.ENDED
                owner.change(owner.start(f"other{number}"), status=status, phase=phase)
        found = _all(store, WorkKind.RUNNING, limit=10)
        assert [work.key for work in found] == ["ex0", "ex2", "ex1", "ex3"]
        assert _all(store, WorkKind.RUNNING, limit=1) == found
        first = found[0]
        assert first == OpenWork(WorkKind.RUNNING, "agent-0", START - timedelta(seconds=3), "ex0", 1, 1, "")

    def test_work_names_the_owner_s_cluster_and_moves_with_its_commits(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        owned(store).start("ex1")
        before = _all(store, WorkKind.RUNNING)
        assert store.claim("alice", owner={"cluster": "east", "actor": "host:1"}, now=START).root.epoch == 2
        [after] = _all(store, WorkKind.RUNNING)
        assert (after.cluster, after.process, after.epoch) == ("east", "host:1", before[0].epoch + 1)
        owner = Owner(store, "alice")
        owner.claim()
        owner.append("x")
        assert _all(store, WorkKind.RUNNING)[0].revision == after.revision + 1

    def test_a_queue_is_work_only_of_an_agent_without_open_execution(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        for name in ("bob", "alice", "carol", "dave"):
            owner = owned(store, name)
            for number in (2, 1):
                moment = START + timedelta(seconds=number)
                request = samples.queued_request(
                    f"{name}-{number}", agent_id=name, position=number, queued_at=moment
                )
                owner.append(step="queue", new_requests=(request,))
            if name == "carol":
                owner.start("carol-now")
            if name == "dave":
                row = owner.start("dave-now")
                owner.change(row, status=ExecutionStatus.SUSPENDED, phase=Phase.APPROVAL)
        found = _all(store, WorkKind.QUEUED)
        assert [(work.agent_id, work.since) for work in found] == [
            ("alice", START + timedelta(seconds=1)),
            ("bob", START + timedelta(seconds=1)),
        ]
        assert _all(store, WorkKind.QUEUED, limit=1) == found

    def test_expired_requests_are_work_once_they_are_due(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        for number, due in enumerate((5, 3, None, 4)):
            owner = owned(store, f"agent-{number}")
            row = owner.start(f"ex{number}")
            call = samples.tool_call(row.execution_id, owner.agent_id)
            expires_at = START + timedelta(seconds=due) if due is not None else None
            approval = samples.approval(call, expires_at=expires_at)
            owner.append(new_tool_calls=(call,), new_approvals=(approval,))
        assert _all(store, WorkKind.EXPIRED, at=2) == []
        assert [work.agent_id for work in _all(store, WorkKind.EXPIRED, at=3.5)] == ["agent-1"]
        late = _all(store, WorkKind.EXPIRED, at=5, limit=1)
        assert [work.agent_id for work in late] == ["agent-1", "agent-3", "agent-0"]
        [answered] = store.approvals(agent_id="agent-1")
        successor = Owner(store, "agent-1")
        successor.claim()
        successor.append(approvals=(replace(answered, status=ApprovalStatus.EXPIRED, decided_at=START),))
        assert [work.agent_id for work in _all(store, WorkKind.EXPIRED, at=5)] == ["agent-3", "agent-0"]

    def test_wishes_are_work_until_an_owner_takes_them_up(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        for number in (2, 1, 0):
            owner = owned(store, f"agent-{number}")
            row = owner.start(f"ex{number}")
            if number == 2:
                row = owner.change(row, status=ExecutionStatus.SUSPENDED, phase=Phase.APPROVAL)
            wished = START + timedelta(seconds=9 - number)
            store.request_cancellation(CancellationIntent(row.execution_id, owner.agent_id, "enough", wished))
            if number == 0:
                owner.change(row, cancel_requested_at=START)
        found = _all(store, WorkKind.WISHED)
        assert [(work.agent_id, work.key) for work in found] == [("agent-2", "ex2"), ("agent-1", "ex1")]
        assert _all(store, WorkKind.WISHED, limit=1) == found

    def test_open_executions_are_work_once_their_deadline_is_over(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        for number, due in enumerate((5, 3, None, 4, 3)):
            owner = owned(store, f"agent-{number}")
            deadline_at = START + timedelta(seconds=due) if due is not None else None
            row = owner.start(f"ex{number}", deadline_at=deadline_at)
            if number == 1:  # whatever it waits for
                owner.change(row, status=ExecutionStatus.SUSPENDED, phase=Phase.APPROVAL)
            if number == 4:
                owner.change(row, status=ExecutionStatus.CANCELLED, phase=Phase.ENDED, ended_at=START)
        assert _all(store, WorkKind.OVERDUE, at=2.9) == []
        assert [work.key for work in _all(store, WorkKind.OVERDUE, at=3)] == ["ex1"]
        late = _all(store, WorkKind.OVERDUE, at=5, limit=1)
        assert late == _all(store, WorkKind.OVERDUE, at=5, limit=10)
        assert [work.agent_id for work in late] == ["agent-1", "agent-3", "agent-0"]
        assert late[0].since == START + timedelta(seconds=3)
        store.park_agent("agent-3", epoch=late[1].epoch, reason=REASON)
        assert [work.key for work in _all(store, WorkKind.OVERDUE, at=5)] == ["ex1", "ex0"]

    def test_commits_that_are_no_progress_leave_the_count(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        owner.claim()
        owner.append("a", is_progress=False)
        assert store.load_root("alice").starts_without_progress == 2
        owner.append("b")
        assert store.load_root("alice").starts_without_progress == 0

    def test_a_start_that_was_none_is_taken_back(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        owner.claim()
        store.uncount_start("alice", epoch=1)
        assert store.load_root("alice").starts_without_progress == 2, "that owner has no say any more"
        for left in (1, 0, 0):
            store.uncount_start("alice", epoch=2)
            assert store.load_root("alice").starts_without_progress == left
        owner.append("and its owner goes on")

    def test_a_parked_agent_is_nobody_s_work(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        owner.start("ex1")
        owned(store, "bob").start("ex2")
        epoch = store.load_root("alice").epoch
        assert store.park_agent("alice", epoch=epoch - 1, reason=REASON) is False
        assert store.park_agent("nobody", epoch=1, reason=REASON) is False
        assert store.parked_agents() == []
        assert store.park_agent("alice", epoch=epoch, reason=REASON) is True
        root = store_factory().load_root("alice")
        assert (root.lifecycle, root.parked) == (Lifecycle.PARKED, REASON)
        assert store.parked_agents() == [root]
        assert store.parked_agents(after="alice") == []
        assert [work.agent_id for work in _all(store, WorkKind.RUNNING)] == ["bob"]
        with pytest.raises(ConflictError):
            owner.execute(owner.commit("late"))
        again = ParkReason("other", "second", START)
        assert store.park_agent("alice", epoch=epoch, reason=again) is True
        assert store.load_root("alice").parked == REASON

    @pytest.mark.parametrize(
        ("status", "lifecycle"),
        [
            (None, Lifecycle.IDLE),
            (ExecutionStatus.ACTIVE, Lifecycle.ACTIVE),
            (ExecutionStatus.SUSPENDED, Lifecycle.SUSPENDED),
        ],
    )
    def test_unpark_gives_the_agent_back_as_it_was(
        self, store_factory: StoreFactory, status: ExecutionStatus | None, lifecycle: Lifecycle
    ) -> None:
        store = store_factory()
        owner = owned(store)
        owner.claim()
        if status is not None:
            phase = Phase.APPROVAL if status is ExecutionStatus.SUSPENDED else Phase.CALLING_MODEL
            owner.change(owner.start("ex1"), status=status, phase=phase)
        epoch = store.load_root("alice").epoch
        store.park_agent("alice", epoch=epoch, reason=REASON)
        assert store.unpark_agent("alice", now=START) is True
        root = store.load_root("alice")
        assert (root.lifecycle, root.parked, root.starts_without_progress) == (lifecycle, None, 0)
        assert root.epoch == epoch + 1
        with pytest.raises(OwnershipLostError):
            owner.execute(owner.commit("of an owner from before"))
        assert store.unpark_agent("alice", now=START) is False
        with pytest.raises(NotFoundError):
            store.unpark_agent("nobody", now=START)

    def test_unpark_can_ask_for_the_end_of_the_execution(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        row = owned(store).start("ex1")
        store.park_agent("alice", epoch=1, reason=REASON)
        later = START + timedelta(seconds=7)
        assert store.unpark_agent("alice", now=later, cancel_reason="it crashes") is True
        held = Owner(store, "alice").claim().execution
        assert held is not None
        assert (held.cancel_requested_at, held.terminal_reason) == (later, "it crashes")
        assert held.revision == row.revision + 1

    def test_beats_of_all_clusters_are_seen(self, store_factory: StoreFactory) -> None:
        store, other = store_factory(), store_factory()
        [first] = store.beat("east/phronomy", info={"node": "n1"}, now=START)
        assert (first.cluster, first.beats, first.info, first.updated_at) == (
            "east/phronomy",
            1,
            {"node": "n1"},
            START,
        )
        other.beat("west/phronomy", info={}, now=START)
        beats = store.beat("east/phronomy", info={"node": "n2"}, now=START)
        assert [(beat.cluster, beat.beats) for beat in beats] == [("east/phronomy", 2), ("west/phronomy", 1)]
        assert beats[0].info == {"node": "n2"}
        assert store.forget_cluster("west/phronomy", beats=2) is False
        assert store.forget_cluster("west/phronomy", beats=1) is True
        assert [beat.cluster for beat in store.beat("east/phronomy", info={}, now=START)] == ["east/phronomy"]


def _all(store: Store, kind: WorkKind, *, at: float = 0, limit: int = 2) -> list[OpenWork]:
    """All pages of open work at `at` seconds."""
    found: list[OpenWork] = []
    while True:
        page = store.open_work(
            kind, now=START + timedelta(seconds=at), after=found[-1] if found else None, limit=limit
        )
        found += page
        if len(page) < limit:
            return found


__all__ = ["SupervisionConformance"]
