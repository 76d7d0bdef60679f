"""The store port's contract as tests: wishes that executions end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.errors import NotFoundError
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, StoreFactory, owned, race

WISH = CancellationIntent("ex1", "alice", "enough", START)


class CancellationConformance:
    """Cancellation intents."""

    def test_the_first_wish_counts_and_needs_no_owner(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.start("ex1")
        other = store_factory()
        assert other.find_cancellation("ex1") is None
        assert other.request_cancellation(WISH) == WISH
        later = replace(WISH, reason="later", requested_at=START + timedelta(seconds=9))
        assert store_factory().request_cancellation(later) == WISH
        assert store_factory().find_cancellation("ex1") == WISH
        owner.change(owner.store.load_execution("ex1"), status=ExecutionStatus.CANCELLED, phase=Phase.ENDED)
        assert other.request_cancellation(later) == WISH, "it stays in force after the end"

    def test_what_has_ended_is_not_wished_to_end(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.change(owner.start("ex1"), status=ExecutionStatus.COMPLETED, phase=Phase.ENDED)
        assert owner.store.request_cancellation(WISH) is None
        assert owner.store.find_cancellation("ex1") is None

    def test_a_request_that_waits_can_be_wished_away(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.append(step="queue", new_requests=(samples.queued_request("ex1"),))
        assert owner.store.request_cancellation(WISH) == WISH

    @pytest.mark.parametrize(("execution_id", "agent_id"), [("ex2", "alice"), ("ex1", "bob")])
    def test_only_what_is_stored_can_be_cancelled(
        self, store_factory: StoreFactory, execution_id: str, agent_id: str
    ) -> None:
        store = store_factory()
        owned(store, "bob")
        owned(store).start("ex1")
        with pytest.raises(NotFoundError):
            store.request_cancellation(replace(WISH, execution_id=execution_id, agent_id=agent_id))
        assert store.find_cancellation(execution_id) is None

    def test_wishes_at_the_same_time_are_one(self, store_factory: StoreFactory) -> None:
        owned(store_factory()).start("ex1")
        stores = [store_factory() for _ in range(4)]
        wishes = [
            partial(store.request_cancellation, replace(WISH, reason=f"r{index}"))
            for index, store in enumerate(stores)
        ]
        found = race(*wishes)
        assert len({str(item) for item in found}) == 1
        assert found[0] == store_factory().find_cancellation("ex1")

    def test_a_wish_goes_with_its_agent(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        row = owner.start("ex1")
        owner.store.request_cancellation(WISH)
        owner.change(row, status=ExecutionStatus.CANCELLED, phase=Phase.ENDED)
        created_at = owner.store.load_root("alice").created_at
        assert created_at is not None
        assert owner.store.purge_agent("alice", epoch=owner.epoch, created_at=created_at)
        assert owner.store.find_cancellation("ex1") is None
