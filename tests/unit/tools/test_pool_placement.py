"""Who shares a worker process with whom."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from phronomy_ray.tools.pool_placement import Lane, Placeable, Placement, Placer, WorkerView

NUMBERS = itertools.count()


def calls(lane: Lane, count: int, *, execution: str = "ex", environment: str = "") -> list[Placeable]:
    return [
        Placeable((f"{lane}-{execution}-{number}", 1), execution, environment, lane)
        for number in range(count)
    ]


def worker(
    name: str, *, ready: bool = True, environment: str = "", draining: bool = False, **live: int
) -> WorkerView:
    return WorkerView(
        name, environment, "n1", ready, draining, {Lane(lane): count for lane, count in live.items()}
    )


def place(
    wanted: list[Placeable], workers: list[WorkerView], *, bound: int = 4, nodes: tuple[str, ...] = ("n1",)
) -> Placement:
    return Placer(
        workers, max_workers=bound, nodes=nodes, new_ids=(f"new-{number}" for number in itertools.count())
    ).place(wanted)


def test_replayable_calls_of_an_execution_share_one_warm_worker() -> None:
    wanted = calls(Lane.REPLAYABLE, 63)
    found = place(wanted, [worker("w1"), worker("w2")])
    assert found.assigned == {"w1": [call.key for call in wanted]}
    assert found.started == []


def test_many_replayable_calls_are_divided() -> None:
    ready = [worker(f"w{number}") for number in range(6)]
    found = place(calls(Lane.REPLAYABLE, 256), ready)
    assert [len(keys) for keys in found.assigned.values()] == [128, 128], "two processes of the node"
    found = place(calls(Lane.REPLAYABLE, 96), ready, nodes=("n1", "n2"))
    assert sorted(len(keys) for keys in found.assigned.values()) == [32, 32, 32]
    found = place(calls(Lane.REPLAYABLE, 256), ready, nodes=("n1", "n2"))
    assert [len(keys) for keys in found.assigned.values()] == [64] * 4


def test_a_part_for_which_no_process_is_up_does_not_wait_for_one() -> None:
    found = place(calls(Lane.REPLAYABLE, 64), [worker("w1")])
    assert [len(keys) for keys in found.assigned.values()] == [64]
    assert len(found.started) == 1, "the next batch finds two"


def test_each_call_that_must_not_run_twice_has_its_own_process_up_to_the_bound() -> None:
    found = place(calls(Lane.NEVER, 3), [worker("w1")])
    assert [len(keys) for keys in found.assigned.values()] == [1, 1, 1]
    assert len(found.started) == 2


def test_at_the_bound_such_calls_share_and_leave_one_process_to_the_others() -> None:
    found = place([*calls(Lane.NEVER, 16), *calls(Lane.REPLAYABLE, 16)], [])
    kinds = [{key[0].split("-")[0] for key in keys} for keys in found.assigned.values()]
    assert all(len(kind) == 1 for kind in kinds)
    assert kinds.count({"never"}) == 3
    assert kinds.count({"replayable"}) == 1


def test_a_suspect_goes_alone_and_never_to_calls_that_must_not_run_twice() -> None:
    found = place(calls(Lane.SUSPECT, 1), [worker("w1"), worker("w2", never=1)], bound=3)
    assert found.assigned.keys() == {"w1"}
    busy = [worker("w1", never=1), worker("w2", never=1), worker("w3", replayable=5)]
    assert place(calls(Lane.SUSPECT, 1), busy, bound=3).assigned.keys() == {"w3"}


def test_replayable_calls_do_not_wait_for_a_process_while_one_can_take_them() -> None:
    found = place(calls(Lane.REPLAYABLE, 2), [worker("w1", replayable=7)])
    assert found.assigned.keys() == {"w1"}
    assert len(found.started) == 1, "the next agent finds one of its own"
    again = place(calls(Lane.REPLAYABLE, 2), [worker("w1", replayable=7), worker("w2", ready=False)])
    assert again.assigned.keys() == {"w1"}
    assert again.started == []


def test_a_worker_with_a_given_up_body_takes_nothing() -> None:
    found = place(calls(Lane.REPLAYABLE, 2), [worker("w1", draining=True)], bound=2)
    assert "w1" not in found.assigned
    held = place(calls(Lane.REPLAYABLE, 2), [worker("w1", draining=True)], bound=1)
    assert len(held.held) == 2
    assert held.started == []


def test_environments_never_share_a_process() -> None:
    found = place(calls(Lane.REPLAYABLE, 1, environment="b"), [worker("w1", environment="a")], bound=1)
    assert found.ended == ["w1"]
    assert [environment for _, environment in found.started] == ["b"]
    busy = place(
        calls(Lane.REPLAYABLE, 1, environment="b"), [worker("w1", environment="a", never=1)], bound=1
    )
    assert busy.ended == []
    assert len(busy.started) == 1, "it would wait for ever behind the other one"


@settings(max_examples=300, deadline=None)
@given(
    wanted=st.lists(
        st.tuples(st.sampled_from(Lane), st.sampled_from(["e1", "e2"]), st.sampled_from(["", "b"])),
        max_size=40,
    ),
    workers=st.lists(
        st.tuples(
            st.booleans(),
            st.booleans(),
            st.sampled_from(["", "b"]),
            st.dictionaries(st.sampled_from(Lane), st.integers(1, 3)),
        ),
        max_size=5,
    ),
    bound=st.integers(1, 6),
)
def test_every_call_is_placed_once_within_the_bounds(
    wanted: list[tuple[Lane, str, str]],
    workers: list[tuple[bool, bool, str, dict[Lane, int]]],
    bound: int,
) -> None:
    placeables = [
        Placeable((f"c{number}", 1), execution, environment, lane)
        for number, (lane, execution, environment) in enumerate(wanted)
    ]
    views = [
        WorkerView(f"w{number}", environment, "n1", ready, draining, dict(live))
        for number, (ready, draining, environment, live) in enumerate(workers)
    ]
    placer = Placer(
        views, max_workers=bound, nodes=["n1", "n2"], new_ids=(f"n{k}" for k in itertools.count())
    )
    found = placer.place(placeables)
    placed = [key for keys in found.assigned.values() for key in keys] + found.held
    assert sorted(placed) == sorted(call.key for call in placeables)
    assert len(placer.workers) <= max(bound, len(views)) + 2, "one for each environment beyond the bound"
    by_key = {call.key: call for call in placeables}
    for worker_id, keys in found.assigned.items():
        view = placer.workers[worker_id]
        assert not view.is_draining
        assert {by_key[key].environment for key in keys} == {view.environment}
        for execution in {by_key[key].execution_id for key in keys}:
            for lane in Lane:
                mine = [k for k in keys if (by_key[k].execution_id, by_key[k].lane) == (execution, lane)]
                assert mine == sorted(mine, key=lambda key: int(key[0][1:]))
    if found.held:
        held_environments = {by_key[key].environment for key in found.held}
        assert not any(
            view.environment in held_environments and not view.is_draining for view in placer.workers.values()
        ), "held although a worker could take it"
