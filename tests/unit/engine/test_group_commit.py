"""Group commit: who travels with whom, and that nobody is told too early."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from phronomy_ray.commits import Commit
from phronomy_ray.engine.group_commit import GroupCommitter
from phronomy_ray.errors import OwnershipLostError, PhronomyError, StoreUnavailableError
from phronomy_ray.journal import Lifecycle


def commit(agent_id: str, number: int = 1) -> Commit:
    return Commit(
        commit_id=f"{agent_id}:1:{number}",
        step="step",
        agent_id=agent_id,
        epoch=1,
        expected_revision=number - 1,
        expected_position=0,
        now=datetime(2026, 1, 1, tzinfo=UTC),
        lifecycle=Lifecycle.IDLE,
        context_revision=0,
        transcript_generation=0,
    )


class Disk:
    """Executes groups when it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.outcomes: dict[str, PhronomyError] = {}
        self.failure: Exception | None = None
        self._begun = asyncio.Semaphore(0)
        self._flushed = asyncio.Semaphore(0)

    async def execute(self, commits: Sequence[Commit]) -> list[PhronomyError | None]:
        self.groups.append([commit.commit_id for commit in commits])
        self._begun.release()
        await self._flushed.acquire()
        if self.failure is not None:
            raise self.failure
        return [self.outcomes.get(commit.commit_id) for commit in commits]

    async def begun(self) -> None:
        await asyncio.wait_for(self._begun.acquire(), 10)

    def flush(self) -> None:
        self._flushed.release()


async def test_what_arrives_while_a_group_is_written_is_the_next_group() -> None:
    disk = Disk()
    committer = GroupCommitter(disk.execute)
    first = asyncio.create_task(committer.commit(commit("a")))
    await disk.begun()
    others = [asyncio.create_task(committer.commit(commit(name))) for name in "bcd"]
    await asyncio.sleep(0)
    assert not first.done()
    disk.flush()
    await asyncio.wait_for(first, 10)
    await disk.begun()
    assert not any(task.done() for task in others), "told before it was durable"
    disk.flush()
    await asyncio.wait_for(asyncio.gather(*others), 10)
    assert disk.groups == [["a:1:1"], ["b:1:1", "c:1:1", "d:1:1"]]
    assert (committer.groups, committer.commits) == (2, 4)
    last = asyncio.create_task(committer.commit(commit("a", 2)))
    await disk.begun()
    disk.flush()
    await asyncio.wait_for(last, 10)


async def test_a_group_has_a_limit_and_keeps_the_order() -> None:
    disk = Disk()
    committer = GroupCommitter(disk.execute, most_commits=2)
    tasks = [asyncio.create_task(committer.commit(commit(name))) for name in "abcde"]
    for _ in range(3):
        disk.flush()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert disk.groups == [["a:1:1", "b:1:1"], ["c:1:1", "d:1:1"], ["e:1:1"]]


async def test_two_commits_of_one_agent_are_never_in_one_group() -> None:
    disk = Disk()
    committer = GroupCommitter(disk.execute)
    wanted = [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("c", 1)]
    tasks = [asyncio.create_task(committer.commit(commit(*item))) for item in wanted]
    for _ in range(3):
        disk.flush()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert disk.groups == [["a:1:1", "b:1:1", "c:1:1"], ["a:1:2"], ["a:1:3"]]


async def test_each_caller_gets_the_outcome_of_its_own_commit() -> None:
    disk = Disk()
    committer = GroupCommitter(disk.execute)
    disk.outcomes["b:1:1"] = OwnershipLostError("gone")
    tasks = [asyncio.create_task(committer.commit(commit(name))) for name in "abc"]
    disk.flush()
    found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert found == [None, disk.outcomes["b:1:1"], None]


async def test_a_failure_of_the_whole_is_everybodys_and_the_next_group_goes_on() -> None:
    disk = Disk()
    committer = GroupCommitter(disk.execute)
    disk.failure = StoreUnavailableError("away")
    tasks = [asyncio.create_task(committer.commit(commit(name))) for name in "ab"]
    disk.flush()
    found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert found == [disk.failure, disk.failure]
    disk.failure = None
    disk.flush()
    await asyncio.wait_for(committer.commit(commit("a")), 10)


async def test_a_caller_that_is_cancelled_takes_nobody_along() -> None:
    disk = Disk()
    committer = GroupCommitter(disk.execute)
    tasks = [asyncio.create_task(committer.commit(commit(name))) for name in "ab"]
    await disk.begun()
    waiting = asyncio.create_task(committer.commit(commit("c")))
    await asyncio.sleep(0)
    tasks[0].cancel()
    waiting.cancel()
    disk.flush()
    await asyncio.wait_for(tasks[1], 10)
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    disk.flush()
    disk.flush()
    await asyncio.wait_for(committer.commit(commit("d")), 10)
    assert disk.groups[0] == ["a:1:1", "b:1:1"]
    assert [name for group in disk.groups[1:] for name in group] == ["c:1:1", "d:1:1"]
