"""The store port's contract as tests: holds, which no deletion ignores."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from phronomy_ray.errors import AgentRetainedError, NotFoundError
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.retention import Retention
from phronomy_ray.store.port import Store
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned, race


def _purge(owner: Owner) -> bool:
    created_at = owner.store.load_root(owner.agent_id).created_at
    assert created_at is not None
    return owner.store.purge_agent(owner.agent_id, epoch=owner.epoch, created_at=created_at)


def _finished(store: Store) -> Owner:
    owner = owned(store)
    owner.change(owner.start("ex1"), status=ExecutionStatus.COMPLETED, phase=Phase.ENDED)
    return owner


class RetentionConformance:
    """Who holds what."""

    def test_a_hold_is_kept_once_and_ended_by_its_owner(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        _finished(store)
        whole = Retention("report", "alice", None, START)
        part = Retention("report", "alice", "ex1", START + timedelta(seconds=1))
        other = Retention("audit", "alice", "ex1", START + timedelta(seconds=2))
        assert [store.retain(item) for item in (whole, part, other)] == [whole, part, other]
        assert store_factory().retain(replace(whole, created_at=START + timedelta(days=1))) == whole
        assert store.retentions() == [whole, part, other]
        assert store.retentions(agent_id="alice", owner_key="audit") == [other]
        assert store.retentions(agent_id="bob") == []
        assert store.retentions(limit=1) == [whole]
        assert store.release("report", agent_id="alice") is True
        assert store.release("report", agent_id="alice") is False
        assert store.release("audit", agent_id="alice") is False, "its hold is one of an execution"
        assert store.retentions() == [part, other]

    def test_only_what_is_stored_can_be_held(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        _finished(store)
        owned(store, "bob")
        for agent_id, execution_id in (("nobody", None), ("alice", "ex2"), ("bob", "ex1")):
            with pytest.raises(NotFoundError):
                store.retain(Retention("report", agent_id, execution_id, START))
        assert store.retentions() == []

    @pytest.mark.parametrize("execution_id", [None, "ex1"])
    def test_what_is_held_is_not_purged(self, store_factory: StoreFactory, execution_id: str | None) -> None:
        owner = _finished(store_factory())
        store = owner.store
        store.retain(Retention("report", "alice", execution_id, START))
        store.retain(Retention("audit", "alice", execution_id, START))
        with pytest.raises(AgentRetainedError) as caught:
            _purge(owner)
        assert caught.value.owners == ("audit", "report")
        assert caught.value.details["retentions"][0]["execution_id"] == execution_id
        store.release("report", agent_id="alice", execution_id=execution_id)
        with pytest.raises(AgentRetainedError, match="audit"):
            _purge(owner)
        owner.append("goes on")
        store.release("audit", agent_id="alice", execution_id=execution_id)
        assert _purge(owner) is True
        assert store.retentions() == []

    def test_a_hold_and_a_purge_at_once_are_never_both_there(self, store_factory: StoreFactory) -> None:
        for number in range(10):
            store = store_factory()
            owner = owned(store, f"agent-{number}")
            hold = Retention("report", owner.agent_id, None, START)
            retain = partial(store_factory().retain, hold)
            held, purged = race(retain, partial(_purge, owner))
            if purged is True:
                assert isinstance(held, NotFoundError)
                assert store.retentions(agent_id=owner.agent_id) == []
            else:
                assert isinstance(purged, AgentRetainedError)
                assert held == hold
                owner.append("goes on")


__all__ = ["RetentionConformance"]
