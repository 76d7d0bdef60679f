"""A group of random commits, some of them refused, leaves what the same commits leave one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phronomy_ray.commits import Commit, ExecutionUpdate
from phronomy_ray.errors import PhronomyError
from phronomy_ray.store.port import Store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_groups_conformance import TURN_COMMITS, stored, turn_commit
from phronomy_ray.testing.store_samples import Owner, owned

_NAMES = itertools.count()

#: What may be wrong with a commit; ``shared`` is an id of the round that other commits may want too.
SPOILERS: dict[str, Callable[[Owner, Commit, str], Commit]] = {
    "none": lambda _owner, commit, _shared: commit,
    "revision": lambda _owner, commit, _shared: replace(
        commit, expected_revision=commit.expected_revision + 1
    ),
    "epoch": lambda _owner, commit, _shared: replace(commit, epoch=commit.epoch - 1),
    "position": lambda _owner, commit, _shared: replace(
        commit, expected_position=commit.expected_position + 3, journal=()
    ),
    "gap": lambda owner, commit, _shared: replace(commit, journal=(samples.record(owner.position + 2),)),
    "too large": lambda _owner, commit, _shared: replace(commit, context_revision=2**66),
    "missing row": lambda owner, commit, _shared: replace(
        commit, model_calls=(samples.model_call(f"never-{owner.agent_id}"),)
    ),
    "missing request": lambda owner, commit, _shared: replace(
        commit, ended_requests=(f"never-{owner.agent_id}",)
    ),
    "execution": lambda owner, commit, _shared: replace(
        commit,
        execution=ExecutionUpdate(
            7, samples.execution(f"e-{owner.agent_id}", owner.agent_id, revision=8)
        ),
    ),
    "shared execution": lambda owner, commit, shared: replace(
        commit, execution=None, new_execution=samples.execution(shared, owner.agent_id)
    ),
    "shared request": lambda owner, commit, shared: replace(
        commit, new_requests=(samples.queued_request(f"{shared}q", agent_id=owner.agent_id),)
    ),
    "shared model call": lambda owner, commit, shared: replace(
        commit,
        new_model_calls=(
            replace(samples.model_call(f"e-{owner.agent_id}"), model_call_id=f"{shared}m"),
        ),
    ),
    "foreign key": lambda owner, commit, _shared: replace(
        commit, events=(samples.event(f"never-{owner.agent_id}", owner.agent_id, 1),)
    ),
}  # fmt: skip

ROUNDS = st.lists(
    st.lists(st.sampled_from(["none", "none", "none", *SPOILERS]), min_size=7, max_size=7),
    min_size=1,
    max_size=TURN_COMMITS,
)


@pytest.mark.parametrize("size", [3, 7])
def test_a_group_equals_its_commits_one_by_one(database: Any, size: int) -> None:
    store = database.open()

    @settings(max_examples=4, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(rounds=ROUNDS)
    def check(rounds: list[list[str]]) -> None:
        number = next(_NAMES)
        together = [owned(store, f"{number}-t-{index}") for index in range(size)]
        alone = [owned(store, f"{number}-s-{index}") for index in range(size)]
        for turn, spoilers in enumerate(rounds):
            for side, execute in ((together, grouped), (alone, one_by_one)):
                shared = f"{side[0].agent_id}-{turn}"
                commits = [
                    SPOILERS[spoiler](owner, turn_commit(owner, turn), shared)
                    for owner, spoiler in zip(side, spoilers, strict=False)
                ]
                outcomes = execute(store, commits)
                for owner, commit, outcome in zip(side, commits, outcomes, strict=True):
                    owner.outcome = outcome  # type: ignore[attr-defined]
                    if outcome is None:
                        owner.revision, owner.position = commit.expected_revision + 1, commit.position_after
            for one, other in zip(together, alone, strict=True):
                assert told(one) == told(other)
                assert without_side(stored(store, one), one) == without_side(stored(store, other), other)

    check()


def grouped(store: Store, commits: list[Commit]) -> list[PhronomyError | None]:
    return store.execute_group(commits)


def one_by_one(store: Store, commits: list[Commit]) -> list[PhronomyError | None]:
    outcomes: list[PhronomyError | None] = []
    for commit in commits:
        try:
            store.execute(commit)
        except PhronomyError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


def told(owner: Owner) -> Any:
    outcome: PhronomyError | None = owner.outcome  # type: ignore[attr-defined]
    return outcome and (type(outcome), without_side({"told": str(outcome)}, owner))


def without_side(values: dict[str, str], owner: Owner) -> dict[str, str]:
    number, side, _ = owner.agent_id.split("-")
    return {name: value.replace(f"{number}-{side}-", "<side>") for name, value in values.items()}
