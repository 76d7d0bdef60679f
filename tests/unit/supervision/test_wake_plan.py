"""Whom a supervisor wakes, how fast, and whom it gives up: the pure plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.open_work import OpenWork, SupervisorBeat, WorkKind
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.supervision.plan import Failure, WakePlan
from phronomy_ray.supervision.signs import Answer, Presence

START = datetime(2026, 1, 1, tzinfo=UTC)
ABSENT, SILENT = Answer(Presence.ABSENT), Answer(Presence.SILENT)
LIMITS = SupervisionLimits(
    max_wakes=4, wakes_per_s=2.0, first_retry_s=1.0, max_retry_s=8.0, foreign_after_s=10.0
)


def work(number: int, *, age_s: float | None = None, cluster: str = "east", **changes: object) -> OpenWork:
    since = START - timedelta(seconds=number if age_s is None else age_s)
    name = f"a{number}"
    made = OpenWork(WorkKind.RUNNING, name, since, f"ex{number}", 1, 1, cluster, f"agent:{name}")
    return replace(made, **changes)  # type: ignore[arg-type]


def serving(*works: OpenWork) -> Answer:
    return Answer(Presence.ANSWERS, {item.agent_id: item.epoch for item in works})


def absent(*works: OpenWork) -> dict[str, Answer]:
    return {item.process: ABSENT for item in works}


def planned(plan: WakePlan, works: list[OpenWork], answers: dict[str, Answer], now_s: float) -> list[str]:
    """One round: what was asked must be what is answered."""
    asked = plan.questions(works, (), now_s)
    plan.look(works, {name: answers[name] for name in asked}, now_s)
    return [item.agent_id for item in plan.next_wakes(now_s)]


def test_the_oldest_work_comes_first_and_no_more_than_may_be_under_way() -> None:
    plan = WakePlan("east", LIMITS)
    works = [work(number) for number in range(10)]
    assert planned(plan, works, absent(*works), 0.0) == ["a9", "a8", "a7", "a6"]
    assert plan.next_wakes(100.0) == [], "four are under way"
    plan.woken("a8", 100.0)
    assert [item.agent_id for item in plan.next_wakes(100.0)] == ["a5"]


def test_a_thousand_interrupted_executions_are_no_storm() -> None:
    plan = WakePlan("east", LIMITS)
    works = [work(number, cluster="") for number in range(1_000)]
    woken: list[str] = []
    now_s = 0.0
    while len(woken) < 1_000:
        left = works[: 1_000 - len(woken)]
        for name in planned(plan, left, absent(*left), now_s):
            woken.append(name)
            plan.woken(name, now_s)
        now_s += 0.5
        assert now_s < 1_000
    assert woken == [f"a{number}" for number in reversed(range(1_000))]
    assert now_s == pytest.approx((1_000 - LIMITS.max_wakes) / LIMITS.wakes_per_s, abs=2.0)


def test_who_serves_its_agent_is_left_alone() -> None:
    plan = WakePlan("east", LIMITS)
    served, stale, other = work(1), work(2, epoch=7), work(3, process="host:0")
    answers = {
        "agent:a1": serving(served),
        "agent:a2": serving(replace(stale, epoch=6)),
        "host:0": Answer(Presence.ANSWERS, {"somebody": 1}),
    }
    assert planned(plan, [served, stale, other], answers, 0.0) == ["a3", "a2"]


def test_a_wish_is_told_to_an_owner_that_is_at_work() -> None:
    plan = WakePlan("east", LIMITS)
    running = work(1, age_s=50.0)
    wish = replace(running, kind=WorkKind.WISHED, since=START, key="ex1")
    answers = {running.process: serving(running)}
    assert planned(plan, [running], answers, 0.0) == []
    assert planned(plan, [running, wish], answers, 1.0) == ["a1"]


def test_one_question_is_enough_for_all_agents_of_a_host_and_none_for_those_that_move() -> None:
    plan = WakePlan("east", LIMITS)
    works = [work(number, process="host:0") for number in range(5)] + [work(9)]
    assert plan.questions(works, (), 0.0) == {"host:0", "agent:a9"}
    plan.look(works, {"host:0": serving(*works), "agent:a9": serving(works[-1])}, 0.0)
    moved = [replace(item, revision=2) for item in works]
    assert plan.questions(moved, (), 2.0) == frozenset()
    assert plan.look(moved, {}, 2.0) == []
    assert plan.next_wakes(2.0) == []
    assert plan.questions(moved, (), 4.0) == {"host:0", "agent:a9"}


def test_of_many_processes_each_is_asked_in_turn() -> None:
    plan = WakePlan("east", replace(LIMITS, questions_per_round=4))
    works = [work(number) for number in range(10)]
    everybody = {item.process for item in works}
    rounds = []
    for now_s in range(5):
        asked = plan.questions(works, (), float(now_s))
        by_process = {item.process: item for item in works}
        plan.look(works, {name: serving(by_process[name]) for name in asked}, float(now_s))
        assert plan.next_wakes(float(now_s)) == []
        rounds.append(asked)
    assert [len(asked) for asked in rounds] == [4] * 5
    assert rounds[0] | rounds[1] | rounds[2] == everybody
    assert rounds[2] | rounds[3] | rounds[4] == everybody


def test_a_wake_that_changes_nothing_is_tried_again_ever_later_and_holds_up_nobody() -> None:
    plan = WakePlan("east", replace(LIMITS, wakes_per_s=1_000.0))
    bad, good = work(2), work(1)
    times: list[float] = []
    now_s = 0.0
    while len(times) < 7:
        for name in planned(plan, [bad, good], absent(bad, good), now_s):
            if name == "a2":
                times.append(now_s)
                plan.failed(name, Failure("broken", "it is"), now_s)
            else:
                plan.woken(name, now_s)
        now_s += 0.25
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    [told] = plan.to_wire(now_s)["failing"]
    assert (told["agent_id"], told["code"], told["parked"], told["tries"]) == ("a2", "broken", "", 7)


def test_what_cannot_be_served_says_why_and_is_not_tried_in_a_loop() -> None:
    plan = WakePlan("east", LIMITS)
    one = work(1)
    assert planned(plan, [one], absent(one), 0.0) == ["a1"]
    plan.failed("a1", Failure("definition_changed", "stored as v1", is_blocked=True), 0.0)
    for now_s in (1.0, 4.0, 7.5):
        assert planned(plan, [one], absent(one), now_s) == []
    assert plan.to_wire(7.5)["failing"][0]["parked"] == "definition_changed"
    plan.unblock()
    assert planned(plan, [one], absent(one), 7.6) == ["a1"], "a new driver may bring the class"
    assert planned(plan, [], {}, 8.0) == []
    plan.woken("a1", 8.0)
    assert planned(plan, [], {}, 10.0) == []
    assert plan.to_wire(10.0)["failing"] == []


def test_a_silent_process_counts_as_hung_after_its_time_and_some_questions() -> None:
    plan = WakePlan("east", LIMITS)
    one = work(1)
    hung: list[float] = []
    for now_s in range(0, 40, 5):
        plan.questions([one], (), float(now_s))
        if plan.look([one], {"agent:a1": SILENT}, float(now_s)):
            hung.append(now_s)
        assert plan.next_wakes(float(now_s)) == [], "while it may live nobody takes its place"
    assert hung == [30, 35]
    plan.ended("agent:a1")
    assert planned(plan, [one], absent(one), 40.0) == ["a1"]


@pytest.mark.parametrize("sign", ["answer", "commit"])
def test_one_sign_of_life_is_enough(sign: str) -> None:
    plan = WakePlan("east", LIMITS)
    one = work(1)
    for now_s in range(0, 55, 5):
        if now_s == 25 and sign == "commit":
            one = replace(one, revision=2)
        asked = plan.questions([one], (), float(now_s))
        answer = serving(one) if now_s == 25 and sign == "answer" else SILENT
        assert plan.look([one], dict.fromkeys(asked, answer), float(now_s)) == []


def test_a_supervisor_that_was_away_itself_accuses_nobody() -> None:
    plan = WakePlan("east", LIMITS)
    one = work(1)
    for now_s in (0.0, 5.0, 600.0, 605.0, 610.0):
        plan.questions([one], (), now_s)
        assert plan.look([one], {"agent:a1": SILENT}, now_s) == []


def test_agents_of_another_cluster_are_left_alone_while_its_supervisor_beats() -> None:
    plan = WakePlan("east", LIMITS)
    one = work(1, cluster="west")
    for now_s in range(0, 60, 2):
        beats = [SupervisorBeat("west", now_s), SupervisorBeat("east", now_s)]
        assert plan.questions([one], beats, float(now_s)) == frozenset(), "it cannot be asked from here"
        plan.look([one], {}, float(now_s))
        assert plan.next_wakes(float(now_s)) == []
    assert plan.to_wire(58.0)["watched_elsewhere"] == 1
    last = [SupervisorBeat("west", 58), SupervisorBeat("east", 1)]
    for now in (60.0, 64.0, 66.0):
        plan.questions([one], last, now)
        plan.look([one], {}, now)
        assert plan.next_wakes(now) == []
    plan.questions([one], last, 68.5)
    plan.look([one], {}, 68.5)
    assert [item.agent_id for item in plan.next_wakes(68.5)] == ["a1"]
    assert plan.lost_clusters(68.5) == {"west": 58}


def test_a_cluster_without_a_row_is_given_the_same_time() -> None:
    plan = WakePlan("east", LIMITS)
    one = work(1, cluster="west")
    for now_s in (0.0, 9.0):
        plan.questions([one], (), now_s)
        plan.look([one], {}, now_s)
        assert plan.next_wakes(now_s) == []
    plan.questions([one], (), 10.0)
    plan.look([one], {}, 10.0)
    assert len(plan.next_wakes(10.0)) == 1


def test_a_cluster_that_says_that_it_leaves_is_not_waited_for() -> None:
    plan = WakePlan("east", LIMITS)
    one = work(1, cluster="west")
    beats = [SupervisorBeat("west", 7, {"left": True})]
    plan.questions([one], beats, 0.0)
    plan.look([one], {}, 0.0)
    assert len(plan.next_wakes(0.0)) == 1


def test_how_long_there_is_nothing_to_do() -> None:
    plan = WakePlan("east", LIMITS)
    assert plan.pause_s(0.0) is None
    works = [work(number) for number in range(6)]
    names = planned(plan, works, absent(*works), 0.0)
    assert plan.pause_s(0.0) is None, "as many as may be are under way"
    plan.woken(names[0], 0.0)
    assert plan.pause_s(0.0) == pytest.approx(0.5), "the next one is due by the pace"


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), True, "2", None])
def test_limits_are_positive_numbers(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="look_every_s"):
        SupervisionLimits(look_every_s=wrong)  # type: ignore[arg-type]


def test_what_is_counted_is_whole() -> None:
    with pytest.raises(ConfigurationError, match="max_wakes must be a whole number"):
        SupervisionLimits(max_wakes=0.5)  # type: ignore[arg-type]


def test_a_retention_is_a_policy() -> None:
    with pytest.raises(ConfigurationError, match="retention"):
        SupervisionLimits(retention=30)  # type: ignore[arg-type]


AGENTS = 6
STATES = st.lists(
    st.sampled_from(["serves", "absent", "silent", "moves", "idle"]), min_size=AGENTS, max_size=AGENTS
)


@settings(max_examples=300)
@given(
    rounds=st.lists(
        st.tuples(st.floats(0.1, 12.0), STATES, st.lists(st.booleans(), min_size=AGENTS, max_size=AGENTS)),
        min_size=1,
        max_size=25,
    )
)
def test_laws_of_every_history(rounds: list[tuple[float, list[str], list[bool]]]) -> None:
    """Whatever happens: the pace is kept, nobody is woken beside a living owner, and no process is given up too early."""
    plan = WakePlan("east", LIMITS)
    revisions = [1] * AGENTS
    begun: list[float] = []
    under_way: set[str] = set()
    unanswered: dict[str, list[float]] = defaultdict(list)
    now_s = 0.0
    for pause_s, states, outcomes in rounds:
        now_s += pause_s
        works = []
        for number, state in enumerate(states):
            revisions[number] += state == "moves"
            if state != "idle":
                works.append(work(number, revision=revisions[number]))
        asked = plan.questions(works, (), now_s)
        state_of = {f"agent:a{number}": state for number, state in enumerate(states)}
        by_process = {item.process: item for item in works}
        kinds = {"absent": ABSENT, "silent": SILENT}
        answers = {name: kinds.get(state_of[name]) or serving(by_process[name]) for name in asked}
        for name, state in state_of.items():
            if state in ("moves", "idle") or (name in answers and state != "silent"):
                unanswered[name] = []
            elif name in answers:
                unanswered[name].append(now_s)
        for name in plan.look(works, answers, now_s):
            times = unanswered[name]
            assert len(times) >= LIMITS.hung_after_questions
            assert times[-1] - times[0] >= LIMITS.hung_after_s
        chosen = plan.next_wakes(now_s)
        for item in chosen:
            assert answers[item.process] is ABSENT
            assert item.agent_id not in under_way
            under_way.add(item.agent_id)
            begun.append(now_s)
        assert [item.since for item in chosen] == sorted(item.since for item in chosen)
        assert len(under_way) <= LIMITS.max_wakes
        for first, at_s in enumerate(begun):
            assert len(begun) - first <= LIMITS.max_wakes + (now_s - at_s) * LIMITS.wakes_per_s + 1e-6
        for number, is_over in enumerate(outcomes):
            name = f"a{number}"
            if is_over and name in under_way:
                under_way.discard(name)
                if number % 2:
                    plan.woken(name, now_s)
                else:
                    plan.failed(name, Failure("x", "y"), now_s)


@settings(max_examples=60)
@given(
    ages=st.lists(st.floats(0, 1_000), min_size=1, max_size=40),
    failing=st.sets(st.integers(0, 39)),
    step_s=st.floats(0.2, 3.0),
)
def test_everybody_who_can_be_woken_is(ages: list[float], failing: set[int], step_s: float) -> None:
    """Those whose wakes fail for ever, the oldest among them, keep nobody else from being woken."""
    plan = WakePlan("east", LIMITS)
    works = {f"a{number}": work(number, age_s=age_s) for number, age_s in enumerate(ages)}
    wanted = {name for name in works if int(name[1:]) not in failing}
    now_s = 0.0
    while wanted:
        for name in planned(plan, list(works.values()), absent(*works.values()), now_s):
            if int(name[1:]) in failing:
                plan.failed(name, Failure("x", "y"), now_s)
            else:
                plan.woken(name, now_s)
                wanted.discard(name)
                del works[name]
        now_s += step_s
        assert now_s < 3_000, f"never woken: {wanted}"
