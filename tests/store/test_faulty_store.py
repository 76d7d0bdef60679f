"""The fault-injecting decorator does what its name says, and nothing else."""

from __future__ import annotations

import time
from typing import Any

import pytest

from phronomy_ray.errors import CommitOutcomeUnknownError, ConflictError, StoreUnavailableError
from phronomy_ray.store.port import Store
from phronomy_ray.testing import store_conformance as suite
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.testing.store_samples import owned


@pytest.fixture
def faulty(sqlite_database: Any) -> FaultyStore:
    return FaultyStore(sqlite_database.open())


def contents(store: Store) -> list[Any]:
    return [record.content for record in store.read_journal("alice")]


def test_failing_before_writes_nothing(faulty: FaultyStore) -> None:
    owner = owned(faulty)
    faulty.fail_before("batch", nth=2)
    owner.append(1, step="batch")
    owner.append(2, step="admit")
    commit = owner.commit(3, step="batch")
    with pytest.raises(StoreUnavailableError):
        owner.execute(commit)
    assert contents(faulty) == [1, 2]
    owner.execute(commit)
    assert contents(faulty) == [1, 2, 3]
    assert [commit.step for commit in faulty.executed] == ["batch", "admit", "batch"]


def test_a_fault_strikes_its_own_commits_of_a_group(faulty: FaultyStore) -> None:
    owners = [owned(faulty, name) for name in ("alice", "bob", "carol")]
    faulty.fail_before("batch")
    faulty.fail_after("results")
    steps = ("batch", "results", "admit")
    group = [owner.commit(1, step=step) for owner, step in zip(owners, steps, strict=True)]
    outcomes = faulty.execute_group(group)
    assert [type(outcome) for outcome in outcomes] == [
        StoreUnavailableError, CommitOutcomeUnknownError, type(None),
    ]  # fmt: skip
    assert [len(faulty.read_journal(owner.agent_id)) for owner in owners] == [0, 1, 1]
    assert faulty.executed == group[1:]
    assert faulty.execute_group(group) == [None] * 3


def test_failing_after_is_committed_but_unknown(faulty: FaultyStore) -> None:
    owner = owned(faulty)
    faulty.fail_after("results")
    commit = owner.commit("there", step="results")
    with pytest.raises(CommitOutcomeUnknownError):
        owner.execute(commit)
    assert faulty.settle("alice", epoch=owner.epoch, commit_id=commit.commit_id) is True
    owner.execute(commit)
    assert contents(faulty) == ["there"]


def test_always_failing_until_healed(faulty: FaultyStore) -> None:
    owner = owned(faulty)
    faulty.always_fail()
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            owner.append("x")
        with pytest.raises(StoreUnavailableError):
            faulty.load_root("alice")
    faulty.heal()
    owner.append("y")
    assert contents(faulty) == ["y"]


def test_methods_are_steps_and_errors_can_be_chosen(faulty: FaultyStore) -> None:
    owner = owned(faulty)
    faulty.fail_before("claim", error=ConflictError("chosen"))
    with pytest.raises(ConflictError, match="chosen"):
        owner.claim()
    owner.claim()
    assert faulty.calls == ["create_agent", "claim", "claim", "claim"]


def test_delay(faulty: FaultyStore) -> None:
    owner = owned(faulty)
    faulty.delay("slow", 0.05)
    started = time.monotonic()
    owner.append(step="slow")
    assert time.monotonic() - started >= 0.05


class TestCommitsThroughTheDecorator(suite.CommitConformance):
    """Without faults it is the inner store."""

    @pytest.fixture
    def store_factory(self, sqlite_database: Any) -> suite.StoreFactory:
        return lambda: FaultyStore(sqlite_database.open())
