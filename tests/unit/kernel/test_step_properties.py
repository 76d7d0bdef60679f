"""The step function under random events: what must hold whatever happens, and in whatever order.

The world around the kernel is a model of the store that is fed by the commits alone, and of the work that effects have
begun. A crash drops the state in memory and the work, and starts again from the model store. After every step the state
in memory must equal what the store would give a new owner.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phronomy_ray.approvals import (
    ApprovalVerdict,
    CallAuthorization,
    DecisionSource,
    RuleEffect,
    StandingRule,
)
from phronomy_ray.commits import Commit, Hydration
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    AgentBusyError,
    ApprovalExpiredError,
    ErrorRecord,
    InvalidInputError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    ApprovalStatus,
    EventRow,
    ExecutionRow,
    ExecutionStatus,
    JournalRecord,
    ModelCallRow,
    Phase,
    RecordKind,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.kernel.context import Conversation
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
    Authorized,
    Cancel,
    Decide,
    Env,
    Expire,
    Input,
    InputBuildFailed,
    InputBuilt,
    InputPatch,
    ModelAnswered,
    ModelFailed,
    ModelStopped,
    OutputFiltered,
    OutputFilterFailed,
    PreparationDone,
    PreparationFailed,
    Prepared,
    Recover,
    Resolve,
    Start,
    ToolOutcomes,
)
from phronomy_ray.kernel.machine import step
from phronomy_ray.kernel.state import AgentState, contents_of
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.messages import Message, ToolCallRequest, Usage
from phronomy_ray.models.port import FinishReason, ModelAnswer
from phronomy_ray.tool_calls import ToolOutcome

AGENT = "alice"


@tool(replay="safe", on_error="suppress")
def look(x: int) -> int:
    return x


@tool(replay="idempotent", on_error="suppress")
def put(x: int) -> int:
    return x


@tool(on_error="suppress")
def pay(x: int) -> int:
    return x


@tool(on_error="raise")
def pay_or_fail(x: int) -> int:
    return x


@tool(requires_approval=True, on_error="suppress")
def ask(x: int) -> int:
    return x


@tool(requires_approval=True, approval_expires_s=20, on_error="suppress")
def ask_soon(x: int) -> int:
    return x


@tool(requires_approval=lambda request: True, on_error="suppress")
def maybe(x: int) -> int:
    return x


@tool(return_direct=True, replay="safe", on_error="suppress")
def report(x: int) -> int:
    return x


@tool(requires_approval=True, approval_facts=lambda arguments, context: {}, on_error="raise")
def ask_with_facts(x: int) -> int:
    return x


class Clerk(Agent):
    model = "none/none"
    tools = [look, put, pay, pay_or_fail, ask, ask_soon, maybe, ask_with_facts, report]
    max_iterations = 4
    definition_id = "clerk"


class StrictClerk(Clerk):
    """The same with everything on that a kernel can do to a batch."""

    max_tool_repeats = 2
    deduplicate_tool_calls = True
    max_batch_result_chars = 40


DEFINITION = Clerk.definition()
#: The same two behind a gate for parallel calls.
GATED = {
    (base, limit): type(f"{base.__name__}{limit}", (base,), {"max_parallel_tools": limit}).definition()
    for base in (Clerk, StrictClerk)
    for limit in (None, 1, 2)
}


class ModelStore:
    """What a store holds after a sequence of commits; refuses what a store must refuse, and more."""

    def __init__(self) -> None:
        self.root = AgentRoot(AGENT, "clerk", "1", "")
        self.journal: list[JournalRecord] = []
        self.executions: dict[str, ExecutionRow] = {}
        self.model_calls: dict[str, ModelCallRow] = {}
        self.tool_calls: dict[str, ToolCallRow] = {}
        self.approvals: dict[str, ApprovalRow] = {}
        self.events: list[EventRow] = []
        self.contents: dict[str, str] = {}
        self.commit_ids: set[str] = set()

    def execute(self, commit: Commit) -> None:
        root = self.root
        assert commit.epoch == root.epoch
        assert commit.expected_revision == root.agent_revision
        assert commit.expected_position == root.journal_position
        assert commit.commit_id not in self.commit_ids
        self.commit_ids.add(commit.commit_id)
        assert [record.position for record in commit.journal] == list(
            range(len(self.journal) + 1, len(self.journal) + len(commit.journal) + 1)
        )
        assert commit.context_revision in (root.context_revision, root.context_revision + 1)
        touched = self._execution(commit)
        for record in commit.journal:
            assert record.execution_id == touched.execution_id
        self.journal.extend(commit.journal)
        self._rows(commit, touched)
        self.contents.update(commit.contents)
        self.root = replace(
            root,
            agent_revision=root.agent_revision + 1,
            context_revision=commit.context_revision,
            journal_position=commit.position_after,
            lifecycle=commit.lifecycle,
            updated_at=commit.now,
        )

    def _execution(self, commit: Commit) -> ExecutionRow:
        if commit.new_execution is not None:
            new = commit.new_execution
            assert commit.execution is None
            assert new.execution_id not in self.executions
            assert self.open_execution() is None, "two non-terminal executions"
            assert new.revision == 1
            self.executions[new.execution_id] = new
            return new
        update = commit.execution
        assert update is not None, "a commit without an execution"
        before = self.executions[update.row.execution_id]
        assert not before.status.is_terminal, "a terminal execution was changed"
        assert before.revision == update.expected_revision
        assert update.row.revision == before.revision + 1
        for name in ("agent_id", "input", "input_hash", "durable_context", "base_position", "created_at"):
            assert getattr(update.row, name) == getattr(before, name)
        self.executions[update.row.execution_id] = update.row
        return update.row

    def _rows(self, commit: Commit, touched: ExecutionRow) -> None:
        for row in commit.new_model_calls:
            assert row.model_call_id not in self.model_calls
            self.model_calls[row.model_call_id] = row
        for row in commit.model_calls:
            assert self.model_calls[row.model_call_id].status == "pending", "a settled model call was changed"
            self.model_calls[row.model_call_id] = row
        for call in commit.new_tool_calls:
            assert call.tool_call_id not in self.tool_calls
            self.tool_calls[call.tool_call_id] = call
        for call in commit.tool_calls:
            before = self.tool_calls[call.tool_call_id]
            assert not before.status.is_settled, f"{before.status} became {call.status}"
            assert call.attempt >= before.attempt
            assert call.arguments == before.arguments
            assert call.requires_approval == before.requires_approval
            self.tool_calls[call.tool_call_id] = call
        for call in commit.revised_tool_calls:
            before = self.tool_calls[call.tool_call_id]
            assert before.status in (ToolCallStatus.AUTHORIZING, ToolCallStatus.AWAITING_APPROVAL)
            assert call.attempt in (0, 1), "revised after its first dispatch"
            self.tool_calls[call.tool_call_id] = call
        for approval in commit.new_approvals:
            assert approval.approval_request_id not in self.approvals
            self.approvals[approval.approval_request_id] = approval
        for approval in commit.approvals:
            assert self.approvals[approval.approval_request_id].status is ApprovalStatus.PENDING
            self.approvals[approval.approval_request_id] = approval
        for event in commit.events:
            assert event.execution_id == touched.execution_id
            assert event.seq == self.last_seq(event.execution_id) + 1
            self.events.append(event)

    def last_seq(self, execution_id: str) -> int:
        return max((event.seq for event in self.events if event.execution_id == execution_id), default=0)

    def open_execution(self) -> ExecutionRow | None:
        found = [row for row in self.executions.values() if not row.status.is_terminal]
        assert len(found) <= 1
        return found[0] if found else None

    def claim(self) -> tuple[Hydration, Conversation, dict[str, str]]:
        self.root = replace(self.root, epoch=self.root.epoch + 1)
        return self.read()

    def read(self) -> tuple[Hydration, Conversation, dict[str, str]]:
        row = self.open_execution()
        conversation = Conversation().apply(self.journal)
        if row is None:
            return Hydration(self.root, None), conversation, {}
        of = row.execution_id
        hydration = Hydration(
            self.root,
            row,
            tuple(item for item in self.model_calls.values() if item.execution_id == of),
            tuple(item for item in self.tool_calls.values() if item.execution_id == of),
            tuple(item for item in self.approvals.values() if item.execution_id == of),
            self.last_seq(of),
        )
        return hydration, conversation, {key: self.contents[key] for key in contents_of(hydration)}


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


TEXTS = st.sampled_from(["yes", "no", "  ", ""])
CALLS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "look",
                "put",
                "pay",
                "pay_or_fail",
                "ask",
                "ask",
                "ask_soon",
                "maybe",
                "ask_with_facts",
                "report",
                "nope",
            ]
        ),
        st.sampled_from(['{"x": 1}', '{"x": 2}', "", '{"x": "1"}', '{"x"', "[1]"]),
    ),
    max_size=4,
)
RULES = st.lists(
    st.tuples(st.sampled_from(list(RuleEffect)), st.sampled_from(["look", "pay", "ask", "maybe"])), max_size=2
)
MESSAGES = st.sampled_from([{"role": "system", "content": "now"}, {"role": "user", "content": "psst"}])
STATUSES = st.sampled_from(
    [
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
        ToolCallStatus.TIMED_OUT,
        ToolCallStatus.UNKNOWN,
    ]
)


class KernelMachine(RuleBasedStateMachine):
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

    # --- the shell ---------------------------------------------------------------------------------------------

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

    # --- events ------------------------------------------------------------------------------------------------

    @rule(prepared=st.booleans())
    def start(self, prepared: bool) -> None:
        execution_id = f"ex{self.started + 1}"
        event = Start(
            execution_id,
            f"question {execution_id}",
            "hash",
            prepared=Prepared("Be brief.", f"question {execution_id}") if prepared else None,
        )
        if self.state.execution is not None:
            with pytest.raises(AgentBusyError):
                step(self.state, event, self.env())
            return
        self.started += 1
        assert self.feed(event)

    @precondition(lambda self: self.work.prepares)
    @rule(fails=st.booleans(), blocked=st.booleans(), data=st.data())
    def preparation_ends(self, fails: bool, blocked: bool, data: st.DataObject) -> None:
        execution_id = data.draw(st.sampled_from(sorted(self.work.prepares)))
        self.work.prepares.discard(execution_id)
        if fails:
            self.feed(PreparationFailed(execution_id, ErrorRecord("ValueError", "x", "no"), blocked=blocked))
        else:
            self.feed(PreparationDone(execution_id, Prepared("Be kind.", f"question {execution_id}")))

    @precondition(lambda self: self.work.builds)
    @rule(fails=st.booleans(), hot=st.booleans(), messages=st.lists(MESSAGES, max_size=2), data=st.data())
    def hooks_end(self, fails: bool, hot: bool, messages: list[dict[str, Any]], data: st.DataObject) -> None:
        execution_id, sequence = data.draw(st.sampled_from(sorted(self.work.builds)))
        self.work.builds.discard((execution_id, sequence))
        if fails:
            self.feed(InputBuildFailed(execution_id, sequence, ErrorRecord("HookError", "hook_failed", "no")))
            return
        patch = InputPatch({"temperature": 1} if hot else {}, tuple(messages))
        waited = self.state.execution
        fits = waited is not None and waited.row.execution_id == execution_id
        assert self.feed(InputBuilt(execution_id, sequence, patch)) is fits
        assert not self.feed(InputBuilt(execution_id, sequence, patch)), (
            "a second word about it has no effect"
        )
        if fits:
            sent = self.requests[f"{execution_id}:m{sequence}"]
            assert all(message in sent.messages for message in messages)
            assert ("temperature" in sent.settings) is hot

    @precondition(lambda self: self.work.outputs)
    @rule(how=st.sampled_from(["pass", "change", "empty", "block", "fail"]), data=st.data())
    def output_filters_end(self, how: str, data: st.DataObject) -> None:
        execution_id = data.draw(st.sampled_from(sorted(self.work.outputs)))
        raw = self.work.outputs.pop(execution_id)
        text = {"pass": raw, "change": "filtered", "empty": ""}.get(how)
        error = ErrorRecord("FilterBlockError", "filter_blocked", "no")
        event: Input = (
            OutputFiltered(execution_id, text)
            if text is not None
            else OutputFilterFailed(execution_id, error, how == "block")
        )
        if self.feed(event):
            row = self.store.executions[execution_id]
            assert row.output == text
            assert row.status.value == {"block": "blocked", "fail": "failed"}.get(how, "completed")
        assert not self.feed(event)

    @precondition(lambda self: self.work.model_calls)
    @rule(
        text=TEXTS,
        wanted=CALLS,
        ruled=RULES,
        finish=st.sampled_from(
            [FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTENT_FILTER]
        ),
        data=st.data(),
    )
    def model_answers(
        self,
        text: str,
        wanted: list[tuple[str, str]],
        ruled: list[tuple[RuleEffect, str]],
        finish: FinishReason,
        data: st.DataObject,
    ) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.work.model_calls)))
        self.work.model_calls.discard(call_id)
        # the provider uses the same ids in every answer
        requests = tuple(ToolCallRequest(f"call_{i}", name, raw) for i, (name, raw) in enumerate(wanted))
        rules = tuple(
            StandingRule(f"ru{i}", effect, name, "ann", self.now) for i, (effect, name) in enumerate(ruled)
        )
        answer = ModelAnswer(Message.assistant(text or None, requests), finish, Usage(1, 1))
        self.feed(ModelAnswered(call_id, answer, rules))
        refused = {name for effect, name in ruled if effect is RuleEffect.REFUSE}
        for row in self.store.tool_calls.values():
            if row.model_call_id == call_id and row.tool_name in refused:
                assert row.status in (ToolCallStatus.REJECTED, ToolCallStatus.FAILED), "refused or malformed"

    @precondition(lambda self: self.work.authorizations)
    @rule(data=st.data())
    def user_code_answers(self, data: st.DataObject) -> None:
        """Each call gets a verdict, an error or no answer at all; some answers are about no call."""
        call_id = data.draw(st.sampled_from(sorted(self.work.authorizations)))
        effect = self.work.authorizations.pop(call_id)
        verdicts = [CallAuthorization("tc_stranger", ApprovalVerdict.ALLOW)]
        for request in effect.requests:
            verdict = data.draw(st.sampled_from([*ApprovalVerdict, "error", "silence"]))
            if verdict == "error":
                error = ErrorRecord("ValueError", "remote_error", "the policy is broken")
                verdicts.append(CallAuthorization(request.tool_call_id, error=error))
            elif isinstance(verdict, ApprovalVerdict):
                gated = data.draw(st.booleans())
                verdicts.append(
                    CallAuthorization(request.tool_call_id, verdict, DecisionSource.POLICY, gated, {"n": 1})
                )
        event = Authorized(effect.execution_id, call_id, tuple(verdicts))
        assert self.feed(event)
        assert not self.feed(event), "the second answer is consumed"
        for request in effect.requests:
            given = [item for item in verdicts if item.tool_call_id == request.tool_call_id]
            if not given or given[0].verdict is None:
                row = self.store.tool_calls[request.tool_call_id]
                assert row.status is ToolCallStatus.FAILED
                assert row.attempt == 0
                assert (row.error or {})["code"] == "authorization_failed"

    @rule()
    def foreign_user_code_answers(self) -> None:
        row = self.store.open_execution()
        for execution_id in ("ex0", row.execution_id if row is not None else "ex0"):
            assert not self.feed(Authorized(execution_id, "ex0:m1", ()))

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        execution = self.state.execution
        after = self.now + timedelta(seconds=1)  # a step moves the clock
        due = [
            item.approval_request_id
            for item in (execution.approvals if execution is not None else ())
            if item.status is ApprovalStatus.PENDING
            and item.expires_at is not None
            and item.expires_at <= after
        ]
        assert self.feed(Expire()) is bool(due)
        for request in due:
            assert self.store.approvals[request].status is ApprovalStatus.EXPIRED

    @precondition(lambda self: self.work.model_calls)
    @rule(data=st.data())
    def model_fails(self, data: st.DataObject) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.work.model_calls)))
        self.work.model_calls.discard(call_id)
        self.feed(ModelFailed(call_id, ErrorRecord("TransportError", "model_transport", "gone")))

    @rule(answered=st.booleans())
    def a_foreign_model_call_ends(self, answered: bool) -> None:
        old = [call for call in self.store.model_calls if self.store.model_calls[call].status != "pending"]
        for call_id in [*old[-1:], "ex0:m1"]:
            answer = ModelAnswer(Message.assistant("late"), FinishReason.STOP, Usage(7, 7))
            error = ErrorRecord("TransportError", "model_transport", "gone")
            assert not self.feed(ModelAnswered(call_id, answer) if answered else ModelFailed(call_id, error))

    def outcome(self, key: tuple[str, int], status: ToolCallStatus) -> ToolOutcome:
        error = (
            ErrorRecord("ToolError", "tool_error", "boom") if status is not ToolCallStatus.SUCCEEDED else None
        )
        return ToolOutcome(key[0], key[1], status, f"{key[0]} {key[1]} {status.value}", {"n": key[1]}, error)

    @precondition(lambda self: self.work.bodies)
    @rule(data=st.data())
    def bodies_end(self, data: st.DataObject) -> None:
        """Some bodies end, each reported one to two times, mixed with outcomes of lost attempts and strangers."""
        ended = data.draw(st.lists(st.sampled_from(sorted(self.work.bodies)), min_size=1, unique=True))
        outcomes = [self.outcome(key, data.draw(STATUSES)) for key in ended]
        if data.draw(st.booleans()):
            outcomes.append(self.outcome(ended[0], data.draw(STATUSES)))
        outcomes += [self.outcome((key[0], key[1] - 1), data.draw(STATUSES)) for key in ended[:1]]
        outcomes += [self.outcome(key, data.draw(STATUSES)) for key in sorted(self.zombies)[:2]]
        outcomes.append(self.outcome(("tc_stranger", 1), ToolCallStatus.SUCCEEDED))
        self.work.bodies -= set(ended)
        assert self.feed(ToolOutcomes(tuple(outcomes)))
        for first in outcomes[: len(ended)]:
            stored = self.store.tool_calls[first.tool_call_id]
            if stored.attempt == first.attempt and first.status is not ToolCallStatus.UNKNOWN:
                assert stored.status is first.status, "the first report of an attempt counts"

    @rule(data=st.data())
    def a_late_body_ends(self, data: st.DataObject) -> None:
        """Settled calls, and bodies of lost owners, report (again)."""
        settled = [(c.tool_call_id, c.attempt) for c in self.store.tool_calls.values() if c.status.is_settled]
        late = [key for key in (*settled[-3:], *sorted(self.zombies)) if key not in self.work.bodies]
        if not late:
            return
        key = data.draw(st.sampled_from(late))
        assert not self.feed(ToolOutcomes((self.outcome(key, data.draw(STATUSES)),)))

    @precondition(lambda self: self.store.approvals)
    @rule(approved=st.booleans(), edited=st.sampled_from([None, None, {"x": 9}, {"x": 8}]), data=st.data())
    def decide(self, approved: bool, edited: dict[str, Any] | None, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.store.approvals)))
        before = self.store.approvals[request]
        edited = edited if approved else None
        event = Decide(before.execution_id, request, approved, "bob", edited_arguments=edited)
        open_ = self.state.execution is not None and any(
            item.approval_request_id == request for item in self.state.execution.approvals
        )
        if not open_:
            with pytest.raises((StateConflictError, NotFoundError)):
                self.feed(event)
            return
        wanted = ApprovalStatus.APPROVED if approved else ApprovalStatus.REJECTED
        expires = before.expires_at
        is_due = expires is not None and expires <= self.now + timedelta(seconds=1)
        if before.status is ApprovalStatus.PENDING and is_due:
            with pytest.raises(ApprovalExpiredError):
                self.feed(event)
            return
        if before.status is ApprovalStatus.PENDING:
            with pytest.raises(InvalidInputError):
                self.feed(replace(event, approved=True, edited_arguments={"x": "no", "y": 1}))
            with pytest.raises(InvalidInputError):
                self.feed(replace(event, approved=False, edited_arguments={"x": 1}))
            assert self.feed(event)
            if edited is not None:
                assert self.store.tool_calls[before.tool_call_id].arguments == edited
        elif (before.status, before.edited_arguments) == (wanted, edited):
            assert not self.feed(event), "the same answer changes nothing"
        else:
            with pytest.raises(StateConflictError) as caught:
                self.feed(event)
            assert caught.value.details["decided_by"] == before.decided_by

    @precondition(lambda self: self.unresolved())
    @rule(outcome=st.sampled_from(["succeeded", "failed", "not_performed", "maybe"]), data=st.data())
    def resolve(self, outcome: str, data: st.DataObject) -> None:
        assert self.state.execution is not None
        call_id = data.draw(st.sampled_from(self.unresolved()))
        event = Resolve(
            self.state.execution.row.execution_id,
            call_id,
            outcome,
            result=1 if outcome == "succeeded" else None,
            result_text="1",
            error="it broke" if outcome == "failed" else "",
        )
        if outcome == "maybe":
            with pytest.raises(InvalidInputError):
                self.feed(event)
            return
        with pytest.raises(StateConflictError):
            self.feed(replace(event, expected_revision=self.state.execution.row.revision - 1))
        if outcome == "not_performed":
            self.not_performed[call_id] += 1
        assert self.feed(event)

    @precondition(lambda self: self.state.execution is not None)
    @rule()
    def resolve_what_is_not_open(self) -> None:
        assert self.state.execution is not None
        with pytest.raises(NotFoundError):
            self.feed(Resolve(self.state.execution.row.execution_id, "tc_stranger", "not_performed"))

    @rule()
    def cancel(self) -> None:
        running = self.state.execution
        if running is None:
            with pytest.raises(StateConflictError):
                self.feed(Cancel("ex0"))
            return
        self.feed(Cancel(running.row.execution_id, "enough"))
        if self.state.execution is not None and self.state.execution.model_call is not None:
            self.work.model_calls.discard(self.state.execution.model_call.model_call_id)
            assert self.feed(ModelStopped(self.state.execution.model_call.model_call_id))

    @precondition(lambda self: self.work.model_calls)
    @rule()
    def a_model_call_stops_without_anybody_having_cancelled(self) -> None:
        assert not self.feed(ModelStopped(min(self.work.model_calls)))

    @rule()
    def crash(self) -> None:
        self.zombies |= self.work.bodies
        self.work = Work()
        self.state = AgentState.hydrate(*self.store.claim())
        self.feed(Recover())

    # --- what always holds -------------------------------------------------------------------------------------

    def unresolved(self) -> list[str]:
        if self.state.execution is None:
            return []
        return [
            call.row.tool_call_id for call in self.state.execution.batch if call.phase is ToolPhase.UNRESOLVED
        ]

    @invariant()
    def memory_equals_the_store(self) -> None:
        if not hasattr(self, "store"):
            return
        fresh = AgentState.hydrate(*self.store.read())
        assert replace(fresh.root, updated_at=None, starts_without_progress=0) == replace(
            self.state.root, updated_at=None, starts_without_progress=0
        )
        assert fresh.conversation == self.state.conversation
        mine = self.state.execution
        assert (fresh.execution is None) is (mine is None)
        if mine is None or fresh.execution is None:
            return
        assert fresh.execution.row == mine.row
        assert fresh.execution.progress == mine.progress
        assert fresh.execution.instructions == mine.instructions
        assert fresh.execution.patch == mine.patch
        assert fresh.execution.output == mine.output
        assert fresh.execution.model_call == mine.model_call
        assert fresh.execution.event_seq == mine.event_seq
        assert [call.row for call in fresh.execution.batch] == [call.row for call in mine.batch]
        by_id = {item.approval_request_id: item for item in mine.approvals}
        assert {item.approval_request_id: item for item in fresh.execution.approvals} == by_id

    @invariant()
    def nobody_is_stuck_without_a_reason(self) -> None:
        if not hasattr(self, "store") or self.state.execution is None:
            return
        execution = self.state.execution
        row = execution.row
        live = {(call.row.tool_call_id, call.row.attempt) for call in execution.batch if call.is_live}
        assert live <= self.work.bodies, "a live call without a body"
        if row.status is ExecutionStatus.SUSPENDED:
            waiting = [a for a in execution.approvals if a.status is ApprovalStatus.PENDING]
            assert waiting or self.unresolved()
        elif row.phase is Phase.AUTHORIZING:
            (model_call,) = {call.row.model_call_id for call in execution.batch}
            assert model_call in self.work.authorizations
            assert not live
        elif row.status is ExecutionStatus.PREPARING:
            assert row.execution_id in self.work.prepares
        elif row.phase is Phase.BUILDING_INPUT:
            assert (row.execution_id, execution.progress.model_calls + 1) in self.work.builds
        elif row.phase is Phase.FILTERING_OUTPUT:
            assert row.execution_id in self.work.outputs
        elif execution.model_call is not None:
            assert execution.model_call.model_call_id in self.work.model_calls
        else:
            assert live

    @invariant()
    def the_gate_holds(self) -> None:
        if not hasattr(self, "store") or self.state.execution is None:
            return
        limit = self.definition.max_parallel_tools
        live = [call for call in self.state.execution.batch if call.is_live]
        if limit is not None:
            assert len(live) <= max(limit, sum(self.not_performed.values()))
        waiting = [call for call in self.state.execution.batch if call.phase is ToolPhase.AUTHORIZED]
        twins = dict(self.state.execution.progress.twins)
        if live and any(call.row.tool_call_id not in twins for call in waiting):
            assert limit is not None
            assert len(live) >= limit, "a place is free and somebody waits for one"

    @invariant()
    def every_call_has_one_outcome_in_request_order(self) -> None:
        if not hasattr(self, "store"):
            return
        batches: dict[str, list[tuple[str, str]]] = {}
        answers: dict[str, list[tuple[str, str]]] = {}
        for record in self.store.journal:
            if record.kind is RecordKind.ASSISTANT_MESSAGE and record.content.get("tool_calls"):
                assert record.model_call_id is not None
                batches[record.model_call_id] = [call["id"] for call in record.content["tool_calls"]]
            if record.kind is RecordKind.TOOL_MESSAGE:
                assert record.model_call_id is not None
                answers.setdefault(record.model_call_id, []).append(record.content["tool_call_id"])
        for model_call, ids in batches.items():
            execution_id = self.store.model_calls[model_call].execution_id
            open_batch = self.state.execution is not None and any(
                call.row.model_call_id == model_call for call in self.state.execution.batch
            )
            if open_batch:
                assert model_call not in answers, "results are journaled together"
                continue
            assert answers[model_call] == ids, f"{model_call} of {execution_id}"
            rows = [call for call in self.store.tool_calls.values() if call.model_call_id == model_call]
            assert [row.provider_call_id for row in sorted(rows, key=lambda row: row.position)] == ids
            assert all(row.status.is_settled or row.status is ToolCallStatus.UNKNOWN for row in rows)

    @invariant()
    def a_terminal_execution_is_closed(self) -> None:
        if not hasattr(self, "store"):
            return
        for row in self.store.executions.values():
            ends = [
                record
                for record in self.store.journal
                if record.execution_id == row.execution_id and record.kind.value.startswith("execution_")
            ]
            assert len(ends) == (1 if row.status.is_terminal else 0)
            if not row.status.is_terminal:
                continue
            assert ends[0].kind.value == f"execution_{row.status.value}"
            assert row.ended_at is not None
            of = row.execution_id
            assert all(c.status != "pending" for c in self.store.model_calls.values() if c.execution_id == of)
            assert all(
                a.status is not ApprovalStatus.PENDING
                for a in self.store.approvals.values()
                if a.execution_id == of
            )
            last = [event for event in self.store.events if event.execution_id == of][-1]
            assert last.type == row.status.value

    @invariant()
    def the_next_prompt_is_paired(self) -> None:
        if not hasattr(self, "store"):
            return
        messages = [m for exchange in self.state.conversation.exchanges for m in exchange.messages]
        check_paired([*messages, {"role": "user", "content": "next"}])

    @invariant()
    def usage_is_that_of_the_answered_calls(self) -> None:
        if not hasattr(self, "store"):
            return
        for row in self.store.executions.values():
            calls = [c for c in self.store.model_calls.values() if c.execution_id == row.execution_id]
            answered = sum(c.status == "completed" for c in calls)
            assert row.state["usage"]["input_tokens"] == answered
            assert len(calls) <= DEFINITION.max_iterations


def check_paired(messages: list[dict[str, Any]]) -> None:
    """Every call is answered once, directly behind its message and in its order; nothing else is answered."""
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert open_ids, f"{message} answers nothing"
            assert message["tool_call_id"] == open_ids.pop(0)
            continue
        assert not open_ids, f"{message} stands before the answers to {open_ids}"
        open_ids = [call["id"] for call in message.get("tool_calls", ())]
    assert not open_ids


#: One example is some 40 ms; ``HYPOTHESIS_PROFILE=thorough`` asks for more of them.
EXAMPLES = 60 if settings.default.max_examples <= 100 else settings.default.max_examples


def test_a_replayable_call_that_takes_its_owner_with_it_every_time_fails_in_the_end() -> None:
    """Nothing else would end such a loop: every new owner makes progress, by a commit, before it dies."""
    machine = KernelMachine()
    machine.begin(strict=False, hooks=False, filters=False)
    machine.start(prepared=True)
    wanted = (ToolCallRequest("c0", "look", '{"x": 1}'),)
    answer = ModelAnswer(Message.assistant(None, wanted), FinishReason.STOP, Usage(1, 1))
    machine.feed(ModelAnswered("ex1:m1", answer))
    for _ in range(9):
        machine.crash()
        assert machine.work.bodies, "it runs again"
    machine.crash()
    assert not machine.work.bodies
    assert machine.work.model_calls == {"ex1:m2"}, "the model is told"
    (row,) = machine.store.tool_calls.values()
    assert row.status is ToolCallStatus.FAILED
    assert row.error is not None
    assert row.error["code"] == "worker_died"


@pytest.mark.parametrize("gate", [1, 2, 3, 9])
@pytest.mark.parametrize("crash_after", [None, 0, 1, 3])
def test_a_batch_behind_a_gate_is_let_through_bit_by_bit(gate: int, crash_after: int | None) -> None:
    machine = KernelMachine()
    machine.begin(strict=False, hooks=False, filters=False)
    machine.definition = type("Gated", (Clerk,), {"max_parallel_tools": gate}).definition()
    machine.start(prepared=True)
    wanted = tuple(ToolCallRequest(f"c{n}", "look", f'{{"x": {n}}}') for n in range(5))
    machine.feed(
        ModelAnswered("ex1:m1", ModelAnswer(Message.assistant(None, wanted), FinishReason.STOP, Usage(1, 1)))
    )
    ended = 0
    while machine.state.execution is not None and machine.state.execution.batch:
        machine.the_gate_holds()
        machine.nobody_is_stuck_without_a_reason()
        live = [call.row for call in machine.state.execution.batch if call.is_live]
        assert len(live) == min(gate, 5 - ended)
        if ended == crash_after:
            crash_after = None
            machine.crash()
            continue
        first = live[0]
        outcome = ToolOutcome(first.tool_call_id, first.attempt, ToolCallStatus.SUCCEEDED, "seen", "seen")
        machine.feed(ToolOutcomes((outcome,)))
        ended += 1
    assert ended == 5
    machine.every_call_has_one_outcome_in_request_order()
    assert "ex1:m2" in machine.work.model_calls, "the model is told"


KernelMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, report_multiple_bugs=False
)
TestKernel = KernelMachine.TestCase
