"""The store port's contract, continued: what a claim reads for an owner that serves one definition, and which claims are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.commits import Hydration
from phronomy_ray.errors import NotFoundError
from phronomy_ray.journal import RecordKind
from phronomy_ray.parking import ParkReason
from phronomy_ray.store.port import Store
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned


class HydrationConformance:
    """`Store.claim_served` and what it reads."""

    def test_the_newest_records_come_with_the_claim(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owned(store, "alice", "one", {"text": "z" * 9_000}, "three", "four")
        owned(store, "bob", "not mine")
        found = _claim(store, recent=3)
        assert found is not None
        assert (found.root.epoch, found.root.starts_without_progress) == (2, 2)
        assert _contents(found) == [{"text": "z" * 9_000}, "three", "four"]
        assert found.has_older
        found = _claim(store, recent=5)
        assert found is not None
        assert _contents(found) == ["one", {"text": "z" * 9_000}, "three", "four"]
        assert not found.has_older

    def test_an_agent_without_records_has_none(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owned(store)
        found = _claim(store, recent=5)
        assert found is not None
        assert (found.recent, found.has_older) == ((), False)

    def test_all_records_of_the_running_execution_come_with_it(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store, "alice", "one", "two", "three")
        owner.start("e1")
        owner.append("four", "five", "six")
        found = _claim(store, recent=1)
        assert found is not None
        assert found.execution is not None
        assert _contents(found) == ["three", "four", "five", "six"]
        assert found.has_older

    def test_what_no_model_sees_is_not_read(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        _append(owner, *[RecordKind.EXTERNAL_MESSAGE, RecordKind.TOOL_RESULT] * 3)
        found = _claim(store, recent=3)
        assert found is not None
        assert [record.position for record in found.recent] == [1, 3, 5]
        page = store.read_journal("alice", before=5, limit=1, newest_first=True, view_only=True)
        assert [record.position for record in page] == [3]

    def test_knowledge_is_found_however_old_it_is(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        message = [RecordKind.EXTERNAL_MESSAGE] * 5
        _append(owner, RecordKind.KNOWLEDGE, *message)
        assert _known(store) == [1]
        _append(owner, RecordKind.KNOWLEDGE, *message, RecordKind.TRANSCRIPT_CLEARED)
        assert _known(store) == [1, 7]
        for clearing in (RecordKind.KNOWLEDGE_CLEARED, RecordKind.CONTEXT_RESET):
            _append(owner, clearing, *message)
            assert _known(store) == []
            _append(owner, RecordKind.KNOWLEDGE, *message)
            assert len(_known(store)) == 1

    def test_another_definition_s_agent_is_left_alone(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        before = store.load_root("alice")
        assert _claim(store, definition_id="other") is None
        assert _claim(store, definition_version="2") is None
        assert _claim(store, agent_id="nobody") is None
        assert store.load_root("alice") == before
        owner.append("still mine")

    def test_a_parked_agent_is_left_alone(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        store.park_agent("alice", epoch=owner.epoch, reason=ParkReason("no_progress", "it crashed", START))
        before = store.load_root("alice")
        assert _claim(store) is None
        assert store.load_root("alice") == before

    def test_several_contents_are_read_at_once(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owner = owned(store)
        one, two, missing = (content_hash(text) for text in ("one", "two", "three"))
        owner.append(contents=((one, "one"), (two, "two")))
        assert store.read_contents([two, one]) == {one: "one", two: "two"}
        assert store.read_contents([]) == {}
        with pytest.raises(NotFoundError, match=missing):
            store.read_contents([one, missing])


def _claim(store: Store, *, recent: int = 2, **changes: Any) -> Hydration | None:
    guards = {"agent_id": "alice", "definition_id": "sample", "definition_version": "1"} | changes
    return store.claim_served(**guards, recent=recent, owner={}, now=START)


def _contents(found: Hydration) -> list[Any]:
    return [record.content for record in found.recent]


def _known(store: Store) -> list[int]:
    found = _claim(store, recent=2)
    assert found is not None
    return [record.position for record in found.knowledge]


def _append(owner: Owner, *kinds: RecordKind) -> None:
    """Records of these kinds, by whoever owns the agent now."""
    owner.claim()
    commit = owner.commit(*range(len(kinds)))
    records = tuple(replace(record, kind=kind) for record, kind in zip(commit.journal, kinds, strict=True))
    owner.execute(replace(commit, journal=records))
