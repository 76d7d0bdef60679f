"""The store port's contract as tests: who is told of events, and what is still to be delivered."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from phronomy_ray.errors import ConflictError
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.retention import Collectable
from phronomy_ray.store.port import Store
from phronomy_ray.subscriptions import (
    Callback,
    Delivery,
    DeliveryError,
    Subscription,
    Webhook,
    event_id,
)
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned, race

NOW = START + timedelta(days=1)
ERROR = DeliveryError("http_status", "the receiver answered 503", 503)


def _subscribed(store: Store, name: str = "s1", *types: str) -> Subscription:
    return store.add_subscription(
        Subscription(name, Webhook(url="https://example.org/x", events=types), START)
    )


def _tell(owner: Owner, execution_id: str, *seqs: int, type: str = "tool_result") -> None:
    rows = (replace(samples.event(execution_id, owner.agent_id, seq), type=type) for seq in seqs)
    owner.append(events=tuple(rows))


def _waiting(store: Store, name: str = "s1", agent_id: str = "alice") -> list[tuple[str, int]]:
    return [
        (item.event.execution_id, item.event.seq)
        for item in store.deliveries_of(name, agent_id, limit=10_000)
    ]


def _next(store: Store, agent_id: str = "alice") -> Delivery:
    return store.deliveries_of("s1", agent_id, limit=1)[0]


class DeliveryConformance:
    """Subscriptions, leases, deliveries, dead letters."""

    def test_a_subscription_is_kept_once(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        hook = Subscription(
            "billing",
            Webhook(url="https://example.org/in", secret_env="BILLING", events=["completed", "failed"]),
            START,
        )
        other = Subscription(
            "audit",
            Callback(function="audit:write", max_attempts=3, timeout_s=2),
            START + timedelta(seconds=1),
        )
        assert store.add_subscription(hook) == hook
        assert store.add_subscription(other) == other
        assert store_factory().add_subscription(replace(hook, created_at=NOW)) == hook
        with pytest.raises(ConflictError):
            store.add_subscription(replace(hook, target=other.target))
        assert [state.subscription for state in store.subscriptions()] == [hook, other]
        assert [lease.subscription for lease in store.subscription_leases()] == [hook, other]
        assert store.remove_subscription("billing") is True
        assert store.remove_subscription("billing") is False
        assert [state.subscription for state in store.subscriptions()] == [other]

    def test_events_are_to_be_delivered_from_their_commit_on(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        alice = owned(store)
        alice.start("ex1")
        _tell(alice, "ex1", 1)
        _subscribed(store)
        _subscribed(store, "ends", "completed", "failed")
        _tell(alice, "ex1", 2, 3)
        _tell(alice, "ex1", 4, type="completed")
        _tell(alice, "ex1", 5, type="complete")
        assert _waiting(store) == [("ex1", seq) for seq in (2, 3, 4, 5)]
        assert _waiting(store, "ends") == [("ex1", 4)]
        found = _next(store)
        assert found.event == samples.event("ex1", "alice", 2)
        assert (found.attempts, found.since, found.next_at, found.error) == (0, START, None, None)
        states = {state.subscription.subscription_id: state for state in store.subscriptions()}
        assert (states["s1"].waiting, states["s1"].dead, states["s1"].oldest_waiting_at) == (4, 0, START)
        assert states["ends"].waiting == 1

    def test_a_refused_commit_delivers_nothing(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        _subscribed(store)
        alice = owned(store)
        alice.start("ex1")
        stale = alice.commit(events=(samples.event("ex1", "alice", 1),))
        alice.append("moved on")
        with pytest.raises(ConflictError):
            store.execute(stale)
        assert _waiting(store) == []

    def test_a_repeated_commit_delivers_once(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        _subscribed(store)
        alice = owned(store)
        alice.start("ex1")
        commit = alice.commit(events=(samples.event("ex1", "alice", 1),))
        store.execute(commit)
        store.execute(commit)
        assert _waiting(store) == [("ex1", 1)]

    def test_events_of_a_group_are_in_order(self, store_factory: StoreFactory) -> None:
        """Many agents in one transaction, many events each, one of them too large for a row."""
        store = store_factory()
        _subscribed(store)
        owners = [owned(store, f"agent{number}") for number in range(6)]
        for owner in owners:
            owner.start(f"ex-{owner.agent_id}")
        for first in (1, 41):
            group = [
                owner.commit(
                    events=tuple(
                        samples.event(
                            f"ex-{owner.agent_id}", owner.agent_id, seq, {"text": "x" * 300 * (seq % 30)}
                        )
                        for seq in range(first, first + 40)
                    )
                )
                for owner in owners
            ]
            assert store.execute_group(group) == [None] * 6
            for owner, commit in zip(owners, group, strict=True):
                owner.revision = commit.expected_revision + 1
        for owner in owners:
            expected = [(f"ex-{owner.agent_id}", seq) for seq in range(1, 81)]
            assert _waiting(store, agent_id=owner.agent_id) == expected
        assert len(_next(store, "agent0").event.payload["text"]) == 300
        assert store.deliveries_of("s1", "agent0", limit=29)[-1].event.payload["text"] == "x" * 8700

    def test_events_of_two_executions_are_in_the_order_of_their_commits(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        _subscribed(store)
        alice = owned(store)
        row = alice.start("z-first")
        _tell(alice, "z-first", 1, 2)
        alice.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED)
        alice.start("a-second")
        _tell(alice, "a-second", 1)
        assert _waiting(store) == [("z-first", 1), ("z-first", 2), ("a-second", 1)]

    def test_who_takes_over_raises_the_epoch_and_the_former_one_records_nothing(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        _subscribed(store)
        alice = owned(store)
        alice.start("ex1")
        _tell(alice, "ex1", 1, 2)
        first = store.take_subscription("s1", holder="one", epoch=0, beats=0)
        assert first == 1
        assert store.beat_subscription("s1", epoch=1)
        [lease] = store.subscription_leases()
        assert (lease.holder, lease.epoch, lease.beats) == ("one", 1, 1)
        assert store.take_subscription("s1", holder="two", epoch=1, beats=0) is None, "it has moved"
        assert store.take_subscription("s1", holder="two", epoch=1, beats=1) == 2
        item = _next(store)
        assert not store.beat_subscription("s1", epoch=1)
        assert not store.free_subscription("s1", epoch=1)
        assert not store.delivery_done(item, epoch=1)
        assert not store.delivery_failed(item, epoch=1, error=ERROR, next_at=NOW)
        assert _next(store) == item
        assert store.delivery_done(item, epoch=2)
        assert not store.delivery_done(item, epoch=2)
        assert _waiting(store) == [("ex1", 2)]
        assert store.free_subscription("s1", epoch=2)
        [lease] = store.subscription_leases()
        assert (lease.holder, lease.epoch) == ("", 2)
        assert store.take_subscription("gone", holder="two", epoch=0, beats=0) is None

    def test_of_many_that_take_at_once_one_has_it(self, store_factory: StoreFactory) -> None:
        _subscribed(store_factory())
        stores = [store_factory() for _ in range(4)]
        taken = race(
            *(
                lambda store=store, name=str(number): store.take_subscription(
                    "s1", holder=name, epoch=0, beats=0
                )
                for number, store in enumerate(stores)
            )
        )
        assert sorted(item is not None for item in taken) == [False, False, False, True]

    def test_what_follows_a_delivery_that_waits_waits_too(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        _subscribed(store)
        for name in ("alice", "bob", "carol"):
            owner = owned(store, name)
            owner.start(f"ex-{name}")
            _tell(owner, f"ex-{name}", 1, 2)
        store.take_subscription("s1", holder="one", epoch=0, beats=0)
        assert store.due_agents("s1", now=NOW) == ["alice", "bob", "carol"]
        assert store.due_agents("s1", now=NOW, after="alice", limit=1) == ["bob"]
        later = NOW + timedelta(seconds=5)
        assert store.delivery_failed(_next(store, "bob"), epoch=1, error=ERROR, next_at=later)
        assert store.due_agents("s1", now=NOW) == ["alice", "carol"]
        assert store.due_agents("s1", now=later) == ["alice", "bob", "carol"]
        failed = _next(store, "bob")
        assert (failed.event.seq, failed.attempts, failed.next_at, failed.error) == (1, 1, later, ERROR)
        for name in ("alice", "carol"):
            for item in store.deliveries_of("s1", name):
                store.delivery_done(item, epoch=1)
        assert store.due_agents("s1", now=NOW) == []
        assert store.due_agents("other", now=NOW) == []

    def test_a_dead_letter_lets_the_next_one_through_and_can_begin_anew(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        _subscribed(store)
        _subscribed(store, "s2")
        alice = owned(store)
        alice.start("ex1")
        _tell(alice, "ex1", 1, 2)
        for name in ("s1", "s2"):
            store.take_subscription(name, holder="one", epoch=0, beats=0)
            item = store.deliveries_of(name, "alice")[0]
            assert store.delivery_failed(item, epoch=1, error=ERROR, next_at=None, dead_at=NOW)
        assert _waiting(store) == [("ex1", 2)]
        [dead] = store.dead_letters(subscription_id="s1")
        assert (dead.event.seq, dead.dead_at, dead.attempts, dead.error) == (1, NOW, 1, ERROR)
        both = store.dead_letters()
        assert [item.subscription_id for item in both] == ["s1", "s2"]
        assert store.dead_letters(after=both[0].delivery_id) == both[1:]
        assert store.dead_letters(limit=1) == both[:1]
        assert [state.dead for state in store.subscriptions()] == [1, 1]
        assert store.redeliver(now=NOW, subscription_id="s1", delivery_ids=[both[1].delivery_id]) == 0
        assert store.redeliver(now=NOW, subscription_id="s1") == 1
        assert store.redeliver(now=NOW, subscription_id="s1") == 0
        assert store.redeliver(now=NOW, delivery_ids=[both[1].delivery_id]) == 1
        again = _next(store)
        assert (again.event.seq, again.attempts, again.since, again.dead_at) == (1, 0, NOW, None)
        assert event_id(again.event) == event_id(dead.event)
        assert _waiting(store) == [("ex1", 1), ("ex1", 2)]

    def test_what_is_to_be_delivered_is_not_collected(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        _subscribed(store)
        alice = owned(store)
        row = alice.start("ex1")
        _tell(alice, "ex1", 1, 2)
        alice.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED, ended_at=START)
        store.take_subscription("s1", holder="one", epoch=0, beats=0)
        store.delivery_done(_next(store), epoch=1)
        for kind in (Collectable.EVENTS, Collectable.EXECUTIONS):
            assert store.collect_rows(kind, before=NOW, dry_run=True).deleted == 0
            assert store.collect_rows(kind, before=NOW).deleted == 0
        assert len(store.events("ex1")) == 2
        store.delivery_failed(_next(store), epoch=1, error=ERROR, next_at=None, dead_at=NOW)
        assert store.collect_rows(Collectable.EVENTS, before=NOW).deleted == 2, "it was given up"
        assert store.dead_letters() == [], "a dead letter goes with its event"

    def test_what_was_to_be_delivered_goes_with_its_subscription_or_its_agent(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        _subscribed(store)
        _subscribed(store, "s2")
        alice = owned(store)
        row = alice.start("ex1")
        _tell(alice, "ex1", 1, 2)
        alice.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED, ended_at=START)
        assert store.remove_subscription("s1")
        _subscribed(store)
        assert _waiting(store) == []
        assert _waiting(store, "s2") == [("ex1", 1), ("ex1", 2)]
        assert store.forget_strays() == 0
        root = store.load_root("alice")
        assert root.created_at is not None
        assert store.purge_agent("alice", epoch=alice.epoch, created_at=root.created_at)
        assert _waiting(store, "s2") == []

    def test_commits_beside_a_subscription_that_comes_and_goes(self, store_factory: StoreFactory) -> None:
        """No commit fails for it, and what is left over can be swept up."""
        store, other = store_factory(), store_factory()
        alice = owned(store)
        alice.start("ex1")

        def commits() -> int:
            for seq in range(1, 61):
                _tell(alice, "ex1", seq)
            return 60

        def changes() -> int:
            for _ in range(30):
                _subscribed(other)
                other.remove_subscription("s1")
            return 30

        assert race(commits, changes) == [60, 30]
        store.forget_strays()
        _subscribed(store)
        assert _waiting(store) == []


__all__ = ["DeliveryConformance"]
