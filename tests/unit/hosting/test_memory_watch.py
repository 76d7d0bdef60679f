"""Whose bodies ran while a process grew."""

from __future__ import annotations

from phronomy_ray.hosting import memory_watch
from phronomy_ray.hosting.memory_watch import MAX_NAMED, MemoryWatch, resident_bytes

MIB = 2**20


def test_who_was_busy_while_it_grew_is_named_the_busiest_first() -> None:
    watch = MemoryWatch(growth_bytes=100 * MIB)
    assert watch.look(500 * MIB) is None
    for agent_id in ("a", "b", "b"):
        watch.began(agent_id)
    assert watch.look(599 * MIB) is None
    found = watch.look(600 * MIB)
    assert found is not None
    assert (found.grown_bytes, found.suspects) == (100 * MIB, (("b", 2), ("a", 1)))
    assert watch.look(650 * MIB) is None, "said once"
    watch.began("c")
    again = watch.look(700 * MIB)
    assert again is not None
    assert again.to_wire() == {
        "resident_bytes": 700 * MIB,
        "grown_bytes": 100 * MIB,
        "suspects": [{"agent_id": "c", "bodies": 1}],
    }


def test_memory_that_was_given_back_does_not_count() -> None:
    watch = MemoryWatch(growth_bytes=100 * MIB)
    watch.look(500 * MIB)
    watch.look(300 * MIB)
    assert watch.look(390 * MIB) is None
    assert watch.look(400 * MIB) is not None


def test_few_are_named_and_nobody_where_nobody_knows() -> None:
    watch = MemoryWatch(growth_bytes=1)
    watch.look(0)
    for number in range(3 * MAX_NAMED):
        watch.began(f"a{number}")
    found = watch.look(1)
    assert found is not None
    assert len(found.suspects) == MAX_NAMED
    assert watch.look(None) is None


def test_this_process_has_a_size() -> None:
    before = resident_bytes()
    assert before is None or before > MIB
    assert memory_watch.GROWTH_BYTES >= MIB
