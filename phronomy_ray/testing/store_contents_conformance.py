"""The store port's contract as tests: contents that nothing refers to go, and no other."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from phronomy_ray.canonical_json import content_hash, dumps
from phronomy_ray.errors import InvalidInputError, NotFoundError
from phronomy_ray.journal import ExecutionStatus, Phase
from phronomy_ray.retention import CollectedContents
from phronomy_ray.store.port import Store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned

AGE = timedelta(hours=3)
LATER = START + timedelta(days=1)


def purge(owner: Owner) -> None:
    """Delete the owner's agent."""
    created_at = owner.store.load_root(owner.agent_id).created_at
    assert created_at is not None
    owner.store.purge_agent(owner.agent_id, epoch=owner.epoch, created_at=created_at)


def collect(store: Store, now: datetime, *, limit: int = 10_000) -> CollectedContents:
    """All steps of one collection."""
    total, after = CollectedContents(0, 0, 0, 0), ""
    while True:
        step = store.collect_contents(now=now, older_than=AGE, limit=limit, after=after)
        total = CollectedContents(
            total.looked_at + step.looked_at,
            total.condemned + step.condemned,
            total.restored + step.restored,
            total.deleted + step.deleted,
        )
        after = step.next
        if not after:
            return total


class ContentCollectionConformance:
    """Garbage collection of contents."""

    @pytest.mark.parametrize("limit", [3, 10_000])
    def test_what_a_purge_leaves_goes_and_what_others_have_stays(
        self, store_factory: StoreFactory, limit: int
    ) -> None:
        store = store_factory()
        alice, bob = owned(store, "alice"), owned(store, "bob")
        shared, private = {"text": "s" * 9_000}, {"text": "p" * 9_000}
        alice.append(shared, private)
        bob.append(shared)
        purge(alice)
        first = collect(store, LATER, limit=limit)
        assert (first.condemned, first.restored, first.deleted) == (1, 0, 0)
        assert store.read_content(content_hash(dumps(private))) == dumps(private), "still readable"
        soon = collect(store, LATER + AGE - timedelta(seconds=1), limit=limit)
        assert (soon.condemned, soon.deleted) == (0, 0)
        last = collect(store, LATER + AGE, limit=limit)
        assert (last.condemned, last.deleted) == (0, 1)
        with pytest.raises(NotFoundError):
            store.read_content(content_hash(dumps(private)))
        assert [record.content for record in store.read_journal("bob")] == [shared]

    def test_everything_that_an_agent_refers_to_stays(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        samples.write_everything(owner, "a word")
        instructions, output = "i" * 50, "o" * 50
        row = owner.start(
            "named", state={"instructions": content_hash(instructions), "output": [content_hash(output), ""]}
        )
        tools = "[1]"
        model = samples.model_call(
            "named", manifest={"tools": content_hash(tools), "patch": {"messages": content_hash("[]")}}
        )
        named = [instructions, output, tools, "[]"]
        owner.append(new_model_calls=(model,), contents=tuple((content_hash(text), text) for text in named))
        owner.change(row, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED, state=row.state)
        everything = [
            store.read_journal("alice"),
            *(
                (
                    store.load_execution(id_),
                    store.tool_calls(id_),
                    store.approvals(execution_id=id_),
                    store.events(id_),
                )
                for id_ in ("e1", "e2")
            ),
            store.queued_requests("alice"),
        ]
        for days in range(3):
            # `write_everything` keeps one text by a hash that no row names
            assert collect(store, LATER + timedelta(days=days)).restored == 0
        again = store_factory()
        assert everything == [
            again.read_journal("alice"),
            *(
                (
                    again.load_execution(id_),
                    again.tool_calls(id_),
                    again.approvals(execution_id=id_),
                    again.events(id_),
                )
                for id_ in ("e1", "e2")
            ),
            again.queued_requests("alice"),
        ]
        assert [again.read_content(content_hash(text)) for text in named] == named

    def test_what_is_said_again_while_it_is_condemned_comes_back(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        alice = owned(store, "alice")
        value = {"text": "v" * 9_000}
        alice.append(value)
        purge(alice)
        assert collect(store, LATER).condemned == 1
        bob = owned(store, "bob")
        bob.append(value)
        assert [record.content for record in store.read_journal("bob")] == [value]
        assert collect(store, LATER + AGE).condemned == 0
        assert collect(store, LATER + 2 * AGE).deleted == 0
        assert [record.content for record in store_factory().read_journal("bob")] == [value]
        purge(bob)
        assert collect(store, LATER + 3 * AGE).condemned == 1
        assert collect(store, LATER + 4 * AGE).deleted == 1

    def test_a_dry_run_changes_nothing(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        alice = owned(store, "alice")
        alice.append({"text": "v" * 9_000})
        purge(alice)
        for now in (LATER, LATER + AGE):
            dry = store.collect_contents(now=now, older_than=AGE, dry_run=True)
            assert replace(dry, looked_at=0) == CollectedContents(0, 1, 0, 0)

    def test_nothing_is_deleted_at_once(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owned(store)
        for older_than, limit in ((timedelta(hours=1), 1), (AGE, 0)):
            with pytest.raises(InvalidInputError):
                store.collect_contents(now=LATER, older_than=older_than, limit=limit)


__all__ = ["ContentCollectionConformance", "collect", "purge"]
