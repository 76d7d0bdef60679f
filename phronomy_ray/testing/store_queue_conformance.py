"""The store port's contract as tests: requests that wait for their turn."""

from __future__ import annotations

import pytest

from phronomy_ray.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OwnershipLostError,
    StateConflictError,
)
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned


class QueueConformance:
    """Queued requests."""

    def test_requests_come_back_whole_and_in_order(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        requests = [
            samples.queued_request("q1", position=3, input="x" * 10_000),
            samples.queued_request("q2", position=9, interrupts=True, deadline_at=START),
            samples.queued_request("q3", position=5, input={"a": ["漢", None]}, durable_context={"n": 1}),
            samples.queued_request(
                "q4", position=7, interrupts=True, stream=True, options={"input_filters": ["f"]}
            ),
        ]
        owner.append(step="queue", new_requests=tuple(requests[:3]))
        owner.append(step="queue", new_requests=(requests[3],))
        wanted = [requests[index] for index in (3, 1, 0, 2)]
        other = store_factory()
        assert other.queued_requests("alice") == wanted
        assert other.find_request("q3") == requests[2]
        assert other.find_request("nobody") is None
        assert other.queued_requests("nobody") == []
        successor = Owner(other, "alice")
        assert list(successor.claim().queue) == wanted
        row = successor.start("ex1")
        assert list(Owner(store_factory(), "alice").claim().queue) == wanted
        assert other.load_execution("ex1") == row

    def test_a_request_ends_with_the_admission_of_its_execution(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        first, second = samples.queued_request("q1", position=1), samples.queued_request("q2", position=2)
        owner.append(step="queue", new_requests=(first, second))
        owner.append(
            step="admit", new_execution=samples.execution("q1", "alice"), ended_requests=(first.execution_id,)
        )
        assert owner.store.queued_requests("alice") == [second]
        assert owner.store.load_execution("q1").agent_id == "alice"

    def test_what_is_not_queued_cannot_end(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        other = owned(store_factory(), "bob")
        other.append(step="queue", new_requests=(samples.queued_request("q1", agent_id="bob"),))
        for execution_id in ("q1", "q2"):
            commit = owner.commit(
                step="admit",
                new_execution=samples.execution(execution_id, "alice"),
                ended_requests=(execution_id,),
            )
            with pytest.raises(ConflictError):
                owner.execute(commit)
        with pytest.raises(NotFoundError):
            owner.store.load_execution("q2")
        assert len(other.store.queued_requests("bob")) == 1

    def test_a_request_waits_once(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.append(step="queue", new_requests=(samples.queued_request("q1"),))
        with pytest.raises(ConflictError) as refused:
            owner.execute(
                owner.commit(step="queue", new_requests=(samples.queued_request("q1", position=8),))
            )
        assert not isinstance(refused.value, StateConflictError), (
            "its own queue is not what it knows: it must stop"
        )
        assert [item.position for item in owner.store.queued_requests("alice")] == [1]

    def test_an_id_waits_at_one_agent(self, store_factory: StoreFactory) -> None:
        owned(store_factory(), "bob").append(
            step="queue", new_requests=(samples.queued_request("q1", agent_id="bob"),)
        )
        owner = owned(store_factory())
        with pytest.raises(StateConflictError, match="'bob'"):
            owner.execute(owner.commit(step="queue", new_requests=(samples.queued_request("q1"),)))
        owner.append(step="queue", new_requests=(samples.queued_request("q2"),))
        assert [item.execution_id for item in owner.store.queued_requests("alice")] == ["q2"]
        found = owner.store.find_request("q1")
        assert found is not None
        assert found.agent_id == "bob"

    def test_only_the_owner_queues(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        commit = owner.commit(step="queue", new_requests=(samples.queued_request("q1"),))
        Owner(store_factory(), "alice").claim()
        with pytest.raises(OwnershipLostError):
            owner.execute(commit)
        assert owner.store.find_request("q1") is None

    def test_no_stored_execution_is_queued(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        row = samples.execution("ex1", "alice", status=ExecutionStatus.QUEUED)
        with pytest.raises(InvalidInputError, match="queued"):
            owner.execute(owner.commit(new_execution=row))
