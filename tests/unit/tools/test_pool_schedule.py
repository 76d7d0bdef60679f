"""Shares of a pool: the bounds hold, agents take turns, nothing is lost; checked against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from phronomy_ray.definition.pool_names import check_pool_name
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_config import PoolConfig, WhenFull
from phronomy_ray.tools.pool_schedule import CLAIM_S, Admission, Kind, PoolSchedule


def keys(agent: str, count: int, start: int = 0) -> list[CallKey]:
    return [(f"{agent}-{number}", 1) for number in range(start, start + count)]


def calls(agent: str, count: int, kind: Kind = Kind.THREAD, start: int = 0) -> list[tuple[CallKey, Kind]]:
    return [(key, kind) for key in keys(agent, count, start)]


def test_agents_take_turns_and_keep_their_order() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=5))
    schedule.submit("noisy", calls("noisy", 100), now=0)
    schedule.submit("quiet", calls("quiet", 2), now=0)
    assert [key[0] for key in schedule.grant(now=0)] == [
        "noisy-0",
        "quiet-0",
        "noisy-1",
        "quiet-1",
        "noisy-2",
    ]
    schedule.submit("late", calls("late", 1), now=0)
    schedule.release(("noisy-0", 1), now=0)
    schedule.release(("noisy-1", 1), now=0)
    assert [key[0] for key in schedule.grant(now=0)] == ["late-0", "noisy-3"], "who has less comes first"


def test_a_full_pool_takes_a_batch_whole_or_not_at_all() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=2, max_queued=3))
    assert schedule.submit("a", calls("a", 4), now=0) is Admission.ADMITTED
    assert len(schedule.grant(now=0)) == 2
    assert schedule.submit("b", calls("b", 2), now=0) is Admission.REJECTED
    assert "no room in pool 'p' (2 of 2 running, 2 of 3 queued); try again" in schedule.refusal(
        "p", 2, waited=False
    )
    assert "in time" in schedule.refusal("p", 2, waited=True)
    assert "6 calls never fits into pool 'p', which takes 5 (max_running=2" in schedule.refusal(
        "p", 6, waited=False
    )
    assert schedule.submit("b", calls("b", 1), now=0) is Admission.ADMITTED
    assert (schedule.running, schedule.queued) == (2, 3)
    schedule.release(("a-0", 1), now=0)
    assert schedule.grant(now=0) == keys("b", 1)


def test_a_waiting_batch_is_admitted_when_there_is_room_and_expires_otherwise() -> None:
    config = PoolConfig(max_running=1, max_queued=1, when_full=WhenFull.WAIT, queue_timeout_s=5)
    schedule = PoolSchedule(config)
    schedule.submit("a", calls("a", 2), now=0)
    schedule.grant(now=0)
    assert schedule.submit("b", calls("b", 1), now=1) is Admission.WAITING
    assert schedule.submit("c", calls("c", 1), now=2) is Admission.WAITING
    assert schedule.next_deadline() == 6
    schedule.release(("a-0", 1), now=0)
    assert schedule.grant(now=0) == [("a-1", 1)]
    assert schedule.expire(now=6) == []
    assert schedule.next_deadline() == 7
    assert schedule.expire(now=7) == keys("c", 1)
    schedule.release(("a-1", 1), now=0)
    assert schedule.grant(now=0) == keys("b", 1)


def test_a_batch_that_can_never_fit_is_refused_at_once_under_either_rule() -> None:
    for rule_ in WhenFull:
        schedule = PoolSchedule(PoolConfig(max_running=2, max_queued=2, when_full=rule_))
        assert schedule.submit("a", calls("a", 5), now=0) is Admission.REJECTED


def test_an_agent_has_no_more_than_its_own_bound() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=10, max_running_per_agent=2))
    schedule.submit("a", calls("a", 5), now=0)
    assert len(schedule.grant(now=0)) == 2
    assert schedule.grant(now=0) == []
    schedule.release(("a-1", 1), now=0)
    assert schedule.grant(now=0) == [("a-2", 1)]


def test_tasks_have_a_bound_of_their_own_and_block_no_threads() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=10), max_tasks=2)
    batch = [*calls("a", 4, Kind.TASK), *calls("a", 2, Kind.THREAD, start=4)]
    schedule.submit("a", batch, now=0)
    assert sorted(schedule.grant(now=0)) == [(f"a-{number}", 1) for number in (0, 1, 4, 5)]
    schedule.submit("b", calls("b", 1, Kind.TASK), now=0)
    schedule.release(("a-0", 1), now=0)
    assert schedule.grant(now=0) == [("a-2", 1)], "it was passed over for the bound, not for its turn"
    schedule.release(("a-1", 1), now=0)
    assert schedule.grant(now=0) == keys("b", 1)


def test_tasks_that_nothing_can_run_hold_up_no_others() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=10), max_tasks=2)
    schedule.submit("a", calls("a", 20, Kind.SCARCE), now=0)
    assert schedule.grant(now=0) == keys("a", 2)
    schedule.submit("b", [*calls("b", 1, Kind.TASK), *calls("b", 1, Kind.SCARCE, start=1)], now=0)
    assert schedule.grant(now=0) == keys("b", 1)
    schedule.release(("a-0", 1), now=0)
    schedule.release(("a-1", 1), now=0)
    assert sorted(schedule.grant(now=0)) == [("a-2", 1), ("b-1", 1)]


def test_a_pool_says_which_option_is_wrong() -> None:
    with pytest.raises(ConfigurationError, match="max_running"):
        PoolConfig(max_running=0)
    with pytest.raises(ConfigurationError, match="when_full"):
        PoolConfig(when_full="explode")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="queue_timeout_s"):
        PoolConfig(queue_timeout_s=float("nan"))
    with pytest.raises(ConfigurationError, match="pool name"):
        check_pool_name("no spaces")
    assert PoolConfig(when_full="wait").when_full is WhenFull.WAIT  # type: ignore[arg-type]


def test_agents_that_were_here_lately_keep_a_claim_that_is_lent_after_a_while() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=8, borrow_after_s=0.5))
    for agent in "abcd":
        schedule.submit(agent, calls(agent, 1), now=0)
    schedule.grant(now=0)
    for agent in "abcd":
        schedule.release((f"{agent}-0", 1), now=1)
    schedule.submit("a", calls("a", 20, start=1), now=1)
    assert schedule.grant(now=1) == keys("a", 2, 1), "the others may come back in a moment"
    schedule.submit("b", calls("b", 20, start=1), now=1.2)
    assert schedule.grant(now=1.2) == keys("b", 2, 1)
    assert schedule.grant(now=1.4) == []
    assert schedule.grant(now=1.5) == keys("a", 4, 3), "they have not"
    schedule.submit("c", calls("c", 20, start=1), now=1.6)
    for number in range(1, 4):
        schedule.release((f"a-{number}", 1), now=1.7)
    granted = schedule.grant(now=1.7)
    assert granted[:2] == keys("c", 2, 1), "who has less than its part comes before who has more"


def test_an_agent_that_has_the_pool_to_itself_waits_for_nothing() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=8))
    schedule.submit("gone", calls("gone", 1), now=0)
    schedule.grant(now=0)
    schedule.release(("gone-0", 1), now=0)
    schedule.submit("a", calls("a", 20), now=CLAIM_S)
    assert len(schedule.grant(now=CLAIM_S)) == 8


def test_what_nobody_claims_is_given_at_once() -> None:
    schedule = PoolSchedule(PoolConfig(max_running=5))
    for agent in "ab":
        schedule.submit(agent, calls(agent, 5), now=0)
    assert len(schedule.grant(now=0)) == 5


class Machine(RuleBasedStateMachine):
    """Any order of submissions, grants, ends, withdrawals and time."""

    BORROW_AFTER_S = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.config = PoolConfig(
            max_running=4,
            max_queued=6,
            max_running_per_agent=3,
            when_full=WhenFull.WAIT,
            queue_timeout_s=3,
            borrow_after_s=self.BORROW_AFTER_S,
        )
        self.schedule = PoolSchedule(self.config, max_tasks=2)
        self.now = 0.0
        self.made = 0
        self.line_of: dict[CallKey, tuple[str, Kind]] = {}
        self.open: list[CallKey] = []
        self.running: list[CallKey] = []

    @rule(agent=st.sampled_from("abc"), kinds=st.lists(st.sampled_from(Kind), min_size=1, max_size=12))
    def submit(self, agent: str, kinds: list[Kind]) -> None:
        count = len(kinds)
        made = keys(agent, count, self.made)
        self.made += count
        found = self.schedule.submit(agent, list(zip(made, kinds, strict=True)), now=self.now)
        assert (found is Admission.REJECTED) == (count > 10)
        if found is not Admission.REJECTED:
            self.open += made
            self.line_of |= {key: (agent, kind) for key, kind in zip(made, kinds, strict=True)}

    @rule()
    def grant(self) -> None:
        lines = [(agent, kind) for agent in "abc" for kind in Kind]
        before = {line: self.of(self.running, line) for line in lines}
        granted = self.schedule.grant(now=self.now)
        assert len(granted) == len(set(granted))
        for line in lines:
            mine = self.of(granted, line)
            assert mine == self.of(self.open, line)[: len(mine)], "order within an agent"
            assert len(mine) + len(before[line]) <= 3
        for key in granted:
            self.open.remove(key)
        self.running += granted
        waiting = (
            self.schedule.next_deadline() is not None
        )  # a batch that does not fit yet holds later ones back
        if len(self.running) < 4 and not waiting:
            for line in {self.line_of[key] for key in self.open}:
                full = line[1] is not Kind.THREAD and self.tasks(line[1]) == 2
                assert full or len(self.of(self.running, line)) >= self.least_of(line[1]), (
                    "a share is free while somebody may use it"
                )

    def least_of(self, kind: Kind) -> int:
        """What a line has at least while a share is free and it has more to do."""
        return 3

    def tasks(self, kind: Kind) -> int:
        return sum(self.line_of[key][1] is kind for key in self.running)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.running))
        self.running.remove(key)
        assert self.schedule.release(key, now=self.now)
        assert not self.schedule.release(key, now=self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.open + self.running), unique=True))
        taken = self.schedule.withdraw(chosen)
        assert sorted(taken) == sorted(key for key in chosen if key in self.open)
        self.open = [key for key in self.open if key not in taken]

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for key in self.schedule.expire(now=self.now):
            self.open.remove(key)
        deadline = self.schedule.next_deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def bounds_hold(self) -> None:
        assert self.schedule.running == len(self.running) <= self.config.max_running
        assert self.schedule.queued == len(self.open)
        assert self.schedule.agents == len({self.line_of[key][0] for key in self.open + self.running})
        assert self.tasks(Kind.TASK) <= 2
        assert self.tasks(Kind.SCARCE) <= 2

    def of(self, found: list[CallKey], line: tuple[str, Kind]) -> list[CallKey]:
        return [key for key in found if self.line_of[key] == line]

    def teardown(self) -> None:
        while self.open or self.running:
            for key in list(self.running):
                self.release_all(key)
            self.now += self.BORROW_AFTER_S
            self.grant()
            assert self.running or not self.open, "queued calls that nobody is given"

    def release_all(self, key: CallKey) -> None:
        self.running.remove(key)
        self.schedule.release(key, now=self.now)


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Lender(Machine):
    """The same, where a share that another agent claims is lent only after a while."""

    BORROW_AFTER_S = 1.0

    def least_of(self, kind: Kind) -> int:
        """With three agents and four shares each has a claim to one; a task is never held back for others."""
        return 1 if kind is Kind.THREAD else 3


TestAnyOrderWithLending = Lender.TestCase
TestAnyOrderWithLending.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
