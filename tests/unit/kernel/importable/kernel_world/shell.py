"""The shell around `step`: commits to the model store and keeps what effects have begun."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from kernel_world.agents import GATED, Clerk, StrictClerk
from kernel_world.model_store import ModelStore
from phronomy_ray.journal import (
    ApprovalStatus,
    ExecutionStatus,
    ToolCallStatus,
)
from phronomy_ray.kernel.effects import (
    Authorize,
    BuildInput,
    CallModel,
    DispatchTools,
    FilterOutput,
    Prepare,
    Publish,
    Settled,
    StopWork,
)
from phronomy_ray.kernel.inputs import (
    Env,
    Input,
)
from phronomy_ray.kernel.machine import step
from phronomy_ray.kernel.state import AgentState
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.testing.prompts import check_paired


@dataclass
class Work:
    """What effects have begun and nobody has reported yet."""

    prepares: set[str] = field(default_factory=set)
    #: Batches that user code is asked about.
    authorizations: dict[str, Authorize] = field(default_factory=dict)
    #: ``(execution_id, sequence)`` of model calls that hooks look at.
    builds: set[tuple[str, int]] = field(default_factory=set)
    model_calls: set[str] = field(default_factory=set)
    #: Texts that output filters look at, by execution.
    outputs: dict[str, str] = field(default_factory=dict)
    #: ``(tool_call_id, attempt)`` of running bodies.
    bodies: set[tuple[str, int]] = field(default_factory=set)


class KernelWorld(RuleBasedStateMachine):
    """One agent, its store, and the work that is under way."""

    @initialize(
        strict=st.booleans(),
        hooks=st.booleans(),
        filters=st.booleans(),
        gate=st.sampled_from([None, 1, 2]),
    )
    def begin(self, strict: bool, hooks: bool, filters: bool, gate: int | None = None) -> None:
        self.definition = GATED[StrictClerk if strict else Clerk, gate]
        self.hooks = hooks
        self.filters = filters
        #: What each model call was first made with.
        self.requests: dict[str, Any] = {}
        self.store = ModelStore()
        self.work = Work()
        #: Bodies and model calls of lost owners, which may still report.
        self.zombies: set[tuple[str, int]] = set()
        self.dispatches: Counter[str] = Counter()
        self.not_performed: Counter[str] = Counter()
        self.commit_of_dispatch: set[tuple[str, int]] = set()
        self.started = 0
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.state = AgentState.hydrate(*self.store.claim())

    def env(self) -> Env:
        return Env(self.definition, self.now, builds_input=self.hooks, filters_output=self.filters)

    def feed(self, event: Input) -> bool:
        """One step as the engine makes it; whether it changed anything."""
        self.now += timedelta(seconds=1)
        before = self.state
        decided = step(before, event, self.env())
        again = step(before, event, self.env())
        assert again.commit == decided.commit, "a step is a function of its arguments"
        if decided.commit is None:
            assert decided.state == before
            assert all(isinstance(effect, StopWork) for effect in decided.effects)
            return False
        self.store.execute(decided.commit)
        self.state = decided.state
        published = [
            row for effect in decided.effects if isinstance(effect, Publish) for row in effect.events
        ]
        assert tuple(published) == decided.commit.events
        for effect in decided.effects:
            match effect:
                case Prepare():
                    self.work.prepares.add(effect.execution_id)
                case BuildInput():
                    self.work.builds.add((effect.request.execution_id, effect.request.sequence))
                case FilterOutput():
                    assert self.state.execution is not None
                    assert self.state.execution.row.output is None, "an unfiltered output is given to nobody"
                    self.work.outputs[effect.execution_id] = effect.text
                case CallModel():
                    self.call_model(effect)
                case Authorize():
                    self.authorize(effect)
                case DispatchTools():
                    self.dispatch(effect)
                case Settled():
                    assert effect.row.status.is_terminal
                    assert self.store.executions[effect.row.execution_id] == effect.row
        return True

    def call_model(self, effect: CallModel) -> None:
        check_paired(effect.request.messages)
        stored = self.store.model_calls[effect.request.call_id]
        assert stored.status == "pending"
        assert len(effect.request.messages) == stored.manifest["messages"], (
            "a repeated call sees what the first saw"
        )
        first = self.requests.setdefault(effect.request.call_id, effect.request)
        assert effect.request == first, "a repeated call sends what the first sent"
        assert not (self.filters and effect.stream), "tokens that no filter has seen are shown to nobody"
        self.work.model_calls.add(effect.request.call_id)

    def authorize(self, effect: Authorize) -> None:
        assert effect.requests
        for request in effect.requests:
            stored = self.store.tool_calls[request.tool_call_id]
            assert stored.status is ToolCallStatus.AUTHORIZING
            assert stored.arguments == request.arguments
        self.work.authorizations[effect.model_call_id] = effect

    def dispatch(self, effect: DispatchTools) -> None:
        row = self.store.open_execution()
        assert row is not None
        assert row.status is ExecutionStatus.ACTIVE
        batch = self.state.execution.batch if self.state.execution else ()
        unsettled = (ToolPhase.AUTHORIZING, ToolPhase.AWAITING_APPROVAL)
        assert not any(call.phase in unsettled for call in batch), "dispatched beside an open question"
        for invocation in effect.invocations:
            key = (invocation.tool_call_id, invocation.attempt)
            stored = self.store.tool_calls[invocation.tool_call_id]
            assert stored.status is ToolCallStatus.DISPATCHED, "a body runs only after its commit"
            assert stored.attempt == invocation.attempt
            assert key not in self.commit_of_dispatch, "one attempt was dispatched twice"
            self.commit_of_dispatch.add(key)
            self.dispatches[invocation.tool_call_id] += 1
            if stored.replay == "never":
                allowed = 1 + self.not_performed[invocation.tool_call_id]
                assert self.dispatches[invocation.tool_call_id] <= allowed, (
                    "a never tool ran twice without a word"
                )
            assert invocation.arguments == stored.arguments
            answers = [a for a in self.store.approvals.values() if a.tool_call_id == stored.tool_call_id]
            verdict = (stored.authorization or {}).get("verdict")
            if answers:
                assert [a.status for a in answers] == [ApprovalStatus.APPROVED]
            elif stored.requires_approval:
                assert verdict == "allow", "a gated call ran that nobody has approved"
            else:
                assert verdict in (None, "allow")
            self.work.bodies.add(key)

    def unresolved(self) -> list[str]:
        if self.state.execution is None:
            return []
        return [
            call.row.tool_call_id for call in self.state.execution.batch if call.phase is ToolPhase.UNRESOLVED
        ]
