"""Which process an agent belongs to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray.definition.placement import Dedicated, InProcess, Packed, Placement
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.hosting.assignment import agent_actor_name, candidates, host_name, host_names
from phronomy_ray.hosting.rendezvous import ranked
from phronomy_ray.whereabouts import Whereabouts

NAMES = [host_name(number) for number in range(8)]
NOWHERE = Whereabouts()


@given(st.text(max_size=30), st.sets(st.sampled_from(NAMES), min_size=1))
def test_a_lost_name_moves_only_its_own_ids(key: str, names: set[str]) -> None:
    order = ranked(key, names)
    assert set(order) == names
    assert len(order) == len(names)
    without = names - {order[0]}
    assert ranked(key, without) == order[1:], "the others keep their order"
    for name in order[1:]:
        assert ranked(key, names - {name})[0] == order[0]


def test_ids_are_spread() -> None:
    counts = Counter(ranked(f"agent-{number}", NAMES)[0] for number in range(4_000))
    assert set(counts) == set(NAMES)
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_the_order_is_the_same_in_every_process() -> None:
    """What drivers of different releases agree on: a change of this order is a change of where agents live."""
    assert ranked("alice", NAMES[:4]) == ["host:2", "host:1", "host:3", "host:0"]


@pytest.mark.parametrize(
    ("where", "own", "default", "expected"),
    [
        (NOWHERE, None, Dedicated(), ["agent:alice"]),
        (NOWHERE, Dedicated(), Packed(hosts=2), ["agent:alice"]),
        (NOWHERE, None, Packed(hosts=2), ranked("alice", host_names(Packed(hosts=2)))),
        (NOWHERE, Packed(hosts=1), Dedicated(), ["host:0"]),
        (Whereabouts(pin="dedicated"), Packed(), Packed(), ["agent:alice"]),
        (Whereabouts(pin="host:7"), Dedicated(), Packed(hosts=2), ["host:7"]),
        (Whereabouts(last="host:9"), None, Packed(hosts=1), ["host:0"]),
        (Whereabouts(last="agent:alice"), None, Packed(hosts=1), ["host:0"]),
        (Whereabouts(last="host:0"), None, Dedicated(), ["agent:alice"]),
    ],
)
def test_a_pin_counts_most_then_the_class_then_the_runtime(
    where: Whereabouts, own: Placement | None, default: Placement, expected: list[str]
) -> None:
    assert candidates("alice", where, own, default) == expected


@pytest.mark.parametrize("last", range(4))
def test_the_host_where_it_lived_comes_first(last: int) -> None:
    names = candidates("alice", Whereabouts(last=host_name(last)), None, Packed(hosts=4))
    assert names[0] == host_name(last)
    assert names[1:] == [name for name in ranked("alice", NAMES[:4]) if name != host_name(last)]


def test_names() -> None:
    assert agent_actor_name("alice") == "agent:alice"
    assert host_names(Packed(hosts=2)) == ["host:0", "host:1"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Packed(hosts=0),
        lambda: Packed(hosts=True),
        lambda: Packed(hosts=1.5),  # type: ignore[arg-type]
        lambda: Packed(max_live_agents=0),
        lambda: InProcess(threads=0),
        lambda: InProcess(idle_unload_after_s=-1),
        lambda: Packed(suspended_unload_after_s=float("inf")),
    ],
)
def test_a_placement_that_cannot_be_used_is_refused(make: object) -> None:
    with pytest.raises(ConfigurationError, match="must be a"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("where", "default", "expected"),
    [
        (Whereabouts(last="host:3"), Dedicated(), ["host:3", "agent:alice"]),
        (Whereabouts(last="agent:alice"), Packed(hosts=1), ["agent:alice", "host:0"]),
        (Whereabouts(last="host:0"), Packed(hosts=1), ["host:0"]),
        (Whereabouts(last="host:3", pin="host:1"), Dedicated(), ["host:1"]),
        (Whereabouts(last="host:3", pin="dedicated"), Packed(), ["agent:alice"]),
        (Whereabouts(last="in-process"), Dedicated(), ["agent:alice"]),
        (NOWHERE, Packed(hosts=1), ["host:0"]),
    ],
)
def test_where_it_lived_counts_for_whoever_does_not_know_its_class(
    where: Whereabouts, default: Placement, expected: list[str]
) -> None:
    assert candidates("alice", where, None, default, knows_own=False) == expected
