"""The store port's contract as tests: every store must pass them, whatever it is made of.

Subclass each class of `ALL` in a test module and provide a fixture ``store_factory``: a callable that returns a new handle
on the database of the running test, which is empty but for its schema. Handles must be independent (own connections).
This module has who may write; `store_commits_conformance` has what a commit changes and when it is refused, `store_groups_conformance` commits that are executed
together, `store_hydration_conformance` what a new owner reads, `store_purge_conformance` how an agent ends,
`store_delivery_conformance` which events are to be delivered, `store_placement_conformance` where it lives, `store_queue_conformance` what waits for its turn, `store_supervision_conformance` what a supervisor asks,
`store_values_conformance` what comes back, and in which order.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from phronomy_ray.errors import AgentAlreadyExistsError, ConflictError, NotFoundError, OwnershipLostError
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_cancellation_conformance import CancellationConformance
from phronomy_ray.testing.store_commits_conformance import CommitConformance, ExecutionConformance
from phronomy_ray.testing.store_contents_conformance import ContentCollectionConformance
from phronomy_ray.testing.store_delivery_conformance import DeliveryConformance
from phronomy_ray.testing.store_groups_conformance import GroupConformance
from phronomy_ray.testing.store_hydration_conformance import HydrationConformance
from phronomy_ray.testing.store_placement_conformance import PlacementConformance
from phronomy_ray.testing.store_purge_conformance import PurgeConformance
from phronomy_ray.testing.store_queue_conformance import QueueConformance
from phronomy_ray.testing.store_retention_conformance import RetentionConformance
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned, race
from phronomy_ray.testing.store_supervision_conformance import SupervisionConformance
from phronomy_ray.testing.store_values_conformance import (
    ApprovalConformance,
    ContentConformance,
    ReadConformance,
    RuleConformance,
)


class AgentConformance:
    """Roots: creating, loading, listing, claiming."""

    def test_new_agent_starts_at_zero(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        made = store.create_agent(samples.new_agent("alice"))
        assert (made.agent_revision, made.context_revision, made.journal_position, made.epoch) == (0, 0, 0, 0)
        assert made.metadata == {"team": "red"}
        assert made.created_at == made.updated_at == START
        assert store.load_root("alice") == made

    def test_new_agent_with_records_is_at_revision_one(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        made = store.create_agent(samples.new_agent("alice", "first", "second"))
        assert (made.agent_revision, made.context_revision, made.journal_position) == (1, 1, 2)
        assert store.load_root("alice") == made
        assert [record.content for record in store.read_journal("alice")] == ["first", "second"]

    def test_second_agent_of_one_id_is_refused(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        store.create_agent(samples.new_agent("alice", "mine"))
        with pytest.raises(AgentAlreadyExistsError):
            store.create_agent(samples.new_agent("alice", "other"))
        assert [record.content for record in store.read_journal("alice")] == ["mine"]

    def test_create_race_has_one_winner(self, store_factory: StoreFactory) -> None:
        stores = [store_factory() for _ in range(4)]
        results = race(*(lambda s=s: s.create_agent(samples.new_agent("alice", "hi")) for s in stores))
        kinds = [type(result) for result in results]
        assert kinds.count(AgentAlreadyExistsError) == 3, results
        assert len(stores[0].read_journal("alice")) == 1

    def test_the_same_creation_again_is_one_creation(self, store_factory: StoreFactory) -> None:
        new = samples.new_agent("alice", "mine", commit_id="create:one")
        made = store_factory().create_agent(new)
        store = store_factory()
        assert store.create_agent(new) == made
        assert [record.content for record in store.read_journal("alice")] == ["mine"]
        with pytest.raises(AgentAlreadyExistsError):
            store.create_agent(replace(new, commit_id="create:other"))
        with pytest.raises(AgentAlreadyExistsError):
            store.create_agent(replace(new, commit_id=""))
        store.claim("alice", owner={}, now=START)  # a new owner is no change of the agent
        assert store.create_agent(new).epoch == 1

    def test_missing_agent_is_not_found(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        with pytest.raises(NotFoundError):
            store.load_root("nobody")
        with pytest.raises(NotFoundError):
            store.claim("nobody", owner={}, now=START)

    def test_agents_are_listed_by_id_in_byte_order(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        names = ["a", "B", "é", "a-1", "a_1", "aa", "漢", "Z"]
        for name in names:
            store.create_agent(samples.new_agent(name))
        expected = sorted(names, key=lambda name: name.encode())
        assert [root.agent_id for root in store.list_agents()] == expected
        first = store.list_agents(limit=3)
        rest = store.list_agents(after=first[-1].agent_id)
        assert [root.agent_id for root in [*first, *rest]] == expected

    def test_claim_counts_epoch_and_starts(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        store.create_agent(samples.new_agent("alice"))
        for number in (1, 2, 3):
            root = store.claim("alice", owner={"pid": number}, now=START + timedelta(seconds=number)).root
            assert (root.epoch, root.starts_without_progress, root.owner) == (number, number, {"pid": number})
        owner = Owner(store, "alice")
        owner.claim()
        owner.append("progress")
        root = store.load_root("alice")
        assert (root.epoch, root.starts_without_progress, root.agent_revision) == (4, 0, 1)

    def test_claims_in_a_race_get_different_epochs(self, store_factory: StoreFactory) -> None:
        stores = [store_factory() for _ in range(4)]
        stores[0].create_agent(samples.new_agent("alice"))
        results = race(*(lambda s=s: s.claim("alice", owner={}, now=START).root.epoch for s in stores))
        assert sorted(results) == [1, 2, 3, 4]

    def test_claim_reads_what_the_owner_starts_from(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        assert owner.claim().execution is None
        large = {"text": "y" * 10_000}
        row = samples.execution("e1", "alice", input=large, state={"iteration": 2})
        model_calls = (samples.model_call("e1", 1), samples.model_call("e1", 2))
        calls = tuple(samples.tool_call("e1", "alice", n, sequence=s) for s in (2, 1) for n in (1, 0))
        calls = (replace(calls[0], arguments=large), *calls[1:])
        approval = samples.approval(calls[0])
        events = tuple(samples.event("e1", "alice", seq) for seq in (1, 2, 3))
        owner.append(
            new_execution=row,
            new_model_calls=model_calls,
            new_tool_calls=calls,
            new_approvals=(approval,),
            events=events,
        )
        hydration = owner.claim()
        assert hydration.execution == row
        assert hydration.model_calls == model_calls
        assert hydration.tool_calls == (calls[3], calls[2], calls[1], calls[0])
        assert hydration.approvals == (approval,)
        assert hydration.last_event_seq == 3
        assert hydration.root == store.load_root("alice")


class FencingConformance:
    """Two owners: exactly one can commit."""

    def test_stale_owner_is_refused(self, store_factory: StoreFactory) -> None:
        old = owned(store_factory())
        new = Owner(store_factory(), "alice")
        new.claim()
        with pytest.raises(OwnershipLostError):
            old.append("from the old one")
        new.append("from the new one")
        assert [record.content for record in new.store.read_journal("alice")] == ["from the new one"]

    def test_stale_owner_is_refused_whatever_it_writes(self, store_factory: StoreFactory) -> None:
        old = owned(store_factory())
        Owner(store_factory(), "alice").claim()
        with pytest.raises(OwnershipLostError):
            old.start("e1")
        with pytest.raises(OwnershipLostError):
            old.append()
        assert old.store.find_execution("e1") is None

    def test_owner_of_a_missing_agent_is_refused(self, store_factory: StoreFactory) -> None:
        owner = Owner(store_factory(), "nobody")
        with pytest.raises(OwnershipLostError):
            owner.append("hello")

    def test_two_owners_racing_never_both_commit(self, store_factory: StoreFactory) -> None:
        first, second = Owner(store_factory(), "alice"), Owner(store_factory(), "alice")
        first.store.create_agent(samples.new_agent("alice"))

        def work(owner: Owner) -> list[str]:
            done: list[str] = []
            for number in range(12):
                try:
                    if not done or number % 4 == 0:
                        owner.claim()
                    owner.append(f"{id(owner)}-{number}")
                    done.append(f"{id(owner)}-{number}")
                except OwnershipLostError:
                    owner.claim()
            return done

        committed = race(lambda: work(first), lambda: work(second))
        journal = first.store.read_journal("alice")
        assert [record.position for record in journal] == list(range(1, len(journal) + 1))
        assert sorted(record.content for record in journal) == sorted([*committed[0], *committed[1]])

    def test_two_writers_of_one_epoch_conflict(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        twin = Owner(store_factory(), "alice")
        twin.epoch = owner.epoch
        twin.number = 100
        results = race(lambda: owner.append("a"), lambda: twin.append("b"))
        assert [type(result) for result in results].count(ConflictError) == 1, results
        assert len(owner.store.read_journal("alice")) == 1


class SettleConformance:
    """Did that commit happen?"""

    def test_settle_tells_both_outcomes(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        commit = owner.commit("a")
        other = store_factory()
        assert other.settle("alice", epoch=owner.epoch, commit_id=commit.commit_id) is False
        owner.execute(commit)
        assert other.settle("alice", epoch=owner.epoch, commit_id=commit.commit_id) is True

    def test_settle_of_a_lost_owner(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        happened = owner.append("a")
        never = owner.commit("b")
        Owner(store_factory(), "alice").claim()
        assert owner.store.settle("alice", epoch=owner.epoch, commit_id=happened.commit_id) is True
        with pytest.raises(OwnershipLostError):
            owner.store.settle("alice", epoch=owner.epoch, commit_id=never.commit_id)
        with pytest.raises(OwnershipLostError):
            owner.store.settle("nobody", epoch=1, commit_id="x")


ALL = (
    AgentConformance,
    FencingConformance,
    CommitConformance,
    ExecutionConformance,
    SettleConformance,
    GroupConformance,
    DeliveryConformance,
    HydrationConformance,
    PlacementConformance,
    PurgeConformance,
    RetentionConformance,
    CancellationConformance,
    QueueConformance,
    SupervisionConformance,
    ContentConformance,
    ContentCollectionConformance,
    ReadConformance,
    ApprovalConformance,
    RuleConformance,
)

__all__ = ["ALL", "StoreFactory", "race", *(cls.__name__ for cls in ALL)]
