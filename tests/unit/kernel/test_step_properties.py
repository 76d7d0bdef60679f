"""The step function under random events: what must hold whatever happens, and in whatever order.

The world around the kernel is a model of the store that is fed by the commits alone, and of the work that effects have
begun. A crash drops the state in memory and the work, and starts again from the model store. After every step the state
in memory must equal what the store would give a new owner.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from kernel_world.agents import Clerk
from kernel_world.laws import KernelLaws
from kernel_world.shell import Work

from phronomy_ray.approvals import (
    ApprovalVerdict,
    CallAuthorization,
    DecisionSource,
    RuleEffect,
    StandingRule,
)
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.errors import (
    AgentBusyError,
    ApprovalExpiredError,
    BackpressureError,
    ErrorRecord,
    InvalidInputError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus, ToolCallStatus
from phronomy_ray.kernel.detaching import detached_wait
from phronomy_ray.kernel.inputs import (
    Authorized,
    Cancel,
    Decide,
    Detach,
    Edit,
    EditKind,
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
from phronomy_ray.kernel.state import AgentState, pending_approvals
from phronomy_ray.kernel.tool_call import MAX_OWNER_LOSSES
from phronomy_ray.messages import Message, ToolCallRequest, Usage
from phronomy_ray.models.port import FinishReason, ModelAnswer
from phronomy_ray.tool_calls import Resolution, ToolOutcome

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


class KernelMachine(KernelLaws):
    def question(self, execution_id: str, *, prepared: bool, **options: Any) -> Start:
        said = Prepared("Be brief.", f"question {execution_id}") if prepared else None
        return Start(
            execution_id, f"question {execution_id}", "hash", prepared=said, queue_limit=2, **options
        )

    @rule(prepared=st.booleans(), on_busy=st.sampled_from(BusyRule))
    def start(self, prepared: bool, on_busy: BusyRule = BusyRule.REJECT) -> None:
        event = self.question(f"ex{self.started + 1}", prepared=prepared, on_busy=on_busy)
        running, queue = self.state.execution, self.state.queue
        if running is not None or queue:
            refused: Any = None
            if on_busy is BusyRule.REJECT:
                refused = AgentBusyError
            elif len(queue) == 2:
                refused = BackpressureError
            if refused is not None:
                with pytest.raises(refused):
                    step(self.state, event, self.env())
                return
        self.started += 1
        assert self.feed(event)
        if running is None and not queue:
            assert self.state.execution is not None
            return
        assert event.execution_id in [item.execution_id for item in self.state.queue]
        if on_busy is BusyRule.INTERRUPT and running is not None:
            row = self.store.executions[running.row.execution_id]
            assert row.status is ExecutionStatus.CANCELLED or row.cancel_requested_at is not None
        elif running is not None:
            assert self.store.executions[running.row.execution_id] == running.row, (
                "it waits and changes nothing"
            )
        assert not self.feed(event), "the same request again waits once"

    @precondition(lambda self: self.state.execution is None and self.state.queue)
    @rule(prepared=st.booleans())
    def the_next_one_begins(self, prepared: bool) -> None:
        first = min(self.store.queue.values(), key=lambda item: (not item.interrupts, item.position))
        for other in self.state.queue[1:]:
            assert not self.feed(self.question(other.execution_id, prepared=prepared, from_queue=True))
        assert self.feed(self.question(first.execution_id, prepared=prepared, from_queue=True))
        assert self.store.executions[first.execution_id].input == first.input

    @precondition(lambda self: self.state.queue)
    @rule(data=st.data())
    def a_request_is_withdrawn(self, data: st.DataObject) -> None:
        waiting = data.draw(st.sampled_from(self.state.queue))
        running, view = self.state.execution, self.state.conversation
        assert self.feed(Cancel(waiting.execution_id))
        assert self.store.executions[waiting.execution_id].status is ExecutionStatus.CANCELLED
        assert (self.state.execution, self.state.conversation) == (running, view)

    @rule(kind=st.sampled_from([kind for kind in EditKind if kind is not EditKind.CLOSE]))
    def edit(self, kind: EditKind) -> None:
        knowledge = {"content": "It rains."} if kind is EditKind.ADD_KNOWLEDGE else None
        if self.state.execution is not None or self.state.queue:
            with pytest.raises(AgentBusyError):
                step(self.state, Edit(kind, knowledge), self.env())
            return
        self.feed(Edit(kind, knowledge))
        view = self.state.conversation
        if kind in (EditKind.CLEAR_TRANSCRIPT, EditKind.RESET_CONTEXT):
            assert view.exchanges == ()
        if kind in (EditKind.CLEAR_KNOWLEDGE, EditKind.RESET_CONTEXT):
            assert view.knowledge == ()
        if kind is EditKind.ADD_KNOWLEDGE:
            assert view.knowledge[-1] == "It rains."

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
        asking = self.state.execution
        if asking is None or asking.row.execution_id != effect.execution_id:
            assert not self.feed(event), "it was cancelled meanwhile"
            return
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
    @rule(outcome=st.sampled_from(Resolution), data=st.data())
    def resolve(self, outcome: Resolution, data: st.DataObject) -> None:
        assert self.state.execution is not None
        call_id = data.draw(st.sampled_from(self.unresolved()))
        event = Resolve(
            self.state.execution.row.execution_id,
            call_id,
            outcome,
            result=1 if outcome is Resolution.SUCCEEDED else None,
            result_text="1",
            error="it broke" if outcome is Resolution.FAILED else "",
        )
        with pytest.raises(InvalidInputError, match="takes no"):
            self.feed(replace(event, result=1, error="and yet"))
        with pytest.raises(StateConflictError):
            self.feed(replace(event, expected_revision=self.state.execution.row.revision - 1))
        if outcome is Resolution.NOT_PERFORMED:
            self.not_performed[call_id] += 1
        assert self.feed(event)

    @precondition(lambda self: self.state.execution is not None)
    @rule()
    def resolve_what_is_not_open(self) -> None:
        assert self.state.execution is not None
        with pytest.raises(NotFoundError):
            self.feed(Resolve(self.state.execution.row.execution_id, "tc_stranger", Resolution.NOT_PERFORMED))

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
    def a_model_call_stops(self) -> None:
        """By itself it cannot; when its execution was interrupted, that is the end of it."""
        call_id = min(self.work.model_calls)
        running = self.state.execution
        pending = running.model_call if running is not None else None
        was_asked = running is not None and running.row.cancel_requested_at is not None
        ends = was_asked and pending is not None and pending.model_call_id == call_id
        assert self.feed(ModelStopped(call_id)) is ends
        if ends:
            self.work.model_calls.discard(call_id)

    @rule(wished=st.booleans())
    def crash(self, wished: bool = False) -> None:
        """The next owner takes over; perhaps it finds that somebody wishes the execution to end."""
        self.zombies |= self.work.bodies
        self.work = Work()
        self.state = AgentState.hydrate(*self.store.claim())
        running = self.state.execution
        self.feed(Recover(cancel_reason="wished" if wished else None))
        if wished and running is not None:
            row = self.store.executions[running.row.execution_id]
            assert row.cancel_requested_at is not None
            assert row.status is ExecutionStatus.CANCELLED or self.work.bodies <= self.zombies

    @precondition(lambda self: self.state.execution is not None)
    @rule(number=st.integers(0, 5), runs=st.booleans())
    def detach(self, number: int, runs: bool) -> None:
        running = self.state.execution
        assert running is not None
        waiting = [item.approval_request_id for item in pending_approvals(running)]
        request = [*waiting, "ap_wrong"][number % (len(waiting) + 1)]
        event = Detach(running.row.execution_id, request, f"d{number}", runs=runs)
        may_go = request in waiting and running.row.status is ExecutionStatus.SUSPENDED and not runs
        known = running.progress.detached
        if known is not None and known.detach_id == event.detach_id:
            assert step(self.state, event, self.env()).commit is None, "it is repeated"
            return
        if not may_go:
            with pytest.raises(AgentBusyError):
                step(self.state, event, self.env())
            return
        assert self.feed(event)
        row = self.store.executions[running.row.execution_id]
        wait = detached_wait(row, event.detach_id)
        assert wait is not None
        assert (wait.approval_request_id, wait.execution_revision) == (request, row.revision)
        self.crash()
        after = self.state.execution
        if after is not None:  # nothing of it had expired meanwhile
            assert set(waiting) >= {item.approval_request_id for item in pending_approvals(after)}


#: One example is some 40 ms; ``HYPOTHESIS_PROFILE=thorough`` asks for more of them.
EXAMPLES = 60 if settings.default.max_examples <= 100 else settings.default.max_examples


def test_a_replayable_call_that_takes_its_owner_with_it_every_time_fails_in_the_end() -> None:
    """The model is told, before the starts without progress would have the agent parked."""
    machine = KernelMachine()
    machine.begin(strict=False, hooks=False, filters=False)
    machine.start(prepared=True)
    wanted = (ToolCallRequest("c0", "look", '{"x": 1}'),)
    answer = ModelAnswer(Message.assistant(None, wanted), FinishReason.STOP, Usage(1, 1))
    machine.feed(ModelAnswered("ex1:m1", answer))
    for _ in range(MAX_OWNER_LOSSES - 1):
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
