"""The store against a model of plain dicts: hypothesis drives two owners through every legal and illegal step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phronomy_ray.commits import Commit, ExecutionUpdate
from phronomy_ray.errors import AgentBusyError, ConflictError, OwnershipLostError, StateConflictError
from phronomy_ray.journal import ExecutionRow, ExecutionStatus
from phronomy_ray.store.port import Store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import Owner

_NAMES = itertools.count()
OPEN = (ExecutionStatus.PREPARING, ExecutionStatus.ACTIVE, ExecutionStatus.SUSPENDED)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)


@dataclass
class Agent:
    """What the database should hold."""

    epoch: int = 0
    revision: int = 0
    starts: int = 0
    last_commit_id: str | None = None
    journal: list[Any] = field(default_factory=list)
    executions: dict[str, ExecutionRow] = field(default_factory=dict)

    @property
    def open(self) -> list[ExecutionRow]:
        return [row for row in self.executions.values() if row.status in OPEN]


class StoreMachine(RuleBasedStateMachine):
    """One agent, two owners that may be stale, and commits that are repeated or built on old guards."""

    stores: tuple[Store, Store]

    @initialize()
    def create(self) -> None:
        number = next(_NAMES)
        self.agent_id = f"agent-{number}"
        self.model = Agent()
        self.stores[0].create_agent(samples.new_agent(self.agent_id))
        self.owners = [Owner(store, self.agent_id) for store in self.stores]
        for owner, offset in zip(self.owners, (0, 500_000), strict=True):
            owner.number = offset
        self.names = itertools.count()

    @rule(who=st.integers(0, 1))
    def claim(self, who: int) -> None:
        hydration = self.owners[who].claim()
        self.model.epoch += 1
        self.model.starts += 1
        assert hydration.root.epoch == self.model.epoch
        assert hydration.root.starts_without_progress == self.model.starts
        assert hydration.execution == (self.model.open[0] if self.model.open else None)

    @rule(who=st.integers(0, 1), values=st.lists(VALUES, max_size=3), shift=st.sampled_from([0, 0, 0, -1, 1]))
    def append(self, who: int, values: list[Any], shift: int) -> None:
        owner = self.owners[who]
        commit = owner.commit(*values)
        self._try(owner, replace(commit, expected_revision=commit.expected_revision + shift))

    @rule(who=st.integers(0, 1), known=st.booleans(), value=VALUES)
    def start(self, who: int, known: bool, value: Any) -> None:
        owner = self.owners[who]
        name = f"{self.agent_id}-e{next(self.names)}"
        if known and self.model.executions:
            name = next(iter(self.model.executions))
        row = samples.execution(name, self.agent_id, input=value)
        self._try(owner, owner.commit(step="admit", new_execution=row))

    @precondition(lambda self: bool(self.model.executions))
    @rule(
        who=st.integers(0, 1),
        data=st.data(),
        status=st.sampled_from([item for item in ExecutionStatus if item is not ExecutionStatus.QUEUED]),
        stale=st.booleans(),
    )
    def change(self, who: int, data: Any, status: ExecutionStatus, stale: bool) -> None:
        owner = self.owners[who]
        row = self.model.executions[data.draw(st.sampled_from(sorted(self.model.executions)))]
        base = row.revision - 1 if stale else row.revision
        after = replace(row, status=status, revision=base + 1, state={"n": base})
        self._try(owner, owner.commit("changed", execution=ExecutionUpdate(base, after)))

    @rule(who=st.integers(0, 1))
    def repeat_last(self, who: int) -> None:
        if self.last is not None:
            repeated = self.last.commit_id == self.model.last_commit_id
            try:
                self.owners[who].store.execute(self.last)
            except (OwnershipLostError, ConflictError):
                assert not repeated
            else:
                assert repeated

    @rule(who=st.integers(0, 1))
    def settle(self, who: int) -> None:
        owner = self.owners[who]
        commit_id = self.last.commit_id if self.last is not None else "none"
        try:
            happened = owner.store.settle(self.agent_id, epoch=owner.epoch, commit_id=commit_id)
        except OwnershipLostError:
            assert owner.epoch != self.model.epoch
            assert commit_id != self.model.last_commit_id
        else:
            assert happened == (commit_id == self.model.last_commit_id)

    @invariant()
    def database_equals_model(self) -> None:
        store, model = self.stores[1], self.model
        root = store.load_root(self.agent_id)
        assert (root.epoch, root.agent_revision, root.journal_position, root.starts_without_progress) == (
            model.epoch, model.revision, len(model.journal), model.starts,
        )  # fmt: skip
        journal = store.read_journal(self.agent_id)
        assert [record.content for record in journal] == model.journal
        assert [record.position for record in journal] == list(range(1, len(model.journal) + 1))
        rows = {row.execution_id: row for row in store.list_executions(agent_id=self.agent_id)}
        assert rows == model.executions

    last: Commit | None = None

    def _try(self, owner: Owner, commit: Commit) -> None:
        """Execute on both; the store must do what the model says."""
        expected = self._expected(commit)
        outcome: type[Exception] | None = None
        try:
            owner.store.execute(commit)
        except (OwnershipLostError, ConflictError, AgentBusyError) as error:
            outcome = type(error)
        assert outcome is expected
        if outcome is not None:
            return
        self.last = commit
        model = self.model
        model.revision += 1
        model.starts = 0
        model.last_commit_id = commit.commit_id
        model.journal += [record.content for record in commit.journal]
        for row in (commit.new_execution, commit.execution and commit.execution.row):
            if row is not None:
                model.executions[row.execution_id] = row
        owner.revision, owner.position = model.revision, len(model.journal)

    def _expected(self, commit: Commit) -> type[Exception] | None:
        model = self.model
        if commit.epoch != model.epoch:
            return OwnershipLostError
        if (commit.expected_revision, commit.expected_position) != (model.revision, len(model.journal)):
            return ConflictError
        if commit.new_execution is not None:
            if commit.new_execution.execution_id in model.executions:
                return StateConflictError
            if model.open:
                return AgentBusyError
        if commit.execution is not None:
            stored = model.executions[commit.execution.row.execution_id]
            if stored.status not in OPEN or stored.revision != commit.execution.expected_revision:
                return ConflictError
            if commit.execution.row.status in OPEN and [row for row in model.open if row is not stored]:
                return ConflictError
        return None


@pytest.mark.parametrize(
    "key", [None, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="], ids=["plain", "encrypted"]
)
def test_store_equals_model(database: Any, key: str | None) -> None:
    class Machine(StoreMachine):
        stores = (database.open(content_key=key), database.open(content_key=key))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=20,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
