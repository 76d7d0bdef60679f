"""The store port's contract as tests: commits of several agents that are executed together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.commits import Commit, ExecutionUpdate
from phronomy_ray.errors import (
    AgentBusyError,
    ConflictError,
    InvalidInputError,
    OwnershipLostError,
    PhronomyError,
    SerializationError,
    StateConflictError,
    StoreUnavailableError,
)
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus, Phase, ToolCallStatus
from phronomy_ray.store.port import Store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned, race


class GroupConformance:
    """What a group does is what its commits do."""

    @pytest.mark.parametrize("size", [0, 1, 2, 9])
    def test_every_commit_of_a_group_happens(self, store_factory: StoreFactory, size: int) -> None:
        store = store_factory()
        owners = owners_of(store, size)
        execute(store, *(owner.commit(owner.agent_id, "é") for owner in owners))
        for owner in owners:
            assert journal(store, owner) == [owner.agent_id, "é"]
            assert store.load_root(owner.agent_id).agent_revision == 1
            owner.revision, owner.position = 1, 2
            owner.append("and the next one by itself")

    def test_what_is_no_progress_in_a_group_leaves_the_count(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owners = owners_of(store, 5)
        execute(
            store, *(owner.commit("x", is_progress=number % 2 == 0) for number, owner in enumerate(owners))
        )
        starts = [store.load_root(owner.agent_id).starts_without_progress for owner in owners]
        assert starts == [0, 1, 0, 1, 0]

    @pytest.mark.parametrize("size", [2, 5])
    def test_every_kind_of_row_is_written_as_by_single_commits(
        self, store_factory: StoreFactory, size: int
    ) -> None:
        store = store_factory()
        owners = owners_of(store, 2 * size)
        together, alone = owners[:size], owners[size:]
        for number in range(TURN_COMMITS):
            commits = [turn_commit(owner, number) for owner in together]
            execute(store, *commits)
            for owner, commit in zip(together, commits, strict=True):
                owner.revision, owner.position = commit.expected_revision + 1, commit.position_after
            for owner in alone:
                owner.execute(turn_commit(owner, number))
        assert stored(store, together[0])["tool_calls"]
        for owner, other in zip(together, alone, strict=True):
            assert stored(store, owner) == stored(store, other)

    @pytest.mark.parametrize("size", [2, 9])
    def test_a_stale_owner_is_refused_and_nobody_else(self, store_factory: StoreFactory, size: int) -> None:
        store = store_factory()
        owners = owners_of(store, size)
        commits = [owner.commit("mine") for owner in owners]
        Owner(store, owners[1].agent_id).claim()
        outcomes = store.execute_group(commits)
        assert [type(outcome) for outcome in outcomes if outcome] == [OwnershipLostError]
        assert isinstance(outcomes[1], OwnershipLostError)
        assert outcomes[1].details["epoch"] == 2
        assert [journal(store, owner) for owner in owners] == [
            [] if number == 1 else ["mine"] for number in range(size)
        ]

    def test_every_refusal_has_its_own_error(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owners = owners_of(store, 12)
        execution = {owner.agent_id: owner.start(f"e-{owner.agent_id}") for owner in owners[3:7]}
        request = samples.queued_request("taken", agent_id=owners[0].agent_id)
        owners[0].append(new_requests=(request,))
        name = [owner.agent_id for owner in owners]
        commits = [owner.commit("x") for owner in owners]
        commits[1] = replace(commits[1], expected_revision=7)
        commits[2] = replace(commits[2], new_execution=samples.execution(f"e-{name[4]}", name[2]))
        commits[3] = replace(commits[3], new_execution=samples.execution("new", name[3]))
        commits[4] = replace(commits[4], new_requests=(replace(request, agent_id=name[4]),))
        stale = ExecutionUpdate(4, replace(execution[name[5]], revision=5))
        commits[5] = replace(commits[5], execution=stale)
        commits[6] = replace(
            commits[6], tool_calls=(samples.tool_call(execution[name[6]].execution_id, name[6]),)
        )
        commits[7] = replace(commits[7], journal=(samples.record(5),))
        commits[8] = replace(commits[8], journal=(samples.record(1, object()),))
        commits[9] = replace(commits[9], context_revision=2**70)
        commits[10] = replace(commits[10], ended_requests=("taken",))
        expected = [
            None, ConflictError, StateConflictError, AgentBusyError, StateConflictError, ConflictError,
            ConflictError, StateConflictError, SerializationError, SerializationError, ConflictError, None,
        ]  # fmt: skip
        outcomes = store.execute_group(commits)
        assert [type(outcome) if outcome else None for outcome in outcomes] == expected
        for owner, commit, outcome in zip(owners, commits, outcomes, strict=True):
            assert journal(store, owner) == ([] if outcome else ["x"])
            if outcome is not None:
                with pytest.raises(type(outcome)) as alone:
                    store.execute(commit)
                assert str(alone.value) == str(outcome)
                assert alone.value.details == outcome.details

    def test_two_of_a_group_cannot_take_one_id(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owners = owners_of(store, 6)
        outcomes = store.execute_group(
            [
                owner.commit("x", new_execution=samples.execution("the-same", owner.agent_id))
                for owner in owners
            ]
        )
        assert outcomes[0] is None
        assert all(isinstance(outcome, StateConflictError) for outcome in outcomes[1:])
        assert store.load_execution("the-same").agent_id == owners[0].agent_id
        assert [journal(store, owner) for owner in owners] == [["x"], [], [], [], [], []]

    def test_what_has_happened_already_succeeds_and_writes_nothing(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owners = owners_of(store, 5)
        first = [owner.commit("once") for owner in owners]
        store.execute(first[3])
        execute(store, *first)
        execute(store_factory(), *reversed(first))
        assert [journal(store, owner) for owner in owners] == [["once"]] * 5

    def test_a_group_has_one_commit_of_each_agent(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        alice, bob = owned(store, "alice"), owned(store, "bob")
        with pytest.raises(InvalidInputError):
            store.execute_group([alice.commit("a"), bob.commit("b"), alice.commit("a")])
        assert journal(store, alice) == journal(store, bob) == []

    def test_contents_that_several_commits_name_are_kept_once(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        owners = owners_of(store, 5)
        large = {"text": "z" * 9000}
        named = (content_hash("shared"), "shared")
        execute(store, *(owner.commit(large, contents=(named,)) for owner in owners))
        assert store.read_content(named[0]) == "shared"
        assert [journal(store, owner) for owner in owners] == [[large]] * 5

    def test_groups_of_two_owners_racing_never_both_commit(self, store_factory: StoreFactory) -> None:
        stores = [store_factory(), store_factory()]
        owners = [owners_of(stores[0], 8), []]
        for owner in owners[0]:
            twin = Owner(stores[1], owner.agent_id)
            twin.epoch, twin.number = owner.epoch, 100
            owners[1].append(twin)
        for number in range(6):
            for owner, twin in zip(*owners, strict=True):
                owner.revision = twin.revision = owner.position = twin.position = number
            sides = [[owner.commit(f"{number}") for owner in side] for side in owners]
            outcomes = race(
                partial(until_known, stores[0], sides[0]), partial(until_known, stores[1], sides[1][::-1])
            )
            outcomes[1].reverse()
            for one, other in zip(*outcomes, strict=True):
                assert [type(item) for item in (one, other) if item] == [ConflictError], (one, other)
        assert [journal(stores[0], owner) for owner in owners[0]] == [[str(n) for n in range(6)]] * 8


def until_known(store: Store, commits: list[Commit]) -> list[PhronomyError | None]:
    """Execute a group, and again what somebody else's transaction was in the way of."""
    outcomes = dict(enumerate(store.execute_group(commits)))
    while again := [index for index, item in outcomes.items() if isinstance(item, StoreUnavailableError)]:
        outcomes.update(zip(again, store.execute_group([commits[index] for index in again]), strict=True))
    return [outcomes[index] for index in range(len(commits))]


def owners_of(store: Store, count: int) -> list[Owner]:
    """That many agents, created and claimed; their ids are not in order."""
    return [owned(store, f"agent-{(7 * number) % 97:02}") for number in range(count)]


def execute(store: Store, *commits: Commit) -> None:
    """Execute a group that nobody refuses."""
    assert store.execute_group(commits) == [None] * len(commits)


def journal(store: Store, owner: Owner) -> list[Any]:
    """Contents of an agent's records."""
    return [record.content for record in store.read_journal(owner.agent_id)]


#: Commits that `turn_commit` knows.
TURN_COMMITS = 4


def turn_commit(owner: Owner, number: int) -> Commit:
    """The commit of this number of a turn that writes every kind of row, small and large."""
    agent_id = owner.agent_id
    execution_id, large = f"e-{agent_id}", {"text": "q\"'\\ é" * 1000}
    row = samples.execution(execution_id, agent_id, input=large)
    model = samples.model_call(execution_id)
    calls = tuple(
        samples.tool_call(execution_id, agent_id, index, tool_call_id=f"c{index}-{agent_id}")
        for index in range(3)
    )
    approval = samples.approval(calls[0], approval_request_id=f"a-{agent_id}")
    request = samples.queued_request(f"q-{agent_id}", agent_id=agent_id, input=large, deadline_at=START)
    match number:
        case 0:
            return owner.commit("asked", new_execution=row, new_model_calls=(model,), new_requests=(request,))
        case 1:
            return owner.commit(
                large,
                execution=ExecutionUpdate(1, replace(row, revision=2, state={"n": [1, None, True]})),
                model_calls=(replace(model, usage={"input_tokens": 3}, attempts=[{"n": 1}]),),
                new_tool_calls=calls,
                new_approvals=(approval,),
                events=(samples.event(execution_id, agent_id, 1, large),),
                contents=((content_hash("of all"), "of all"),),
            )
        case 2:
            return owner.commit(
                tool_calls=(replace(calls[1], status=ToolCallStatus.SUCCEEDED, result=large),),
                revised_tool_calls=(replace(calls[0], requires_approval=True, arguments={"b": 1}),),
                approvals=(replace(approval, status=ApprovalStatus.APPROVED, decided_by="é"),),
                events=(
                    samples.event(execution_id, agent_id, 2),
                    samples.event(execution_id, agent_id, 3),
                ),
            )
        case _:
            done = replace(row, revision=3, status=ExecutionStatus.COMPLETED, phase=Phase.ENDED, output="out")
            return owner.commit(
                "answered",
                execution=ExecutionUpdate(2, done),
                ended_requests=(request.execution_id,),
            )


def stored(store: Store, owner: Owner) -> dict[str, Any]:
    """All that is stored of an agent, without its own name."""
    agent_id = owner.agent_id
    executions = store.list_executions(agent_id=agent_id)
    found = {
        "root": store.load_root(agent_id),
        "journal": store.read_journal(agent_id),
        "executions": executions,
        "requests": store.queued_requests(agent_id),
        "approvals": store.approvals(agent_id=agent_id),
        "model_calls": [store.model_calls(row.execution_id) for row in executions],
        "tool_calls": [store.tool_calls(row.execution_id) for row in executions],
        "events": [store.events(row.execution_id) for row in executions],
    }
    return {name: repr(value).replace(agent_id, "<agent>") for name, value in found.items()}


__all__ = ["GroupConformance"]
