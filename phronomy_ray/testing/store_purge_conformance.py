"""The store port's contract as tests: the end of an agent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from phronomy_ray.approvals import RuleEffect, StandingRule
from phronomy_ray.errors import AgentBusyError, NotFoundError, OwnershipLostError
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned


class PurgeConformance:
    """The deletion of an agent."""

    def test_everything_of_the_agent_goes_and_nothing_of_another(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        for agent_id in ("alice", "bob"):
            owner = owned(store, agent_id)
            row = owner.start(f"ex_{agent_id}")
            call = samples.tool_call(row.execution_id, agent_id)
            owner.append(
                {"text": "x" * 10_000},
                new_model_calls=(samples.model_call(row.execution_id),),
                new_tool_calls=(call,),
                new_approvals=(samples.approval(call),),
                events=(samples.event(row.execution_id, agent_id, 1),),
            )
            owner.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED)
        rules = [
            StandingRule(f"ru_{agent_id}", RuleEffect.ALLOW, "search", "ann", START, agent_id=agent_id)
            for agent_id in ("alice", "bob")
        ]
        for rule in rules:
            store.add_rule(rule)
        root = store.load_root("alice")
        assert root.created_at is not None
        assert store.purge_agent("alice", epoch=root.epoch, created_at=root.created_at) is True
        with pytest.raises(NotFoundError):
            store.load_root("alice")
        assert store.find_execution("ex_alice") is None
        assert store.read_journal("alice") == []
        assert store.model_calls("ex_alice") == []
        assert store.tool_calls("ex_alice") == []
        assert store.events("ex_alice") == []
        assert [row.agent_id for row in store.approvals()] == ["bob"]
        assert store.list_rules() == rules[1:]
        assert [len(store.read_journal("bob")), len(store.events("ex_bob"))] == [1, 1]
        assert store.purge_agent("alice", epoch=root.epoch, created_at=root.created_at) is False

    def test_an_agent_that_works_stays(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.start("ex1")
        root = owner.store.load_root("alice")
        assert root.created_at is not None
        with pytest.raises(AgentBusyError) as caught:
            owner.store.purge_agent("alice", epoch=root.epoch, created_at=root.created_at)
        assert caught.value.details["execution_id"] == "ex1"
        owner.append("goes on")

    def test_only_the_owner_may(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        created_at = owner.store.load_root("alice").created_at
        assert created_at is not None
        successor = Owner(store_factory(), "alice")
        successor.claim()
        with pytest.raises(OwnershipLostError):
            owner.store.purge_agent("alice", epoch=owner.epoch, created_at=created_at)
        successor.append("still there")

    def test_another_agent_of_the_same_id_is_left_alone(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        first = owned(store)
        created_at = store.load_root("alice").created_at
        assert created_at is not None
        assert store.purge_agent("alice", epoch=first.epoch, created_at=created_at) is True
        later = created_at + timedelta(seconds=1)
        store.create_agent(samples.new_agent("alice", now=later))
        second = Owner(store, "alice")
        second.claim()
        assert store.purge_agent("alice", epoch=first.epoch, created_at=created_at) is False
        second.append("still there")

    def test_no_owner_of_a_purged_agent_passes_for_one_of_the_next_of_its_id(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        stale = owned(store)
        commit = stale.commit("late")
        last = Owner(store_factory(), "alice")
        last.claim()
        created_at = store.load_root("alice").created_at
        assert created_at is not None
        assert store.purge_agent("alice", epoch=last.epoch, created_at=created_at) is True
        created = store.create_agent(samples.new_agent("alice", now=created_at + timedelta(seconds=1)))
        assert created == store.load_root("alice")
        successor = Owner(store_factory(), "alice")
        successor.claim()
        assert successor.epoch > last.epoch > stale.epoch
        with pytest.raises(OwnershipLostError):  # its revision and position fit
            stale.execute(commit)
        successor.append("still there")
        assert len(store.read_journal("alice")) == 1

    def test_a_stale_owner_of_a_purged_agent_is_refused(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        created_at = owner.store.load_root("alice").created_at
        assert created_at is not None
        commit = owner.commit("late")
        owner.store.purge_agent("alice", epoch=owner.epoch, created_at=created_at)
        with pytest.raises(OwnershipLostError, match="not stored any more"):
            owner.execute(commit)
